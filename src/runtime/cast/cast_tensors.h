// The tensors of cast, and lists of casts. Backend (backend.h) has the calls.
#pragma once

#include <array>

#include "ingot/api.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

class Stream;

// A tensor that the spec does not ask for stays a default Tensor. Matrices may have any row stride.
//
// Factors of 1x128 groups are written row by row into a vector or, into a matrix f32[ceil(cols / 128), rows], with
// those of each group of columns in a row of their own. GEMMs read both; cuBLASLt reads only the second (and a GEMM
// moves the others for it).
struct CastTensors {
  // [rows, cols] of spec.in. If an expression does not use x, only the shape counts and the data may be null.
  Tensor input;
  Tensor codes{};               // [rows, cols] of spec.out
  Tensor transposed{};          // [cols, rows] of spec.out
  Tensor factors;               // f32[scale_count] (see above), of the codes, or of both
  Tensor transposed_factors{};  // f32, of the transposed codes if they have scales of their own (transposed_scale)

  // With given scales: as many f32 values as there are factors. Scales are read. An amax is raised to the largest |x|
  // of its extent where it is smaller: clear it before the first cast.
  Tensor scales{};
  Tensor amax{};
  Tensor transposed_scales{};
  Tensor transposed_amax{};

  // Of an expression, in the order of spec.pointwise.inputs(): a matrix [rows, cols] or, for [col], a vector [1, cols]
  // of spec.in; for [col:f32] f32[1, cols]; for [row] f32[1, rows].
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor result{};  // [rows, cols] of spec.in
  Tensor sum{};     // [1, cols] of *spec.sum
};

// Casts any number of matrices together, again and again: for example all weights of a model after each optimizer step.
// Each gets the same results as from Backend::cast(), but all of them take one launch, or a fill and two launches if
// dynamic scales are of whole tensors, rows or columns. Backend::make_cast_list() makes a list. The tensors must not
// move while the list is used, and the backend must outlive it.
class INGOT_API CastList {
 public:
  virtual ~CastList() = default;
  CastList(const CastList&) = delete;
  CastList& operator=(const CastList&) = delete;

  // Enqueues all casts. A list must not run on two streams at once. Errors: those of Backend::cast().
  virtual void run(Stream& stream) = 0;

 protected:
  CastList() = default;
};

}  // namespace ingot
