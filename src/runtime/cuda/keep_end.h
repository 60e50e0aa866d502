// Which part of a matrix a first pass leaves in the L2 for the kernel that reads it again: as much of its end as fits
// beside what that kernel writes.
#pragma once

#include "ingot/runtime/cuda/launcher.h"

#include "amax.cuh"

namespace ingot::cuda {

// `bytes_per_element`: of all that is read for one element.
inline KeepFrom keep_end(i64 elements, i64 bytes_per_element, const Launcher& launcher) {
  const i64 kept = i64{launcher.l2_bytes()} * 3 / 5 / bytes_per_element;
  return {max_of(i64{0}, elements - kept)};
}

}  // namespace ingot::cuda
