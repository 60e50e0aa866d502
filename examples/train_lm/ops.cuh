// The model's operations other than its GEMMs, written once for the CPU and the GPU (common/rows.cuh says how).
//
// Activations and gradients are bf16, matrices are contiguous, and every width is a multiple of 8.
#pragma once

#include "rows.cuh"

namespace train_lm {

using namespace examples;  // NOLINT(google-build-using-namespace): ops.cuh is the rest of one text with rows.cuh

// values = N(0, deviation^2), by the Box-Muller transform; working = values in bf16.
struct InitNormal {
  static constexpr const char* kName = "InitNormal";
  float* values;
  bf16* working;
  i64 count;
  float deviation;
  u64 seed;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 end = ingot::min_of(count, (row + 1) * kRowOfVectors);
    for (i64 i = row * kRowOfVectors + group.lane(); i < end; i += group.lanes()) {
      const u64 bits = hash_of(seed ^ hash_of(static_cast<u64>(i)));
      const float radius = sqrtf(-2.0F * logf(uniform(bits)));
      values[i] = deviation * radius * cosf(6.2831853F * uniform(hash_of(bits)));
      working[i] = ingot::from_float<bf16>(values[i]);
    }
  }
};

// ---- The batch

// Row r of a step's batch is a window of `context` bytes at a random position in the text; its target is the next byte.
struct Batch {
  const u8* text;
  i64 places;  // windows start at 0 .. places - 1
  i64 context;
  i64 size;  // rows
  u64 seed;  // this step's

  INGOT_HOST_DEVICE const u8* window(i64 row) const {
    return text + static_cast<i64>(hash_of(seed ^ hash_of(static_cast<u64>(row))) % static_cast<u64>(places));
  }
  INGOT_HOST_DEVICE u8 target(i64 row) const { return window(row)[context]; }
};

// x[r] = the embeddings of the window's bytes, side by side.
struct Embed {
  static constexpr const char* kName = "Embed";
  Batch batch;
  const bf16* table;  // [256, dims]
  i64 dims;
  bf16* x;  // [size, context * dims]

  INGOT_HOST_DEVICE i64 rows() const { return batch.size; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const u8* window = batch.window(row);
    const i64 width = batch.context * dims;
    for_each_vector(group, width, [&](i64 col) {
      const bf16* source = table + window[col / dims] * dims + col % dims;
      *reinterpret_cast<ingot::U32x4*>(x + row * width + col) = *reinterpret_cast<const ingot::U32x4*>(source);
    });
  }
};

// The table's gradient in parts: each of `parts` sums its share of the batch's rows, in order, into a table of its own.
// A lane owns an embedding dimension, so that no lane waits for another and the order is always the same.
struct EmbedBackward {
  static constexpr const char* kName = "EmbedBackward";
  static constexpr i64 kAhead = 16;
  Batch batch;
  const bf16* grad_x;  // [size, context * dims]
  i64 dims;
  i64 parts;
  float* tables;  // [parts, 256, dims]

  INGOT_HOST_DEVICE i64 rows() const { return parts; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 part) const {
    float* table = tables + part * 256 * dims;
    const i64 share = ingot::ceil_div(batch.size, parts);
    const i64 end = ingot::min_of(batch.size, (part + 1) * share);
    for (i64 dim = group.lane(); dim < dims; dim += group.lanes()) {
      for (i64 byte = 0; byte < 256; ++byte) table[byte * dims + dim] = 0.0F;
      for (i64 row = part * share; row < end; ++row) {
        const u8* window = batch.window(row);
        const bf16* grad = grad_x + row * batch.context * dims + dim;
        for (i64 i = 0; i < batch.context; i += kAhead) {
          // Several bytes' gradients are loaded before the first is added: as the compiler cannot rule out that the
          // table overlaps them, it would otherwise wait for each load.
          const i64 count = ingot::min_of(kAhead, batch.context - i);
          float next[kAhead];
          INGOT_UNROLL
          for (i64 j = 0; j < kAhead; ++j) next[j] = j < count ? ingot::to_float(grad[(i + j) * dims]) : 0.0F;
          INGOT_UNROLL
          for (i64 j = 0; j < kAhead; ++j) {
            if (j < count) table[window[i + j] * dims + dim] += next[j];
          }
        }
      }
    }
  }
};

