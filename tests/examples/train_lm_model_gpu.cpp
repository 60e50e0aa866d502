// The operations of examples/train_lm on CUDA, against float64, and its steps from a graph.
#include "support/gpu_test.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "train_lm_reference.h"
#include "trainer.h"

namespace train_lm::test {
BOOST_AUTO_TEST_SUITE(test_train_lm_model_gpu)

namespace {

// gpu_check.sh runs this suite under compute-sanitizer too.
BOOST_AUTO_TEST_SUITE(small)

// The bounds of train_lm_model.cpp.
BOOST_AUTO_TEST_CASE(gradients_in_bf16) {
  ingot::Context context(ingot::test::cuda_options());
  check_gradients(context, ingot::high_precision(), 0.01);
}

BOOST_AUTO_TEST_CASE(gradients_in_fp8) {
  ingot::Context context(ingot::test::cuda_options());
  check_gradients(context, ingot::tensorwise(), 0.15);
}

BOOST_AUTO_TEST_SUITE_END()

// Steps that are replayed from a graph, across a table of step values, give the losses of steps that are not; so do
// steps whose weights are cast by one list, and those by each layer.
BOOST_AUTO_TEST_CASE(graphs_change_no_loss) {
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> text(20000);
  for (std::uint8_t& byte : text) byte = static_cast<std::uint8_t>('a' + random() % 4);
  struct Way {
    std::string graph;
    WeightCodes codes;
    bool alike;  // as the first; or else as the one before
  };
  const Way ways[] = {{"on", WeightCodes::together, true},
                      {"off", WeightCodes::together, true},
                      {"on", WeightCodes::each, true},
                      {"on", WeightCodes::masters, false},
                      {"off", WeightCodes::masters, true}};
  for (const std::string recipe : {"tensorwise", "delayed", "blockwise"}) {
    std::vector<History> expected;
    for (const auto& [graph, codes, alike] : ways) {
      ingot::Context context(ingot::test::cuda_options());
      Options options;
      options.shape = kShape;
      options.batch = 64;
      options.micro_batches = 2;
      options.steps = 1100;
      options.recipe = recipe;
      options.graph = graph;
      options.weight_codes = codes;
      options.checkpoint_every = 0;
      complete(options, true);
      Trainer trainer(context, options, text);
      const std::vector<History> found = trainer.train({"bf16", "fp8"});
      if (!alike || expected.empty()) {
        for (const History& history : found) BOOST_TEST(history.losses.back() < history.losses.front(), recipe);
        expected = found;
        continue;
      }
      for (const std::size_t model : {0, 1}) {
        BOOST_TEST((found[model].losses == expected[model].losses), recipe << " " << model << " graph " << graph);
        BOOST_TEST(found[model].validation_loss == expected[model].validation_loss, recipe << " " << model);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace train_lm::test
