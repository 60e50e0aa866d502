// The adapters of examples/lora on the CPU: their gradients against float64, with frozen weights in bf16 and in every
// kind of FP8 that has gradients of the input; that training goes as with frozen weights in bf16; and that a frozen
// weight in FP8 has no copy in high precision.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>
#include <variant>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/jit/kernel.h"
#include "lora_reference.h"

namespace lora::test {
BOOST_AUTO_TEST_SUITE(test_lora_model)

namespace {

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  return options;
}

constexpr const char* kRecipes[] = {"tensorwise", "rowwise_folded", "blockwise"};

BOOST_AUTO_TEST_CASE(gradients_with_bf16) {
  Place place(cpu_options());
  check_gradients(place, std::nullopt, 0.01);
}

// The frozen weights are what the codes mean. Only activations and gradients are rounded: to 4 bits, e5m2 to 3.
BOOST_AUTO_TEST_CASE(gradients_with_fp8) {
  Place place(cpu_options());
  for (const char* recipe : kRecipes) {
    BOOST_TEST_CONTEXT(recipe) { check_gradients(place, ingot::recipe(recipe), 0.06); }
  }
}

BOOST_AUTO_TEST_CASE(training_goes_as_with_bf16) {
  Place place(cpu_options(), {.tokens = 512, .features = 64, .hidden = 128, .classes = 64, .rank = 16});
  for (const char* recipe : kRecipes) {
    BOOST_TEST_CONTEXT(recipe) { check_training(place, ingot::recipe(recipe), {.steps = 40, .learning_rate = 5e-3}); }
  }
}

BOOST_AUTO_TEST_CASE(a_frozen_weight_in_fp8_is_codes_and_scale_inv_alone) {
  Place place(cpu_options(), {.tokens = 8, .features = 256, .hidden = 512, .classes = 256, .rank = 16});
  const Model bf16(place.backend(), place.stream, place.ops, place.task, std::nullopt);
  const Model fp8(place.backend(), place.stream, place.ops, place.task, ingot::blockwise());
  BOOST_TEST(bf16.frozen_bytes() == 2U * (512 * 256 + 256 * 512));
  // Codes, transposed codes, and a scale_inv for each block.
  BOOST_TEST(fp8.frozen_bytes() <= 2U * (512 * 256 + 256 * 512) + 2048);
}

// Casts to FP8, whatever passes they take.
class CastCounter final : public ingot::LaunchHook {
 public:
  void before(const ingot::Stream&) override {}
  void after(const ingot::KernelSpec& spec, ingot::Pass pass, const ingot::Stream&) override {
    const auto* const cast = std::get_if<ingot::CastSpec>(&spec);
    if (cast != nullptr && counts(*cast, pass)) ++casts;
  }

  int casts = 0;

 private:
  // Each cast has exactly one of these passes: main, or what replaces it. Wide rows' codes do not count where
  // transposed codes follow them, in a separate pass.
  static bool counts(const ingot::CastSpec& cast, ingot::Pass pass) {
    using ingot::Pass;
    return pass == Pass::main || pass == Pass::whole || pass == Pass::unaligned ||
           (pass == Pass::wide && !cast.transposed);
  }
};

// On the CUDA backend without a GPU, at the size that a GPU trains: each step launches the same kernels, and none of
// them casts a frozen weight.
BOOST_AUTO_TEST_CASE(steps_on_a_gpu_cast_no_frozen_weight) {
  constexpr ModelShape kLarge{.tokens = 8192, .features = 4096, .hidden = 8192, .classes = 1024, .rank = 16};
  for (const char* recipe : kRecipes) {
    BOOST_TEST_CONTEXT(recipe) {
      ingot::DryRun dry(ingot::gpu_named("h200"));
      ingot::Stream stream(dry.backend());
      training::OpRunner ops;
      const Task task(dry.backend(), stream, ops, kLarge, 1);
      Model model(dry.backend(), stream, ops, task, ingot::recipe(recipe));
      const ingot::OwnedTensor losses(dry.backend(), ingot::Dtype::f32, 1, 1);
      const auto launches_of_a_step = [&] {
        const std::int64_t before = dry.backend().device_api().launches();
        model.forward_backward(static_cast<float*>(losses.view().data), nullptr);
        return dry.backend().device_api().launches() - before;
      };
      const std::int64_t first = launches_of_a_step();
      CastCounter counter;
      dry.backend().device_api().set_launch_hook(&counter);
      BOOST_TEST(launches_of_a_step() == first);
      dry.backend().device_api().set_launch_hook(nullptr);
      BOOST_TEST(counter.casts == 3);  // the inputs of both layers, and the gradient that reaches the first
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace lora::test
