// examples/lora on CUDA: the checks of lora_model.cpp, and the training at another size.
#include "support/gpu_test.h"

#include "lora_reference.h"

namespace lora::test {
BOOST_AUTO_TEST_SUITE(test_lora_model_gpu)

namespace {

// gpu_check.sh runs this suite under compute-sanitizer too.
BOOST_AUTO_TEST_SUITE(small)

BOOST_AUTO_TEST_CASE(gradients) {
  Place place(ingot::test::cuda_options());
  check_gradients(place, std::nullopt, 0.01);
  for (const char* recipe : {"tensorwise", "rowwise_folded", "blockwise"}) {
    BOOST_TEST_CONTEXT(recipe) { check_gradients(place, ingot::recipe(recipe), 0.06); }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(training_goes_as_with_bf16) {
  Place place(ingot::test::cuda_options(),
              {.tokens = 4096, .features = 1024, .hidden = 2048, .classes = 512, .rank = 16});
  for (const char* recipe : {"tensorwise", "rowwise_folded", "blockwise"}) {
    BOOST_TEST_CONTEXT(recipe) { check_training(place, ingot::recipe(recipe), {.steps = 60, .learning_rate = 2e-3}); }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace lora::test
