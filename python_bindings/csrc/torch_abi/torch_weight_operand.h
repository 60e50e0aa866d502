// A weight's codes and scale_inv as PyTorch's operators are given them: contiguous tensors of bytes and of f32.
#pragma once

#include <cstdint>

#include "ingot/codegen/types/dtype.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_memory.h"

namespace ingot::python {

// Each returns the tensor's address. Throws Error{invalid_argument} for a tensor on another device than the call's, of
// another dtype or number of elements, one that is not contiguous, and one that no GPU can load from (16 bytes).
void* bytes_of(const TorchTensor& tensor, const TensorName& name, std::int64_t bytes, Device device);
void* scale_inv_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device);

// The matrix of an operand that must be on the call's device, with this many columns.
TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device);

// The device of the tensor that decides where a call runs. Throws Error{invalid_argument} for one that Ingot lacks.
Device device_of(const TorchTensor& tensor, const TensorName& name);

// A linear layer's weight that comes as FP8 codes [N, K] and f32 scale_inv, both the caller's.
struct Float8Weight {
  // frozen: as checkpoints have it, with what the plan's cast of a weight has: a factor, or one for each row or block;
  // the codes may be a buffer of bytes. Otherwise as FSDP gathers it, with one factor.
  Float8Weight(const LinearPlan& plan, bool frozen, const TorchTensor& tensor, const TorchTensor& scale_inv,
               Device device);

  Float8View for_output() const { return {.codes = codes, .scale_inv = scale_inv}; }
  // For grad_input, transposed into `memory` of bytes(). The codes are transposed anew each time: kept, they would take
  // as much memory again.
  Float8View for_grad_input(Backend& backend, Stream& stream, void* memory) const;
  std::size_t bytes() const { return static_cast<std::size_t>(codes.cols * code_pitch(codes.rows)); }

  Tensor codes{};
  Tensor scale_inv{};
  bool frozen;
};

}  // namespace ingot::python
