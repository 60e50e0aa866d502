// templates/gemm/gemm_epilogue.cuh on the host: gemm_simt's way through it, element by element, under the emulator, and
// the tensor-core kernels' way, in pairs. Both are compared with each other and with the definition.
#include "emulator.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_simt.cuh"
#include "platform.cuh"
#include "pointwise/math.cuh"

#include "codegen/pointwise_rendered.inc"

BOOST_AUTO_TEST_SUITE(test_gemm_epilogue)

using namespace ingot;

namespace {

constexpr i64 kRows = 70;
constexpr i64 kCols = 67;

// silu(x) * gate + bias[col] / mean[row], with c and every output.
struct Everything {
  using Epi = Epilogue<f16, RenderedSwigluBias, bf16, EpilogueConfig{.preactivation = true, .amax = true}>;
  i64 stride;
  std::vector<f16> c;
  std::vector<bf16> gate, bias, preactivation;
  std::vector<float> mean;
  float amax = 0.0F;
  float scale = 8.0F;
  float factor = 0.0F;
  float beta = 0.5F;

  explicit Everything(i64 row_stride)
      : stride(row_stride),
        c(static_cast<std::size_t>(kRows * stride)),
        gate(c.size()),
        bias(static_cast<std::size_t>(kCols)),
        preactivation(c.size()),
        mean(static_cast<std::size_t>(kRows)) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i] = from_float<f16>(static_cast<float>(i % 23) / 4.0F - 2.0F);
      gate[i] = from_float<bf16>(static_cast<float>(i % 17) / 8.0F - 1.0F);
    }
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = from_float<bf16>(static_cast<float>(i) / 16.0F);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = 1.0F + static_cast<float>(i);
  }

  // Fills c with values that beta = 0 must leave unread.
  void unset_c() {
    beta = 0.0F;
    for (std::size_t i = 0; i < c.size(); ++i) c[i] = f16{static_cast<u16>(i % 2 == 0 ? 0x7e00 : 0xfc00)};  // NaN, -Inf
  }

  EpilogueParams params() {
    EpilogueParams p{.c = c.data(),
                     .c_stride = stride,
                     .operands = {},
                     .preactivation = preactivation.data(),
                     .preactivation_stride = stride,
                     .amax = reinterpret_cast<u32*>(&amax),
                     .scale = &scale,
                     .factor = &factor,
                     .beta = beta};
    p.operands[0] = {gate.data(), stride};
    p.operands[1] = {bias.data(), 0};
    p.operands[2] = {mean.data(), 0};
    return p;
  }

  std::size_t at(i64 row, i64 col) const { return static_cast<std::size_t>(row * stride + col); }
  float x(float sum, i64 row, i64 col) const { return beta == 0 ? sum : sum + beta * to_float(c[at(row, col)]); }
  float value(float sum, i64 row, i64 col) const {
    return RenderedSwigluBias::apply(x(sum, row, col), to_float(gate[at(row, col)]),
                                     to_float(bias[static_cast<std::size_t>(col)]),
                                     mean[static_cast<std::size_t>(row)]);
  }
};

