#include "ingot/runtime/cast/row_index.h"
#include "ingot/runtime/util/count_of.h"

#include <fmt/format.h>

namespace ingot {

std::string fault_of(const RowIndex& index, std::int64_t of, Device device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;  // whose bytes are counted in 64 bits
  if (index.rows < 0 || index.rows > kMost) {
    return fmt::format("has {} rows; it must have 0 to {}", index.rows, kMost);
  }
  if (index.rows == 0) return {};
  if (of == 0) return fmt::format("has {}, but the matrix has none", count_of(index.rows, "row"));
  if (index.data == nullptr) {
    return fmt::format("has a null data pointer; it must be {} int32, one for each row", index.rows);
  }
  if (index.device != device) {
    return fmt::format("is on {}; this backend works on {}: copy it there", print(index.device), print(device));
  }
  if (reinterpret_cast<std::uintptr_t>(index.data) % alignof(std::int32_t) != 0) {
    return fmt::format("has a data pointer {} that is misaligned: it must be a multiple of 4 bytes",
                       fmt::ptr(index.data));
  }
  return {};
}

Tensor bytes_of(const RowIndex& index) {
  return vector(const_cast<std::int32_t*>(index.data), Dtype::u8,
                index.rows * static_cast<std::int64_t>(sizeof(*index.data)), index.device);
}

}  // namespace ingot
