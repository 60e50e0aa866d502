// The MLPs of a mixture of experts, on the CPU reference: float64's results, situations, the plan and the messages.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "nn/counting_backend.h"
#include "nn/experts_mlp_case.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_experts_mlp)

using namespace ingot;
using namespace ingot::test;

namespace {

LinearConfig casting_weight_again(LinearConfig config) {
  config.weight = OtherCodes::again;
  return config;
}

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  ExpertsMlpCase small{.config = rowwise(), .tokens = 13, .features = 32, .hidden = 24};

  void expect_right(const ExpertsMlpCase& c) {
    ExpertsMlpRun run(c, *backend, stream);
    run.enqueue();
    run.check(describe(c));
  }
};

bool same(const std::vector<Matrix>& a, const std::vector<Matrix>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].values != b[i].values) return false;
  }
  return true;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(has_float64s_results, Fixture) {
  for (const LinearConfig& config :
       {tensorwise(), delayed(), rowwise(), blockwise(), casting_weight_again(tensorwise()),
        casting_weight_again(delayed()), casting_weight_again(rowwise()), casting_weight_again(blockwise())}) {
    small.config = config;
    expect_right(small);
  }
  small.dtype = Dtype::f32;
  small.grad_weight = Dtype::f32;
  small.accumulate = true;
  expect_right(small);
  small.activation = "gelu(x)";
  expect_right(small);
  small.config = blockwise();
  expect_right(small);
  // More rows than a group of 128, features in two blocks, and a hot expert.
  small = {.config = blockwise(), .experts = 2, .tokens = 140, .choices = 1, .features = 136, .hidden = 16};
  expect_right(small);
}

// gpt-oss's activation, clamped, with biases of the first layer; and biases alone.
BOOST_FIXTURE_TEST_CASE(takes_biases_of_the_first_layer, Fixture) {
  small.up_bias = true;
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    small.config = config;
    small.activation = "min(x, 2) * sigmoid(1.702 * min(x, 2)) * (max(min(up, 2), -2) + 1)";
    BOOST_TEST(clamped_swiglu(1.702, 2) == small.activation);
    expect_right(small);
    small.activation = "gelu(x)";
    expect_right(small);
  }
  small.grad_up_weight = small.grad_down_weight = false;
  expect_right(small);
  ExpertsMlpRun all(small, *backend, stream);
  all.enqueue();
  const Matrix expected = all.results()[5];
  all.reset();
  all.wants = {.input = false, .router = false, .up_weight = false, .down_weight = false, .up_bias = true};
  all.enqueue();
  BOOST_TEST((all.results()[5].values == expected.values));
}

BOOST_FIXTURE_TEST_CASE(takes_rows_of_other_ranks, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), blockwise(), casting_weight_again(rowwise())}) {
    small.config = config;
    small.lacks = true;
    expect_right(small);
  }
}

BOOST_FIXTURE_TEST_CASE(takes_no_tokens_one_expert_and_frozen_weights, Fixture) {
  ExpertsMlpCase c = small;
  c.tokens = 0;
  expect_right(c);
  c = small;
  c.experts = 1;
  c.choices = 1;
  expect_right(c);
  c = small;
  c.grad_up_weight = c.grad_down_weight = false;
  expect_right(c);
  c.config = blockwise();
  expect_right(c);
  c.grad_up_weight = c.grad_down_weight = true;
  c.tokens = 0;
  expect_right(c);
}

// Of these one of both products sums nothing, or has no columns.
BOOST_FIXTURE_TEST_CASE(takes_no_features_and_no_hidden_ones, Fixture) {
  for (const LinearConfig& config :
       {tensorwise(), delayed(), rowwise(), blockwise(), casting_weight_again(rowwise())}) {
    for (const bool up_bias : {false, true}) {
      expect_right({.config = config, .tokens = 13, .features = 32, .hidden = 0, .up_bias = up_bias});
      expect_right({.config = config, .tokens = 13, .features = 0, .hidden = 24, .up_bias = up_bias});
    }
  }
}

