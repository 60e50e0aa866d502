#include "ingot/runtime/core/check_tensor.h"

#include <fmt/format.h>

#include "ingot/runtime/util/error.h"

namespace ingot {

void refuse(const char* what, const Tensor& tensor, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, what, fmt::format("is {}; {}", describe(tensor), message));
}

namespace {

// A default Tensor where one is required was probably forgotten.
bool is_missing(const Tensor& tensor) { return tensor.data == nullptr && tensor.rows == 0 && tensor.cols == 0; }

[[noreturn]] void refuse_missing(const char* what, const std::string& expected) {
  throw Error(ErrorCode::invalid_argument, what, fmt::format("is missing; it must be {}", expected));
}

}  // namespace

Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, Device device) {
  if (is_missing(tensor) && (tensor.dtype != dtype || tensor.device != device)) {
    refuse_missing(what, fmt::format("a matrix of {} on {}", name(dtype), print(device)));
  }
  if (tensor.dtype != dtype) refuse(what, tensor, fmt::format("the spec asks for {}", name(dtype)));
  if (tensor.device != device)
    refuse(what, tensor, fmt::format("this backend works on {}: copy it there", print(device)));
  const std::size_t bytes = byte_span(tensor, what);
  if (bytes == 0) return {what, &tensor, 0};
  if (tensor.row_stride < tensor.cols) {
    refuse(what, tensor, "the row stride must be at least the number of columns, or rows overlap");
  }
  if (tensor.rows > 1 && tensor.row_stride % packed_unit(dtype) != 0) {
    refuse(what, tensor,
           fmt::format("the row stride must be a multiple of {}, so that every row of {} starts at a byte",
                       packed_unit(dtype), name(dtype)));
  }
  if (tensor.data == nullptr) refuse(what, tensor, "its data pointer is null; only an empty tensor may have none");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address % static_cast<std::uintptr_t>(size_of(tensor.dtype)) != 0) {
    refuse(what, tensor,
           fmt::format("its data pointer {} is misaligned: it must be a multiple of {} bytes, the size of an element",
                       fmt::ptr(tensor.data), size_of(tensor.dtype)));
  }
  if (address + bytes < address) {
    refuse(what, tensor,
           fmt::format("{} bytes from {} end beyond the address space: check the sizes and the row stride", bytes,
                       fmt::ptr(tensor.data)));
  }
  return {what, &tensor, bytes};
}

Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t rows, std::int64_t cols,
                   Device device, const char* because) {
  if (is_missing(tensor) && (rows != 0 || cols != 0)) {
    refuse_missing(what, fmt::format("{}[{}, {}]: {}", name(dtype), rows, cols, because));
  }
  const Range range = check_matrix(what, tensor, dtype, device);
  check_shape(what, tensor, rows, cols, because);
  return range;
}

void check_shape(const char* what, const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* because) {
  if (tensor.rows == rows && tensor.cols == cols) return;
  const std::string expected = fmt::format("[{}, {}]: {}", rows, cols, because);
  if (is_missing(tensor)) refuse_missing(what, fmt::format("{}{}", name(tensor.dtype), expected));
  refuse(what, tensor, "it must be " + expected);
}

Range check_vector(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t n, Device device,
                   const char* because) {
  if (tensor.data == nullptr && tensor.empty()) {
    if (n == 0) return {what, &tensor, 0};
    refuse_missing(what, fmt::format("{}[1, {}]: {}", name(dtype), n, because));
  }
  const Range range = check_matrix(what, tensor, dtype, device);
  check_shape(what, tensor, 1, n, because);
  return range;
}

Range check_absent(const char* what, const Tensor& tensor, const char* because) {
  if (tensor.data != nullptr || tensor.rows != 0 || tensor.cols != 0) {
    refuse(what, tensor, fmt::format("it must not be given (a default Tensor instead): {}", because));
  }
  return {what, &tensor, 0};
}

bool overlap(const Range& a, const Range& b) {
  return a.bytes != 0 && b.bytes != 0 && a.begin() < b.end() && b.begin() < a.end();
}

bool in_place(const Tensor& input, const Tensor& output) {
  return input.data == output.data && input.row_stride == output.row_stride && input.dtype == output.dtype;
}

void check_overlaps(std::span<const Range> inputs, std::span<const Range> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes == 0) continue;
    const auto check_one = [&](const Range& other) {
      if (other.bytes == 0 || !overlap(outputs[i], other)) return;
      refuse(outputs[i].what, *outputs[i].tensor,
             fmt::format("its memory overlaps that of {}, which is {}; an output needs its own memory", other.what,
                         describe(*other.tensor)));
    };
    for (const Range& input : inputs) check_one(input);
    for (const Range& earlier : outputs.first(i)) check_one(earlier);
  }
}

}  // namespace ingot
