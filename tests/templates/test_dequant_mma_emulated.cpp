// Runs templates/dequant/dequant_mma.cuh and pack_weight.cuh on the host, thread by thread, and compares them with
// float64 and with what the CPU packs. The parameters come from the runtime's own code.
#include "templates/emulator.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/dequant/dequant_params.h"
#include "support/dequant_case.h"
#include "support/dequant_experts_case.h"
#include "support/grouped_gemm_case.h"

#include "dequant/pack_weight.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_dequant_mma_emulated)

namespace {

constexpr DequantFactors kTensor{.scale = template_granularity(kTensorwise)};
constexpr DequantFactors kRow{.scale = template_granularity(kRowwise)};
constexpr DequantFactors kGroups128{.scale = template_granularity(kRowGroups)};
constexpr DequantFactors kGroups64{.scale = template_granularity(kRowGroups64)};
constexpr DequantFactors kGroups32{.scale = template_granularity(kRowGroups32)};
constexpr DequantFactors kBlocks128{.scale = template_granularity(kBlocks)};
constexpr DequantFactors kMx32{.scale = template_granularity(kRowGroups32), .e8m0 = true};

constexpr CodeLayout kRows = CodeLayout::row_major;
constexpr CodeLayout kPacked = CodeLayout::packed;
constexpr CodeLayout kPackedF16 = CodeLayout::packed_f16;

constexpr WeightLayout weight_layout(CodeLayout layout) { return static_cast<WeightLayout>(layout); }

constexpr DequantMmaTiling kDecode{8, 64, 2};
constexpr DequantMmaTiling kWide{16, 128, 1};
constexpr DequantMmaTiling kDeep{16, 64, 4};
constexpr DequantMmaTiling kLarge{64, 64, 1};

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream{*cpu};

  template <class W, class X, class Out, DequantFactors Kind, CodeLayout L, DequantMmaTiling T,
            class Epi = PlainEpilogue>
  void check(std::int64_t m, std::int64_t n, std::int64_t k, int split = 1, bool faulty = false,
             DequantPlacement placement = {}, const char* epilogue = nullptr) {
    DequantMatmulSpec spec{.x = dtype_of<X>(),
                           .weight = dtype_of<W>(),
                           .out = dtype_of<Out>(),
                           .scale = {static_cast<int>(Kind.scale.rows), static_cast<int>(Kind.scale.cols)},
                           .scale_inv = Kind.e8m0 ? Dtype::e8m0fnu : Dtype::f32,
                           .layout = weight_layout(L),
                           .kernel = DequantKernel::mma,
                           .tiling = DequantTiling{.tokens = static_cast<int>(T.tokens),
                                                   .rows = static_cast<int>(T.rows),
                                                   .depth = static_cast<int>(dequant_mma_depth(T)),
                                                   .stages = static_cast<int>(kDequantMmaStages),
                                                   .split = split,
                                                   .k_warps = static_cast<int>(T.k_warps)}};
    if (epilogue != nullptr) {
      spec.bias = true;
      spec.pointwise = parse_pointwise(epilogue);
    }
    validate(spec);
    const DequantData data({.spec = spec,
                            .m = m,
                            .n = n,
                            .k = k,
                            .placement = placement,
                            .seed = static_cast<std::uint64_t>(m + n + k),
                            .faulty = faulty});
    PlacedDequant placed(data, *cpu, stream);
    const std::int64_t tiles = dequant_mma_tiles(T, m, n);
    std::vector<float> parts(dequant_mma_parts_bytes(T, tiles, static_cast<u32>(split)) / 4 + 4);
    std::vector<u32> arrived(static_cast<std::size_t>(tiles));
    float* const from_16 = parts.data() + (16 - reinterpret_cast<std::uintptr_t>(parts.data()) % 16) % 16 / 4;
    emulator::launch(dequant_mma<W, X, Out, DequantMmaConfig{.layout = L, .factors = Kind, .tiling = T}, Epi>,
                     tiles * split, dequant_mma_threads(T),
                     cuda::dequant_mma_params(spec, placed.tensors(), from_16, arrived.data()),
                     dequant_mma_shared_bytes(T));
    const std::string fault = fault_of_outputs(data, placed.out(stream), data.expected());
    BOOST_TEST(fault.empty(), describe(data.of()) << ": " << fault);
    for (const u32 count : arrived) BOOST_TEST(count == 0U);
  }

