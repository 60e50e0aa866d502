// The linear layers of many experts, on the CPU reference: float64's results for every recipe that groups take, for all
// kinds of ends; the plan's memory; and the messages.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/observe/monitor.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/check.h"
#include "nn/counting_backend.h"
#include "nn/grouped_linear_case.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_grouped_linear)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};

  void expect_right(const GroupedLinearCase& c) {
    GroupedLinearRun run(c, *backend, stream);
    run.enqueue();
    run.check(describe(c));
  }
};

// What an observer is told of casts.
class CastLog final : public LayerObserver {
 public:
  void cast(const CastEvent& event, Stream&) override {
    lines.push_back(std::string(event.tensor) + " " + std::string(event.gemms) +
                    (event.transposed ? ", transposed" : "") +
                    (event.values.data == nullptr ? ", without values" : ""));
    BOOST_TEST(event.codes.data != nullptr);
    BOOST_TEST(event.scale_inv.data != nullptr);
  }

  std::vector<std::string> lines;
};

// Of so many rows each.
std::vector<double> maxima_of(const Matrix& matrix, std::int64_t rows) {
  std::vector<double> maxima(static_cast<std::size_t>(matrix.rows / rows));
  for (std::int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
    double& maximum = maxima[static_cast<std::size_t>(i / (rows * matrix.cols))];
    maximum = std::max(maximum, std::abs(matrix.values[static_cast<std::size_t>(i)]));
  }
  return maxima;
}

LinearConfig casting_weight_again(LinearConfig config) {
  config.weight = OtherCodes::again;
  return config;
}

}  // namespace

// Experts without rows first, last and between, one with one row, and rows that no expert has.
BOOST_FIXTURE_TEST_CASE(has_float64s_results, Fixture) {
  for (const LinearConfig& config :
       {tensorwise(), delayed(), rowwise(), blockwise(), casting_weight_again(tensorwise()),
        casting_weight_again(delayed()), casting_weight_again(rowwise()), casting_weight_again(blockwise())}) {
    expect_right({.config = config, .ends = {0, 7, 8, 8, 24, 24}, .rows = 27, .in = 20, .out = 36});
    expect_right({.config = config,
                  .ends = {5, 9},
                  .rows = 9,
                  .in = 16,
                  .out = 8,
                  .dtype = Dtype::f32,
                  .grad_weight = Dtype::f32,
                  .accumulate = true});
  }
}

// Groups of 128 rows, whole ones and one row more or less, of several experts; features in several blocks, and blocks
// of weights that are cut short; one hot expert, and many with a few rows.
BOOST_FIXTURE_TEST_CASE(groups_begin_with_each_experts_first_row, Fixture) {
  LinearConfig groups_of_weights = blockwise();
  groups_of_weights.output.b->granularity = groups_of_weights.grad_input.b->granularity = kRowGroups;
  for (const LinearConfig& config : {blockwise(), casting_weight_again(blockwise()), groups_of_weights}) {
    expect_right({.config = config, .ends = {5, 132, 133, 262, 262, 390}, .rows = 400, .in = 136, .out = 260});
    expect_right({.config = config,
                  .ends = one_hot_ends(300, 5, 2),
                  .rows = 300,
                  .in = 20,
                  .out = 130,
                  .dtype = Dtype::f16,
                  .grad_weight = Dtype::f32,
                  .accumulate = true,
                  .gated = true});
    expect_right({.config = config, .ends = zipf_ends(290, 40), .rows = 290, .in = 16, .out = 24, .tokens = 70});
  }
}

BOOST_FIXTURE_TEST_CASE(takes_no_rows_and_one_expert, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    expect_right({.config = config, .ends = {0, 0}, .rows = 0, .in = 16, .out = 8});
    expect_right({.config = config, .ends = {11}, .rows = 11, .in = 16, .out = 8, .dtype = Dtype::f16});
  }
}

// Added within the output GEMM; their gradients are sums of each expert's rows.
BOOST_FIXTURE_TEST_CASE(takes_biases, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    expect_right({.config = config, .ends = {0, 7, 8, 8, 140, 300}, .rows = 303, .in = 20, .out = 36, .bias = true});
    expect_right({.config = config,
                  .ends = {0, 7, 8, 24},
                  .rows = 24,
                  .in = 20,
                  .out = 36,
                  .dtype = Dtype::f16,
                  .gated = true,
                  .bias = true});
    expect_right({.config = config, .ends = {5, 24}, .rows = 27, .in = 20, .out = 36, .tokens = 9, .bias = true});
    expect_right({.config = config, .ends = {0, 0}, .rows = 0, .in = 16, .out = 8, .dtype = Dtype::f32, .bias = true});
  }
}

// The gradients of biases alone need neither codes nor what forward has kept.
BOOST_FIXTURE_TEST_CASE(gradients_of_biases_may_be_wanted_alone, Fixture) {
  GroupedLinearRun run({.config = rowwise(), .ends = {3, 3, 24}, .rows = 24, .in = 16, .out = 8, .bias = true},
                       *backend, stream);
  run.enqueue();
  const Matrix expected = run.results()[3];
  run.reset();
  GroupedLinearBackwardTensors tensors = run.backward_tensors();
  tensors.grad_input = tensors.grad_weight = {};
  tensors.codes = {};
  grouped_linear_backward(run.plan, *backend, tensors, {stream});
  BOOST_TEST((run.results()[3].values == expected.values));
}

