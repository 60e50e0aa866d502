// examples/train_lm with ranks that divide batches, weights and the optimizer's state: any number of them gives the
// losses of one, to the last digit, and one those of training without ranks; what crosses the wire, also in a captured
// step; what is refused.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "options.h"
#include "prepare.h"
#include "ranks.h"
#include "support/expect_error.h"
#include "support/fake_nccl.h"
#include "trainer.h"

namespace train_lm::test {
BOOST_AUTO_TEST_SUITE(test_train_lm_ranks)

namespace {

using ingot::test::check_contains;
using ingot::test::error_of;

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  options.cpu_threads = 1;
  return options;
}

// Letters that depend on the one before.
std::vector<std::uint8_t> text() {
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> result(5000, 'a');
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i] = static_cast<std::uint8_t>('a' + (result[i - 1] * 3U + random() % 2) % 8);
  }
  return result;
}

// With blocks, the halves of its weights are whole blocks of 128 rows.
Options options_of(int ranks, std::string_view recipe, WeightCodes codes = WeightCodes::together) {
  Options options;
  options.shape = {.context = 4, .embedding = 8, .hidden = 48, .blocks = 2};
  if (recipe == "blockwise") options.shape = {.context = 16, .embedding = 16, .hidden = 256, .blocks = 1};
  options.batch = 24;
  options.ranks = ranks;
  options.micro_batches = 4;
  options.steps = 3;
  options.warmup_steps = 1;
  options.clip = 0.1;  // less than the norm
  options.recipe = recipe;
  options.weight_codes = codes;
  options.checkpoint_every = 0;
  return options;
}

History train(Options options) {
  complete(options, false);
  ingot::Context context(cpu_options());
  const std::vector<std::uint8_t> bytes = text();
  History history;
  const auto work = [&](ingot::Context& own, ingot::Comm* comm) {
    Trainer trainer(own, options, bytes, comm);
    History found = trainer.train({options.recipe == "high_precision" ? "bf16" : "fp8"})[0];
    if (comm == nullptr || comm->rank() == 0) history = std::move(found);
  };
  if (options.ranks == 0) {
    work(context, nullptr);
  } else {
    on_ranks(context, cpu_options(), options.ranks, [&](ingot::Context& own, ingot::Comm& comm) { work(own, &comm); });
  }
  return history;
}

void check_same(const History& found, const History& expected, const std::string& what) {
  BOOST_TEST(expected.losses.size() == 3U, what);
  BOOST_TEST((found.losses == expected.losses), what);
  BOOST_TEST(found.validation_loss == expected.validation_loss, what);
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_ranks_have_the_losses_of_one) {
  for (const ingot::Recipe& recipe : ingot::recipes()) {
    const History one = train(options_of(1, recipe.name));
    BOOST_TEST(one.losses.back() < one.losses.front(), recipe.name);
    check_same(train(options_of(2, recipe.name)), one, std::string(recipe.name));
  }
}

// 3 ranks do not divide all rows: 11, 11 and 10 of 32. Such weights cross in bf16.
BOOST_AUTO_TEST_CASE(three_and_four_ranks_have_the_losses_of_one, *boost::unit_test::label("nightly")) {
  for (const ingot::Recipe& recipe : ingot::recipes()) {
    const History one = train(options_of(1, recipe.name));
    check_same(train(options_of(4, recipe.name)), one, fmt::format("{}, 4 ranks", recipe.name));
    Options thirds = options_of(1, recipe.name);
    thirds.micro_batches = 3;
    const History one_of_thirds = train(thirds);
    thirds.ranks = 3;
    check_same(train(thirds), one_of_thirds, fmt::format("{}, 3 ranks", recipe.name));
  }
}

BOOST_AUTO_TEST_CASE(codes_that_cross_are_those_of_bf16_weights_that_cross) {
  for (const std::string recipe : {"tensorwise", "delayed", "rowwise_folded", "blockwise"}) {
    check_same(train(options_of(2, recipe)), train(options_of(2, recipe, WeightCodes::each)), recipe);
  }
}

BOOST_AUTO_TEST_CASE(masters_cross_as_codes) {
  for (const std::string recipe : {"tensorwise", "delayed", "rowwise_folded", "blockwise"}) {
    const History one = train(options_of(1, recipe, WeightCodes::masters));
    check_same(train(options_of(2, recipe, WeightCodes::masters)), one, recipe);
    Options plain = options_of(0, recipe, WeightCodes::masters);
    plain.micro_batches = 1;
    plain.clip = 0;
    Options alone = plain;
    alone.ranks = 1;
    check_same(train(alone), train(plain), recipe);
  }
}

// Without ranks, parts of a batch are added within GEMMs, and the norm's squares in other groups: so one part, and no
// clipping, for the same bits; otherwise the bound that f32 sums in another order have.
BOOST_AUTO_TEST_CASE(one_rank_has_the_losses_of_training_without_ranks) {
  for (const ingot::Recipe& recipe : ingot::recipes()) {
    Options plain = options_of(0, recipe.name);
    plain.micro_batches = 1;
    plain.clip = 0;
    Options alone = plain;
    alone.ranks = 1;
    check_same(train(alone), train(plain), std::string(recipe.name));
  }
  const History plain = train(options_of(0, "high_precision"));
  const History ranks = train(options_of(2, "high_precision"));
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    BOOST_TEST_CHECK(ranks.losses[i] == plain.losses[i], boost::test_tools::tolerance(1e-3F));
  }
}