  // The same for experts; afterwards with ends that are out of bounds, which must do no harm.
  template <class W, class X, class Out, DequantFactors Kind, CodeLayout L, DequantMmaTiling T>
  void check_experts(DequantExpertsCase c) {
    c.spec = {.x = dtype_of<X>(),
              .weight = dtype_of<W>(),
              .out = dtype_of<Out>(),
              .scale = {static_cast<int>(Kind.scale.rows), static_cast<int>(Kind.scale.cols)},
              .scale_inv = Kind.e8m0 ? Dtype::e8m0fnu : Dtype::f32,
              .layout = weight_layout(L),
              .bias = c.n % 2 == 1,
              .experts = true,
              .kernel = DequantKernel::mma,
              .tiling = DequantTiling{.tokens = static_cast<int>(T.tokens),
                                      .rows = static_cast<int>(T.rows),
                                      .depth = static_cast<int>(dequant_mma_depth(T)),
                                      .stages = static_cast<int>(kDequantMmaStages),
                                      .k_warps = static_cast<int>(T.k_warps)}};
    validate(c.spec);
    const DequantExpertsData data(c);
    PlacedDequantExperts placed(data, *cpu, stream);
    const auto experts = static_cast<std::int64_t>(c.ends.size());
    const auto launch = [&] {
      emulator::launch(
          dequant_mma<W, X, Out, DequantMmaConfig{.layout = L, .factors = Kind, .tiling = T, .experts = true}>,
          dequant_mma_most_tiles(T, c.m, c.n, experts), dequant_mma_threads(T),
          cuda::dequant_mma_params(c.spec, placed.tensors(), nullptr, nullptr), dequant_mma_shared_bytes(T));
    };
    launch();
    const std::string fault = data.fault_of(placed.out(stream));
    BOOST_TEST(fault.empty(), describe(c) << ": " << fault);
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    for (const std::int32_t wrong : {kMost, -1}) {
      placed.poison(stream);
      Ends ends = c.ends;
      ends[ends.size() / 2] = wrong;
      placed.set_ends(ends, stream);
      launch();
      BOOST_TEST(placed.out(stream).damage() == "", describe(c) << " with " << wrong);
    }
  }

  template <class W, class X>
  void check_formats() {
    check<W, X, f32, kRow, kPacked, kDecode>(3, 70, 200, 1, true);
    check<W, X, X, kGroups32, kRows, kDecode>(9, 61, 136, 1, true);
    check<W, X, f32, kMx32, kPacked, kWide>(5, 150, 65);
    check<W, X, f32, kRow, kPackedF16, kWide>(5, 150, 65, 1, true);
    check<W, X, f32, kTensor, kRows, kWide>(17, 40, 99, 1, true);
  }
  template <class W>
  void check_activations() {
    check_formats<W, bf16>();
    check_formats<W, f16>();
  }

