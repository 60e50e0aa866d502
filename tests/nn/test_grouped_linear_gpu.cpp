// The linear layers of many experts on a GPU: float64's results for each recipe, with codes of the weights kept or
// made again, and a captured step that is replayed.
#include "support/gpu_test.h"

#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/graph.h"
#include "nn/grouped_linear_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_grouped_linear_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Fixture() { BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper"); }

  Backend& backend = context().backend();
  Stream stream{backend};
};

// Experts without rows, with one, and with more than a tile; rows that no expert has.
std::vector<GroupedLinearCase> cases() {
  std::vector<GroupedLinearCase> all;
  for (LinearConfig config : {tensorwise(), rowwise(), blockwise()}) {
    for (const OtherCodes weight : {OtherCodes::together, OtherCodes::again}) {
      config.weight = weight;
      all.push_back({.config = config, .ends = {0, 150, 151, 151, 300, 300}, .rows = 307, .in = 208, .out = 144});
      all.push_back({.config = config,
                     .ends = {70, 333},
                     .rows = 333,
                     .in = 144,
                     .out = 272,
                     .dtype = Dtype::f16,
                     .grad_weight = Dtype::f32,
                     .accumulate = true});
    }
  }
  for (LinearConfig config : {tensorwise(), rowwise()}) {
    config.weight = OtherCodes::again;
    all.push_back({.config = config, .ends = {0, 150, 300}, .rows = 307, .in = 208, .out = 144, .keeps_amax = true});
  }
  for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
    all.push_back({.config = config, .ends = {0, 150, 300}, .rows = 300, .in = 208, .out = 144, .gated = true});
  }
  for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
    all.push_back({.config = config, .ends = {0, 150, 300}, .rows = 310, .in = 208, .out = 144, .tokens = 64});
  }
  for (const LinearConfig& config : {tensorwise(), rowwise(), blockwise()}) {
    all.push_back({.config = config, .ends = {0, 150, 151, 300}, .rows = 310, .in = 208, .out = 144, .bias = true});
    all.push_back(
        {.config = config, .ends = {0, 150, 300}, .rows = 310, .in = 208, .out = 144, .tokens = 64, .bias = true});
  }
  all.push_back({.config = rowwise(), .ends = {4, 17}, .rows = 17, .in = 64, .out = 32});
  all.push_back({.config = rowwise(), .ends = {0, 0}, .rows = 0, .in = 64, .out = 32});
  all.push_back({.config = blockwise(), .ends = {4, 17}, .rows = 17, .in = 64, .out = 32});
  all.push_back({.config = blockwise(), .ends = {0, 0}, .rows = 0, .in = 64, .out = 32});
  all.push_back({.config = blockwise(), .ends = {127, 256, 384, 385, 513}, .rows = 520, .in = 272, .out = 400});
  for (GroupedLinearCase c : {all[0], all[1], all[2], all[3]}) {
    c.config.output = delayed().output;
    c.config.grad_input = delayed().grad_input;
    c.config.grad_weight = delayed().grad_weight;
    all.push_back(c);
  }
  all.push_back({.config = delayed(), .ends = {0, 150, 300}, .rows = 300, .in = 208, .out = 144, .gated = true});
  all.push_back(
      {.config = delayed(), .ends = {0, 150, 300}, .rows = 310, .in = 208, .out = 144, .tokens = 64, .bias = true});
  all.push_back({.config = delayed(), .ends = {0, 0}, .rows = 0, .in = 64, .out = 32});
  return all;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(has_float64s_results, Fixture) {
  for (const GroupedLinearCase& c : cases()) {
    GroupedLinearRun run(c, backend, stream);
    run.enqueue();
    run.check(describe(c));
    if (!run.plan.is_delayed()) continue;
    run.scales.scaling.sync_amax_history(stream);
    run.reset();
    run.enqueue();
    run.check(describe(c) + ", the second step");
  }
}

BOOST_FIXTURE_TEST_CASE(takes_codes_in_place_of_the_weight, Fixture) {
  for (LinearConfig config : {tensorwise(), rowwise()}) {
    config.weight = OtherCodes::again;
    const GroupedLinearCase c{.config = config, .ends = {0, 150, 300}, .rows = 300, .in = 208, .out = 144};
    GroupedLinearRun run(c, backend, stream);
    run.enqueue();
    const std::vector<Matrix> expected = run.results();
    run.reset();
    run.enqueue_codes();
    const std::vector<Matrix> found = run.results();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      BOOST_TEST((found[i].values == expected[i].values), describe(c) << ": result " << i);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_captured_step_replays, Fixture) {
  for (const GroupedLinearCase& c : {cases()[0], cases()[4], cases()[8], cases()[12]}) {
    GroupedLinearRun run(c, backend, stream);
    run.enqueue();
    Graph graph(stream, [&] { run.enqueue(); });
    for (int replay = 0; replay < 2; ++replay) {
      run.reset();
      graph.replay(stream);
      run.check(describe(c) + ", captured");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace ingot::test
