// Tensor: a view of a matrix or vector in memory that something else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// "cpu", "cuda:0"
INGOT_API std::string print(Device device);

// A row-major matrix of rows x cols elements: element (r, c) is at data + (r * row_stride + c) * size_of(dtype). For
// dtypes smaller than a byte, row r is at data + row_bytes(dtype, r * row_stride), and the stride is a multiple of
// packed_unit(dtype). Vectors (scale_inv, bias, amax) are matrices of one row. An empty matrix may have a null data
// pointer.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // in elements, >= cols
  Device device{};

  bool empty() const { return rows == 0 || cols == 0; }
};

// A contiguous matrix (row_stride = cols).
INGOT_API Tensor matrix(void* data, Dtype dtype, std::int64_t rows, std::int64_t cols, Device device);
// A contiguous vector of n elements: 1 x n.
INGOT_API Tensor vector(void* data, Dtype dtype, std::int64_t n, Device device);

// "bf16[4096, 1024] on cuda:0", followed by ", row stride 1088" if it is not contiguous.
INGOT_API std::string describe(const Tensor& tensor);

// Bytes from the first element to the end of the last. Throws Error{invalid_argument} naming `what` if a size is
// negative or the count overflows 64 bits.
INGOT_API std::size_t byte_span(const Tensor& tensor, const char* what);

}  // namespace ingot
