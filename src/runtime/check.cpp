#include "ingot/runtime/check.h"

#include <fmt/format.h>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/check_tensor.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/stream.h"

namespace ingot {

void check_memory(const char* what, const Tensor& tensor, Device device) {
  check_matrix(what, tensor, tensor.dtype, device);
}

bool overlap(const Tensor& a, const Tensor& b) {
  return overlap(Range{"tensor", &a, byte_span(a, "tensor")}, Range{"tensor", &b, byte_span(b, "tensor")});
}

void check_stream(const Stream& stream, const Backend& backend) {
  if (&stream.backend() == &backend) return;
  throw Error(ErrorCode::invalid_argument, "stream",
              fmt::format("belongs to another Context's backend (on {}), not to this one (on {}); make a Stream with "
                          "this backend",
                          print(stream.backend().device()), print(backend.device())));
}

void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || (to != nullptr && from != nullptr)) return;
  throw Error(ErrorCode::invalid_argument, operation,
              fmt::format("{} bytes {} a null pointer; pass memory of at least that size", bytes,
                          to == nullptr ? "to" : "from"));
}

}  // namespace ingot
