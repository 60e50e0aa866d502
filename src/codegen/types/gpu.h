// GPUs by name, for machines that have none: what a kernel is compiled for, and what the choice of kernels depends on.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

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
