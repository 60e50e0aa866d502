// How the weights of examples/train_lm and examples/training become FP8 codes: one list of casts gives the losses of a
// cast in each layer, to the last digit; f32 masters without a bf16 weight train alike, and their codes are the
// masters', to the bit.
#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/weight_casts.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "nn/reference.h"
#include "options.h"
#include "train_lm_reference.h"
#include "trainer.h"
#include "training/optimizer.h"
#include "training/schedule.h"

namespace train_lm::test {
BOOST_AUTO_TEST_SUITE(test_train_lm_model_weights)

namespace {

using ingot::Dtype;
using ingot::test::Matrix;

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  return options;
}

// Letters that depend on the one before.
std::vector<std::uint8_t> text() {
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> result(20000, 'a');
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i] = static_cast<std::uint8_t>('a' + (result[i - 1] * 3U + random() % 2) % 8);
  }
  return result;
}

History train_with(WeightCodes codes, std::string_view recipe, std::int64_t steps, const std::string& model = "fp8") {
  ingot::Context context(cpu_options());
  Options options;
  options.shape = kShape;
  options.batch = 64;
  options.micro_batches = 2;
  options.steps = steps;
  options.recipe = recipe;
  options.weight_codes = codes;
  options.checkpoint_every = 0;
  complete(options, false);
  Trainer trainer(context, options, text());
  return trainer.train({model})[0];
}

BOOST_AUTO_TEST_CASE(one_list_changes_no_loss) {
  for (const ingot::Recipe& recipe : ingot::recipes()) {
    const History each = train_with(WeightCodes::each, recipe.name, 12);
    const History together = train_with(WeightCodes::together, recipe.name, 12);
    BOOST_TEST((each.losses == together.losses), recipe.name);
    BOOST_TEST(each.validation_loss == together.validation_loss, recipe.name);
    BOOST_TEST(each.losses.front() > each.losses.back(), recipe.name);
  }
}

BOOST_AUTO_TEST_CASE(masters_train_as_bf16_weights_do) {
  for (const std::string recipe : {"tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise"}) {
    const History weights = train_with(WeightCodes::together, recipe, 60);
    const History masters = train_with(WeightCodes::masters, recipe, 60);
    BOOST_TEST_MESSAGE(recipe << ": " << weights.validation_loss << " and " << masters.validation_loss);
    BOOST_TEST((masters.losses != weights.losses), recipe);  // they are other codes
    BOOST_TEST(masters.losses.back() < 0.9F * masters.losses.front(), recipe);
    BOOST_TEST_CHECK(masters.validation_loss == weights.validation_loss, boost::test_tools::tolerance(0.01));
  }
}

// The model in bf16 has no codes, so the same weights.
BOOST_AUTO_TEST_CASE(masters_are_for_fp8_alone) {
  BOOST_TEST((train_with(WeightCodes::masters, "tensorwise", 4, "bf16").losses ==
              train_with(WeightCodes::each, "tensorwise", 4, "bf16").losses));
}

// ---- FP8 primary weights with the functions: no weight in bf16, a model of two layers
// ---------------------------------

constexpr std::int64_t kTokens = 32, kWidth = 64, kInner = 160;
constexpr std::int64_t kSteps = 16;

// x + second(silu(first(x))) is to become a target.
struct Primary {
  Primary(ingot::Context& on, const ingot::LinearConfig& config, bool keeps_masters)
      : context(&on),
        stream(on.backend()),
        ops(on, stream),
        masters(keeps_masters),
        weights{training::Parameter(on.backend(), kInner, kWidth, {.working = !masters}),
                training::Parameter(on.backend(), kWidth, kInner, {.working = !masters})},
        optimizer(on.backend(), {&weights[0], &weights[1]}, {.weight_decay = 0}),
        casts(on.backend()) {
    const Dtype dtype = masters ? Dtype::f32 : Dtype::bf16;
    for (const std::size_t i : {0, 1}) {
      ingot::LinearFusion fusion;
      if (i == 0) fusion.epilogue = ingot::parse_pointwise("silu(x)");
      plans.push_back(ingot::linear_plan({.name = i == 0 ? "first" : "second",
                                          .config = config,
                                          .shape = {weights[i].values.view().cols, weights[i].values.view().rows},
                                          .dtypes = {.weight = dtype},
                                          .fusion = fusion}));
      const ingot::LinearPlan& plan = plans.back();
      weights[i].init(ops, stream, 0.1, i);
      regions.emplace_back(on.backend(), plan.weight_memory().bytes);
      saved_memory.emplace_back(on.backend(), plan.saved_memory(kTokens).bytes);
      saved[i].memory = region(saved_memory.back());
      codes.push_back(casts.add(plan, {.weight = weights[i].weight(), .into = region(regions.back())}, stream));
      const ingot::LinearMemory memory = plan.memory(kTokens);
      scratch.reserve(on.backend(), std::max(memory.forward.bytes, memory.backward.bytes), stream);
    }
    casts.run(stream);
  }

  static ingot::MemoryRegion region(const ingot::Buffer& buffer) { return {buffer.data(), buffer.bytes()}; }

