// Plans of linear layers: the places of their memory, their identity, and the layers that cannot exist.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_linear_plan)

using namespace ingot;
using namespace ingot::test;

namespace {

LinearPlan plan_of(const LinearConfig& config, const LinearFusion& fusion = {}, Dtype dtype = Dtype::bf16) {
  return linear_plan({.name = "wq",
                      .config = config,
                      .shape = {.in_features = 70, .out_features = 600, .bias = true},
                      .dtypes = {dtype},
                      .fusion = fusion});
}

// Parts begin at multiples of 256 bytes, one after the other, and end within the region.
template <class Memory>
void check_places(const Memory& memory) {
  std::size_t end = 0;
  for (const TensorPlace& part : memory.parts()) {
    if (!part.used) continue;
    BOOST_TEST(part.offset % kLinearAlignment == 0U);
    BOOST_TEST(part.offset >= end);
    BOOST_TEST(part.row_stride >= part.cols);
    end = part.offset + part.bytes();
  }
  BOOST_TEST(memory.bytes >= end);
  BOOST_TEST(memory.bytes < end + kLinearAlignment);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plans)

BOOST_AUTO_TEST_CASE(parts_lie_one_behind_the_other) {
  for (const Recipe& recipe : recipes()) {
    for (const char* const epilogue : {"", "silu(x)", "sigmoid(x)"}) {
      LinearFusion fusion;
      if (*epilogue != 0) fusion = {.prologue = parse_pointwise("tanh(x)"), .epilogue = parse_pointwise(epilogue)};
      const LinearPlan plan = plan_of(recipe.config, fusion);
      for (const std::int64_t tokens : {0, 1, 7, 64, 1000}) {
        BOOST_TEST_CONTEXT(recipe.name << " [" << epilogue << "] " << tokens) {
          const LinearMemory memory = plan.memory(tokens);
          check_places(memory.weight);
          check_places(memory.saved);
          check_places(memory.forward);
          check_places(memory.backward);
          check_places(plan.forward_scratch(tokens, LinearPass::inference, true));
          check_places(plan.forward_scratch(tokens, LinearPass::recompute));
          for (const bool input : {false, true}) {
            for (const bool weight : {false, true}) {
              for (const bool bias : {false, true}) {
                check_places(plan.backward_scratch(tokens, {input, weight, bias}, true));
                check_places(plan.backward_scratch(tokens, {input, weight, bias}, true, true));
              }
            }
          }
        }
      }
    }
  }
}

// Whether backward's codes of the weight come with forward's, or are made again.
BOOST_AUTO_TEST_CASE(grad_input_reads_scales_of) {
  struct Expected {
    LinearConfig config;
    ScaleGranularity scale;
  };
  for (const auto& [config, scale] : {Expected{tensorwise(), kTensorwise}, Expected{delayed(), kTensorwise},
                                      Expected{rowwise(), kColumnwise}, Expected{rowwise_folded(), kRowwise},
                                      Expected{rowwise_with_gw_hp(), kTensorwise}, Expected{blockwise(), kBlocks}}) {
    BOOST_TEST_CONTEXT(print(config)) {
      BOOST_TEST(print(plan_of(config).weight_scale_of_grad_input()) == print(scale));
      LinearConfig again = config;
      if (again.weight == OtherCodes::folded) continue;
      again.weight = OtherCodes::again;
      BOOST_TEST(print(plan_of(again).weight_scale_of_grad_input()) == print(scale));
    }
  }
}

// Rows of codes start where tensor-core GEMMs load: multiples of 16 bytes, of 64 for long rows; short ones are dense.
BOOST_AUTO_TEST_CASE(codes_have_the_pitch_of_tensor_cores) {
  const LinearPlan plan = plan_of(rowwise());
  const LinearMemory memory = plan.memory(600);
  const TensorPlace codes{.dtype = Dtype::e4m3fn, .rows = 600, .cols = 70, .row_stride = 80, .offset = 0, .used = true};
  BOOST_TEST((memory.forward.input_codes == codes));
  BOOST_TEST(memory.weight.codes.row_stride == 80);
  BOOST_TEST(memory.weight.transposed.row_stride == 640);
  BOOST_TEST(memory.saved.input_transposed.row_stride == 640);
  BOOST_TEST(plan.memory(33).saved.input_transposed.row_stride == 33);
  BOOST_TEST(memory.saved.input_scale_inv.cols == 70);
  BOOST_TEST(memory.saved.bytes == 70U * 640 + 512);
  BOOST_TEST(memory.saved.bytes_of_parts() == 69U * 640 + 600 + 70 * 4);
}

BOOST_AUTO_TEST_CASE(what_is_not_needed_has_no_place) {
  const LinearMemory high = plan_of(high_precision()).memory(100);
  BOOST_TEST(high.weight.bytes + high.saved.bytes + high.forward.bytes + high.backward.bytes == 0U);
  const LinearPlan plan = plan_of(tensorwise());
  BOOST_TEST(plan.forward_scratch(100, LinearPass::recompute).bytes == 0U);
  BOOST_TEST(plan.backward_scratch(100, {.input = false, .weight = false, .bias = true}).bytes == 0U);
  BOOST_TEST(!plan.backward_scratch(100, {.input = false}).codes.used);
}

BOOST_AUTO_TEST_CASE(a_plan_tells_how_each_scale_is_made) {
  for (const Recipe& recipe : recipes()) {
    BOOST_TEST_CONTEXT(recipe.name) {
      const LinearPlan plan = plan_of(recipe.config);
      BOOST_TEST((plan.scaling.input == recipe.config.output.a));
      BOOST_TEST((plan.scaling.weight == recipe.config.output.b));
      BOOST_TEST((plan.scaling.grad_output == recipe.config.grad_input.a));
      BOOST_TEST(plan.has_constants == (recipe.name == "rowwise_folded"));
    }
  }
  // Only backward casts: the scales are those of its GEMMs.
  LinearConfig backward = tensorwise();
  backward.output = {};
  for (std::optional<Cast>* cast : {&backward.grad_input.a, &backward.grad_weight.a}) {
    (*cast)->scaling = Scaling::fixed;
    (*cast)->scale = 4;
  }
  const LinearPlan plan = plan_of(backward);
  BOOST_TEST((plan.scaling.input == backward.grad_weight.b));
  BOOST_TEST((plan.scaling.weight == backward.grad_input.b));
  BOOST_TEST(plan.scaling.grad_output->scale == 4);
  BOOST_TEST(plan.has_constants);
  backward.grad_input = {};
  BOOST_TEST((plan_of(backward).scaling.grad_output == backward.grad_weight.a));
  BOOST_TEST(!plan_of(backward).scaling.weight.has_value());
}

BOOST_AUTO_TEST_CASE(epilogues_of_huge_matmuls_with_scale_inv_of_groups_run_apart) {
  LinearPlanOptions options{.config = blockwise(), .shape = {.in_features = 16384, .out_features = 16384}};
  options.fusion.epilogue = parse_pointwise("silu(x)");
  const LinearPlan plan = linear_plan(options);
  BOOST_TEST(!plan.runs_epilogue_apart(3725));  // 1e12 products
  BOOST_TEST(plan.runs_epilogue_apart(3726));
  options.fused_products = std::numeric_limits<double>::infinity();
  BOOST_TEST(!linear_plan(options).runs_epilogue_apart(16384));
  options.fused_products = 2048 * 16384.0 * 16384.0;
  const LinearPlan limited = linear_plan(options);
  BOOST_TEST(!limited.runs_epilogue_apart(2048));
  BOOST_TEST(limited.runs_epilogue_apart(2049));
  BOOST_TEST(limited.identity != plan.identity);
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    options.fused_products = wrong;
    BOOST_TEST(error_of([&] { static_cast<void>(linear_plan(options)); }, ErrorCode::invalid_argument) ==
               fmt::format("linear \"linear\" fused_products: is {}, but must be 0 or more", wrong));
  }
  options.fused_products = 0;
  BOOST_TEST(linear_plan(options).runs_epilogue_apart(1));
  options.config = rowwise();
  BOOST_TEST(!linear_plan(options).runs_epilogue_apart(16384));
  options.config = high_precision();
  BOOST_TEST(linear_plan(options).runs_epilogue_apart(1));
  options.fusion.epilogue = {};
  BOOST_TEST(!linear_plan(options).runs_epilogue_apart(1));
}

