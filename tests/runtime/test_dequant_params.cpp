// How a dequant_matmul with a split K is cut into slices, so that the memory for its partial sums is bounded.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <vector>

#include "ingot/runtime/dequant/dequant_params.h"

BOOST_AUTO_TEST_SUITE(test_dequant_params)

using namespace ingot;
using namespace ingot::cuda;

namespace {

DequantMatmulSpec split_by(int split) {
  return {.kernel = DequantKernel::mma,
          .tiling = DequantTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .split = split, .k_warps = 2}};
}

const std::byte* byte_of(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.data); }

}  // namespace

BOOST_AUTO_TEST_CASE(slices_are_whole_tiles_within_the_bound) {
  BOOST_TEST(dequant_mma_slice(split_by(1), 1'000'000, 4096) == 1'000'000);
  // 16 tokens of 4096 features: 64 tiles of 4 KiB, times 8 parts are 2 MiB.
  BOOST_TEST(dequant_mma_slice(split_by(8), 16, 4096) == 16);
  BOOST_TEST(dequant_mma_slice(split_by(8), 500, 4096) == 500);
  BOOST_TEST(dequant_mma_slice(split_by(8), 1'000'000, 4096) == 512);
  BOOST_TEST(dequant_mma_slice(split_by(8), 1'000'000, 4097) == 496);
  BOOST_TEST(dequant_mma_slice(split_by(8), 100, 1 << 22) == 16);  // one tile, whatever it takes
}

BOOST_AUTO_TEST_CASE(a_slice_is_the_call_for_its_tokens) {
  DequantMatmulSpec spec = split_by(2);
  spec.pointwise = parse_pointwise("x * gate + shift[col] + each[row]");
  std::vector<std::byte> memory(1 << 16);
  const auto place = [&](std::size_t at, Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    return Tensor{.data = memory.data() + at, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = stride};
  };
  DequantMatmulTensors tensors{.x = place(0, Dtype::bf16, 40, 64, 72),
                               .weight = place(8192, Dtype::u8, 1, 4352, 4352),
                               .scale_inv = place(16384, Dtype::f32, 1, 32, 32),
                               .bias = place(16640, Dtype::bf16, 1, 32, 32),
                               .out = place(20480, Dtype::f32, 40, 32, 33)};
  std::size_t i = 0;
  for (const PointwiseInput& input : spec.pointwise.inputs()) {
    const std::size_t at = 32768 + 8192 * i;
    Tensor& operand = tensors.inputs[i++];
    if (input.name == "gate") operand = place(at, Dtype::bf16, 40, 32, 34);
    if (input.name == "shift") operand = place(at, Dtype::bf16, 1, 32, 32);
    if (input.name == "each") operand = place(at, Dtype::f32, 1, 40, 40);
  }
  const DequantMatmulTensors part = tokens_of(spec, tensors, 32, 8);
  BOOST_TEST(part.x.rows == 8);
  BOOST_TEST(part.x.cols == 64);
  BOOST_TEST(byte_of(part.x) - byte_of(tensors.x) == 32 * 72 * 2);
  BOOST_TEST(part.out.rows == 8);
  BOOST_TEST(byte_of(part.out) - byte_of(tensors.out) == 32 * 33 * 4);
  BOOST_TEST(part.weight.data == tensors.weight.data);
  BOOST_TEST(part.scale_inv.data == tensors.scale_inv.data);
  BOOST_TEST(part.bias.data == tensors.bias.data);
  i = 0;
  for (const PointwiseInput& input : spec.pointwise.inputs()) {
    const std::int64_t moved = byte_of(part.inputs[i]) - byte_of(tensors.inputs[i]);
    ++i;
    BOOST_TEST(moved == (input.name == "gate" ? 32 * 34 * 2 : input.name == "each" ? 32 * 4 : 0), input.name);
  }
}

// From one expert's weight and scale_inv to the next one's, past 2^32 bytes.
BOOST_AUTO_TEST_CASE(experts_are_apart_by_64_bits) {
  constexpr std::int64_t kN = 131072, kK = 65536;
  const auto apart = [](WeightLayout layout) {
    const DequantMatmulTensors tensors{
        .x = matrix(nullptr, Dtype::bf16, 4, kK, {}),
        .weight = layout == WeightLayout::row_major
                      ? matrix(nullptr, Dtype::e4m3fn, 2 * kN, kK, {})
                      : vector(nullptr, Dtype::u8, 2 * packed_weight_bytes(Dtype::e4m3fn, kN, kK), {}),
        .scale_inv = {},
        .out = matrix(nullptr, Dtype::bf16, 4, kN, {}),
        .ends = {.data = nullptr, .experts = 2}};
    return expert_params({.scale = kRowGroups32, .layout = layout, .experts = true}, tensors);
  };
  BOOST_TEST(apart(WeightLayout::row_major).weight_bytes == std::uint64_t{kN} * kK);
  BOOST_TEST(apart(WeightLayout::packed).weight_bytes == std::uint64_t{kN} * kK + 4 * kN);
  BOOST_TEST(apart(WeightLayout::packed).factor_bytes == std::uint64_t{kN} * kK / 32 * 4);
}

BOOST_AUTO_TEST_SUITE_END()