// A GPU's kernel loads both operands from addresses and row strides of 16 bytes, however few rows there are.
BOOST_FIXTURE_TEST_CASE(places_operands_where_a_gpu_loads_them, Fixture) {
  CountingBackend watched(*backend, &stream);
  int operands = 0;
  watched.before_grouped_gemm = [&](const GroupedGemmTensors& tensors) {
    for (const Tensor& operand : {tensors.a, tensors.b}) {
      BOOST_TEST(reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0U);
      BOOST_TEST(operand.row_stride % 16 == 0, describe(operand));
      ++operands;
    }
  };
  Stream of_watched(watched);
  for (const LinearConfig& config : {tensorwise(), blockwise(), casting_weight_again(rowwise())}) {
    for (const std::int32_t rows : {1, 9, 17, 40, 63, 64, 65, 130}) {
      GroupedLinearRun run({.config = config, .ends = {rows / 2, rows}, .rows = rows, .in = 48, .out = 80}, watched,
                           of_watched);
      run.enqueue();
      run.check("of few rows");
    }
  }
  BOOST_TEST(operands == 3 * 8 * 3 * 2);
}

// The expression is computed within the cast.
BOOST_FIXTURE_TEST_CASE(takes_a_prologue, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    expect_right({.config = config, .ends = {0, 7, 8, 24}, .rows = 24, .in = 20, .out = 36, .gated = true});
  }
}

// Rows of tokens, of which each expert has some: the bits of copies of them, and float64's results.
BOOST_FIXTURE_TEST_CASE(takes_rows_of_tokens, Fixture) {
  for (const LinearConfig& config :
       {tensorwise(), delayed(), rowwise(), blockwise(), casting_weight_again(rowwise())}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
      GroupedLinearCase c{
          .config = config, .ends = {0, 7, 8, 8, 24, 24}, .rows = 27, .in = 20, .out = 36, .dtype = dtype, .tokens = 9};
      GroupedLinearRun with_index(c, *backend, stream);
      with_index.enqueue();
      with_index.check(describe(c));
      c.copied = true;
      GroupedLinearRun with_copies(c, *backend, stream);
      with_copies.enqueue();
      const std::vector<Matrix> found = with_index.results();
      const std::vector<Matrix> expected = with_copies.results();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
        BOOST_TEST(std::ranges::equal(found[i].values, expected[i].values, same), describe(c) << ": result " << i);
      }
    }
  }
}

// In place of a weight that backward casts again: its codes by rows, as another call or rank has cast them.
BOOST_FIXTURE_TEST_CASE(takes_codes_in_place_of_the_weight, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise()}) {
    const GroupedLinearCase c{
        .config = casting_weight_again(config), .ends = {0, 7, 24}, .rows = 24, .in = 20, .out = 36};
    GroupedLinearRun run(c, *backend, stream);
    run.enqueue();
    const std::vector<Matrix> expected = run.results();
    run.reset();
    run.enqueue_codes();
    const std::vector<Matrix> found = run.results();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      BOOST_TEST((found[i].values == expected[i].values), describe(c) << ": result " << i);
    }

    GroupedLinearBackwardTensors backward = run.backward_tensors();
    backward.scales = run.scales.of(0);
    const auto message = [&] {
      return error_of([&] { grouped_linear_backward(run.plan, *backend, backward, {stream}); },
                      ErrorCode::invalid_argument);
    };
    const std::int64_t scales = 3 * scale_count(run.plan.weight_scale_of_grad_input(), c.out, c.in);
    const OwnedTensor codes(*backend, Dtype::e4m3fn, 3 * c.out, c.in);
    const OwnedTensor scale_inv(*backend, Dtype::f32, 1, scales - 1);
    backward.codes = {.codes = codes, .scale_inv = scale_inv};
    backward.weight = {};
    backward.weight_amax = {};
    check_contains(message(), {"grouped linear \"moe\" scale_inv of codes: ",
                               "must be [1, " + std::to_string(scales) + "] = scale_inv of each expert"});
    backward.codes = {};
    check_contains(message(), {"grouped linear \"moe\" weight: "});
  }
}

namespace {

struct DelayedFixture : Fixture {
  GroupedLinearCase c{.config = delayed(), .ends = {0, 7, 8, 8, 24}, .rows = 27, .in = 20, .out = 36};

  std::vector<float> scales_after(GroupedLinearRun& run) {
    run.scales.scaling.sync_amax_history(stream);
    return run.scales.values();
  }
  void set(const Tensor& to, const std::vector<float>& values) {
    backend->device_api().copy_from_host(to.data, values.data(), values.size() * sizeof(float), stream);
  }
};

float scale_of(Dtype dtype, double amax) { return static_cast<float>(fp8_max_reference(dtype) / amax); }

}  // namespace

