// main() of the test programs with the label gpu: without a GPU it says that the tests are skipped.
#include <boost/test/unit_test.hpp>

#include <iostream>
#include <string>

#include "ingot/runtime/cuda/driver.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  std::string problem;
  if (ingot::Driver::open(problem) == nullptr) {
    std::cout << "skipped: no CUDA device (" << problem << ")\n";
    return kSkipped;
  }
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
