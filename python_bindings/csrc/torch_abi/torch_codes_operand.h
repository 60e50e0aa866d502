// A layer's input or grad_output that the caller gives as FP8 codes, by rows, with f32 scale_inv: as quantize and
// quantize_rows have made them, on this rank or on others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_memory.h"

namespace ingot::python {

// What messages call the codes and their scale_inv.
struct Float8RowsNames {
  const char* codes;
  const char* scale_inv;
};

class Float8Rows {
 public:
  // `spec`: how the plan casts the tensor. Throws Error{invalid_argument} for codes of another format (bytes are taken
  // for codes of that), and for another number of columns, order, device or number of scale_inv.
  Float8Rows(const LinearPlan& plan, const Float8RowsNames& names, const CastSpec& spec, std::int64_t columns,
             const TorchTensor& tensor, const TorchTensor& scale_inv);

  const Tensor& codes() const { return codes_; }
  const Tensor& scale_inv() const { return scale_inv_; }
  Device device() const { return codes_.device; }
  // Transposed into `memory` of transposed_bytes().
  Tensor transposed(Backend& backend, Stream& stream, void* memory) const;
  std::size_t transposed_bytes() const { return static_cast<std::size_t>(codes_.cols * code_pitch(codes_.rows)); }
  // To the places of a call's own cast: those of codes and transposed codes that are there, and scale_inv.
  void copy_to(const Float8View& view, Backend& backend, Stream& stream) const;

 private:
  Tensor codes_{};
  Tensor scale_inv_{};
};

}  // namespace ingot::python
