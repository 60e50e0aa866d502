// Views arrays of any framework that supports DLPack (NumPy, PyTorch ...) as Ingot's tensors, without copying.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot::python {

using Input = nanobind::ndarray<nanobind::ro>;
using Output = nanobind::ndarray<>;

// An array with its dtype's name.
using TypedInput = std::pair<Input, std::string>;

// What is read of an array of either kind.
struct ArrayView {
  template <class Array>
  // NOLINTNEXTLINE(google-explicit-constructor): an array becomes one
  ArrayView(const Array& of)
      : data(const_cast<void*>(static_cast<const void*>(of.data()))),
        itemsize(of.itemsize()),
        ndim(of.ndim()),
        device_type(of.device_type()),
        device_id(of.device_id()),
        shape(of.shape_ptr()),
        strides(of.stride_ptr()) {}

  void* data;
  std::size_t itemsize, ndim;
  int device_type, device_id;
  const std::int64_t *shape, *strides;
};

// Views a two-dimensional array as a matrix of `dtype`. The array may have unsigned integers of the same width instead,
// because some frameworks cannot export bf16 and FP8.
//
// Throws Error{invalid_argument} that names `what` for another number of dimensions, elements of another width, a
// column stride other than 1, and a device that is neither CPU nor CUDA.
Tensor matrix_of(const ArrayView& array, const std::string& dtype, const char* what);
// Views codes[rows, cols]. For a dtype smaller than a byte the array has packed rows of unsigned 8-bit integers. Throws
// as matrix_of(), and if a row has too few bytes for `cols` or the row stride is not a whole number of elements.
Tensor codes_of(const ArrayView& array, const std::string& dtype, std::int64_t cols, const char* what);
// Views a one-dimensional array as a vector; throws as matrix_of().
Tensor vector_of(const ArrayView& array, const std::string& dtype, const char* what);
// The inputs of an expression, in its order. `what` begins messages.
std::array<Tensor, kMaxPointwiseInputs> inputs_of(const Pointwise& expression, const std::vector<TypedInput>& inputs,
                                                  const std::string& what);

// "e4m3fn, e5m2 or e4m3fnuz".
std::string one_of(std::span<const Dtype> dtypes);

// Throws Error{invalid_argument} that lists the valid names.
Dtype dtype_of(const std::string& name, const char* what);
// Likewise, of the granularities that casts have.
ScaleGranularity granularity_of(const std::string& text, const char* what);

}  // namespace ingot::python
