// The state that DelayedScaling saves and loads, as a value and as one line of JSON:
//
//   {"ingot_delayed_scaling":1,"history_length":16,"slots":[{"name":"layers.0.wq.input","dtype":"e4m3fn","pow2":false,
//    "has_scale":true,"scale":1084227584,"amax":0,"history":[1065353216,...]},...],"checksum":"<32 hex>"}
//
// Floats are written as their bits, in decimal. Any change of this format changes the number after
// "ingot_delayed_scaling".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

struct DelayedScalingState {
  struct Slot {
    std::string name{};
    Dtype dtype{};
    bool pow2 = false;
    bool has_scale = false;
    std::uint32_t scale = 0;  // f32, as its bits
    std::uint32_t amax = 0;
    std::vector<std::uint32_t> history{};  // newest first
  };

  int history_length = 0;
  std::vector<Slot> slots{};  // with unique names, and histories of history_length entries
};

std::string print(const DelayedScalingState& state);
// Throws Error{invalid_argument} that says where the text differs from what print() writes.
DelayedScalingState parse_delayed_scaling_state(std::string_view text);

}  // namespace ingot
