// The operations of examples/train_lm on CUDA, against float64, and its steps from a graph.
#include "support/gpu_test.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/dist/nccl_library.h"
#include "ranks.h"
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

History train_on_gpus(int ranks, const std::string& recipe, const std::string& graph) {
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> text(20000);
  for (std::uint8_t& byte : text) byte = static_cast<std::uint8_t>('a' + random() % 4);
  Options options;
  options.shape = {.context = 16, .embedding = 16, .hidden = 1024, .blocks = 2};
  options.batch = 1024;
  options.ranks = ranks;
  options.steps = 60;
  options.recipe = recipe;
  options.graph = graph;
  options.checkpoint_every = 0;
  complete(options, true);
  ingot::Context context(ingot::test::cuda_options());
  History history;
  on_ranks(context, ingot::test::cuda_options(), ranks, [&](ingot::Context& own, ingot::Comm& comm) {
    Trainer trainer(own, options, text, &comm);
    History found = trainer.train({"fp8"})[0];
    if (comm.rank() == 0) history = std::move(found);
  });
  return history;
}

// A rank for each GPU of the machine, of a power of two of them, over NCCL: replayed steps give the losses of steps
// that are not, and those of one rank but for the order of sums.
BOOST_AUTO_TEST_CASE(a_rank_for_each_gpu_trains_as_one) {
  std::string problem;
  const auto all = static_cast<unsigned>(ingot::Driver::open(problem)->device_count());
  const auto gpus = static_cast<int>(std::bit_floor(std::min(8U, all)));
  if (gpus > 1 && ingot::NcclLibrary::open("", ingot::test::cuda_options().cuda_root.string(), problem) == nullptr) {
    BOOST_TEST_MESSAGE("not run: " << problem);
    return;
  }
  for (const std::string recipe : {"tensorwise", "delayed", "rowwise", "rowwise_folded", "blockwise"}) {
    const History one = train_on_gpus(1, recipe, "off");
    const History replayed = train_on_gpus(gpus, recipe, "on");
    BOOST_TEST((train_on_gpus(gpus, recipe, "off").losses == replayed.losses), recipe);
    BOOST_TEST(one.losses.back() < one.losses.front(), recipe);
    BOOST_REQUIRE(replayed.losses.size() == one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      BOOST_TEST_CHECK(replayed.losses[i] == one.losses[i], boost::test_tools::tolerance(0.03F));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace train_lm::test
