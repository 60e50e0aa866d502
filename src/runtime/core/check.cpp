#include "ingot/runtime/core/check.h"

#include <fmt/format.h>

#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

void check_memory(const char* what, const Tensor& tensor, Device device) {
  check_matrix(what, tensor, tensor.dtype, device);
}

bool overlap(const Tensor& a, const Tensor& b) {
  return overlap(Range{"tensor", &a, byte_span(a, "tensor")}, Range{"tensor", &b, byte_span(b, "tensor")});
}

void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || (to != nullptr && from != nullptr)) return;
  throw Error(ErrorCode::invalid_argument, operation,
              fmt::format("{} bytes {} a null pointer; pass memory of at least that size", bytes,
                          to == nullptr ? "to" : "from"));
}

}  // namespace ingot