// Forward makes and keeps codes for the weights alone that train, and their gradients have the bits of a step of both.
BOOST_FIXTURE_TEST_CASE(keeps_nothing_for_a_layer_that_does_not_train, Fixture) {
  for (const LinearConfig& config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    small.config = config;
    ExpertsMlpRun both(small, *backend, stream);
    both.enqueue();
    const std::int64_t rows = small.tokens * small.choices;
    const ExpertsMlpSavedMemory all = both.plan.saved_memory(rows);
    for (const bool trains_up : {true, false}) {
      ExpertsMlpCase c = small;
      c.grad_up_weight = trains_up;
      c.grad_down_weight = !trains_up;
      expect_right(c);
      ExpertsMlpRun one(c, *backend, stream);
      one.enqueue();
      const ExpertsMlpSavedMemory saved = one.plan.saved_memory(rows);
      BOOST_TEST(saved.up_bytes == (trains_up ? all.up_bytes : 0), describe(c));
      BOOST_TEST(saved.down_bytes == (trains_up ? 0 : all.down_bytes), describe(c));
      BOOST_TEST(saved.bytes < all.bytes);
      for (const std::size_t at : {0U, 1U, 2U, trains_up ? 3U : 4U}) {
        BOOST_TEST((one.results()[at].values == both.results()[at].values), describe(c) << ": " << at);
      }
      BOOST_TEST(error_of(
                     [&] {
                       ExpertsMlpWeightGradientTensors wrong = both.weight_gradient_tensors();
                       wrong.saved = &one.saved;
                       experts_mlp_weight_gradients(one.plan, *backend, wrong, {stream});
                     },
                     ErrorCode::invalid_argument)
                     .find("the plan was made without it, so forward kept nothing for it") != std::string::npos);
    }
  }
}

