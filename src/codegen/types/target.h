// The exact GPU architecture that a kernel is compiled for.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

struct Target {
  int major = 9;
  int minor = 0;
  bool arch_specific = true;  // the "a" of sm_90a: instructions that exist on this architecture only
  auto operator<=>(const Target&) const = default;
};

// "sm_90a"
INGOT_API std::string print(Target target);
INGOT_API std::optional<Target> parse_target(std::string_view text);

// The target that a device of this compute capability runs best: arch-specific from 9.0 on.
constexpr Target target_for(int major, int minor) { return {major, minor, major >= 9}; }

// Every kernel must compile for all of these.
inline constexpr std::array kSupportedTargets{Target{8, 0, false}, Target{8, 9, false}, Target{9, 0, true},
                                              Target{10, 0, true}, Target{12, 0, true}};

}  // namespace ingot
