// The operations of training that belong to no model, written once for the CPU and the GPU (common/rows.cuh says how):
// initial values, the loss, gradient clipping and AdamW.
//
// What changes from step to step is in device memory (StepValues), so that a step can be captured as a CUDA graph.
// Matrices are contiguous, and every number of elements is a multiple of 8.
#pragma once

#include "rows.cuh"

namespace training {

using namespace examples;  // NOLINT(google-build-using-namespace): ops.cuh is the rest of one text with rows.cuh

// ---- A step's values

struct StepValues {
  i64 step;  // from 0
  u64 seed;  // of the step's batch
  float learning_rate;
  float correction1, correction2;  // of AdamW: 1 / (1 - beta^(step + 1))
};

// now = table[*at]; *at += 1.
struct NextStep {
  static constexpr const char* kName = "NextStep";
  const StepValues* table;
  i64* at;
  StepValues* now;

  INGOT_HOST_DEVICE i64 rows() const { return 1; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64) const {
    if (group.lane() != 0) return;
    *now = table[*at];
    *at += 1;
  }
};

// ---- Values

// values = N(0, deviation^2), by the Box-Muller transform; working = values in bf16, unless it is null.
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
      if (working != nullptr) working[i] = ingot::from_float<bf16>(values[i]);
    }
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

// ---- Loss

// loss[r] = -log softmax(logits[r])[targets[r]]; grad = share * d loss / d logits.
struct CrossEntropy {
  static constexpr const char* kName = "CrossEntropy";
  const bf16* logits;  // [count, classes]
  const u32* targets;  // [count]
  bf16* grad;          // [count, classes], or null
  float* loss;         // [count]
  i64 count;
  i64 classes;
  float share;  // 1 / rows of the whole batch

  INGOT_HOST_DEVICE i64 rows() const { return count; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const bf16* x = logits + row * classes;
    float largest = -3e38F;
    for_each_vector(group, classes, [&](i64 col) {
      const Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) largest = ingot::max_of(largest, v.x[i]);
    });
    largest = group.max(largest);
    float exponentials = 0.0F;
    for_each_vector(group, classes, [&](i64 col) {
      const Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) exponentials += expf(v.x[i] - largest);
    });
    exponentials = group.sum(exponentials);
    const i64 target = targets[row];
    if (group.lane() == 0) loss[row] = logf(exponentials) + largest - ingot::to_float(x[target]);
    if (grad == nullptr) return;
    for_each_vector(group, classes, [&](i64 col) {
      Eight v = load(x + col);
      for (i64 i = 0; i < kVector; ++i) {
        v.x[i] = share * (expf(v.x[i] - largest) / exponentials - (col + i == target ? 1.0F : 0.0F));
      }
      store(grad + row * classes + col, v);
    });
  }
};

// sums[at] = share * the sum of values[count], or, to accumulate, that much more; at = now->step, or 0 without `now`.
struct AddLoss {
  static constexpr const char* kName = "AddLoss";
  const float* values;
  i64 count;
  float share;
  bool accumulate;
  float* sums;
  const StepValues* now;  // or null

  INGOT_HOST_DEVICE i64 rows() const { return 1; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64) const {
    float total = 0.0F;
    for (i64 i = group.lane(); i < count; i += group.lanes()) total += values[i];
    total = group.sum(total) * share;
    if (group.lane() != 0) return;
    float& sum = sums[now == nullptr ? 0 : now->step];
    sum = accumulate ? sum + total : total;
  }
};

// ---- Gradient clipping, by the norm of all gradients together

// partial[row] = the sum of the squares of a row of `width` elements.
struct SumOfSquares {
  static constexpr const char* kName = "SumOfSquares";
  const float* grad;
  i64 count;
  float* partial;  // [rows()]
  i64 width = kRowOfVectors;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, width); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * width;
    float squares = 0.0F;
    for_each_vector(group, ingot::min_of(width, count - start), [&](i64 col) {
      const Eight v = load(grad + start + col);
      float eight = 0.0F;
      for (i64 i = 0; i < kVector; ++i) eight += v.x[i] * v.x[i];
      squares += eight;
    });
    squares = group.sum(squares);
    if (group.lane() == 0) partial[row] = squares;
  }
};

// norm[0] = the norm of all gradients; scale[0] = what they are to be multiplied by, so that their norm is `most` at
// most. A norm that is not finite makes the scale NaN, so that it shows in the next loss. The order of the sums is
// always the same.
struct ClipScale {
  static constexpr const char* kName = "ClipScale";
  const float* partial;
  i64 count;
  float most;
  float* norm;
  float* scale;

  INGOT_HOST_DEVICE i64 rows() const { return 1; }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64) const {
    float squares = 0.0F;
    float lost = 0.0F;  // by rounding (Kahan): a large model has 200,000 partial sums
    INGOT_UNROLL_BY(8)
    for (i64 i = group.lane(); i < count; i += group.lanes()) {
      if (partial[i] == 0.0F) continue;  // as of padding: it changes nothing, not even what was lost
      const float next = partial[i] - lost;
      const float sum = squares + next;
      lost = (sum - squares) - next;
      squares = sum;
    }
    const float found = sqrtf(group.sum(squares));
    if (group.lane() != 0) return;
    *norm = found;
    *scale = (found - found) + (found > most ? most / found : 1.0F);  // Inf - Inf is NaN
  }
};

// ---- Optimizer

// AdamW (Loshchilov and Hutter 2019, algorithm 2) on f32 values; working = the new values in bf16, unless it is null.
struct AdamWUpdate {
  static constexpr const char* kName = "AdamWUpdate";
  float* values;
  float* first_moment;
  float* second_moment;
  const float* grad;
  const float* grad_scale;  // ClipScale's, or null
  bf16* working;
  i64 count;
  const StepValues* now;
  float beta1, beta2, epsilon, weight_decay;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    const float scale = grad_scale == nullptr ? 1.0F : *grad_scale;
    const StepValues step = *now;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      const i64 at = start + col;
      const Eight g = load(grad + at);
      Eight value = load(values + at);
      Eight first = load(first_moment + at);
      Eight second = load(second_moment + at);
      for (i64 i = 0; i < kVector; ++i) {
        const float gradient = scale * g.x[i];
        first.x[i] = beta1 * first.x[i] + (1.0F - beta1) * gradient;
        second.x[i] = beta2 * second.x[i] + (1.0F - beta2) * gradient * gradient;
        const float update = first.x[i] * step.correction1 / (sqrtf(second.x[i] * step.correction2) + epsilon);
        value.x[i] -= step.learning_rate * (update + weight_decay * value.x[i]);
      }
      store(values + at, value);
      store(first_moment + at, first);
      store(second_moment + at, second);
      if (working != nullptr) store(working + at, value);
    });
  }
};

}  // namespace training
