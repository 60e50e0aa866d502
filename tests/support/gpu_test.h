// What the test programs with the label gpu share: their main(), which skips the tests if there is no GPU, and the way
// they make contexts. Include it once per program.
#pragma once

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <memory>
#include <string>

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/util/library.h"

namespace ingot::test {

// The options from the environment, with CUDA as the device.
inline ContextOptions cuda_options() {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cuda;
  return options;
}

// By default a thread that waits for the GPU spins. Many programs run side by side and take turns on one GPU, so most
// of them wait at any moment, while others need the cores to compile: let waiting threads sleep. To be called before
// the first context is made.
inline void sleep_while_waiting(const Driver& driver) {
  std::string problem;
  const Library library = Library::open("libcuda.so.1", problem);
  using SetFlags = CUresult (*)(CUdevice, unsigned);
  const auto set_flags = reinterpret_cast<SetFlags>(library.symbol("cuDevicePrimaryCtxSetFlags_v2"));
  int count = 0;
  driver.check(driver.api().cuDeviceGetCount(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    driver.check(driver.api().cuDeviceGet(&device, i), "cuDeviceGet");
    driver.check(set_flags(device, CU_CTX_SCHED_BLOCKING_SYNC), "cuDevicePrimaryCtxSetFlags");
  }
}

}  // namespace ingot::test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  std::string problem;
  const std::unique_ptr<ingot::Driver> driver = ingot::Driver::open(problem);
  if (driver == nullptr) {
    std::cout << "skipped: no CUDA device (" << problem << ")\n";
    return kSkipped;
  }
  ingot::test::sleep_while_waiting(*driver);
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
