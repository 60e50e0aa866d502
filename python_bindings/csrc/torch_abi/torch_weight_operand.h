// A weight's codes and scale_inv as PyTorch's operators are given them: contiguous tensors of bytes and of f32.
#pragma once

#include <cstdint>

#include "ingot/codegen/types/dtype.h"
#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_memory.h"

namespace ingot::python {

// Is it uint8? Bytes are taken for codes of the format that a call expects.
bool is_bytes(const TorchTensor& tensor);

// Each returns the tensor's address. Throws Error{invalid_argument} for a tensor on another device than the call's, of
// another dtype or number of elements, one that is not contiguous, and one that no GPU can load from (16 bytes).
void* bytes_of(const TorchTensor& tensor, const TensorName& name, std::int64_t bytes, Device device);
void* scale_inv_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device);

// The matrix of an operand that must be on the call's device, with this many columns.
TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device);

// The device of the tensor that decides where a call runs. Throws Error{invalid_argument} for one that Ingot lacks.
Device device_of(const TorchTensor& tensor, const TensorName& name);

// Which of its GEMMs reads a weight.
enum class WeightReader : std::uint8_t { output, grad_input };

// A linear layer's weight that the caller gives as FP8 codes [N, K], by rows, and f32 scale_inv: from a checkpoint, as
// FSDP gathers it, or cast by anyone else. There are as many scale_inv as the plan's cast has for that GEMM.
class Float8Weight {
 public:
  // Throws Error{invalid_argument} for codes of another format than the plan's (bytes are taken for codes of that), and
  // for another shape, device, order or number of scale_inv; and if the GEMM reads the weight in high precision.
  Float8Weight(const LinearPlan& plan, WeightReader reader, const TorchTensor& tensor, const TorchTensor& scale_inv,
               Device device);

  // The given codes; or, where tensor cores cannot read their rows, a copy in `memory`, whose rows begin as far apart
  // as those of a cast. Without the copy the GEMM would take another kernel, and the output would have other bits.
  // `memory` has to live until the stream has read the codes.
  Float8View for_output(Backend& backend, Stream& stream, TorchRegion& memory) const;
  // Transposed into `memory` of transposed_bytes(). This is done anew each time: kept, the transposed codes would take
  // as much memory again.
  Float8View for_grad_input(Backend& backend, Stream& stream, void* memory) const;
  std::size_t transposed_bytes() const { return static_cast<std::size_t>(codes_.cols * code_pitch(codes_.rows)); }

 private:
  Tensor codes_{};
  Tensor scale_inv_{};
};

// The weights of a grouped layer likewise: codes [experts, N, K] with their scale_inv, by rows for either GEMM. The
// scale_inv are `<name>_scale_inv`.
Float8View float8_experts(const GroupedLinearPlan& plan, WeightReader reader, const TensorName& name,
                          const TorchTensor& tensor, const TorchTensor& scale_inv, Device device);

}  // namespace ingot::python
