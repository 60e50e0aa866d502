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

// An output in a backend's memory.
class PlacedOut {
 public:
  PlacedOut(GuardedMatrix start, Backend& backend)
      : start_(std::move(start)), backend_(&backend), memory_(backend, start_.bytes().size()) {}

  void poison(Stream& stream) {
    backend_->device_api().copy_from_host(memory_.data(), start_.bytes().data(), start_.bytes().size(), stream);
  }
  GuardedMatrix fetch(Stream& stream) {
    GuardedMatrix fetched = start_;
    backend_->device_api().copy_to_host(fetched.bytes().data(), memory_.data(), fetched.bytes().size(), stream);
    return fetched;
  }
  Tensor view() { return start_.view(memory_.data(), backend_->device()); }

 private:
  GuardedMatrix start_;  // poisoned
  Backend* backend_;
  Buffer memory_;
};

}  // namespace ingot::test
