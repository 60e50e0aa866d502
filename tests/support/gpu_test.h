// How the tests with the label gpu make contexts.
#pragma once

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot::test {

// The options from the environment, with CUDA as the device.
inline ContextOptions cuda_options() {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cuda;
  return options;
}

}  // namespace ingot::test