// The first step has each expert's own maxima, and leaves them for the next; then scales are those of earlier steps.
BOOST_FIXTURE_TEST_CASE(each_expert_has_delayed_scales, DelayedFixture) {
  for (const LinearConfig& config : {delayed(), casting_weight_again(delayed())}) {
    c.config = config;
    GroupedLinearRun run(c, *backend, stream);
    run.enqueue();
    run.check(describe(c) + ", the first step");
    const std::vector<float> scales = scales_after(run);
    const std::vector<double> of_weights = maxima_of(run.weight(), c.out);
    for (std::size_t e = 0; e < 5; ++e) {
      const bool has_rows = e == 1 || e == 2 || e == 4;
      BOOST_TEST((scales[e] != 1) == has_rows, "input of expert " << e);
      BOOST_TEST(scales[5 + e] == scale_of(Dtype::e4m3fn, of_weights[e]));
      BOOST_TEST((scales[10 + e] != 1) == has_rows, "grad_output of expert " << e);
    }
    BOOST_TEST(run.scales.needs_start());  // for experts without rows
    const std::vector<Matrix> first = run.results();
    run.reset();
    run.enqueue();
    run.check(describe(c) + ", the second step");
    for (std::size_t i = 0; i < first.size(); ++i) {
      const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
      BOOST_TEST(std::ranges::equal(run.results()[i].values, first[i].values, same), "result " << i);
    }

    // Of maxima that no data of these steps have.
    std::vector<float> maxima(15);
    for (std::size_t i = 0; i < 15; ++i) maxima[i] = 10.0F + static_cast<float>(i);
    set(run.scales.scaling.amaxes(), maxima);
    const std::vector<float> others = scales_after(run);
    for (std::size_t i = 0; i < 15; ++i) {
      BOOST_TEST(others[i] == scale_of(i < 10 ? Dtype::e4m3fn : Dtype::e5m2, maxima[i]));
    }
    BOOST_TEST(!run.scales.needs_start());
    run.reset();
    run.enqueue();
    run.check(describe(c) + ", with other scales");
    // An expert without rows notes 0, by which its history keeps the maximum of before.
    BOOST_TEST(scales_after(run)[0] == others[0]);
  }
}

// The rule of all delayed scales: a history of nothing but zeros keeps the scale.
BOOST_FIXTURE_TEST_CASE(an_expert_without_rows_keeps_its_scale, DelayedFixture) {
  GroupedLinearRun run(c, *backend, stream);
  run.enqueue();
  set(run.scales.scaling.amaxes(), std::vector<float>(15, 2.0F));
  const float before = scales_after(run)[0];
  BOOST_TEST(before == 224.0F);
  for (int step = 0; step < 20; ++step) {
    run.reset();
    run.enqueue();
    BOOST_TEST(scales_after(run)[0] == before, "step " << step);
  }
}

// Nor does an expert's NaN reach the others.
BOOST_FIXTURE_TEST_CASE(delayed_rows_without_an_expert_may_hold_anything, DelayedFixture) {
  GroupedLinearRun run(c, *backend, stream);
  run.enqueue();
  scales_after(run);
  run.reset();
  run.enqueue();
  const std::vector<Matrix> expected = run.results();
  const auto spoil = [](const Tensor& matrix, std::int64_t row) {
    auto* const elements = static_cast<std::uint16_t*>(matrix.data) + row * matrix.row_stride;
    std::fill_n(elements, matrix.cols, std::uint16_t{0x7fc0});
  };
  for (const std::int64_t row : {24, 25, 26}) {
    spoil(run.forward_tensors().input, row);
    spoil(run.backward_tensors().grad_output, row);
  }
  const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
  run.reset();
  run.enqueue();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BOOST_TEST(std::ranges::equal(run.results()[i].values, expected[i].values, same), "result " << i);
  }
  spoil(run.forward_tensors().input, 7);  // expert 2's one row
  run.reset();
  run.enqueue();
  const Matrix grad_weight = run.results()[2];
  for (std::int64_t r = 0; r < grad_weight.rows; ++r) {
    const bool is_others = r / c.out != 2;
    BOOST_TEST((grad_weight.at(r, 0) == expected[2].at(r, 0)) == is_others, "row " << r);
  }
}

