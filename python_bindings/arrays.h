// Arrays of any framework (NumPy, PyTorch, anything that speaks DLPack) as Ingot's tensors, without copying.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ingot/runtime/tensor.h"

namespace ingot::python {

using Input = nanobind::ndarray<nanobind::ro>;
using Output = nanobind::ndarray<>;

// An array and the element type to read it as: bf16 and FP8 arrays come as unsigned integers of the same width where
// their framework cannot export them.
//
// Throws Error{invalid_argument} naming `what`: not two dimensions, elements of another width, a column stride other
// than 1, a device that is neither CPU nor CUDA.
Tensor matrix_of(const Input& array, const std::string& dtype, const char* what);
Tensor matrix_of(const Output& array, const std::string& dtype, const char* what);
// Codes[rows, cols]; of a dtype of less than a byte the array is one of packed rows, of bytes (unsigned 8-bit
// integers). Throws also where those are too few for cols, or not at whole elements from row to row.
Tensor codes_of(const Input& array, const std::string& dtype, std::int64_t cols, const char* what);
Tensor codes_of(const Output& array, const std::string& dtype, std::int64_t cols, const char* what);
// Of one dimension, as matrix_of().
Tensor vector_of(const Input& array, const std::string& dtype, const char* what);
Tensor vector_of(const Output& array, const std::string& dtype, const char* what);

// Throws Error{invalid_argument} that lists the names there are.
Dtype dtype_of(const std::string& name, const char* what);

}  // namespace ingot::python
