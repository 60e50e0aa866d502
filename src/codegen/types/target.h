// GPUs: the exact architecture that a kernel is compiled for, and GPUs by name, for machines that have none.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <span>
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

// What the choice of a matmul's kernel depends on.
struct MatmulDevice {
  Target target{};
  int multiprocessors = 0;
  bool compiles = true;  // can kernels be compiled here? If not, only those in the store can run.
};

struct Gpu {
  std::string_view name;    // "h200"
  std::string_view device;  // as the driver names it: "NVIDIA H200"
  Target target;
  int multiprocessors;
  int block_shared_bytes;  // the most shared memory that one block can have
};

// In a fixed order. The numbers are those of whole GPUs: a MIG instance has fewer multiprocessors.
INGOT_API std::span<const Gpu> known_gpus();

// "a100, l4, ..."
INGOT_API std::string gpu_names();

// Throws Error{invalid_argument} that lists the names.
INGOT_API const Gpu& gpu_named(std::string_view name);

// The first of that target; null if there is none.
INGOT_API const Gpu* gpu_of_target(const Target& target);

inline MatmulDevice matmul_device(const Gpu& gpu) {
  return {.target = gpu.target, .multiprocessors = gpu.multiprocessors};
}

}  // namespace ingot