BOOST_AUTO_TEST_CASE(what_ranks_cannot_do_is_refused) {
  const auto refusal = [](const auto& change) {
    Options options = options_of(2, "tensorwise");
    change(options);
    return error_of([&] { train(options); }, ingot::ErrorCode::invalid_argument);
  };
  BOOST_TEST(refusal([](Options& options) { options.micro_batches = 3; }) ==
             "--micro-batches: is 3, but 2 ranks must divide it");
  const std::string no_checkpoints = "--ranks: has no checkpoints: leave out --checkpoint-every and --resume";
  BOOST_TEST(refusal([](Options& options) { options.resume = true; }) == no_checkpoints);
  BOOST_TEST(refusal([](Options& options) { options.checkpoint_every = 1; }) == no_checkpoints);
  BOOST_TEST(refusal([](Options& options) {
               options.recipe = "rowwise";
               options.weight_codes = WeightCodes::masters;
             }) ==
             "--weight-codes: is masters, but --recipe rowwise on --ranks 2 cannot send the weight [48, 32] as codes: "
             "take together, which sends it in bf16");
}

// ---- What crosses the wire, on the CUDA backend without a GPU ------------------------------------------------------

namespace {

// The collectives of rank 0 of two in one step, with its own part of the batch: eager, and as a graph records it.
std::string collectives_of_a_step(std::string_view recipe) {
  Options options = options_of(2, recipe);
  options.micro_batches = 2;
  complete(options, true);
  ingot::DryRun dry(ingot::gpu_named("h200"));
  ingot::Stream stream(dry.backend());
  const ingot::test::FakeNccl communicators(2, dry.backend().device().index);
  communicators.only_note(0);
  ingot::Comm comm(dry.backend(), ingot::test::fake_nccl(), communicators.at(0));
  OpRunners ops;
  DataParallel ranks(dry.backend(), stream, ops, comm, options);
  const ingot::LinearConfig config = ingot::recipe(recipe);
  Model model(dry.backend(), stream, ops, options.shape, options.micro_batch(), config, 1, options.weight_codes,
              &ranks);
  const Batch batch{.text = nullptr,
                    .places = 1,
                    .context = options.shape.context,
                    .size = options.micro_batch(),
                    .first = 0,
                    .total = options.batch,
                    .seed = nullptr};
  const ingot::OwnedTensor losses(dry.backend(), ingot::Dtype::f32, 1, 1);
  const auto step = [&] {
    model.forward_backward(batch, {.sums = ranks.loss()});
    ranks.add_gradients(0);
    ranks.step(nullptr, static_cast<float*>(losses.view().data));
    model.step_done();
  };
  step();
  static_cast<void>(communicators.calls(0));
  step();
  const std::string eager = communicators.calls(0);
  ingot::Graph graph(stream, step);
  BOOST_TEST(communicators.calls(0) == eager, recipe);
  // What is compiled ahead is found with a rank by itself.
  const ingot::LinearConfig configs[] = {config};
  const ingot::Recording prepared = recording_of(options, configs, ingot::gpu_named("h200"));
  const ingot::Recording asked = dry.recording();
  for (const ingot::KernelSpec& spec : asked.kernels()) {
    BOOST_TEST((std::ranges::find(prepared.kernels(), spec) != prepared.kernels().end()), print(spec));
  }
  return eager;
}

}  // namespace

// Of 2 blocks of [48, 32] and [32, 48]: 768 bytes of a rank's codes, 1536 in bf16; for rowwise_folded 96 and 64 of
// scale_inv. The embedding [256, 8] and the head [256, 32] in bf16. blockwise: one block of two [256, 256].
BOOST_AUTO_TEST_CASE(a_step_sends_codes_and_one_reduction_of_maxima) {
  const auto gather = [](std::initializer_list<int> sizes) {
    std::string calls;
    for (const int size : sizes) calls += fmt::format("ncclAllGather {} of 1; ", size);
    return calls + "end; ";
  };
  const std::string sums = [] {
    std::string calls;
    for (const int count : {1024, 768, 768, 768, 768, 4096})
      calls += fmt::format("ncclReduceScatter {} of 7; end; ", count);
    return calls + "ncclAllReduce 8 of 7; end; ";
  }();
  const std::string squares = gather({512, 96, 64, 96, 64, 512});
  const std::string codes = gather({2048, 768, 768, 768, 768, 8192});
  const std::string bf16 = gather({2048, 1536, 1536, 1536, 1536, 8192});
  BOOST_TEST(collectives_of_a_step("tensorwise") == sums + squares + "ncclAllReduce 4 of 3; end; " + codes);
  BOOST_TEST(collectives_of_a_step("delayed") == sums + squares + "ncclAllReduce 12 of 3; end; " + codes);
  BOOST_TEST(collectives_of_a_step("rowwise_folded") ==
             sums + squares + gather({2048, 96, 768, 64, 768, 96, 768, 64, 768, 8192}));
  for (const std::string recipe : {"high_precision", "rowwise", "rowwise_with_gw_hp"}) {
    BOOST_TEST(collectives_of_a_step(recipe) == sums + squares + bf16);
  }
  const std::string blocks = collectives_of_a_step("blockwise");
  BOOST_TEST(blocks.ends_with(gather({4096, 8, 32768, 8, 32768, 65536})), blocks);
}

// Every rank throws, and nobody waits.
BOOST_AUTO_TEST_CASE(ranks_of_different_models_are_found) {
  ingot::Context context(cpu_options());
  const std::vector<std::uint8_t> bytes = text();
  const std::string message = error_of(
      [&] {
        on_ranks(context, cpu_options(), 2, [&](ingot::Context& own, ingot::Comm& comm) {
          Options options = options_of(2, comm.rank() == 0 ? "tensorwise" : "delayed");
          complete(options, false);
          Trainer(own, options, bytes, &comm).train({"fp8"});
        });
      },
      ingot::ErrorCode::invalid_argument);
  check_contains(message, {"blocks.0.first", "rank 1"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace train_lm::test
