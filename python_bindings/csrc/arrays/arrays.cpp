#include "arrays/arrays.h"

#include <cstdint>
#include <optional>

#include "ingot/runtime/util/error.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

constexpr bool is_any(Dtype) { return true; }

[[noreturn]] void refuse(const char* what, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, what, message);
}

Device device_of(int type, int index, const char* what) {
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return {DeviceType::cpu, 0};
  if (type == nb::device::cuda::value) return {DeviceType::cuda, index};
  refuse(what, "is on a device that is neither the CPU nor a CUDA GPU (DLPack device type " + std::to_string(type) +
                   "); move it first");
}

Tensor tensor_of(const ArrayView& array, const std::string& dtype_name, std::size_t dimensions, const char* what) {
  const Dtype dtype = dtype_of(dtype_name, what);
  if (array.ndim != dimensions) {
    refuse(what, "has " + std::to_string(array.ndim) + " dimensions, expected " + std::to_string(dimensions) +
                     "; reshape it");
  }
  if (array.itemsize != static_cast<std::size_t>(size_of(dtype))) {
    refuse(what, "has elements of " + std::to_string(array.itemsize) + " bytes, but " + std::string(name(dtype)) +
                     " has " + std::to_string(size_of(dtype)));
  }
  const bool is_matrix = dimensions == 2;
  const std::int64_t rows = is_matrix ? array.shape[0] : 1;
  const std::int64_t cols = array.shape[dimensions - 1];
  if (cols > 1 && rows > 0 && array.strides[dimensions - 1] != 1) {
    refuse(what, "has a stride of " + std::to_string(array.strides[dimensions - 1]) +
                     " elements between columns, expected 1; make it contiguous");
  }
  const bool has_pitch = is_matrix && rows > 1;
  return Tensor{.data = array.data,
                .dtype = dtype,
                .rows = rows,
                .cols = cols,
                .row_stride = has_pitch ? array.strides[0] : cols,
                .device = device_of(array.device_type, array.device_id, what)};
}

}  // namespace

Dtype dtype_of(const std::string& name, const char* what) {
  if (const std::optional<Dtype> dtype = parse_dtype(name)) return *dtype;
  refuse(what, "unknown dtype \"" + name + "\"; expected " + one_of(dtypes_that<is_any>()));
}

ScaleGranularity granularity_of(const std::string& text, const char* what) {
  if (const std::optional<ScaleGranularity> granularity = parse_granularity(text)) return *granularity;
  std::string expected;
  for (const ScaleGranularity& granularity : kCastGranularities) {
    const char* const separator = expected.empty() ? "" : &granularity == &kCastGranularities.back() ? " or " : ", ";
    expected += separator + ("\"" + print(granularity) + "\"");
  }
  refuse(what, "unknown scale granularity \"" + text + "\"; expected " + expected);
}

std::string one_of(std::span<const Dtype> dtypes) {
  std::string text;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 < dtypes.size() ? ", " : " or ").append(name(dtypes[i]));
  }
  return text;
}

Tensor matrix_of(const ArrayView& array, const std::string& dtype, const char* what) {
  return tensor_of(array, dtype, 2, what);
}

Tensor vector_of(const ArrayView& array, const std::string& dtype, const char* what) {
  return tensor_of(array, dtype, 1, what);
}

std::array<Tensor, kMaxPointwiseInputs> inputs_of(const Pointwise& expression, const std::vector<TypedInput>& inputs,
                                                  const std::string& what) {
  std::array<Tensor, kMaxPointwiseInputs> tensors{};
  const auto kinds = expression.inputs();
  for (std::size_t i = 0; i < inputs.size() && i < kinds.size(); ++i) {
    const auto& [array, dtype] = inputs[i];
    const bool is_matrix = kinds[i].kind == PointwiseInput::Kind::matrix;
    tensors[i] = tensor_of(array, dtype, is_matrix ? 2 : 1, (what + " input " + kinds[i].name).c_str());
  }
  return tensors;
}

Tensor codes_of(const ArrayView& array, const std::string& dtype_name, std::int64_t cols, const char* what) {
  const Dtype dtype = dtype_of(dtype_name, what);
  if (!is_sub_byte(dtype)) return tensor_of(array, dtype_name, 2, what);
  Tensor codes = tensor_of(array, "u8", 2, what);
  if (cols < 0 || codes.cols < row_bytes(dtype, cols)) {
    refuse(what, "has rows of " + std::to_string(codes.cols) + " bytes, but " + std::to_string(cols) + " codes of " +
                     dtype_name + " take " + std::to_string(row_bytes(dtype, cols)));
  }
  if (codes.rows > 1 && codes.row_stride * 8 % bits_of(dtype) != 0) {
    refuse(what, "has " + std::to_string(codes.row_stride) + " bytes from row to row, but rows of " + dtype_name +
                     " must begin a multiple of 3 bytes apart");
  }
  const int unit = packed_unit(dtype);
  codes.dtype = dtype;
  codes.cols = cols;
  codes.row_stride = codes.rows > 1 ? codes.row_stride * 8 / bits_of(dtype) : (cols + unit - 1) / unit * unit;
  return codes;
}

}  // namespace ingot::python
