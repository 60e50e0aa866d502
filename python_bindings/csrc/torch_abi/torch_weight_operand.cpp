#include "torch_abi/torch_weight_operand.h"

#include "ingot/runtime/error.h"

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

bool is_contiguous(const TorchTensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::int64_t expected = 1;
  for (std::size_t at = sizes.size(); at-- > 0; expected *= sizes[at]) {
    if (sizes[at] == 0) return true;
    if (sizes[at] != 1 && strides[at] != expected) return false;
  }
  return true;
}

void* contiguous(const TorchTensor& tensor, const TensorName& name, std::int64_t count, const char* what) {
  std::int64_t found = 1;
  for (const std::int64_t size : tensor.sizes()) found *= size;
  if (found != count) {
    refuse(name, "has " + std::to_string(found) + " " + what + ", but this layer has " + std::to_string(count) +
                     ": load a state that was saved with the same options");
  }
  if (!is_contiguous(tensor)) refuse(name, "is not contiguous: call .contiguous()");
  void* const data = tensor.data();
  if (std::bit_cast<std::uintptr_t>(data) % 16 != 0) refuse(name, "is not aligned to 16 bytes: call .clone()");
  return data;
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

void* factors_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device) {
  require_device(tensor, name, device);
  if (dtype == Dtype::f32 && tensor.dtype() != Dtype::f32) refuse(name, "must be float32: convert it with .float()");
  if (dtype != Dtype::f32 && !is_bytes(tensor)) refuse(name, "must be uint8, the bits of e8m0fnu");
  return contiguous(tensor, name, count, "factors");
}

TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device) {
  require_device(tensor, name, device);
  TorchMatrix matrix = matrix_of(tensor, name);
  if (matrix.view.cols != cols) {
    refuse(name, "has " + std::to_string(matrix.view.cols) + " columns, but this layer takes " + std::to_string(cols));
  }
  return matrix;
}

}  // namespace ingot::python
