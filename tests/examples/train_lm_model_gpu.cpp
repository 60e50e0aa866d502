// The operations of examples/train_lm on CUDA, against float64.
#define BOOST_TEST_MODULE examples_train_lm_model_gpu
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_ALTERNATIVE_INIT_API
#include <boost/test/included/unit_test.hpp>

#include <iostream>
#include <memory>
#include <string>

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "train_lm_reference.h"

namespace train_lm::test {
namespace {

ingot::ContextOptions cuda_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cuda;
  return options;
}

// gpu_check.sh runs this suite under compute-sanitizer too.
BOOST_AUTO_TEST_SUITE(small)

// The bounds of train_lm_model.cpp.
BOOST_AUTO_TEST_CASE(gradients_in_bf16) {
  ingot::Context context(cuda_options());
  check_gradients(context, ingot::high_precision(), 0.01);
}

BOOST_AUTO_TEST_CASE(gradients_in_fp8) {
  ingot::Context context(cuda_options());
  check_gradients(context, ingot::tensorwise(), 0.15);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace train_lm::test

int main(int argc, char** argv) {
  std::string problem;
  const std::unique_ptr<ingot::Driver> driver = ingot::Driver::open(problem);
  if (driver == nullptr || driver->device_count() == 0) {
    std::cout << "skipped: no CUDA device (" << problem << ")\n";
    return 77;
  }
  return boost::unit_test::unit_test_main(init_unit_test, argc, argv);
}
