// What the test programs with the label gpu share: their main(), which skips the tests if there is no GPU, and the way
// they make contexts. Include it once per program.
#pragma once

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <string>

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

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  std::string problem;
  if (ingot::Driver::open(problem) == nullptr) {
    std::cout << "skipped: no CUDA device (" << problem << ")\n";
    return kSkipped;
  }
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
