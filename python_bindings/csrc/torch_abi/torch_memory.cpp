#include "torch_abi/torch_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "ingot/runtime/util/error.h"

namespace ingot::python {
namespace {

// The stride between rows if all dimensions but the last can be one; nullopt if the elements must be copied.
std::optional<std::int64_t> row_stride_of(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  const std::int64_t cols = sizes.back();
  if (cols > 1 && strides.back() != 1) return std::nullopt;
  std::optional<std::int64_t> row_stride;
  std::int64_t expected = 0;
  for (std::size_t at = sizes.size() - 1; at-- > 0;) {
    if (sizes[at] == 1) continue;
    if (row_stride && strides[at] != expected) return std::nullopt;
    if (!row_stride) row_stride = strides[at];
    expected = strides[at] * sizes[at];
  }
  if (!row_stride) return cols;
  return *row_stride >= cols ? row_stride : std::nullopt;
}

bool is_one_element(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  for (std::size_t at = 0; at < sizes.size(); ++at) {
    if (sizes[at] == 0 || (sizes[at] > 1 && strides[at] != 0)) return false;
  }
  return true;
}

TorchMatrix matrix_of(const TorchTensor& tensor, const TensorName& name, bool may_be_element) {
  if (!tensor.given()) {
    throw Error(ErrorCode::invalid_argument, name.text(), "is not given, but this call reads it: give a tensor");
  }
  const std::optional<Dtype> dtype = tensor.dtype();
  if (!dtype) {
    throw Error(ErrorCode::invalid_argument, name.text(),
                "must be float32, bfloat16 or float16: convert it with .to()");
  }
  const std::optional<Device> device = tensor.device();
  if (!device) throw Error(ErrorCode::invalid_argument, name.text(), "is neither on the CPU nor on a CUDA device");
  const std::span<const std::int64_t> sizes = tensor.sizes();
  const std::span<const std::int64_t> strides = tensor.strides();
  if (sizes.empty())
    throw Error(ErrorCode::invalid_argument, name.text(), "has no dimensions, but must have one or more");
  std::int64_t rows = 1;
  for (const std::int64_t size : sizes.first(sizes.size() - 1)) rows *= size;
  Tensor view = matrix(tensor.data(), *dtype, rows, sizes.back(), *device);
  if (may_be_element && is_one_element(sizes, strides)) {
    view.rows = view.cols = view.row_stride = 1;
    return {.view = view};
  }
  if (view.empty()) return {.view = view};
  if (const std::optional<std::int64_t> row_stride = row_stride_of(sizes, strides)) {
    view.row_stride = *row_stride;
    return {.view = view};
  }
  TorchTensor copy = TorchTensor::empty(sizes, torch_dtype(*dtype), *device);
  copy.copy_from(tensor);
  view.data = copy.data();
  return {.view = view, .copy = std::move(copy)};
}

std::byte* aligned_bytes(std::size_t bytes) { return new (std::align_val_t{kLinearAlignment}) std::byte[bytes](); }

}  // namespace

TorchMatrix matrix_of(const TorchTensor& tensor, const TensorName& name) { return matrix_of(tensor, name, false); }

TorchMatrix matrix_or_element_of(const TorchTensor& tensor, const TensorName& name) {
  return matrix_of(tensor, name, true);
}

TorchSizes::TorchSizes(std::span<const std::int64_t> sizes) : count_(sizes.size()) {
  require_dimensions(sizes.size());
  std::ranges::copy(sizes, sizes_.begin());
}

TorchSizes sizes_with_last(std::span<const std::int64_t> sizes, std::int64_t last) {
  TorchSizes result(sizes);
  result.back() = last;
  return result;
}

TorchRegion::TorchRegion(std::size_t bytes, Device device) {
  region_.bytes = bytes;
  if (bytes == 0) {
    tensor_ = TorchTensor::empty_bytes(0, device);
  } else if (device.type == DeviceType::cpu) {
    aligned_.reset(aligned_bytes(bytes));
    region_.data = aligned_.get();
  } else {
    tensor_ = TorchTensor::empty_bytes(bytes, device);
    region_.data = tensor_.data();
  }
}

TorchRegion::TorchRegion(TorchTensor tensor, Device device) : tensor_(std::move(tensor)) {
  for (const std::int64_t size : tensor_.sizes()) region_.bytes = static_cast<std::size_t>(size);
  region_.data = tensor_.data();
  if (device.type != DeviceType::cpu || region_.bytes == 0) return;
  aligned_.reset(aligned_bytes(region_.bytes));
  std::memcpy(aligned_.get(), region_.data, region_.bytes);
  region_.data = aligned_.get();
}

TorchTensor TorchRegion::publish() && {
  if (!aligned_) return std::move(tensor_);
  TorchTensor tensor = TorchTensor::empty_bytes(region_.bytes, Device{});
  std::memcpy(tensor.data(), aligned_.get(), region_.bytes);
  return tensor;
}

}  // namespace ingot::python