  template <class W, CodeLayout L>
  void check_packing() {
    for (const auto& [n, k] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {70, 131}, {64, 64}, {130, 3}}) {
      WeightCodes weight = WeightCodes::random(dtype_of<W>(), n, k, 5, false);
      GuardedMatrix rows = weight.rows(3, 1);
      const Tensor codes = weight.view(rows, rows.bytes().data(), {}, 3);
      const auto bytes = static_cast<std::size_t>(packed_weight_bytes(weight.dtype, n, k));
      Buffer by_cpu(*cpu, bytes);
      Buffer by_kernel(*cpu, bytes);
      cpu->pack_weight({.weight = weight.dtype, .layout = weight_layout(L)},
                       {.codes = codes, .packed = vector(by_cpu.data(), Dtype::u8, static_cast<i64>(bytes), {})},
                       stream);
      PackWeightParams params{.codes = static_cast<u8*>(codes.data),
                              .n = n,
                              .k = k,
                              .row_bytes = code_row_bytes<W>(codes.row_stride),
                              .packed = static_cast<u8*>(by_kernel.data())};
      emulator::launch(pack_weight<W, L>, PackWeightLaunch::grid(n), PackWeightLaunch::kThreads, params);
      BOOST_TEST(std::memcmp(by_cpu.data(), by_kernel.data(), bytes) == 0, name(weight.dtype) << " " << n << "x" << k);
      GuardedMatrix back = weight.rows(3, 1);
      std::memset(back.bytes().data(), 0xa5, back.bytes().size());
      params.codes = static_cast<u8*>(weight.view(back, back.bytes().data(), {}, 3).data);
      emulator::launch(unpack_weight<W, L>, UnpackWeightLaunch::grid(n, k), UnpackWeightLaunch::kThreads, params);
      // Bits of a row's last byte that belong to no code come back as zeros.
      GuardedMatrix expected = rows;
      const std::int64_t bits = k * bits_of(weight.dtype) % 8;
      for (std::int64_t r = 0; bits != 0 && r < n; ++r) {
        expected.set_bits(r, rows.cols() - 1, rows.bits(r, rows.cols() - 1) & ((1U << bits) - 1U));
      }
      BOOST_TEST((back.bytes() == expected.bytes()), name(weight.dtype) << " " << n << "x" << k);
    }
  }
};

struct GatedSilu {
  static constexpr u32 kInputs = 3;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix, InputKind::row, InputKind::column};
  static float apply(float x, float gate, float scale, float shift) { return x * gate * scale + shift; }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(emulated, Fixture)

BOOST_AUTO_TEST_CASE(packing) {
  check_packing<e4m3fn, kPacked>();
  check_packing<e4m3fn, kPackedF16>();
  check_packing<e5m2, kPacked>();
  check_packing<e5m2, kPackedF16>();
  check_packing<e4m3fnuz, kPacked>();
  check_packing<e4m3fnuz, kPackedF16>();
  check_packing<e5m2fnuz, kPacked>();
  check_packing<e3m2fn, kPacked>();
  check_packing<e2m3fn, kPacked>();
  check_packing<e2m1fn, kPacked>();
}

BOOST_AUTO_TEST_CASE(formats_of_8_bits) {
  check_activations<e4m3fn>();
  check_activations<e5m2>();
  check_activations<e4m3fnuz>();
  check_activations<e5m2fnuz>();
}

BOOST_AUTO_TEST_CASE(formats_of_fewer_bits) {
  check_activations<e3m2fn>();
  check_activations<e2m3fn>();
  check_activations<e2m1fn>();
}

BOOST_AUTO_TEST_CASE(kinds_of_factors) {
  check<e4m3fn, bf16, bf16, kGroups128, kPacked, kDecode>(5, 70, 300);
  check<e4m3fn, bf16, bf16, kGroups128, kRows, kDecode>(5, 70, 300);
  check<e4m3fn, f16, f32, kGroups64, kPacked, kDeep>(5, 70, 300);
  check<e4m3fn, f16, f32, kGroups64, kRows, kDeep>(5, 70, 300);
  check<e4m3fn, f16, f16, kBlocks128, kPacked, kWide>(5, 260, 300);
  check<e4m3fn, f16, f16, kBlocks128, kRows, kWide>(5, 260, 300);
}