// One pass over each tensor.
BOOST_AUTO_TEST_CASE(delayed_scales_take_no_pass_for_maxima) {
  DryRun dry{gpu_named("h200")};
  Stream stream(dry.backend());
  const GroupedLinearCase c{.config = delayed(), .ends = {16, 48}, .rows = 64, .in = 64, .out = 32, .tokens = 32};
  GroupedLinearRun run(c, dry.backend(), stream);
  std::vector<float> started(6, 2.0F);
  run.scales.scaling.allocate(stream);
  const LinearScales given = run.scales.of(0);
  const auto scale = [&](const LinearScale& of) { return LinearScale{.scale = of.start->known, .amax = of.amax}; };
  const LinearScales scales{
      .input = scale(given.input), .weight = scale(given.weight), .grad_output = scale(given.grad_output)};
  const OwnedTensor memory(dry.backend(), Dtype::f32, 1, 1 << 14);
  const std::int64_t before = dry.backend().device_api().launches();
  GroupedLinearForwardTensors forward = run.forward_tensors();
  forward.codes = cast_expert_weights(
      run.plan, dry.backend(),
      {.weight = run.backward_tensors().weight, .into = {memory.view().data, 1 << 16}, .scale = scales.weight},
      {stream});
  forward.scales = scales;
  grouped_linear_forward(run.plan, dry.backend(), forward, {stream});
  GroupedLinearBackwardTensors backward = run.backward_tensors();
  backward.codes = forward.codes;
  backward.scales = scales;
  grouped_linear_backward(run.plan, dry.backend(), backward, {stream});
  BOOST_TEST(dry.backend().device_api().launches() - before == 6);  // three casts, three GEMMs
}

BOOST_FIXTURE_TEST_CASE(delayed_scales_are_checked, DelayedFixture) {
  GroupedLinearRun run(c, *backend, stream);
  run.enqueue();
  const OwnedTensor few(*backend, Dtype::f32, 1, 4);
  const auto message = [&](const auto& call) { return error_of(call, ErrorCode::invalid_argument); };
  GroupedLinearForwardTensors forward = run.forward_tensors();
  check_contains(message([&] { grouped_linear_forward(run.plan, *backend, forward, {stream}); }),
                 {"grouped linear \"moe\" scales.input.scale: ",
                  "must be f32[1, 5] on cpu: a delayed scale is the "
                  "caller's"});
  forward.scales = run.scales.of(0);
  forward.scales.input.amax = few;
  check_contains(message([&] { grouped_linear_forward(run.plan, *backend, forward, {stream}); }),
                 {"scales.input.amax: is f32[1, 4]", "must be f32[1, 5]"});
  const GroupedLinearBackwardTensors backward = run.backward_tensors();
  check_contains(message([&] { grouped_linear_backward(run.plan, *backend, backward, {stream}); }),
                 {"scales.grad_output.scale: ", "must be f32[1, 5]"});
  const ExpertWeightTensors weight{.weight = backward.weight};
  check_contains(message([&] { cast_expert_weights(run.plan, *backend, weight, {stream}); }),
                 {"scales.weight.scale: ", "must be f32[1, 5]"});
  GroupedLinearCase again = c;
  again.config = casting_weight_again(delayed());
  GroupedLinearRun casts_again(again, *backend, stream);
  casts_again.enqueue();
  GroupedLinearBackwardTensors of_again = casts_again.backward_tensors();
  of_again.scales.grad_output = casts_again.scales.of(0).grad_output;
  check_contains(message([&] { grouped_linear_backward(casts_again.plan, *backend, of_again, {stream}); }),
                 {"scales.weight.scale: "});
}

// No token for any expert: an empty index, of tokens or of none.
BOOST_FIXTURE_TEST_CASE(takes_an_empty_index, Fixture) {
  for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
    GroupedLinearRun run({.config = config, .ends = {0, 0}, .rows = 0, .in = 16, .out = 8}, *backend, stream);
    run.enqueue();
    const RowIndex none{.data = nullptr, .rows = 0, .device = backend->device()};
    GroupedLinearForwardTensors forward = run.forward_tensors();
    forward.row_index = none;
    grouped_linear_forward(run.plan, *backend, forward, {stream});
    GroupedLinearBackwardTensors backward = run.backward_tensors();
    backward.grad_output_index = none;
    grouped_linear_backward(run.plan, *backend, backward, {stream});
    run.check("an empty index");
  }
}

BOOST_AUTO_TEST_CASE(a_weight_that_is_cast_again_keeps_half_of_its_codes) {
  const auto plan = [](const LinearConfig& config) {
    return grouped_linear_plan({.config = config, .experts = 4, .shape = {.in_features = 256, .out_features = 128}});
  };
  constexpr std::size_t kCodes = std::size_t{4} * 256 * 128;
  constexpr std::size_t kScales = 4 * (256 + 128) * sizeof(float);
  BOOST_TEST(plan(rowwise()).weight_memory().bytes == 2 * kCodes + kScales);
  BOOST_TEST(plan(casting_weight_again(rowwise())).weight_memory().bytes == kCodes + 4 * 128 * sizeof(float));
  const LinearGradients both{.bias = false};
  BOOST_TEST(plan(casting_weight_again(rowwise())).backward_scratch(64, both) ==
             plan(rowwise()).backward_scratch(64, both) + kCodes + 4 * 256 * sizeof(float));
  BOOST_TEST(plan(rowwise()).identity != plan(tensorwise()).identity);
  BOOST_TEST(plan(rowwise()).identity != plan(casting_weight_again(rowwise())).identity);
}