struct SumTables {
  static constexpr const char* kName = "SumTables";
  const float* tables;  // [parts, count]
  i64 parts;
  i64 count;
  bf16* sum;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, i64{kThreads}); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 end = ingot::min_of(count, (row + 1) * i64{kThreads});
    for (i64 i = row * i64{kThreads} + group.lane(); i < end; i += group.lanes()) {
      float total = 0.0F;
      INGOT_UNROLL_BY(16)
      for (i64 part = 0; part < parts; ++part) total += tables[part * count + i];
      sum[i] = ingot::from_float<bf16>(total);
    }
  }
};

// ---- Residual and normalisation

// x += delta (if there is one); normed = x / rms(x), rms(x) = sqrt(mean(x^2) + 1e-5): RMSNorm without a gain.
struct AddNorm {
  static constexpr const char* kName = "AddNorm";
  bf16* x;            // [count, width]
  const bf16* delta;  // the same shape, or null
  bf16* normed;
  float* inverse_rms;  // [count]
  i64 count;
  i64 width;

  INGOT_HOST_DEVICE i64 rows() const { return count; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    bf16* values = x + row * width;
    float squares = 0.0F;
    for_each_vector(group, width, [&](i64 col) {
      Eight v = load(values + col);
      if (delta != nullptr) {
        const Eight d = load(delta + row * width + col);
        for (i64 i = 0; i < kVector; ++i) v.x[i] = round_to_bf16(v.x[i] + d.x[i]);
        store(values + col, v);
      }
      for (i64 i = 0; i < kVector; ++i) squares += v.x[i] * v.x[i];
    });
    const float inverse = 1.0F / sqrtf(group.sum(squares) / static_cast<float>(width) + 1e-5F);
    for_each_vector(group, width, [&](i64 col) {
      Eight v = load(values + col);
      for (i64 i = 0; i < kVector; ++i) v.x[i] *= inverse;
      store(normed + row * width + col, v);
    });
    if (group.lane() == 0) inverse_rms[row] = inverse;
  }
};

// grad_x = (grad_x, if accumulate) + inverse_rms * (grad_normed - normed * mean(grad_normed * normed)).
struct NormBackward {
  static constexpr const char* kName = "NormBackward";
  const bf16* normed;
  const float* inverse_rms;
  const bf16* grad_normed;
  bf16* grad_x;
  i64 count;
  i64 width;
  bool accumulate;

  INGOT_HOST_DEVICE i64 rows() const { return count; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * width;
    float products = 0.0F;
    for_each_vector(group, width, [&](i64 col) {
      const Eight n = load(normed + start + col);
      const Eight g = load(grad_normed + start + col);
      for (i64 i = 0; i < kVector; ++i) products += n.x[i] * g.x[i];
    });
    const float mean = group.sum(products) / static_cast<float>(width);
    const float inverse = inverse_rms[row];
    for_each_vector(group, width, [&](i64 col) {
      const Eight n = load(normed + start + col);
      const Eight g = load(grad_normed + start + col);
      Eight out{};
      if (accumulate) out = load(grad_x + start + col);
      for (i64 i = 0; i < kVector; ++i) out.x[i] += inverse * (g.x[i] - n.x[i] * mean);
      store(grad_x + start + col, out);
    });
  }
};

// ---- Activation

INGOT_HOST_DEVICE float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// y = x * sigmoid(x)
struct Silu {
  static constexpr const char* kName = "Silu";
  const bf16* x;
  bf16* y;
  i64 count;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      Eight v = load(x + start + col);
      for (i64 i = 0; i < kVector; ++i) v.x[i] *= sigmoid(v.x[i]);
      store(y + start + col, v);
    });
  }
};