BOOST_AUTO_TEST_CASE(plans_are_values) {
  const LinearPlan plan = plan_of(tensorwise());
  const LinearPlan copy = plan;
  BOOST_TEST(copy.identity == plan.identity);
  BOOST_TEST(plan_of(tensorwise()).identity == plan.identity);
  BOOST_TEST(plan_of(tensorwise(), {}, Dtype::f16).identity != plan.identity);
  BOOST_TEST(plan_of(tensorwise(), {.epilogue = parse_pointwise("silu(x)")}).identity != plan.identity);
  std::vector<std::uint64_t> all;
  for (const Recipe& recipe : recipes()) all.push_back(plan_of(recipe.config).identity);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) BOOST_TEST(all[i] != all[j]);
  }
}

BOOST_AUTO_TEST_CASE(refuses_what_cannot_be) {
  const auto refusal = [](const auto& act) { return error_of(act, ErrorCode::invalid_argument); };
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {-1, 4}});
             }) == "linear \"wq\" in_features: is -1, but must be 0 or more");
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {4, -2}});
             }) == "linear \"wq\" out_features: is -2, but must be 0 or more");
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {4, 4}, .dtypes = {Dtype::e4m3fn}});
             }) == "linear \"wq\" dtypes: has e4m3fn for the input, but it must be f32 or bf16 or f16");
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {4, 4}, .dtypes = {.bias = Dtype::u8}});
             }) == "linear \"wq\" dtypes: has u8 for the bias, but it must be f32 or bf16 or f16");
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {4, 4}, .dtypes = {Dtype::bf16, Dtype::f32}});
             }) ==
             "linear \"wq\" dtypes: has bf16 for the input and f32 for the weight, but the output GEMM is in high "
             "precision, whose operands have one dtype: give the weight in bf16, or choose a recipe that casts it for "
             "both of its GEMMs");
  BOOST_TEST(refusal([] {
               linear_plan({.name = "wq", .shape = {4, 4}, .dtypes = {.output = Dtype::f16}});
             }) ==
             "linear \"wq\" dtypes: has bf16 for the input and f16 for the output, but the output GEMM is in high "
             "precision, which gives its operands' dtype or f32");
  const LinearPlan plan = plan_of(tensorwise());
  BOOST_TEST(refusal([&] { static_cast<void>(plan.memory(-3)); }) ==
             "linear \"wq\" tokens: is -3, but must be 0 or more");
  BOOST_TEST(refusal([&] { static_cast<void>(plan.memory(std::int64_t{1} << 60)); }) ==
             "linear \"wq\" tokens: is 1152921504606846976, whose tensors no memory can hold");
  LinearConfig mixed = tensorwise();
  mixed.output.a.reset();
  BOOST_CHECK_THROW(linear_plan({.config = mixed}), Error);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