// Its memory is free until its GEMM, which comes last.
BOOST_FIXTURE_TEST_CASE(grad_weight_lends_its_memory_to_the_codes_of_the_weights, Fixture) {
  const GroupedLinearCase c{
      .config = casting_weight_again(rowwise()), .ends = {3, 3, 24}, .rows = 24, .in = 16, .out = 32};
  GroupedLinearRun run(c, *backend, stream);
  run.enqueue();
  run.check(describe(c));
  const std::size_t whole = run.plan.backward_scratch(24, {.bias = false});
  const auto scratch = [&](const std::function<void(GroupedLinearBackwardTensors&)>& change) {
    GroupedLinearBackwardTensors tensors = run.backward_tensors();
    change(tensors);
    return grouped_linear_backward_scratch(run.plan, tensors);
  };
  BOOST_TEST(scratch([](auto&) {}) == whole - run.plan.weight_again_memory().bytes);
  BOOST_TEST(scratch([](auto& t) { t.accumulate = true; }) == whole);
  BOOST_TEST(scratch([](auto& t) { ++t.grad_weight.row_stride; }) == whole);
  BOOST_TEST(scratch([](auto& t) { t.weight = t.grad_weight; }) == whole);
  BOOST_TEST(scratch([](auto& t) { t.grad_weight.data = static_cast<std::byte*>(t.grad_weight.data) + 16; }) == whole);
  BOOST_TEST(scratch([](auto& t) { t.grad_weight.rows = 16; }) == whole);  // not enough
  BOOST_TEST(scratch([](auto& t) { t.grad_weight = {}; }) ==
             run.plan.backward_scratch(24, {.weight = false, .bias = false}));
  BOOST_TEST(scratch([](auto& t) { t.grad_input = {}; }) ==
             run.plan.backward_scratch(24, {.input = false, .bias = false}));
}

// Whoever casts the weights in forward has the maxima that backward needs.
BOOST_FIXTURE_TEST_CASE(kept_maxima_give_the_same_bits, Fixture) {
  for (const LinearConfig& config : {casting_weight_again(tensorwise()), casting_weight_again(rowwise())}) {
    GroupedLinearCase c{.config = config, .ends = {3, 3, 24}, .rows = 24, .in = 24, .out = 40};
    GroupedLinearRun looks(c, *backend, stream);
    looks.enqueue();
    c.keeps_amax = true;
    GroupedLinearRun knows(c, *backend, stream);
    knows.enqueue();
    knows.check(describe(c));
    BOOST_TEST((knows.grad_input().values == looks.grad_input().values), describe(c));
  }
}

BOOST_AUTO_TEST_CASE(kept_maxima_save_a_launch) {
  const auto launches = [](const LinearConfig& config, bool keeps) {
    DryRun dry(gpu_named("h200"));
    Stream stream(dry.backend());
    GroupedLinearRun run(
        {.config = config, .ends = {128, 256}, .rows = 256, .in = 128, .out = 256, .keeps_amax = keeps}, dry.backend(),
        stream);
    const std::int64_t before = dry.backend().device_api().launches();
    run.enqueue();
    return dry.backend().device_api().launches() - before;
  };
  for (const LinearConfig& config : {casting_weight_again(tensorwise()), casting_weight_again(rowwise())}) {
    BOOST_TEST(launches(config, true) == launches(config, false) - 1, print(config));
  }
}

