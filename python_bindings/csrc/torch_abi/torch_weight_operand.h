// A weight's codes and factors as PyTorch's operators are given them: contiguous tensors of bytes and of f32.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "ingot/codegen/types/dtype.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_memory.h"

namespace ingot::python {

// Each returns the tensor's address. Throws Error{invalid_argument} for a tensor on another device than the call's, of
// another dtype or number of elements, one that is not contiguous, and one that no GPU can load from (16 bytes).
void* bytes_of(const TorchTensor& tensor, const TensorName& name, std::int64_t bytes, Device device);
void* factors_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device);

// The matrix of an operand that must be on the call's device, with this many columns.
TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device);

// The device of the tensor that decides where a call runs. Throws Error{invalid_argument} for one that Ingot lacks.
Device device_of(const TorchTensor& tensor, const TensorName& name);

}  // namespace ingot::python
