// The adapters of examples/lora on the CPU: their gradients against float64, beside frozen weights in bf16 and in every
// kind of FP8 that has gradients of the input; that training goes as with frozen weights in bf16; and that a frozen
// weight in FP8 has no copy in high precision.
#include <boost/test/unit_test.hpp>

#include <string>

#include "lora_reference.h"

namespace lora::test {
namespace {

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  return options;
}

constexpr const char* kRecipes[] = {"tensorwise", "rowwise_folded", "blockwise"};

BOOST_AUTO_TEST_CASE(gradients_beside_bf16) {
  Place place(cpu_options());
  check_gradients(place, std::nullopt, 0.01);
}

// The frozen weights are what the codes mean. Only activations and gradients are rounded: to 4 bits, e5m2 to 3.
BOOST_AUTO_TEST_CASE(gradients_beside_fp8) {
  Place place(cpu_options());
  for (const char* recipe : kRecipes) {
    BOOST_TEST_CONTEXT(recipe) { check_gradients(place, ingot::recipe(recipe), 0.06); }
  }
}

BOOST_AUTO_TEST_CASE(training_goes_as_beside_bf16) {
  Place place(cpu_options(), {.tokens = 512, .features = 64, .hidden = 128, .classes = 64, .rank = 16});
  for (const char* recipe : kRecipes) {
    BOOST_TEST_CONTEXT(recipe) { check_training(place, ingot::recipe(recipe), {.steps = 40, .learning_rate = 5e-3}); }
  }
}

BOOST_AUTO_TEST_CASE(a_frozen_weight_in_fp8_is_codes_and_factors_alone) {
  Place place(cpu_options(), {.tokens = 8, .features = 256, .hidden = 512, .classes = 256, .rank = 16});
  const Model bf16(place.backend(), place.stream, place.ops, place.task, std::nullopt);
  const Model fp8(place.backend(), place.stream, place.ops, place.task, ingot::blockwise());
  BOOST_TEST(bf16.frozen_bytes() == 2U * (512 * 256 + 256 * 512));
  // Codes, transposed codes, and a factor for each block.
  BOOST_TEST(fp8.frozen_bytes() <= 2U * (512 * 256 + 256 * 512) + 2048);
}

}  // namespace
}  // namespace lora::test
