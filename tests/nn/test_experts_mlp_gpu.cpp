// The MLPs of a mixture of experts on a GPU: float64's results, and a captured step that is replayed.
#include "support/gpu_test.h"

#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/graph.h"
#include "nn/experts_mlp_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_experts_mlp_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Fixture() { BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper"); }

  void expect_right(const ExpertsMlpCase& c) {
    ExpertsMlpRun run(c, backend, stream);
    run.enqueue();
    run.check(describe(c));
    const std::vector<Matrix> first = run.results();
    if (c.tokens == 0) return;
    Graph graph(stream, [&] { run.enqueue(); });
    for (int replay = 0; replay < 2; ++replay) {
      run.reset();
      graph.replay(stream);
      const std::vector<Matrix> again = run.results();
      for (std::size_t i = 0; i < first.size(); ++i) {
        if (i == 2 && c.lacks) continue;  // unspecified where rows have no expert
        if ((i == 3 && !c.grad_up_weight) || (i == 4 && !c.grad_down_weight)) continue;  // poison
        BOOST_TEST((again[i].values == first[i].values), describe(c) << ": result " << i << " of a replay");
      }
    }
  }

  Backend& backend = context().backend();
  Stream stream{backend};
};

std::vector<ExpertsMlpCase> cases() {
  std::vector<ExpertsMlpCase> all;
  for (LinearConfig config : {tensorwise(), delayed(), rowwise(), blockwise()}) {
    for (const OtherCodes weight : {OtherCodes::together, OtherCodes::again}) {
      config.weight = weight;
      all.push_back({.config = config, .tokens = 150, .features = 208, .hidden = 144});
    }
    all.push_back({.config = config, .tokens = 90, .choices = 3, .features = 144, .hidden = 80, .lacks = true});
    all.push_back({.config = config, .tokens = 150, .features = 208, .hidden = 144, .up_bias = true});
    all.push_back({.config = config, .tokens = 150, .features = 208, .hidden = 144, .grad_up_weight = false});
    all.push_back({.config = config, .tokens = 150, .features = 208, .hidden = 144, .grad_down_weight = false});
    all.push_back({.config = config, .tokens = 21, .features = 64, .hidden = 0});
    all.push_back({.config = config, .tokens = 21, .features = 64, .hidden = 0, .up_bias = true});
    all.push_back({.config = config, .tokens = 21, .features = 0, .hidden = 32});
    all.push_back({.config = config, .tokens = 21, .features = 0, .hidden = 32, .up_bias = true});
  }
  all.push_back({.config = rowwise(),
                 .tokens = 70,
                 .features = 64,
                 .hidden = 96,
                 .dtype = Dtype::f16,
                 .activation = "gelu(x)",
                 .grad_weight = Dtype::f32});
  all.push_back({.config = rowwise(), .tokens = 0, .features = 64, .hidden = 32});
  all.push_back({.config = rowwise(), .tokens = 7, .features = 64, .hidden = 32});
  all.push_back({.config = blockwise(), .tokens = 0, .features = 64, .hidden = 32});
  all.push_back({.config = blockwise(), .experts = 2, .tokens = 300, .choices = 1, .features = 272, .hidden = 144});
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(small)
BOOST_FIXTURE_TEST_CASE(has_float64s_results, Fixture) {
  for (const ExpertsMlpCase& c : cases()) expect_right(c);
}
BOOST_AUTO_TEST_SUITE_END()

// Sums of gradients are added once a step: not replayed.
BOOST_FIXTURE_TEST_CASE(adds_to_sums, Fixture) {
  for (const LinearConfig& config : {rowwise(), blockwise()}) {
    const ExpertsMlpCase c{
        .config = config, .tokens = 300, .features = 272, .hidden = 144, .grad_weight = Dtype::f32, .accumulate = true};
    ExpertsMlpRun run(c, backend, stream);
    run.enqueue();
    run.check(describe(c));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