// The second step has the scales that the first one has made, of the same data: its bits.
BOOST_FIXTURE_TEST_CASE(delayed_scales_are_those_of_the_step_before, Fixture) {
  for (const LinearConfig& config : {delayed(), casting_weight_again(delayed())}) {
    for (const std::int64_t tokens : {13, 0}) {
      small.config = config;
      small.tokens = tokens;
      ExpertsMlpRun run(small, *backend, stream);
      run.enqueue();
      const std::vector<Matrix> first = run.results();
      run.scales.scaling.sync_amax_history(stream);
      const std::vector<float> scales = run.scales.values();
      const std::ptrdiff_t made = std::ranges::count_if(scales, [](float scale) { return scale != 1; });
      // Of all tensors of four experts in two layers; the last has no rows, and without tokens none has.
      BOOST_TEST(made == (tokens == 0 ? 8 : 24 - 4));
      run.reset();
      run.enqueue();
      run.check(describe(small) + ", the second step");
      BOOST_TEST(same(run.results(), first), describe(small));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(delayed_scales_are_checked, Fixture) {
  small.config = casting_weight_again(delayed());
  ExpertsMlpRun run(small, *backend, stream);
  run.enqueue();
  const auto message = [&](const auto& call) { return error_of(call, ErrorCode::invalid_argument); };
  const LinearScales of_up = run.scales.of(0), of_down = run.scales.of(1);
  ExpertsMlpForwardTensors forward = run.forward_tensors();
  const auto of_forward = [&] { experts_mlp_forward(run.plan, *backend, forward, {stream}); };
  check_contains(message(of_forward), {"scales.up.input.scale: ", "must be f32[1, 4] on cpu"});
  forward.up_scales = of_up;
  check_contains(message(of_forward), {"scales.down.input.scale: "});
  ExpertsMlpBackwardTensors backward = run.backward_tensors();
  const auto of_backward = [&] { experts_mlp_backward(run.plan, *backend, backward, {stream}); };
  check_contains(message(of_backward), {"scales.down.weight.scale: "});
  backward.down.scale = of_down.weight;
  check_contains(message(of_backward), {"scales.up.grad_output.scale: "});
  backward.up_scales = of_up;
  check_contains(message(of_backward), {"scales.down.grad_output.scale: "});
  const ExpertsMlpInputGradientTensors of_input = run.input_gradient_tensors();
  check_contains(message([&] { experts_mlp_input_gradient(run.plan, *backend, of_input, {stream}); }),
                 {"scales.up.weight.scale: ", "must be f32[1, 4] on cpu"});
}

// Codes that are kept and weights that are cast again, with maxima of forward or without: the same bits, also again.
BOOST_FIXTURE_TEST_CASE(bits_do_not_depend_on_what_is_kept, Fixture) {
  // Codes of the weights are more bytes than grad_hidden, and fewer.
  for (const auto& [config, tokens] :
       {std::pair{tensorwise(), 13}, {rowwise(), 13}, {rowwise(), 90}, {blockwise(), 90}}) {
    small.tokens = tokens;
    small.config = config;
    ExpertsMlpRun kept(small, *backend, stream);
    kept.enqueue();
    const std::vector<Matrix> expected = kept.results();
    kept.reset();
    kept.enqueue();
    BOOST_TEST(same(kept.results(), expected));
    small.config = casting_weight_again(config);
    ExpertsMlpRun again(small, *backend, stream);
    for (const bool known : {true, false}) {
      again.reset();
      again.enqueue(known);
      BOOST_TEST(same(again.results(), expected), print(config) << (known ? ", known maxima" : ""));
    }
  }
}

// Codes of weights that backward casts again share the memory of grad_hidden, whichever is larger.
BOOST_FIXTURE_TEST_CASE(weights_cast_again_take_little_memory, Fixture) {
  for (const std::int64_t rows : {std::int64_t{26}, std::int64_t{26000}}) {
    const auto scratch = [&](const LinearConfig& config) {
      small.config = config;
      return ExpertsMlpRun(small, *backend, stream).plan.backward_scratch(rows);
    };
    const ExpertsMlpBackwardScratch kept = scratch(rowwise());
    const ExpertsMlpBackwardScratch again = scratch(casting_weight_again(rowwise()));
    const auto hidden = static_cast<std::size_t>(rows * 2 * small.hidden * 2);
    BOOST_TEST(again.weight_bytes > 0U);
    BOOST_TEST(again.bytes <= kept.bytes + (again.weight_bytes > hidden ? again.weight_bytes - hidden + 256 : 0));
    BOOST_TEST(again.bytes - kept.bytes < again.weight_bytes);
  }
}

// The gradient of the activation, and the codes of grad_output, are where codes of grad_hidden come: nothing of
// backward's scratch but grad_hidden grows with the rows, where these regions are kept.
BOOST_FIXTURE_TEST_CASE(backward_borrows_what_it_keeps, Fixture) {
  for (const LinearConfig& config : {rowwise(), tensorwise(), blockwise()}) {
    small.config = config;
    const ExpertsMlpPlan plan = ExpertsMlpRun(small, *backend, stream).plan;
    for (const std::int64_t rows : {std::int64_t{26}, std::int64_t{26000}}) {
      const auto of_hidden = static_cast<std::size_t>(rows * plan.hidden_columns() * 2);
      const auto maxima = static_cast<std::size_t>((rows + plan.hidden_columns()) * 4);
      BOOST_TEST(plan.backward_scratch(rows).bytes <= of_hidden + maxima + 3 * kLinearAlignment);
      BOOST_TEST(plan.backward_scratch(rows, {.input = false, .up_weight = false}).bytes >
                 of_hidden + static_cast<std::size_t>(rows * small.hidden * 2));
    }
  }
}

// PyTorch's side asks once for each plan, before it knows what a backward wants. So do fake tensors.
BOOST_FIXTURE_TEST_CASE(what_is_kept_for_a_gradient_depends_on_no_other, Fixture) {
  small.experts = 70;  // whose scales have more than the 256 bytes of one
  for (const LinearConfig& config : {rowwise(), tensorwise(), delayed(), blockwise()}) {
    small.config = config;
    const ExpertsMlpPlan plan = ExpertsMlpRun(small, *backend, stream).plan;
    for (const std::int64_t rows : {0, 26, 128}) {
      const ExpertsMlpKeptMemory all = plan.kept_memory(rows);
      for (const unsigned bits : {1U, 2U, 4U, 3U, 5U, 6U}) {
        const ExpertsMlpGradients wants{
            .input = (bits & 1) != 0, .up_weight = (bits & 2) != 0, .down_weight = (bits & 4) != 0};
        const ExpertsMlpKeptMemory some = plan.kept_memory(rows, wants);
        BOOST_TEST(some.input_bytes == (wants.input ? all.input_bytes : 0U));
        BOOST_TEST(some.up_bytes == (wants.up_weight ? all.up_bytes : 0U));
        BOOST_TEST(some.down_bytes == (wants.down_weight ? all.down_bytes : 0U));
      }
    }
  }
}

// Each gradient alone, with weights that are kept and cast again, and forward without what backward needs: the bits of
// a whole step.
BOOST_FIXTURE_TEST_CASE(gradients_may_be_wanted_alone, Fixture) {
  for (const LinearConfig& config :
       {rowwise(), tensorwise(), delayed(), casting_weight_again(rowwise()), blockwise()}) {
    small.config = config;
    ExpertsMlpRun all(small, *backend, stream);
    all.enqueue();
    const std::vector<Matrix> expected = all.results();
    for (const std::size_t wanted : {1U, 2U, 3U, 4U}) {
      ExpertsMlpRun one(small, *backend, stream);
      one.wants = {.input = wanted == 1, .router = wanted == 2, .up_weight = wanted == 3, .down_weight = wanted == 4};
      one.enqueue();
      BOOST_TEST((one.results()[wanted].values == expected[wanted].values), wanted);
      BOOST_TEST((one.results()[0].values == expected[0].values), wanted);
    }
    ExpertsMlpForwardTensors tensors = all.forward_tensors();
    const PoisonedRegion scratch(all.plan.forward_scratch(26, LinearPass::inference).bytes, *backend, stream);
    tensors.saved = nullptr;
    tensors.up_scales = all.scales.of(0);
    tensors.down_scales = all.scales.of(1);
    tensors.scratch = scratch;
    all.reset();
    experts_mlp_forward(all.plan, *backend, tensors, {stream});
    BOOST_TEST((all.results()[0].values == expected[0].values));
  }
}

// No copy of the tokens' rows: each is gathered by a cast, and each direction ends with one sum.
BOOST_FIXTURE_TEST_CASE(a_step_has_few_launches, Fixture) {
  CountingBackend counting(*backend, &stream);
  Stream of_counting(counting);
  small.config = casting_weight_again(rowwise());
  ExpertsMlpRun run(small, counting, of_counting);
  run.enqueue();
  int casts = 0, gathered = 0, sums = 0, grouped = 0, others = 0;
  for (const std::string& call : counting.calls) {
    const bool is_cast = call.starts_with("cast ");
    casts += is_cast ? 1 : 0;
    gathered += is_cast && call.find(" gathered") != std::string::npos ? 1 : 0;
    sums += call.starts_with("combine") ? 1 : 0;
    grouped += call.starts_with("grouped_gemm") ? 1 : 0;
    others += call.starts_with("elementwise") ? 1 : 0;
  }
  BOOST_TEST(casts == 8);  // four of weights, two of tokens, the activation and its gradient
  BOOST_TEST(gathered == 2);
  BOOST_TEST(sums == 2);
  BOOST_TEST(grouped == 6);
  BOOST_TEST(others == 1);
}

// The cast of the activation's gradients takes the maxima that their kernel found, with or without the router's
// gradient: it has the bits of one that looks for them. Without both of its uses it takes none.
BOOST_FIXTURE_TEST_CASE(gradients_are_written_with_their_maxima, Fixture) {
  CountingBackend counting(*backend, &stream);
  Stream of_counting(counting);
  const auto finds = [&] {
    return std::ranges::any_of(counting.calls, [](const std::string& call) {
      return call.starts_with("elementwise") && call.find(" maxima") != std::string::npos;
    });
  };
  for (const bool gated : {true, false}) {
    for (const bool lacks : {false, true}) {
      for (const bool router : {true, false}) {
        ExpertsMlpCase c = small;
        c.activation = gated ? "silu(x) * up" : "gelu(x)";
        c.lacks = lacks;
        ExpertsMlpRun run(c, counting, of_counting);
        run.wants.router = router;
        const auto results = [&](bool hides_maxima) {
          counting.hides_maxima = hides_maxima;
          run.enqueue();
          std::vector<Matrix> all = run.results();
          if (!router) all[2] = {};  // not written
          return all;
        };
        const std::vector<Matrix> expected = results(true);
        counting.calls.clear();
        BOOST_TEST(same(results(false), expected), describe(c));
        BOOST_TEST(finds());
      }
    }
  }
  small.grad_up_weight = small.grad_down_weight = false;
  counting.calls.clear();
  ExpertsMlpRun(small, counting, of_counting).enqueue();
  BOOST_TEST(!finds());
  small.grad_up_weight = small.grad_down_weight = true;
  small.config = tensorwise();
  ExpertsMlpRun(small, counting, of_counting).enqueue();
  BOOST_TEST(!finds());
}

BOOST_FIXTURE_TEST_CASE(plans_refuse_what_experts_have_not, Fixture) {
  const auto refusal = [](const std::function<void(ExpertsMlpPlanOptions&)>& change,
                          ErrorCode code = ErrorCode::invalid_argument) {
    ExpertsMlpPlanOptions options{
        .name = "moe", .config = rowwise(), .experts = 4, .shape = {.features = 32, .hidden = 16}};
    change(options);
    return error_of([&] { experts_mlp_plan(options); }, code);
  };
  check_contains(refusal([](auto& o) { o.shape.bias = true; }),
                 {"experts \"moe\" bias: is set, but experts' MLPs have up_bias alone: add the second layer's"});
  check_contains(refusal([](auto& o) { o.dtypes.output = Dtype::f32; }),
                 {"experts \"moe\" dtypes: have an output, but experts' outputs have the input's dtype"});
  check_contains(refusal([](auto& o) { o.experts = 0; }), {"experts \"moe\" experts: is 0, but must be 1 to "});
  check_contains(refusal([](auto& o) { o.activation = "silu(x) * gate"; }, ErrorCode::invalid_spec),
                 {"experts \"moe\" activation: \"silu(x) * gate\" must be an expression of x"});
  check_contains(refusal([](auto& o) { o.config = high_precision(); }), {"experts \"moe\" config: is \""});
  check_contains(refusal([](auto& o) { o.shape.hidden = -1; }), {"experts \"moe\" hidden: is -1"});
}

BOOST_FIXTURE_TEST_CASE(calls_refuse_wrong_biases, Fixture) {
  small.up_bias = true;
  ExpertsMlpRun run(small, *backend, stream);
  run.enqueue();
  ExpertsMlpForwardTensors forward = run.forward_tensors();
  forward.up_bias.cols = 3;
  check_contains(
      error_of([&] { experts_mlp_forward(run.plan, *backend, forward, {stream}); }, ErrorCode::invalid_argument),
      {"experts \"moe\" up_bias: is bf16[4, 3]", "must be [4, 48] = [experts, out_features]"});
  ExpertsMlpBackwardTensors backward = run.backward_tensors();
  backward.grad_up_bias = {};
  check_contains(
      error_of([&] { experts_mlp_backward(run.plan, *backend, backward, {stream}); }, ErrorCode::invalid_argument),
      {"experts \"moe\" grad_up_bias: is missing"});
  small.up_bias = false;
  ExpertsMlpRun without(small, *backend, stream);
  without.enqueue();
  ExpertsMlpForwardTensors given = without.forward_tensors();
  given.up_bias = forward.up_bias;
  check_contains(
      error_of([&] { experts_mlp_forward(without.plan, *backend, given, {stream}); }, ErrorCode::invalid_argument),
      {"experts \"moe\" up_bias: is given, but the plan was made without one"});
}

BOOST_FIXTURE_TEST_CASE(calls_refuse_wrong_tensors, Fixture) {
  ExpertsMlpRun run(small, *backend, stream);
  run.enqueue();
  const auto forward = [&](const std::function<void(ExpertsMlpForwardTensors&)>& change) {
    ExpertsMlpForwardTensors tensors = run.forward_tensors();
    change(tensors);
    return error_of([&] { experts_mlp_forward(run.plan, *backend, tensors, {stream}); }, ErrorCode::invalid_argument);
  };
  const auto backward = [&](const std::function<void(ExpertsMlpBackwardTensors&)>& change) {
    ExpertsMlpBackwardTensors tensors = run.backward_tensors();
    change(tensors);
    return error_of([&] { experts_mlp_backward(run.plan, *backend, tensors, {stream}); }, ErrorCode::invalid_argument);
  };
  const auto of_input = [&](const std::function<void(ExpertsMlpInputGradientTensors&)>& change) {
    ExpertsMlpInputGradientTensors tensors = run.input_gradient_tensors();
    change(tensors);
    return error_of([&] { experts_mlp_input_gradient(run.plan, *backend, tensors, {stream}); },
                    ErrorCode::invalid_argument);
  };
  const auto of_weights = [&](const std::function<void(ExpertsMlpWeightGradientTensors&)>& change) {
    ExpertsMlpWeightGradientTensors tensors = run.weight_gradient_tensors();
    change(tensors);
    return error_of([&] { experts_mlp_weight_gradients(run.plan, *backend, tensors, {stream}); },
                    ErrorCode::invalid_argument);
  };
  check_contains(forward([](auto& t) { t.input.cols = 31; }),
                 {"experts \"moe\" input: is bf16[13, 31]", "but must be [13, 32] = [tokens, features]"});
  check_contains(forward([](auto& t) { t.output = {}; }), {"experts \"moe\" output: is missing"});
  check_contains(forward([](auto& t) { t.output = t.input; }), {"output: overlaps experts \"moe\" input"});
  check_contains(forward([](auto& t) { t.routing.ends.experts = 3; }),
                 {"experts \"moe\" ends: are of 3 experts, but the layers have 4"});
  check_contains(forward([](auto& t) { t.routing.ends.capacity = 8; }), {"ends: have a capacity"});
  check_contains(forward([](auto& t) { t.routing.rows.rows = 25; }),
                 {"routing.rows: name 25 rows, but must name as many for each of 13 tokens"});
  check_contains(forward([](auto& t) { t.routing.rows.data = nullptr; }), {"routing.rows: has a null data pointer"});
  check_contains(forward([](auto& t) { t.routing.tokens.device = {.type = DeviceType::cuda}; }),
                 {"routing.tokens: is on cuda:0"});
  check_contains(forward([](auto& t) { t.routing.weights.cols = 25; }),
                 {"routing.weights: is f32[1, 25]", "[1, 26] = one for each row"});
  check_contains(forward([](auto& t) { t.up_codes = {}; }),
                 {"up_codes: is missing", "cast_expert_weights() makes them"});
  check_contains(forward([](auto& t) { t.down_codes.scale_inv = {}; }), {"down_codes: is missing"});
  check_contains(forward([](auto& t) { t.scratch.bytes = 5; }), {"scratch: has 5 bytes, but needs "});
  check_contains(forward([](auto& t) { t.scratch = t.saved->memory; }),
                 {"experts \"moe\" saved: overlaps the scratch"});
  check_contains(forward([](auto& t) { t.hidden = {}; }), {"experts \"moe\" hidden: is missing; it must be bf16"});
  check_contains(forward([](auto& t) { t.hidden.cols = 24; }),
                 {"hidden: is bf16[26, 24]", "but must be [26, 48] = the first layer's output of each row"});
  check_contains(forward([](auto& t) { t.hidden.row_stride = 56; }),
                 {"hidden: has rows that are apart, but must be dense"});
  check_contains(forward([](auto& t) { t.hidden.data = t.saved->memory.data; }), {"saved: overlaps", "hidden"});

  check_contains(backward([](auto& t) { t.saved = nullptr; }), {"backward: has no forward() before it"});
  check_contains(backward([](auto& t) { t.routing.tokens.rows = 13; }),
                 {"routing.tokens: has 13 rows, but forward had 26"});
  check_contains(backward([](auto& t) { t.hidden = {}; }), {"hidden: is missing"});
  check_contains(backward([](auto& t) { t.hidden.data = t.kept_up.data; }), {"kept_up: overlaps", "hidden"});
  check_contains(backward([](auto& t) { t.grad_router = {}; }), {"grad_router: is missing"});
  check_contains(backward([](auto& t) { t.down.codes = {}; }), {"down: is missing"});
  check_contains(backward([](auto& t) { t.kept_up = {}; }), {"kept_up: is missing"});
  check_contains(backward([](auto& t) { t.kept_down.bytes = 7; }), {"kept_down: has 7 bytes"});
  check_contains(backward([](auto& t) { t.kept_down = t.kept_up; }), {"kept_"});
  check_contains(backward([](auto& t) { t.kept_up = t.saved->memory; }), {"kept_up: overlaps saved"});
  check_contains(backward([](auto& t) { t.down.weight_amax = t.grad_router; }),
                 {"down: has maxima, but its cast in backward takes none that forward's finds"});
  check_contains(backward([](auto& t) { t.routing.ends.data = nullptr; }), {"ends: has a null data pointer"});
  check_contains(backward([](auto& t) { t.grad_router.data = t.grad_output.data; }), {"grad_router: overlaps"});
  check_contains(backward([](auto& t) { t.kept_input = t.scratch; }), {"kept_input: overlaps the scratch"});

  check_contains(of_input([](auto& t) { t.saved = nullptr; }), {"backward: has no forward() before it"});
  check_contains(of_input([](auto& t) { t.grad_input = {}; }), {"grad_input: is missing"});
  check_contains(of_input([](auto& t) { t.wants.input = false; }),
                 {"grad_input: is given, but backward did not want it, and kept nothing for it"});
  check_contains(of_input([](auto& t) { t.rows.rows = 25; }),
                 {"rows: name 25 rows, but must name as many for each of 13 tokens"});
  check_contains(of_input([](auto& t) { t.ends.experts = 3; }), {"ends: are of 3 experts, but the layers have 4"});
  check_contains(of_input([](auto& t) { t.up.codes = {}; }), {"up: is missing"});
  check_contains(of_input([](auto& t) { t.kept_input = {}; }), {"kept_input: is missing"});
  check_contains(of_input([](auto& t) { t.kept_up.bytes = 7; }), {"kept_up: has 7 bytes"});
  check_contains(of_input([](auto& t) { t.kept_input.data = t.grad_input.data; }), {"kept_input: "});
  check_contains(of_input([](auto& t) { t.scratch = t.kept_input; }), {"scratch"});

  check_contains(of_weights([](auto& t) { t.grad_up.rows = 3; }), {"grad_up: is bf16[3, 32]"});
  check_contains(of_weights([](auto& t) { t.wants.up_weight = false; }),
                 {"grad_up: is given, but backward did not want it, and kept nothing for it"});
  check_contains(of_weights([](auto& t) { t.accumulate_down = true; }),
                 {"grad_down: is bf16, but must be f32, which sums are added to"});
  check_contains(of_weights([](auto& t) { t.kept_up.bytes = 1; }), {"kept_up: has 1 byte,"});
  check_contains(of_weights([](auto& t) { t.ends.experts = 5; }), {"ends: are of 5 experts"});
}

BOOST_AUTO_TEST_SUITE_END()
