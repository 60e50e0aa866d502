// Views arrays of any framework that supports DLPack (NumPy, PyTorch ...) as Ingot's tensors, without copying.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ingot/runtime/tensor.h"

namespace ingot::python {

using Input = nanobind::ndarray<nanobind::ro>;
using Output = nanobind::ndarray<>;

// Views a two-dimensional array as a matrix of `dtype`. The array may have unsigned integers of the same width instead,
// because some frameworks cannot export bf16 and FP8.
//
// Throws Error{invalid_argument} that names `what` for another number of dimensions, elements of another width, a
// column stride other than 1, and a device that is neither CPU nor CUDA.
Tensor matrix_of(const Input& array, const std::string& dtype, const char* what);
Tensor matrix_of(const Output& array, const std::string& dtype, const char* what);
// Views codes[rows, cols]. For a dtype smaller than a byte the array has packed rows of unsigned 8-bit integers. Throws
// as matrix_of(), and if a row has too few bytes for `cols` or the row stride is not a whole number of elements.
Tensor codes_of(const Input& array, const std::string& dtype, std::int64_t cols, const char* what);
Tensor codes_of(const Output& array, const std::string& dtype, std::int64_t cols, const char* what);
// Views a one-dimensional array as a vector; throws as matrix_of().
Tensor vector_of(const Input& array, const std::string& dtype, const char* what);
Tensor vector_of(const Output& array, const std::string& dtype, const char* what);

// "e4m3fn, e5m2 or e4m3fnuz".
std::string one_of(std::span<const Dtype> dtypes);

// Throws Error{invalid_argument} that lists the valid names.
Dtype dtype_of(const std::string& name, const char* what);

}  // namespace ingot::python
