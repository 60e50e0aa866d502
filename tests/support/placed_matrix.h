// Puts a matrix with guards into a backend's memory.
#pragma once

#include <utility>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/guarded_matrix.h"

namespace ingot::test {

// The matrix in a copy of all its bytes, which `memory` keeps.
inline Tensor place(const GuardedMatrix& matrix, std::vector<Buffer>& memory, Backend& backend, Stream& stream) {
  Buffer buffer(backend, matrix.bytes().size());
  backend.device_api().copy_from_host(buffer.data(), matrix.bytes().data(), matrix.bytes().size(), stream);
  memory.push_back(std::move(buffer));
  return matrix.view(memory.back().data(), backend.device());
}

}  // namespace ingot::test
