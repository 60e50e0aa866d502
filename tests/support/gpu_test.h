// What the tests with the label gpu share: Boost.Test, and the way they make contexts. Their main() is gpu_main.cpp.
#pragma once

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <string>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot::test {

// The options from the environment, with CUDA as the device.
inline ContextOptions cuda_options() {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cuda;
  return options;
}

}  // namespace ingot::test
