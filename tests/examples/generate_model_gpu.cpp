// The decoder of examples/generate on CUDA: against float64, replayed as a graph, with contexts that are split.
#include "support/gpu_test.h"

#include "generate_reference.h"
#include "ingot/runtime/context/context.h"

namespace generate::test {
BOOST_AUTO_TEST_SUITE(test_generate_model_gpu)

namespace {

// The bounds of generate_model.cpp.
constexpr double kBf16Bound = 0.03;
constexpr double kFp8Bound = 0.15;

// gpu_check.sh runs this suite under compute-sanitizer too.
BOOST_AUTO_TEST_SUITE(small)

BOOST_AUTO_TEST_CASE(bf16_follows_the_reference) {
  ingot::Context context(ingot::test::cuda_options());
  check_generation(context, small_shape(2, 2, 16), {.batch = 2, .capacity = 12}, 4, kBf16Bound);
  check_generation(context, small_shape(4, 2, 32), {.batch = 1, .capacity = 12}, 1, kBf16Bound);
  check_generation(context, small_shape(4, 1, 64), {.batch = 3, .capacity = 9}, 9, kBf16Bound);
  check_generation(context, small_shape(8, 1, 256), {.batch = 1, .capacity = 6}, 2, kBf16Bound);
}

BOOST_AUTO_TEST_CASE(quantised_weights_follow_the_reference) {
  ingot::Context context(ingot::test::cuda_options());
  const ingot::WeightOnlyOptions rowwise{.dtype = ingot::Dtype::e4m3fn, .scale = ingot::kRowwise};
  check_generation(context, small_shape(4, 2, 16), {.weights = rowwise, .batch = 2, .capacity = 10}, 3, kFp8Bound);
}

BOOST_AUTO_TEST_SUITE_END()

// 700 positions: up to three blocks share a head's.
BOOST_AUTO_TEST_CASE(long_contexts_are_split) {
  ingot::Context context(ingot::test::cuda_options());
  check_generation(context, small_shape(4, 1, 128), {.batch = 2, .capacity = 700}, 40, kBf16Bound, 29);
}

// The same tokens again: a replay leaves nothing behind that the next one sees.
BOOST_AUTO_TEST_CASE(replays_give_the_same_bits) {
  ingot::Context context(ingot::test::cuda_options());
  const ingot::WeightOnlyOptions rowwise{.dtype = ingot::Dtype::e4m3fn, .scale = ingot::kRowwise};
  DecoderCase decoder(context, small_shape(8, 2, 64), {.weights = rowwise, .batch = 4, .capacity = 600});
  const Tokens prompt{{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  decoder.generator().start(prompt);
  decoder.generator().advance(600);
  const Tokens tokens = decoder.decoder().tokens(600);
  const auto logits = decoder.logits();
  decoder.generator().start(prompt);
  for (int i = 0; i < 600; ++i) decoder.decoder().enqueue();  // without a graph
  BOOST_TEST((decoder.decoder().tokens(600) == tokens));
  BOOST_TEST((decoder.logits() == logits));
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace generate::test
