// What modules of several parts (a norm and its layer, an MLP) ask of their arguments besides what each part asks.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {

// Names tensors by the module's name; a message is formatted only if a rule is broken.
class ModuleChecker {
 public:
  explicit ModuleChecker(const std::string& subject) : subject_(&subject) {}

  [[noreturn]] void refuse(const char* name, const std::string& message) const {
    refuse_argument(fmt::format("{} {}", *subject_, name).c_str(), message);
  }

  void disjoint(const NamedTensor& written, std::initializer_list<NamedTensor> others) const {
    for (const NamedTensor& other : others) {
      if (!overlap(*written.tensor, *other.tensor)) continue;
      refuse(written.name, fmt::format("overlaps {}: give it memory of its own", other.name));
    }
  }

  // Memory of at least that size, aligned, and apart from the tensors.
  void region(const char* name, const MemoryRegion& region, std::size_t bytes,
              std::initializer_list<NamedTensor> tensors) const {
    if (bytes == 0) return;
    if (region.data == nullptr) {
      refuse(name,
             fmt::format("is missing; it must have {} bytes: the plan tells how much memory a call needs", bytes));
    }
    if (region.bytes < bytes) {
      refuse(name, fmt::format("has {} bytes, but needs {}: the plan tells how much memory a call needs", region.bytes,
                               bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(region.data) % kLinearAlignment != 0) {
      refuse(name, fmt::format("begins at {}, but must begin at a multiple of {} bytes", fmt::ptr(region.data),
                               kLinearAlignment));
    }
    const Tensor used = bytes_of(region, bytes);
    for (const NamedTensor& tensor : tensors) {
      if (!overlap(used, *tensor.tensor)) continue;
      refuse(name, fmt::format("overlaps {}: give it memory of its own", tensor.name));
    }
  }

  // The same of scratch, which a stream with an allocator would have given.
  void scratch(const MemoryRegion& region, std::size_t bytes, std::initializer_list<NamedTensor> tensors) const {
    if (bytes != 0 && region.data == nullptr) refuse("scratch", missing_scratch(bytes));
    this->region("scratch", region, bytes, tensors);
  }

  void saved_apart(const MemoryRegion& saved, std::size_t saved_bytes, const MemoryRegion& scratch,
                   std::size_t scratch_bytes) const {
    const Tensor of_scratch = bytes_of(scratch, scratch_bytes);
    if (!overlap(bytes_of(saved, saved_bytes), of_scratch)) return;
    refuse("saved", "overlaps the scratch: give it memory of its own");
  }

  // What a backward is given must be what a forward of this plan left.
  void stamp(const LinearSaved* saved, std::uint64_t plan) const {
    if (saved == nullptr || (!saved->kept && saved->plan == 0)) {
      refuse("backward", "has no forward() before it: run forward() first");
    }
    if (!saved->kept) {
      refuse("backward", "has no forward() before it that kept what it needs: run forward() first, or recompute()");
    }
    if (saved->plan == plan) return;
    refuse("saved", "was written by a forward of another plan: give this backward what its own forward kept");
  }

 private:
  static Tensor bytes_of(const MemoryRegion& region, std::size_t bytes) {
    const auto count = static_cast<std::int64_t>(region.data == nullptr ? 0 : bytes);
    return {.data = region.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = count, .row_stride = count};
  }

  const std::string* subject_;
};

}  // namespace ingot