void check_simt(Everything all) {
  constexpr i64 kDepth = 5;
  std::vector<float> a(static_cast<std::size_t>(kRows * kDepth));
  std::vector<float> b(static_cast<std::size_t>(kCols * kDepth));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3.0F;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) - 2.0F;
  std::vector<e4m3fn> out(static_cast<std::size_t>(kRows * kCols), e4m3fn{0x55});
  const GemmParams p{.a = a.data(),
                     .b = b.data(),
                     .factor_a = nullptr,
                     .factor_b = nullptr,
                     .bias = nullptr,
                     .out = out.data(),
                     .m = kRows,
                     .n = kCols,
                     .k = kDepth,
                     .a_stride_m = kDepth,
                     .a_stride_k = 1,
                     .b_stride_n = kDepth,
                     .b_stride_k = 1,
                     .out_stride = kCols,
                     .factor_a_stride = 0,
                     .factor_b_stride = 0,
                     .factor_a_group_stride = 0,
                     .factor_b_group_stride = 0,
                     .factor_b_rows = 1,
                     .epilogue = all.params()};
  emulator::launch(gemm_simt<f32, f32, e4m3fn, Everything::Epi>, GemmSimtLaunch::grid(kRows, kCols),
                   GemmSimtLaunch::kThreads, p);
  float largest = 0.0F;
  for (i64 row = 0; row < kRows; ++row) {
    for (i64 col = 0; col < kCols; ++col) {
      float sum = 0.0F;
      for (i64 k = 0; k < kDepth; ++k) {
        sum += a[static_cast<std::size_t>(row * kDepth + k)] * b[static_cast<std::size_t>(col * kDepth + k)];
      }
      const float value = all.value(sum, row, col);
      largest = std::max(largest, std::fabs(value));
      BOOST_REQUIRE(out[static_cast<std::size_t>(row * kCols + col)].bits == encode<e4m3fn>(value * 8.0F).bits);
      BOOST_REQUIRE(all.preactivation[all.at(row, col)].bits == from_float<bf16>(all.x(sum, row, col)).bits);
    }
  }
  BOOST_TEST(all.amax == largest);
  BOOST_TEST(all.factor == 0.125F);
}

}  // namespace

BOOST_AUTO_TEST_CASE(simt_with_everything) {
  Everything all(kCols + 3);
  check_simt(all);
  all.unset_c();
  check_simt(all);
}

// Pairs and single elements give the same bits, in rows where pairs are aligned and in rows where they are not.
BOOST_AUTO_TEST_CASE(pairs_are_two_elements) {
  using Epi = Everything::Epi;
  for (const auto& [stride, unset] : {std::pair{kCols + 1, false}, std::pair{kCols + 4, false},  // even and odd
                                      std::pair{kCols + 1, true}, std::pair{kCols + 4, true}}) {
    Everything singly(stride);
    Everything paired(stride);
    if (unset) {
      singly.unset_c();
      paired.unset_c();
    }
    const EpilogueParams one = singly.params();
    const EpilogueParams two = paired.params();
    const Epi::Vectors vectors = Epi::vectors(two);
    BOOST_TEST(vectors.c == (stride % 2 == 0));
    for (i64 row = 0; row < kRows; ++row) {
      for (i64 col = 0; col < kCols; col += 2) {
        const bool both = col + 1 < kCols;
        const float sums[2] = {static_cast<float>(row) / 8.0F - 3.0F,
                               col == 0 ? -0.0F : static_cast<float>(col) / 16.0F};
        float x = sums[0];
        float y = sums[1];
        Epi::apply(two, vectors, Epi::fetch(two, vectors, row, col, both), row, col, both, x, y);
        BOOST_REQUIRE(float_bits(x) == float_bits(Epi::value(one, row, col, sums[0])));
        BOOST_REQUIRE(float_bits(x) == float_bits(singly.value(sums[0], row, col)));
        if (both) BOOST_REQUIRE(float_bits(y) == float_bits(Epi::value(one, row, col + 1, sums[1])));
      }
    }
    const auto bits = [](bf16 x) { return x.bits; };
    BOOST_TEST(std::ranges::equal(singly.preactivation, paired.preactivation, {}, bits, bits));
  }
}

BOOST_AUTO_TEST_CASE(nothing_changes_nothing) {
  const EpilogueParams p{};
  BOOST_TEST(PlainEpilogue::value(p, 3, 4, -2.5F) == -2.5F);
  BOOST_TEST(PlainEpilogue::kNothing);
  BOOST_TEST(PlainEpilogue::kWords == 0U);
  BOOST_TEST(std::isnan(decode(gemm_output<e4m3fn>(NAN, 1.0F))));
  BOOST_TEST(decode(gemm_output<e5m2>(-1e9F, 1.0F)) == -57344.0F);
}

BOOST_AUTO_TEST_SUITE_END()
