#include "ingot/runtime/core/check_experts.h"

#include <fmt/format.h>

#include <string>

#include "ingot/codegen/types/experts.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

#include "expert_slots.cuh"

namespace ingot {
namespace {

[[noreturn]] void refuse_ends(const char* what, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, what, message);
}

void check_counts(const char* what, const ExpertEnds& ends) {
  for (std::int64_t e = 0; e < ends.experts; ++e) {
    const std::int32_t count = ends.data[e];
    if (count >= 0 && count <= *ends.capacity) continue;
    refuse_ends(what, fmt::format("say that expert {} has {}, but it has room for 0 to {}", e, count_of(count, "row"),
                                  *ends.capacity));
  }
}

}  // namespace

std::int64_t expert_slots(std::int64_t rows, std::int64_t experts) { return ExpertSlots::count(rows, experts); }

Tensor bytes_of(const ExpertEnds& ends) {
  return vector(const_cast<std::int32_t*>(ends.data), Dtype::u8,
                ends.experts * static_cast<std::int64_t>(sizeof(*ends.data)), ends.device);
}

void check_ends(const char* what, const ExpertEnds& ends, Device device) {
  if (ends.experts < 1 || ends.experts > kMostExperts) {
    refuse_ends(what, fmt::format("are of {} experts, but there must be 1 to {}", ends.experts, kMostExperts));
  }
  if (ends.data == nullptr) {
    refuse_ends(what, "have a null data pointer; they must be int32, one for each expert");
  }
  if (ends.device != device) {
    refuse_ends(what,
                fmt::format("are on {}; this backend works on {}: copy them there", print(ends.device), print(device)));
  }
  if (reinterpret_cast<std::uintptr_t>(ends.data) % alignof(std::int32_t) != 0) {
    refuse_ends(what, fmt::format("have a data pointer {} that is misaligned: it must be a multiple of 4 bytes",
                                  fmt::ptr(ends.data)));
  }
  if (ends.capacity && *ends.capacity < 0) {
    refuse_ends(what, fmt::format("have a capacity of {} rows", *ends.capacity));
  }
}

void check_capacity(const char* what, const Tensor& tensor, const ExpertEnds& ends) {
  if (!ends.capacity) return;
  const std::int64_t capacity = *ends.capacity;
  if (capacity == 0 ? tensor.rows == 0 : tensor.rows % capacity == 0 && tensor.rows / capacity == ends.experts) return;
  refuse(what, tensor,
         fmt::format("its rows must be those of {} with room for {} each", count_of(ends.experts, "expert"), capacity));
}

void check_end_values(const char* what, const ExpertEnds& ends, const ExpertLines& lines) {
  if (ends.capacity) return check_counts(what, ends);
  const auto [count, line, of] = lines;
  std::int32_t before = 0;
  for (std::int64_t e = 0; e < ends.experts; ++e) {
    const std::int32_t end = ends.data[e];
    if (end < before) {
      refuse_ends(what, fmt::format("say that expert {} ends at {} {}, but {} {} {}: ends must not decrease", e, line,
                                    end, e == 0 ? "its first is" : "the one before ends at", line, before));
    }
    if (end > count) {
      refuse_ends(what, fmt::format("say that expert {} ends at {} {}, but {} has {}", e, line, end, of,
                                    count_of(count, line)));
    }
    before = end;
  }
}

}  // namespace ingot
