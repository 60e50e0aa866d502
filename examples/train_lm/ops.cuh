// The model's operations that the library does not have, written once for the CPU and the GPU (common/rows.cuh says
// how): the batch, the embedding, and the sum of a residual's gradients.
//
// Activations and gradients are bf16, matrices are contiguous, and every width is a multiple of 8.
#pragma once

#include "rows.cuh"

namespace train_lm {

using namespace examples;  // NOLINT(google-build-using-namespace): ops.cuh is the rest of one text with rows.cuh

// ---- The batch

// Row r of a batch is a window of `context` bytes of the text; its target is the next byte. The windows of a training
// step are at random positions; those of validation (no seed) are spread evenly over the text.
struct Batch {
  const u8* text;
  i64 places;  // windows start at 0 .. places - 1
  i64 context;
  i64 size;         // rows
  i64 first;        // the first row's number within the whole batch
  i64 total;        // rows of the whole batch
  const u64* seed;  // this step's, in device memory; null: validation

  INGOT_HOST_DEVICE const u8* window(i64 row) const {
    const i64 number = first + row;
    if (seed == nullptr) return text + number * places / total;
    return text + static_cast<i64>(hash_of(*seed ^ hash_of(static_cast<u64>(number))) % static_cast<u64>(places));
  }
  INGOT_HOST_DEVICE u8 target(i64 row) const { return window(row)[context]; }
};

// targets[r] = the byte after row r's window.
struct Targets {
  static constexpr const char* kName = "Targets";
  Batch batch;
  u32* targets;  // [size]

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(batch.size, i64{kThreads}); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 end = ingot::min_of(batch.size, (row + 1) * i64{kThreads});
    for (i64 i = row * i64{kThreads} + group.lane(); i < end; i += group.lanes()) targets[i] = batch.target(i);
  }
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

// The table's gradient in parts: each of `parts` sums its share of the batch's rows, in order, into its own table. A
// lane owns an embedding dimension, so that no lane waits for another and the order is always the same.
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

// sum = the sum of the tables, or, to accumulate, that much more.
struct SumTables {
  static constexpr const char* kName = "SumTables";
  const float* tables;  // [parts, count]
  i64 parts;
  i64 count;
  bool accumulate;
  float* sum;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, i64{kThreads}); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 end = ingot::min_of(count, (row + 1) * i64{kThreads});
    for (i64 i = row * i64{kThreads} + group.lane(); i < end; i += group.lanes()) {
      float total = accumulate ? sum[i] : 0.0F;
      INGOT_UNROLL_BY(16)
      for (i64 part = 0; part < parts; ++part) total += tables[part * count + i];
      sum[i] = total;
    }
  }
};

// ---- Residual

// sum += values
struct AddTo {
  static constexpr const char* kName = "AddTo";
  const bf16* values;
  bf16* sum;
  i64 count;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      const Eight v = load(values + start + col);
      Eight total = load(sum + start + col);
      for (i64 i = 0; i < kVector; ++i) total.x[i] += v.x[i];
      store(sum + start + col, total);
    });
  }
};

// ---- Gradients of parts of a batch

// sum += values
struct AddFloats {
  static constexpr const char* kName = "AddFloats";
  const float* values;
  float* sum;
  i64 count;

  INGOT_HOST_DEVICE i64 rows() const { return ingot::ceil_div(count, kRowOfVectors); }
  template <class Group>
  INGOT_HOST_DEVICE void operator()(Group group, i64 row) const {
    const i64 start = row * kRowOfVectors;
    for_each_vector(group, ingot::min_of(kRowOfVectors, count - start), [&](i64 col) {
      const Eight v = load(values + start + col);
      Eight total = load(sum + start + col);
      for (i64 i = 0; i < kVector; ++i) total.x[i] += v.x[i];
      store(sum + start + col, total);
    });
  }
};

}  // namespace train_lm