// grad *= d silu(x) / dx = s * (1 + x * (1 - s)), s = sigmoid(x)
struct SiluBackward {
  static constexpr const char* kName = "SiluBackward";
  const bf16* x;
  bf16* grad;
  i64 count;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      const Eight v = load(x + start + col);
      Eight g = load(grad + start + col);
      for (i64 i = 0; i < kVector; ++i) {
        const float s = sigmoid(v.x[i]);
        g.x[i] *= s * (1.0F + v.x[i] * (1.0F - s));
      }
      store(grad + start + col, g);
    });
  }
};

// ---- Loss

// loss[r] = -log softmax(logits[r])[target of r]; grad = d mean(loss) / d logits.
struct CrossEntropy {
  static constexpr const char* kName = "CrossEntropy";
  Batch batch;
  const bf16* logits;  // [size, 256]
  bf16* grad;          // [size, 256], or null
  float* loss;         // [size]

  INGOT_HOST_DEVICE i64 rows() const { return batch.size; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    constexpr i64 kClasses = 256;
    const bf16* x = logits + row * kClasses;
    float largest = -3e38F;
    for_each_vector(group, kClasses, [&](i64 col) {
      const Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) largest = ingot::max_of(largest, v.x[i]);
    });
    largest = group.max(largest);
    float exponentials = 0.0F;
    for_each_vector(group, kClasses, [&](i64 col) {
      const Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) exponentials += expf(v.x[i] - largest);
    });
    exponentials = group.sum(exponentials);
    const i64 target = batch.target(row);
    if (group.lane() == 0) loss[row] = logf(exponentials) + largest - ingot::to_float(x[target]);
    if (grad == nullptr) return;
    const float share = 1.0F / static_cast<float>(batch.size);
    for_each_vector(group, kClasses, [&](i64 col) {
      Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) {
        v.x[i] = share * (expf(v.x[i] - largest) / exponentials - (col + i == target ? 1.0F : 0.0F));
      }
      store(grad + row * kClasses + col, v);
    });
  }
};

// mean[0] = the mean of values[count].
struct Mean {
  static constexpr const char* kName = "Mean";
  const float* values;
  i64 count;
  float* mean;

  INGOT_HOST_DEVICE i64 rows() const { return 1; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64) const {
    float total = 0.0F;
    for (i64 i = group.lane(); i < count; i += group.lanes()) total += values[i];
    total = group.sum(total);
    if (group.lane() == 0) *mean = total / static_cast<float>(count);
  }
};

// working = values in bf16.
struct ToWorking {
  static constexpr const char* kName = "ToWorking";
  const float* values;
  bf16* working;
  i64 count;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start),
                    [&](i64 col) { store(working + start + col, load(values + start + col)); });
  }
};

// ---- Optimizer

// AdamW (Loshchilov and Hutter 2019, algorithm 2) on f32 values; working = the new values in bf16.
struct AdamW {
  static constexpr const char* kName = "AdamW";
  float* values;
  float* first_moment;
  float* second_moment;
  const bf16* grad;
  bf16* working;
  i64 count;
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float correction1, correction2;  // 1 / (1 - beta^step)

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      const i64 at = start + col;
      const Eight g = load(grad + at);
      Eight value = load(values + at);
      Eight first = load(first_moment + at);
      Eight second = load(second_moment + at);
      for (i64 i = 0; i < kVector; ++i) {
        first.x[i] = beta1 * first.x[i] + (1.0F - beta1) * g.x[i];
        second.x[i] = beta2 * second.x[i] + (1.0F - beta2) * g.x[i] * g.x[i];
        const float update = first.x[i] * correction1 / (sqrtf(second.x[i] * correction2) + epsilon);
        value.x[i] -= learning_rate * (update + weight_decay * value.x[i]);
      }
      store(values + at, value);
      store(first_moment + at, first);
      store(second_moment + at, second);
      store(working + at, value);
    });
  }
};

}  // namespace train_lm
