// linear_gemms() must list exactly the GEMMs of a Float8Linear step, as a context records them, for
// every recipe and every kind of config.
#include <boost/test/unit_test.hpp>

#include <array>
#include <filesystem>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/buffer.h"
#include "nn/linear_case.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_linear_gemms)

using namespace ingot;

namespace {

std::vector<GemmCall> recorded(const LinearConfig& config, const LinearSize& size, Dtype dtype) {
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  options.cuda_root = "none";
  Context context(options);
  Backend& backend = context.backend();
  Stream stream(backend);
  const auto tensor = [&](std::int64_t rows, std::int64_t cols) {
    OwnedTensor made(backend, dtype, rows, cols);
    backend.device_api().fill_zero(made.view().data, byte_span(made, "tensor"), stream);
    return made;
  };
  const OwnedTensor input = tensor(size.tokens, size.in_features);
  const OwnedTensor weight = tensor(size.out_features, size.in_features);
  const OwnedTensor output = tensor(size.tokens, size.out_features);
  const OwnedTensor grad_input = tensor(size.tokens, size.in_features);
  const OwnedTensor grad_weight = tensor(size.out_features, size.in_features);
  DelayedScaling scales(backend);
  Float8Linear linear(backend, {.in_features = size.in_features, .out_features = size.out_features}, config,
                      {.delayed = &scales});
  linear.forward({.input = input, .weight = weight, .output = output}, stream);
  linear.backward({.grad_output = output, .grad_input = grad_input, .grad_weight = grad_weight}, stream);
  std::vector<GemmCall> gemms;
  const Recording recording = context.recording();
  for (const MatmulCall& call : recording.matmuls()) {
    gemms.push_back({.spec = std::get<GemmSpec>(call.spec), .size = call.size});
  }
  return gemms;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_gemms_of_a_step) {
  constexpr LinearSize kSize{.tokens = 32, .in_features = 64, .out_features = 48};
  for (const LinearConfig& config : test::every_config()) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      const std::vector<GemmCall> actual = recorded(config, kSize, dtype);
      const std::array<LinearGemm, 3> expected = linear_gemms(config, kSize, dtype);
      BOOST_REQUIRE(actual.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        BOOST_TEST(print(actual[i]) == print(expected[i].call), expected[i].role << " of " << print(config));
      }
    }
  }
}

// Blocks and groups of 128 that a size does not fill, and those that it does.
BOOST_AUTO_TEST_CASE(the_gemms_of_every_recipe_at_sizes_in_blocks) {
  for (const Recipe& recipe : recipes()) {
    for (const LinearSize& size : {LinearSize{128, 256, 384}, LinearSize{5, 130, 129}}) {
      const std::vector<GemmCall> actual = recorded(recipe.config, size, Dtype::bf16);
      const std::array<LinearGemm, 3> expected = linear_gemms(recipe.config, size, Dtype::bf16);
      BOOST_REQUIRE(actual.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        BOOST_TEST(print(actual[i]) == print(expected[i].call), expected[i].role << " of " << recipe.name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_config_that_is_none) {
  LinearConfig incomplete = tensorwise();
  incomplete.output.b.reset();
  test::check_contains(test::error_of(
                           [&] {
                             static_cast<void>(linear_gemms(incomplete, {1, 1, 1}, Dtype::bf16));
                           },
                           ErrorCode::invalid_spec),
                       {"incompatible operand precision for output"});
}

BOOST_AUTO_TEST_SUITE_END()
