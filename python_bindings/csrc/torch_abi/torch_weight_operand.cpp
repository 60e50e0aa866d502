#include "torch_abi/torch_weight_operand.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>

#include "ingot/runtime/util/error.h"

namespace ingot::python {
namespace {

[[noreturn]] void refuse(const TensorName& name, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name.text(), message);
}

void require_device(const TorchTensor& tensor, const TensorName& name, Device device) {
  const Device found = device_of(tensor, name);
  if (found == device) return;
  refuse(name, "is on " + print(found) + ", but the layer runs on " + print(device) + ": move one with .to()");
}

bool is_bytes(const TorchTensor& tensor) {
  std::int32_t number = 0;
  return torch_functions().dtype(tensor.handle(), &number) == 0 && number == torch_functions().bytes;
}

void* contiguous(const TorchTensor& tensor, const TensorName& name, std::int64_t count, const char* what) {
  const std::int64_t found = tensor.elements();
  if (found != count) {
    refuse(name, "has " + std::to_string(found) + " " + what + ", but this layer has " + std::to_string(count) +
                     ": load a state that was saved with the same options");
  }
  if (!tensor.is_contiguous()) refuse(name, "is not contiguous: call .contiguous()");
  void* const data = tensor.data();
  if (std::bit_cast<std::uintptr_t>(data) % 16 != 0) refuse(name, "is not aligned to 16 bytes: call .clone()");
  return data;
}

// As FSDP gathers it.
void require_gathered(const LinearPlan& plan, const TorchTensor& tensor, const TorchTensor& scale_inv, Device device) {
  const LinearShape& shape = plan.shape;
  const std::array<std::int64_t, 2> sizes{shape.out_features, shape.in_features};
  const std::array<std::int64_t, 2> strides{shape.in_features, 1};
  if (!tensor.float8_dtype() || tensor.device() != device || !std::ranges::equal(tensor.sizes(), sizes) ||
      (shape.in_features * shape.out_features > 0 && !std::ranges::equal(tensor.strides(), strides))) {
    refuse({plan.subject, "weight"},
           "must be FP8 of [out_features, in_features] on the input's device, by rows: gather it so");
  }
  if (scale_inv.dtype() != Dtype::f32 || scale_inv.device() != device ||
      !std::ranges::all_of(scale_inv.sizes(), [](std::int64_t size) { return size == 1; })) {
    refuse({plan.subject, "factor of weight"}, "must be float32 of one element on the input's device");
  }
}

}  // namespace

Device device_of(const TorchTensor& tensor, const TensorName& name) {
  const std::optional<Device> device = tensor.device();
  if (!device) refuse(name, "is neither on the CPU nor on a CUDA device: move it with .to()");
  return *device;
}

void* bytes_of(const TorchTensor& tensor, const TensorName& name, std::int64_t bytes, Device device) {
  require_device(tensor, name, device);
  if (!is_bytes(tensor) && !tensor.float8_dtype()) {
    refuse(name, "is no buffer of codes (uint8 or float8): give it as state_dict() has it");
  }
  return contiguous(tensor, name, bytes, "bytes");
}

void* scale_inv_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device) {
  require_device(tensor, name, device);
  if (dtype == Dtype::f32 && tensor.dtype() != Dtype::f32) refuse(name, "must be float32: convert it with .float()");
  if (dtype != Dtype::f32 && !is_bytes(tensor)) refuse(name, "must be uint8, the bits of e8m0fnu");
  return contiguous(tensor, name, count, "scale_inv");
}

TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device) {
  require_device(tensor, name, device);
  TorchMatrix matrix = matrix_of(tensor, name);
  if (matrix.view.cols != cols) {
    refuse(name, "has " + std::to_string(matrix.view.cols) + " columns, but this layer takes " + std::to_string(cols));
  }
  return matrix;
}

Float8Weight::Float8Weight(const LinearPlan& plan, bool as_stored, const TorchTensor& tensor,
                           const TorchTensor& given_scale_inv, Device device)
    : frozen(as_stored) {
  const auto [in, out, bias] = plan.shape;
  std::int64_t count = 1;
  void* of_scale_inv = nullptr;
  if (frozen) {
    const CastSpec& spec = plan.weight.spec;
    count = scale_count(spec.scale, out, in);
    codes = matrix(bytes_of(tensor, {plan.subject, "weight"}, in * out, device), spec.out, out, in, device);
    of_scale_inv = scale_inv_of(given_scale_inv, {plan.subject, "weight_scale"}, count, Dtype::f32, device);
  } else {
    require_gathered(plan, tensor, given_scale_inv, device);
    codes = matrix(tensor.data(), *tensor.float8_dtype(), out, in, device);
    of_scale_inv = given_scale_inv.data();
  }
  scale_inv = vector(of_scale_inv, Dtype::f32, count, device);
}

Float8View Float8Weight::for_grad_input(Backend& backend, Stream& stream, void* memory) const {
  Tensor transposed = matrix(memory, codes.dtype, codes.cols, codes.rows, codes.device);
  transposed.row_stride = code_pitch(codes.rows);
  if (!codes.empty()) backend.relayout({.transposed = true}, {.input = codes, .output = transposed}, stream);
  if (frozen) return {.codes = codes, .transposed = transposed, .scale_inv = scale_inv};
  return {.transposed = transposed, .transposed_scale_inv = scale_inv};
}

}  // namespace ingot::python
