// The GPU's way of a decoder's operations, on the host: a thread for each of its threads, against float64.
#include "templates/emulator.h"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

// The emulator's stand-ins for what CUDA declares in front of everything, where operations outside of ingot look.
using ingot::__shfl_xor_sync;
using ingot::__syncthreads;
using ingot::__threadfence;
using ingot::atomicInc;
using ingot::blockIdx;
using ingot::gridDim;
using ingot::threadIdx;

#include "generate/ops.cuh"

namespace generate::test {
BOOST_AUTO_TEST_SUITE(test_generate_kernels)

namespace {

std::size_t index(i64 i) { return static_cast<std::size_t>(i); }

template <class Op>
struct Launch {
  Op op;
  float* shared;
};

template <class Op>
void block(const Launch<Op>& launch) {
  for (i64 row = blockIdx.x; row < launch.op.rows(); row += gridDim.x) {
    launch.op(BlockOfThreads{launch.shared}, row);
  }
}

template <class Op>
void run(const Op& op) {
  std::vector<float> shared(kSharedFloats);
  ingot::emulator::launch(block<Op>, op.rows(), kThreads, Launch<Op>{op, shared.data()});
}

struct Sizes {
  i64 batch, kv_heads, dims, splits, capacity, newest;
};

std::vector<bf16> random_values(std::mt19937& random, i64 count) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<bf16> values(index(count));
  for (bf16& value : values) value = ingot::from_float<bf16>(normal(random));
  return values;
}

double value_of(const std::vector<bf16>& values, i64 at) { return ingot::to_float(values[index(at)]); }

// The angles are no rotary embedding's here: any do.
template <i64 kQueries>
void check_attention(const Sizes& sizes) {
  const auto [batch, kv_heads, dims, splits, capacity, newest] = sizes;
  const i64 heads = kQueries * kv_heads;
  const i64 half = dims / 2;
  std::mt19937 random(7);
  const std::vector<bf16> qkv = random_values(random, batch * (heads + 2 * kv_heads) * dims);
  std::vector<bf16> keys = random_values(random, batch * kv_heads * capacity * dims);
  std::vector<bf16> values = random_values(random, batch * kv_heads * capacity * dims);
  const std::vector<bf16> old_keys = keys;
  std::vector<float> cosines(index(capacity * half));
  std::vector<float> sines(cosines.size());
  for (std::size_t i = 0; i < cosines.size(); ++i) {
    cosines[i] = std::cos(static_cast<float>(i));
    sines[i] = std::sin(static_cast<float>(i));
  }
  std::vector<i32> state{static_cast<i32>(newest), 0};
  std::vector<bf16> out(index(batch * heads * dims));
  std::vector<float> partials(index(batch * splits * heads * (dims + 2)));
  std::vector<u32> counters(index(batch * kv_heads), 0);
  run(DecodeAttention<kQueries>{
      .sequences = {.state = state.data(), .tokens = nullptr, .chosen = nullptr, .count = batch, .capacity = capacity},
      .qkv = qkv.data(),
      .keys = keys.data(),
      .values = values.data(),
      .cosines = cosines.data(),
      .sines = sines.data(),
      .out = out.data(),
      .partials = partials.data(),
      .counters = counters.data(),
      .kv_heads = kv_heads,
      .dims = dims,
      .splits = splits});

  const auto turned = [&](i64 head, i64 d) {
    const std::size_t angle = index(newest * half + d % half);
    const double a = value_of(qkv, head * dims + d % half);
    const double b = value_of(qkv, head * dims + d % half + half);
    return d < half ? a * cosines[angle] - b * sines[angle] : b * cosines[angle] + a * sines[angle];
  };
  double worst = 0;
  for (i64 sequence = 0; sequence < batch; ++sequence) {
    const i64 first = sequence * (heads + 2 * kv_heads);
    for (i64 head = 0; head < heads; ++head) {
      const i64 cache = (sequence * kv_heads + head / kQueries) * capacity;
      std::vector<double> weights(index(newest + 1));
      double total = 0;
      for (i64 position = 0; position <= newest; ++position) {
        double score = 0;
        for (i64 d = 0; d < dims; ++d) {
          score += turned(first + head, d) * value_of(keys, (cache + position) * dims + d);
        }
        total += weights[index(position)] = std::exp(score / std::sqrt(static_cast<double>(dims)));
      }
      for (i64 d = 0; d < dims; ++d) {
        double expected = 0;
        for (i64 position = 0; position <= newest; ++position) {
          expected += weights[index(position)] / total * value_of(values, (cache + position) * dims + d);
        }
        const double error = std::abs(value_of(out, (sequence * heads + head) * dims + d) - expected);
        worst = std::max(worst, error / (std::abs(expected) + 0.01));
      }
    }
    // What was appended, and nothing else.
    for (i64 head = 0; head < kv_heads; ++head) {
      for (i64 position = 0; position < capacity; ++position) {
        for (i64 d = 0; d < dims; ++d) {
          const i64 at = ((sequence * kv_heads + head) * capacity + position) * dims + d;
          if (position != newest) {
            BOOST_REQUIRE(keys[index(at)].bits == old_keys[index(at)].bits);
            continue;
          }
          const double key = turned(first + heads + head, d);
          BOOST_REQUIRE(std::abs(value_of(keys, at) - key) <= std::abs(key) / 256 + 1e-6);
          BOOST_REQUIRE(value_of(values, at) == value_of(qkv, (first + heads + kv_heads + head) * dims + d));
        }
      }
    }
  }
  BOOST_TEST(worst <= 1.0 / 128);  // the result is rounded to bf16
  for (const u32 counter : counters) BOOST_TEST(counter == 0U);
}

BOOST_AUTO_TEST_CASE(one_block_has_a_head) {
  check_attention<1>({.batch = 2, .kv_heads = 2, .dims = 128, .splits = 1, .capacity = 40, .newest = 35});
  check_attention<2>({.batch = 1, .kv_heads = 2, .dims = 64, .splits = 1, .capacity = 40, .newest = 0});
  check_attention<4>({.batch = 1, .kv_heads = 1, .dims = 16, .splits = 1, .capacity = 300, .newest = 299});
  check_attention<8>({.batch = 1, .kv_heads = 1, .dims = 256, .splits = 1, .capacity = 20, .newest = 8});
  check_attention<4>({.batch = 1, .kv_heads = 1, .dims = 32, .splits = 1, .capacity = 64, .newest = 63});
}

BOOST_AUTO_TEST_CASE(blocks_share_the_positions_of_a_head) {
  // As many parts as the positions are worth: 1, 2, 3.
  check_attention<1>({.batch = 1, .kv_heads = 2, .dims = 64, .splits = 3, .capacity = 256, .newest = 255});
  check_attention<1>({.batch = 2, .kv_heads = 1, .dims = 64, .splits = 3, .capacity = 300, .newest = 256});
  check_attention<4>({.batch = 1, .kv_heads = 2, .dims = 128, .splits = 3, .capacity = 700, .newest = 601});
}

// Rows that threads keep in registers, and longer ones; with and without what is added.
BOOST_AUTO_TEST_CASE(norms) {
  constexpr float kEps = 0.01F;
  for (const i64 width : {8, 64, 2056, 8192, 8200}) {
    for (const bool adds : {false, true}) {
      BOOST_TEST_CONTEXT(width << " " << adds) {
        std::mt19937 random(3);
        std::vector<bf16> x = random_values(random, 2 * width);
        const std::vector<bf16> old = x;
        const std::vector<bf16> delta = random_values(random, 2 * width);
        const std::vector<bf16> gamma = random_values(random, width);
        std::vector<bf16> normed(x.size());
        run(AddNorm{.x = x.data(),
                    .delta = adds ? delta.data() : nullptr,
                    .gamma = gamma.data(),
                    .normed = normed.data(),
                    .count = 2,
                    .width = width,
                    .eps = kEps});
        double worst = 0;
        for (i64 row = 0; row < 2; ++row) {
          double squares = 0;
          for (i64 i = row * width; i < (row + 1) * width; ++i) {
            const double sum = value_of(old, i) + (adds ? value_of(delta, i) : 0);
            BOOST_REQUIRE(std::abs(value_of(x, i) - sum) <= std::abs(sum) / 256);
            squares += value_of(x, i) * value_of(x, i);
          }
          const double rms = std::sqrt(squares / static_cast<double>(width) + kEps);
          for (i64 i = 0; i < width; ++i) {
            const double expected = value_of(x, row * width + i) / rms * value_of(gamma, i);
            worst =
                std::max(worst, std::abs(value_of(normed, row * width + i) - expected) / (std::abs(expected) + 1e-6));
          }
        }
        BOOST_TEST(worst <= 1.0 / 255);
      }
    }
  }
}

// Of equal logits the first class; a sequence's prompt goes before what is chosen.
BOOST_AUTO_TEST_CASE(tokens_are_chosen) {
  constexpr i64 kClasses = 1003;
  constexpr i64 kCount = 3;
  std::mt19937 random(5);
  std::vector<float> logits(kCount * kClasses);
  for (float& logit : logits) logit = std::normal_distribution(-50.0F, 1.0F)(random);
  const std::vector<i64> best{0, 1002, 517};
  for (i64 s = 0; s < kCount; ++s) logits[index(s * kClasses + best[index(s)])] = -1.0F;
  logits[index(2 * kClasses + 900)] = -1.0F;
  std::vector<float> largest(kCount * kArgmaxParts);
  std::vector<i32> where(largest.size());
  run(PartialArgmax{
      .logits = logits.data(), .count = kCount, .classes = kClasses, .largest = largest.data(), .where = where.data()});
  for (const i32 given : {1, 3}) {
    std::vector<i32> state{1, given};
    std::vector<i32> tokens(kCount * 3, 7);
    std::vector<i32> chosen(kCount * 3, -1);
    const Sequences sequences{
        .state = state.data(), .tokens = tokens.data(), .chosen = chosen.data(), .count = kCount, .capacity = 3};
    run(ChooseTokens{.sequences = sequences, .largest = largest.data(), .where = where.data()});
    BOOST_TEST(state[0] == 2);
    for (i64 s = 0; s < kCount; ++s) {
      BOOST_TEST(chosen[index(s * 3 + 1)] == best[index(s)]);
      BOOST_TEST(tokens[index(s * 3 + 2)] == (given == 3 ? 7 : best[index(s)]));
      BOOST_TEST(tokens[index(s * 3)] == 7);
    }
  }
}

BOOST_AUTO_TEST_CASE(gates) {
  constexpr i64 kWidth = 2056;
  std::mt19937 random(6);
  const std::vector<bf16> gate_up = random_values(random, 2 * 2 * kWidth);
  std::vector<bf16> out(2 * kWidth);
  run(GatedSilu{.gate_up = gate_up.data(), .out = out.data(), .count = 2, .width = kWidth});
  double worst = 0;
  for (i64 row = 0; row < 2; ++row) {
    for (i64 i = 0; i < kWidth; ++i) {
      const double gate = value_of(gate_up, row * 2 * kWidth + i);
      const double expected = gate / (1 + std::exp(-gate)) * value_of(gate_up, (row * 2 + 1) * kWidth + i);
      worst = std::max(worst, std::abs(value_of(out, row * kWidth + i) - expected) / (std::abs(expected) + 1e-6));
    }
  }
  BOOST_TEST(worst <= 1.0 / 255);
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace generate::test