BOOST_FIXTURE_TEST_CASE(observers_see_all_casts, Fixture) {
  for (const LinearConfig& config :
       {tensorwise(), delayed(), rowwise(), blockwise(), casting_weight_again(tensorwise()),
        casting_weight_again(delayed()), casting_weight_again(rowwise()), casting_weight_again(blockwise())}) {
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      const GroupedLinearCase c{.config = config, .ends = {3, 3, 24}, .rows = 24, .in = 24, .out = 40};
      GroupedLinearRun unobserved(c, *backend, stream);
      unobserved.enqueue();
      GroupedLinearRun run(c, *backend, stream);
      CastLog log;
      Monitor monitor(*backend);
      LayerObservers both({&log, &monitor});
      run.enqueue(&both);
      monitor.step_done(stream);
      for (std::size_t i = 0; i < run.results().size(); ++i) {
        BOOST_TEST((run.results()[i].values == unobserved.results()[i].values), i);
      }
      const bool again = config.weight == OtherCodes::again;
      // Blocks of 128 rows are of the whole stack only where each expert has a multiple of them.
      const bool by_block = run.plan.weight.spec.scale == kBlocks;
      std::vector<std::string> expected{by_block ? "weight output, without values" : "weight output"};
      if (!again) expected.emplace_back("weight grad_input, transposed, without values");
      const std::string of_each = run.plan.is_delayed() ? ", without values" : "";
      const std::string transposed = run.plan.in_slots() ? ", without values" : of_each;
      expected.insert(expected.end(),
                      {"input output" + of_each, "input grad_weight, transposed" + transposed,
                       "grad_output grad_input" + of_each, "grad_output grad_weight, transposed" + transposed});
      if (again) expected.emplace_back("weight grad_input, transposed, without values");
      BOOST_TEST_CHECK(log.lines == expected, boost::test_tools::per_element());
      if (by_block) continue;
      const MonitorRecord record = monitor.records()[0];
      const CastSpec& cast = run.plan.weight.spec;
      const std::vector<double> maxima = maxima_of(run.weight(), cast.scale == kRowwise ? 1 : 40);
      const auto scale_inv = [&](double amax) {
        return cast.pow2 ? std::exp2(std::ceil(std::log2(amax / 448))) : amax / 448;
      };
      BOOST_TEST(record.layer == "moe");
      BOOST_TEST(record.elements == 3 * 40 * 24);
      BOOST_TEST(record.sqnr() > 25);
      BOOST_TEST(record.stats.amax == static_cast<float>(std::ranges::max(maxima)));
      const auto close = boost::test_tools::tolerance(1e-6);
      BOOST_TEST_CHECK(record.stats.smallest_scale_inv == scale_inv(std::ranges::min(maxima)), close);
      BOOST_TEST_CHECK(record.stats.largest_scale_inv == scale_inv(std::ranges::max(maxima)), close);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(whole_blocks_of_weights_are_observed, Fixture) {
  GroupedLinearRun run({.config = blockwise(), .ends = {3, 3, 24}, .rows = 24, .in = 144, .out = 128}, *backend,
                       stream);
  Monitor monitor(*backend);
  run.enqueue(&monitor);
  monitor.step_done(stream);
  const MonitorRecord record = monitor.records()[0];
  BOOST_TEST(record.elements == 3 * 128 * 144);
  BOOST_TEST((record.spec.scale == kBlocks));
  BOOST_TEST(record.sqnr() > 25);
  BOOST_TEST(record.stats.amax == static_cast<float>(std::ranges::max(maxima_of(run.weight(), 128))));
}

// A weight of rows with a stride: no view has one expert in each row.
BOOST_FIXTURE_TEST_CASE(weights_with_a_row_stride_are_observed_by_row, Fixture) {
  constexpr std::int64_t kExperts = 2, kOut = 16, kIn = 24, kStride = 32;
  const std::vector<float> values(kExperts * kOut * kStride, 1.5F);
  Tensor weight = matrix(const_cast<float*>(values.data()), Dtype::f32, kExperts * kOut, kIn, backend->device());
  weight.row_stride = kStride;
  for (const char* name : {"tensorwise", "rowwise"}) {
    const GroupedLinearPlan plan = grouped_linear_plan({.config = casting_weight_again(recipe(name)),
                                                        .experts = kExperts,
                                                        .shape = {.in_features = kIn, .out_features = kOut},
                                                        .dtypes = {.input = Dtype::f32}});
    const PoisonedRegion codes(plan.weight_memory().bytes, *backend, stream);
    CastLog log;
    Monitor monitor(*backend);
    LayerObservers both({&log, &monitor});
    cast_expert_weights(plan, *backend, {.weight = weight, .into = codes}, {.stream = stream, .observer = &both});
    monitor.step_done(stream);
    const bool seen = plan.weight.spec.scale == kRowwise;
    BOOST_TEST_CHECK(log.lines == std::vector<std::string>{seen ? "weight output" : "weight output, without values"},
                     boost::test_tools::per_element());
    BOOST_TEST(monitor.records().size() == (seen ? 1U : 0U));
  }
}

BOOST_AUTO_TEST_CASE(a_plan_says_how_many_maxima_there_are) {
  const auto count = [](const LinearConfig& config) {
    return grouped_linear_plan({.config = config, .experts = 4, .shape = {.in_features = 256, .out_features = 128}})
        .weight_amax_count();
  };
  BOOST_TEST(count(casting_weight_again(rowwise())) == 4 * 256);
  BOOST_TEST(count(casting_weight_again(tensorwise())) == 4);
  BOOST_TEST(count(rowwise()) == 0);
  BOOST_TEST(count(tensorwise()) == 0);
}

// ---- messages ------------------------------------------------------------------------------------------------------

namespace {

std::string message_of_plan(const GroupedLinearPlanOptions& options) {
  return error_of([&] { grouped_linear_plan(options); }, ErrorCode::invalid_argument);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_plan_says_what_groups_do_not_take) {
  const LinearShape shape{.in_features = 16, .out_features = 8};
  check_contains(message_of_plan({.config = rowwise(), .experts = 0, .shape = shape}),
                 {"grouped linear \"experts\" experts: is 0, but must be 1 to 512"});
  check_contains(message_of_plan({.config = rowwise(), .experts = 513, .shape = shape}), {"is 513"});
  LinearFusion after;
  after.epilogue = parse_pointwise("silu(x)");
  check_contains(message_of_plan({.config = rowwise(), .experts = 2, .shape = shape, .fusion = after}),
                 {"epilogue: is set, but grouped GEMMs have none: apply it to the output"});
  for (const LinearConfig& config : {high_precision(), rowwise_with_gw_hp()}) {
    check_contains(message_of_plan({.config = config, .experts = 2, .shape = shape}),
                   {"but all three GEMMs of experts must be in FP8"});
  }
  LinearConfig given = delayed();
  for (GemmConfig* const gemm : {&given.output, &given.grad_weight}) {
    Cast& input = gemm == &given.output ? *gemm->a : *gemm->b;
    input.scaling = Scaling::fixed;
    input.scale = 16;
  }
  check_contains(message_of_plan({.config = given, .experts = 2, .shape = shape}),
                 {"but the scales of experts are all dynamic, or all delayed: take tensorwise, delayed, rowwise or "
                  "blockwise"});
  LinearConfig mixed = blockwise();
  mixed.grad_weight.a->granularity = mixed.grad_weight.b->granularity = kRowwise;
  LinearConfig blocks = blockwise();
  blocks.grad_weight.b->granularity = kBlocks;
  for (const LinearConfig& config : {mixed, blocks}) {
    check_contains(message_of_plan({.config = config, .experts = 2, .shape = shape}),
                   {"but where scales of experts are of groups of 128, all are, and grad_weight's are 1x128: take "
                    "blockwise"});
  }
  check_contains(message_of_plan({.config = rowwise_folded(), .experts = 2, .shape = shape}),
                 {"but experts' inputs are cast together, and no scale_inv are folded"});
  check_contains(message_of_plan({.config = rowwise(), .experts = 2, .shape = {-1, 8}}), {"in_features", "-1"});
}

BOOST_FIXTURE_TEST_CASE(a_call_names_the_layer_and_the_tensor, Fixture) {
  GroupedLinearRun run({.config = rowwise(), .ends = {3, 5}, .rows = 5, .in = 16, .out = 8}, *backend, stream);
  run.enqueue();
  const auto forward = [&](const std::function<void(GroupedLinearForwardTensors&)>& change) {
    GroupedLinearForwardTensors tensors = run.forward_tensors();
    change(tensors);
    return error_of([&] { grouped_linear_forward(run.plan, *backend, tensors, {stream}); },
                    ErrorCode::invalid_argument);
  };
  const auto backward = [&](const std::function<void(GroupedLinearBackwardTensors&)>& change) {
    GroupedLinearBackwardTensors tensors = run.backward_tensors();
    change(tensors);
    return error_of([&] { grouped_linear_backward(run.plan, *backend, tensors, {stream}); },
                    ErrorCode::invalid_argument);
  };
  check_contains(forward([](auto& t) { t.input.cols = 15; }), {"grouped linear \"moe\" input: is bf16[5, 15]",
                                                               "must be [5, 16] = [rows of all experts, in_features]"});
  check_contains(forward([](auto& t) { t.input.dtype = Dtype::f16; }), {"input: is f16, but must be bf16"});
  check_contains(forward([](auto& t) { t.prologue_inputs[0] = t.input; }),
                 {"prologue_inputs[0]: is given, but the layer's expression there has 0 inputs"});
  check_contains(forward([](auto& t) { t.output = t.input; }), {"output: is bf16[5, 16]"});
  check_contains(forward([](auto& t) { t.ends.experts = 3; }), {"ends: are of 3 experts, but the layer has 2"});
  check_contains(forward([](auto& t) { t.ends.capacity = 4; }), {"ends: have a capacity"});
  check_contains(forward([](auto& t) { t.codes = {}; }), {"codes: is missing", "cast_expert_weights() makes them"});
  check_contains(forward([](auto& t) { t.codes.scale_inv.cols = 8; }),
                 {"scale_inv of codes: is f32[1, 8]", "must be [1, 16] = scale_inv of each expert"});
  check_contains(forward([](auto& t) { t.scratch.bytes = 1; }), {"scratch: has 1 byte, but needs"});
  const std::int32_t down[] = {4, 3};
  check_contains(forward([&](auto& t) { t.ends.data = down; }), {"ends", "ends must not decrease"});

  check_contains(forward([](auto& t) { t.row_index = RowIndex{.rows = -2}; }),
                 {"grouped linear \"moe\" row_index: has -2 rows; it must have 0 to"});
  check_contains(forward([&](auto& t) { t.row_index = RowIndex{.data = down, .rows = 2}; }),
                 {"output: is bf16[5, 8]", "must be [2, 8] = [rows of the index, out_features]"});
  const auto in_output = [](auto& t) {
    return RowIndex{.data = static_cast<const std::int32_t*>(t.output.data), .rows = 5};
  };
  check_contains(forward([&](auto& t) { t.row_index = in_output(t); }),
                 {"output: overlaps grouped linear \"moe\" row_index: give it separate memory"});

  run.enqueue();
  check_contains(backward([](auto& t) { t.grad_output.rows = 4; }), {"grad_output: is bf16[4, 8]", "must be [5, 8]"});
  check_contains(backward([](auto& t) { t.grad_weight.rows = 8; }),
                 {"grad_weight: is bf16[8, 16]", "must be [16, 16] = [experts * out_features, in_features]"});
  check_contains(backward([](auto& t) { t.accumulate = true; }),
                 {"grad_weight: is bf16, but must be f32, which sums are added to"});
  check_contains(backward([](auto& t) {
                   t.accumulate = true;
                   t.grad_weight = {};
                 }),
                 {"grad_weight: is missing, but accumulate asks for it"});
  check_contains(backward([](auto& t) { t.codes.transposed = {}; }), {"transposed codes: is missing"});
  check_contains(forward([](auto& t) { t.bias = t.output; }), {"bias: is given, but the plan was made without one"});
  check_contains(backward([](auto& t) { t.grad_bias = t.grad_output; }),
                 {"grad_bias: is bf16[5, 8]", "must be [2, 8] = [experts, out_features]"});
  GroupedLinearRun biased({.config = rowwise(), .ends = {3, 5}, .rows = 5, .in = 16, .out = 8, .bias = true}, *backend,
                          stream);
  biased.enqueue();
  GroupedLinearForwardTensors with_bias = biased.forward_tensors();
  with_bias.bias = {};
  const auto run_biased = [&] { grouped_linear_forward(biased.plan, *backend, with_bias, {stream}); };
  check_contains(error_of(run_biased, ErrorCode::invalid_argument),
                 {"bias: is missing; it must be bf16, as the output GEMM adds it"});
  with_bias.bias = biased.forward_tensors().bias;
  with_bias.bias.cols = 7;
  check_contains(error_of(run_biased, ErrorCode::invalid_argument),
                 {"bias: is bf16[2, 7]", "must be [2, 8] = [experts, out_features]"});
  const LinearSaved none;
  check_contains(backward([&](auto& t) { t.saved = &none; }), {"backward: has no forward() before it"});
  check_contains(backward([](auto& t) { t.grad_output_index = RowIndex{.rows = 5}; }),
                 {"grouped linear \"moe\" grad_output_index: has a null data pointer"});
  check_contains(backward([&](auto& t) { t.grad_output_index = RowIndex{.data = down, .rows = 2}; }),
                 {"grad_output_index: has 2 rows, but the experts of the last forward had 5"});
  LinearSaved other = run.saved;
  ++other.plan;
  check_contains(backward([&](auto& t) { t.saved = &other; }), {"saved: was written by a forward of another plan"});
}

BOOST_FIXTURE_TEST_CASE(an_index_goes_with_no_prologue, Fixture) {
  GroupedLinearRun run({.config = rowwise(), .ends = {3, 5}, .rows = 5, .in = 16, .out = 8, .gated = true}, *backend,
                       stream);
  run.enqueue();
  GroupedLinearForwardTensors tensors = run.forward_tensors();
  const std::int32_t rows[] = {4, 3, 2, 1, 0};
  tensors.row_index = RowIndex{.data = rows, .rows = 5};
  check_contains(
      error_of([&] { grouped_linear_forward(run.plan, *backend, tensors, {stream}); }, ErrorCode::invalid_argument),
      {"grouped linear \"moe\" row_index: is given, but the layer's prologue computes its values row by "
       "row: compute them first"});
}

BOOST_FIXTURE_TEST_CASE(kept_maxima_that_do_not_fit_are_refused, Fixture) {
  GroupedLinearCase c{.config = casting_weight_again(rowwise()), .ends = {3, 5}, .rows = 5, .in = 16, .out = 8};
  std::vector<float> memory(std::size_t{2} * 16 * 8 + 64);
  std::vector<std::uint16_t> weight(std::size_t{2} * 16 * 8);
  const Tensor whole = matrix(weight.data(), Dtype::bf16, 16, 16, backend->device());
  const auto maxima = [&](std::int64_t count) { return vector(memory.data(), Dtype::f32, count, backend->device()); };
  const auto backward = [&](const Tensor& amax) {
    GroupedLinearRun run(c, *backend, stream);
    run.enqueue();
    GroupedLinearBackwardTensors tensors = run.backward_tensors();
    tensors.weight_amax = amax;
    return error_of([&] { grouped_linear_backward(run.plan, *backend, tensors, {stream}); },
                    ErrorCode::invalid_argument);
  };
  const auto cast = [&](const Tensor& amax) {
    const GroupedLinearRun run(c, *backend, stream);
    const PoisonedRegion into(run.plan.weight_memory().bytes, *backend, stream);
    return error_of(
        [&] { cast_expert_weights(run.plan, *backend, {.weight = whole, .into = into, .amax = amax}, {stream}); },
        ErrorCode::invalid_argument);
  };
  check_contains(backward(maxima(31)), {"grouped linear \"moe\" weight_amax: is f32[1, 31]",
                                        "must be [1, 32] = the weights' maxima: the plan says how many"});
  check_contains(cast(maxima(16)), {"grouped linear \"moe\" amax: is f32[1, 16]", "must be [1, 32]"});
  check_contains(cast(vector(weight.data(), Dtype::f32, 32, backend->device())), {"amax: overlaps", "weight"});
  Tensor wide = maxima(32);
  wide.dtype = Dtype::bf16;
  check_contains(cast(wide), {"amax: is bf16, but must be f32, as maxima are"});
  c.config = rowwise();
  check_contains(cast(maxima(32)),
                 {"amax: is given, but backward looks for no maxima that forward's cast finds: leave it out"});
}

BOOST_AUTO_TEST_SUITE_END()
