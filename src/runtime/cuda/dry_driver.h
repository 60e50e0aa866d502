// A CUDA driver that does nothing: the library's own CUDA code runs on it without a GPU, to find out which kernels it
// asks for. Every call succeeds at once. Memory is addresses that nothing may touch, so it costs none and a host that
// reads it crashes; copies to the host give zeros; a stream remembers whether it is capturing, and nothing else.
#pragma once

#include <memory>

#include "ingot/codegen/types/gpu.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot {

// Its one device is that GPU, one of known_gpus().
std::unique_ptr<Driver> make_dry_driver(const Gpu& gpu);

}  // namespace ingot
