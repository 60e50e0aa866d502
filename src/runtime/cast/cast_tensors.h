// The tensors that casts and the operations around them take: the largest |x|, sums, histories, expressions, and what a
// cast did to its values. Backend (backend.h) has the calls.
#pragma once

#include <array>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

class Stream;

// input[rows, cols] of spec.in; amax: f32[scale_count].
struct AmaxTensors {
  Tensor input;
  Tensor amax;
};

// input[rows, cols] of spec.in; codes[rows, cols] and transposed[cols, rows] of spec.out, where the spec asks for them
// (a default Tensor otherwise); factors: f32[scale_count], of the codes, or of both. Codes may have any row stride.
// With a transposed_scale: transposed_factors, f32, those of the transposed codes. With given scales: scales (f32,
// read) and amax (f32, raised to the largest |x| of each extent where it is smaller: clear it before the first cast),
// both as many as the factors; and likewise transposed_scales and transposed_amax. With a pointwise expression:
// inputs[i] is that of spec.pointwise.inputs()[i]: a matrix of spec.in of the input's shape, a vector of spec.in [1,
// cols], for [col:f32] one of f32, or, for [row], a vector of f32 [1, rows]; if the expression does not use x, only the
// shape of `input` counts and its data may be null. result[rows, cols] of spec.in and sum[1, cols] of *spec.sum, where
// the spec asks for them.
struct CastTensors {
  Tensor input;
  Tensor codes{};
  Tensor transposed{};
  Tensor factors;
  Tensor transposed_factors{};
  Tensor scales{};
  Tensor amax{};
  Tensor transposed_scales{};
  Tensor transposed_amax{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor result{};
  Tensor sum{};
};

// Casts any number of matrices together, repeatedly: for example all weights of a model after each optimizer step. Each
// cast is as by Backend::cast(), but all of them take one launch, or a fill and two launches if dynamic scales are of
// whole tensors, rows or columns. Made once, by Backend::make_cast_list(). The tensors must not move while the list is
// used, and the backend must outlive it.
class CastList {
 public:
  virtual ~CastList() = default;
  CastList(const CastList&) = delete;
  CastList& operator=(const CastList&) = delete;

  // Enqueues all casts. A list must not run on two streams at once. Errors: those of Backend::cast().
  virtual void run(Stream& stream) = 0;

 protected:
  CastList() = default;
};

// input[rows, cols] of spec.in; sum[cols] of spec.out.
struct ColumnSumTensors {
  Tensor input;
  Tensor sum;
};

// Slots of delayed scaling, all f32: history[n, length], with any row stride and length >= 1 (or n = 0); amax, scale,
// limits and pow2 are vectors of n. amax, history and scale are read and written; limits (FP8_MAX of each slot's dtype:
// fp8_max()) and pow2 (not 0 where the scale is rounded down to a power of two) are read. The tensors may be views of a
// part of the slots.
struct AmaxHistoryTensors {
  Tensor amax;
  Tensor history;
  Tensor scale;
  Tensor limits;
  Tensor pow2;
};

// input[rows, cols] and output[rows, cols] of spec.in; input and inputs are those of a cast's expression (CastTensors).
// The output may be `input` or one of the expression's matrices, with the same address and row stride; otherwise it
// must not overlap them.
struct ElementwiseTensors {
  Tensor input;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor output;
};

// input[rows, cols] of spec.in; codes[rows, cols], or [cols, rows] where spec.transposed, of *spec.out, and factors,
// f32[scale_count(spec.scale, rows, cols)], where the spec has an `out`: what a cast of the input wrote. stats:
// f32[kCastStatsWords] at a multiple of 8 bytes, which holds the bytes of a CastStats (cast_stats.h).
struct CastStatsTensors {
  Tensor input;
  Tensor codes{};
  Tensor factors{};
  Tensor stats;
};

}  // namespace ingot
