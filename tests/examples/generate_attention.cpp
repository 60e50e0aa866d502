// The GPU's way of a decoder's attention, on the host: a thread for each of its threads, against float64.
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
namespace {

std::size_t index(i64 i) { return static_cast<std::size_t>(i); }

template <i64 kQueries>
struct Launch {
  DecodeAttention<kQueries> op;
  float* shared;
};

template <i64 kQueries>
void run(const Launch<kQueries>& launch) {
  for (i64 row = blockIdx.x; row < launch.op.rows(); row += gridDim.x) {
    launch.op(BlockOfThreads{launch.shared}, row);
  }
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
  std::vector<float> shared(kSharedFloats);
  const DecodeAttention<kQueries> op{
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
      .splits = splits};
  ingot::emulator::launch(run<kQueries>, op.rows(), kThreads, Launch<kQueries>{op, shared.data()});

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

}  // namespace
}  // namespace generate::test