BOOST_AUTO_TEST_CASE(tilings_and_splits) {
  check<e4m3fn, bf16, f32, kRow, kPacked, kDeep>(20, 100, 700, 1);
  check<e4m3fn, bf16, f32, kRow, kPacked, kLarge>(70, 70, 200, 1);
  check<e4m3fn, bf16, f32, kRow, kRows, kLarge>(70, 70, 200, 2);
  check<e4m3fn, bf16, f32, kGroups128, kPacked, kLarge>(70, 70, 500, 3);
  check<e5m2, f16, f16, kRow, kPacked, kDecode>(11, 130, 900, 4);
  check<e5m2, f16, f16, kTensor, kRows, kDecode>(11, 130, 900, 7);
  check<e4m3fn, bf16, f32, kRow, kPacked, kDecode>(2, 70, 100, 5);  // more blocks than stages
}

BOOST_AUTO_TEST_CASE(placements) {
  for (const DequantPlacement& placement :
       {DequantPlacement{.x_padding = 8, .x_offset = 8, .weight_padding = 8, .weight_offset = 8},
        DequantPlacement{.x_padding = 1, .weight_padding = 4, .out_padding = 1},
        DequantPlacement{.x_offset = 3, .weight_offset = 1, .out_padding = 2, .out_offset = 1}}) {
    check<e4m3fn, bf16, bf16, kRow, kRows, kDecode>(3, 67, 128, 1, false, placement);
    check<e2m3fn, bf16, f32, kRow, kRows, kDecode>(3, 67, 128, 1, false, placement);
    check<e2m1fn, f16, f16, kRow, kRows, kDecode>(3, 67, 128, 1, false, placement);
    check<e4m3fn, bf16, bf16, kRow, kPacked, kDecode>(3, 67, 128, 1, false, placement);
  }
}

BOOST_AUTO_TEST_CASE(no_k) {
  check<e4m3fn, bf16, bf16, kRow, kPacked, kDecode>(3, 67, 0);
  check<e4m3fn, bf16, bf16, kGroups128, kRows, kDecode>(3, 67, 0, 2);
}

BOOST_AUTO_TEST_CASE(bias_and_expression) {
  using Epi = Epilogue<NoMatrix, GatedSilu, bf16>;
  const char* const text = "x*gate*scale[row]+shift[col]";
  check<e4m3fn, bf16, bf16, kRow, kPacked, kDecode, Epi>(11, 71, 130, 1, false, {}, text);
  check<e4m3fn, bf16, f32, kGroups128, kRows, kWide, Epi>(11, 71, 130, 2, false, {}, text);
}

// Experts without rows first, last and between; of one row; of more rows than a tile has; rows that no expert has;
// counts.
BOOST_AUTO_TEST_CASE(experts) {
  const Ends few{0, 0, 3, 4, 4};
  check_experts<e4m3fn, bf16, bf16, kRow, kPacked, kDecode>({.ends = few, .m = 6, .n = 71, .k = 130, .faulty = true});
  check_experts<e2m1fn, bf16, bf16, kMx32, kPacked, kDecode>({.ends = {1, 12, 12, 30}, .m = 30, .n = 130, .k = 100});
  check_experts<e4m3fn, f16, f32, kRow, kRows, kWide>({.ends = few, .m = 4, .n = 140, .k = 96, .faulty = true});
  check_experts<e5m2, f16, f16, kTensor, kPackedF16, kWide>({.ends = {17, 18}, .m = 18, .n = 64, .k = 64});
  check_experts<e4m3fn, bf16, bf16, kBlocks128, kPacked, kDecode>(
      {.ends = {3, 0, 9}, .m = 27, .n = 130, .k = 144, .placement = {.x_padding = 3, .out_padding = 1}, .capacity = 9});
  check_experts<e2m3fn, f16, f16, kGroups32, kRows, kDeep>({.ends = {0, 5}, .m = 10, .n = 61, .k = 64, .capacity = 5});
  check_experts<e4m3fn, bf16, bf16, kRow, kPacked, kDecode>({.ends = zipf_ends(70, 40), .m = 70, .n = 5, .k = 8});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
