// The operations of examples/train_lm on CUDA, against float64.
#include "support/gpu_test.h"

#include "ingot/runtime/context.h"
#include "train_lm_reference.h"

namespace train_lm::test {
namespace {

// gpu_check.sh runs this suite under compute-sanitizer too.
BOOST_AUTO_TEST_SUITE(small)

// The bounds of train_lm_model.cpp.
BOOST_AUTO_TEST_CASE(gradients_in_bf16) {
  ingot::Context context(ingot::test::cuda_options());
  check_gradients(context, ingot::high_precision(), 0.01);
}

BOOST_AUTO_TEST_CASE(gradients_in_fp8) {
  ingot::Context context(ingot::test::cuda_options());
  check_gradients(context, ingot::tensorwise(), 0.15);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace train_lm::test
