#include "torch_abi/torch_codes_operand.h"

#include <cstdint>
#include <span>
#include <string>

#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_weight_operand.h"

namespace ingot::python {
namespace {

[[noreturn]] void refuse_codes(const TensorName& name, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name.text(), message);
}

void require_contiguous_codes(const TorchTensor& tensor, const TensorName& name) {
  if (!tensor.is_contiguous()) refuse_codes(name, "is not contiguous: call .contiguous()");
}

}  // namespace

Float8Rows::Float8Rows(const LinearPlan& plan, const Float8RowsNames& names, const CastSpec& spec, std::int64_t columns,
                       const TorchTensor& tensor, const TorchTensor& scale_inv) {
  const TensorName of_codes{plan.subject, names.codes};
  const TensorName of_scale_inv{plan.subject, names.scale_inv};
  if (!tensor.given()) refuse_codes(of_codes, "is not given, but its scale_inv is: give both or neither");
  const Device device = device_of(tensor, of_codes);
  if (tensor.float8_dtype() != spec.out && !is_bytes(tensor)) {
    refuse_codes(of_codes, "comes with scale_inv, so it must be codes in " + std::string(name(spec.out)) +
                               ", or the bytes of these: cast it, or leave scale_inv out");
  }
  const std::span<const std::int64_t> sizes = tensor.sizes();
  if (sizes.empty() || sizes.back() != columns) {
    refuse_codes(of_codes, "must have " + std::to_string(columns) + " columns, as its codes are by rows");
  }
  require_contiguous_codes(tensor, of_codes);
  std::int64_t rows = 1;
  for (const std::int64_t size : sizes.first(sizes.size() - 1)) rows *= size;
  if (scale_inv.device() != device) {
    refuse_codes(of_scale_inv,
                 "is on another device than the codes, which are on " + print(device) + ": move one with .to()");
  }
  if (scale_inv.dtype() != Dtype::f32) refuse_codes(of_scale_inv, "must be float32: convert it with .float()");
  const bool by_row = spec.scale == kRowwise;
  const std::int64_t count = by_row ? rows : 1;
  if (scale_inv.elements() != count) {
    refuse_codes(of_scale_inv, "has " + std::to_string(scale_inv.elements()) + " elements, but the GEMM takes " +
                                   std::to_string(count) + ", one " +
                                   (by_row ? "for each row" : "for the whole tensor") +
                                   ": give those of the cast that made the codes");
  }
  require_contiguous_codes(scale_inv, of_scale_inv);
  codes_ = matrix(tensor.data(), spec.out, rows, columns, device);
  scale_inv_ = vector(scale_inv.data(), Dtype::f32, count, device);
}

Tensor Float8Rows::transposed(Backend& backend, Stream& stream, void* memory) const {
  Tensor made = matrix(memory, codes_.dtype, codes_.cols, codes_.rows, codes_.device);
  made.row_stride = code_pitch(codes_.rows);
  if (!codes_.empty()) backend.relayout({.transposed = true}, {.input = codes_, .output = made}, stream);
  return made;
}

void Float8Rows::copy_to(const Float8View& view, Backend& backend, Stream& stream) const {
  const bool has_codes = is_given(view.codes);
  if (has_codes && !codes_.empty()) backend.relayout({}, {.input = codes_, .output = view.codes}, stream);
  if (is_given(view.transposed) && !codes_.empty()) {
    backend.relayout({.transposed = true}, {.input = codes_, .output = view.transposed}, stream);
  }
  const Tensor& to = has_codes ? view.scale_inv : view.transposed_scale_inv;
  backend.device_api().copy(to.data, scale_inv_.data, static_cast<std::size_t>(scale_inv_.cols) * sizeof(float),
                            stream);
}

}  // namespace ingot::python