  // The squared distance to the target, before the step.
  double step(std::int64_t number) {
    ingot::Backend& backend = context->backend();
    const ingot::LinearRun run{stream};
    ingot::linear_forward(
        plans[0], backend,
        {.input = x, .output = hidden, .codes = codes[0], .saved = &saved[0], .scratch = region(scratch)}, run);
    ingot::linear_forward(
        plans[1], backend,
        {.input = hidden, .output = y, .codes = codes[1], .saved = &saved[1], .scratch = region(scratch)}, run);
    backend.elementwise({.pointwise = ingot::parse_pointwise("x - target")},
                        {.input = y, .inputs = {target.view()}, .output = grad}, stream);
    const Matrix difference = grad.read(stream);
    const auto backward = [&](std::size_t i, const ingot::Tensor& grad_output, const ingot::Tensor& input,
                              const ingot::Tensor& grad_input) {
      ingot::linear_backward(plans[i], backend,
                             {.saved = &saved[i],
                              .grad_output = grad_output,
                              .grad_input = grad_input,
                              .grad_weight = weights[i].grad,
                              .input = input,
                              .codes = codes[i],
                              .scratch = region(scratch)},
                             run);
    };
    backward(1, grad, hidden, grad_hidden);
    backward(0, grad_hidden, x, {});
    training::StepValues values{.step = number, .seed = 0, .learning_rate = 0.003F, .correction1 = 0, .correction2 = 0};
    set_corrections({}, values);
    backend.device_api().copy_from_host(now.data(), &values, sizeof values, stream);
    optimizer.step(ops, static_cast<const training::StepValues*>(now.data()));
    casts.run(stream);
    double sum = 0;
    for (const double value : difference.values) sum += value * value;
    return sum;
  }

  ingot::test::DeviceMatrix make(std::int64_t rows, std::int64_t cols, unsigned seed) {
    return {ingot::test::Random(seed).normal(rows, cols, Dtype::bf16), Dtype::bf16, context->backend(), stream};
  }

  ingot::Context* context;
  ingot::Stream stream;
  training::OpRunner ops;
  bool masters;
  std::array<training::Parameter, 2> weights;
  training::AdamW optimizer;
  ingot::WeightCasts casts;
  std::vector<ingot::LinearPlan> plans;
  std::vector<ingot::Buffer> regions, saved_memory;
  std::array<ingot::LinearSaved, 2> saved;
  std::vector<ingot::Float8View> codes;
  ingot::Buffer scratch;
  ingot::Buffer now{context->backend(), sizeof(training::StepValues)};
  ingot::test::DeviceMatrix x = make(kTokens, kWidth, 1), target = make(kTokens, kWidth, 2);
  ingot::test::DeviceMatrix hidden = make(kTokens, kInner, 3), grad_hidden = make(kTokens, kInner, 3);
  ingot::test::DeviceMatrix y = make(kTokens, kWidth, 3), grad = make(kTokens, kWidth, 3);
};

Matrix values_of(const training::Parameter& weight) {  // the CPU's memory
  const ingot::Tensor& view = weight.values.view();
  Matrix result = ingot::test::zeros(view.rows, view.cols);
  const auto* values = static_cast<const float*>(view.data);
  result.values.assign(values, values + result.values.size());
  return result;
}

// By formats written twice (tests/support/reference_formats.h).
void check_codes(const Primary& model, std::size_t i, const ingot::LinearConfig& config) {
  const ingot::test::Quantized expected = ingot::test::quantized(values_of(model.weights[i]), *config.output.b);
  const ingot::Tensor& codes = model.codes[i].codes;
  const auto* scale_inv = static_cast<const float*>(model.codes[i].scale_inv.data);
  const bool blocks = config.output.b->granularity == ingot::kBlocks;
  const bool rows = config.output.b->granularity == ingot::kRowwise;
  for (std::int64_t r = 0; r < codes.rows; ++r) {
    for (std::int64_t c = 0; c < codes.cols; ++c) {
      const auto code = static_cast<const std::uint8_t*>(codes.data)[r * codes.row_stride + c];
      const std::int64_t factor = rows ? r : blocks ? r / 128 * ((codes.cols + 127) / 128) + c / 128 : 0;
      BOOST_REQUIRE_EQUAL(ingot::test::decode_reference(codes.dtype, code), expected.codes.at(r, c));
      BOOST_REQUIRE_EQUAL(scale_inv[factor], static_cast<float>(expected.scale_inv.at(r, c)));
    }
  }
}

BOOST_AUTO_TEST_CASE(primary_weights_are_the_cast_of_their_masters) {
  for (const std::string recipe : {"tensorwise", "rowwise", "blockwise"}) {
    BOOST_TEST_CONTEXT(recipe) {
      ingot::Context context(cpu_options());
      const ingot::LinearConfig config = ingot::recipe(recipe);
      Primary primary(context, config, true);
      Primary bf16(context, config, false);
      BOOST_TEST(primary.weights[0].working.view().data == nullptr);
      const double first = primary.step(0);
      BOOST_TEST_CHECK(first == bf16.step(0), boost::test_tools::tolerance(0.02));
      double last = 0;
      double last_of_bf16 = 0;
      for (std::int64_t step = 1; step < kSteps; ++step) {
        last = primary.step(step);
        last_of_bf16 = bf16.step(step);
        for (const std::size_t i : {0, 1}) check_codes(primary, i, config);
      }
      BOOST_TEST_MESSAGE(recipe << ": " << first << " -> " << last << ", of bf16 " << last_of_bf16);
      BOOST_TEST(last < 0.5 * first);
      BOOST_TEST_CHECK(last == last_of_bf16, boost::test_tools::tolerance(0.02));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace train_lm::test
