// Compiles every template and instantiates the kernels for the host, with warnings as errors, as an IDE, clang-tidy and
// the CPU reference read them. Most of the test is that this file compiles; at run time it only checks that the list of
// includes is complete.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/template_types.h"
#include "templates/cast_outputs.h"

#pragma GCC diagnostic error "-Wall"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wshadow"
#include "cast/amax.cuh"
#include "cast/amax_history.cuh"
#include "cast/amax_scales.cuh"
#include "cast/cast_experts.cuh"
#include "cast/cast_gathered.cuh"
#include "cast/cast_gathered_rows.cuh"
#include "cast/cast_list.cuh"
#include "cast/cast_output.cuh"
#include "cast/cast_row_groups.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_columns.cuh"
#include "cast/cast_rows_wide.cuh"
#include "cast/cast_stack.cuh"
#include "cast/cast_stats.cuh"
#include "cast/cast_tile_codes.cuh"
#include "cast/cast_tile_plan.cuh"
#include "cast/cast_tile_results.cuh"
#include "cast/cast_tile_scales.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/cast_tile_values.cuh"
#include "cast/cast_tiles.cuh"
#include "cast/cast_whole.cuh"
#include "cast/column_sum.cuh"
#include "cast/column_sum_experts.cuh"
#include "cast/combine.cuh"
#include "cast/elementwise.cuh"
#include "cast/elementwise_amax.cuh"
#include "cast/elementwise_maxima.cuh"
#include "cast/elementwise_pair.cuh"
#include "cast/elementwise_rows.cuh"
#include "cast/expert_rows.cuh"
#include "cast/source.cuh"
#include "cast/staged_columns.cuh"
#include "cluster.cuh"
#include "dequant/dequant_codes.cuh"
#include "dequant/dequant_experts.cuh"
#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_fragment.cuh"
#include "dequant/dequant_layout.cuh"
#include "dequant/dequant_mma.cuh"
#include "dequant/dequant_mma_codes.cuh"
#include "dequant/dequant_mma_tiling.cuh"
#include "dequant/dequant_sm90.cuh"
#include "dequant/dequant_sm90_factors.cuh"
#include "dequant/dequant_sm90_output.cuh"
#include "dequant/dequant_sm90_position.cuh"
#include "dequant/dequant_sm90_producer.cuh"
#include "dequant/dequant_sm90_sums.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "dequant/pack_weight.cuh"
#include "expert_slots.cuh"
#include "formats.cuh"
#include "gemm/decode_f16.cuh"
#include "gemm/expert_table.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_mma_tiling.cuh"
#include "gemm/gemm_params.cuh"
#include "gemm/gemm_simt.cuh"
#include "gemm/gemm_sm90.cuh"
#include "gemm/gemm_sm90_along_k.cuh"
#include "gemm/gemm_sm90_along_k_walk.cuh"
#include "gemm/gemm_sm90_experts.cuh"
#include "gemm/gemm_sm90_factors.cuh"
#include "gemm/gemm_sm90_grouped.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"
#include "gemm/gemm_sm90_output.cuh"
#include "gemm/gemm_sm90_pair.cuh"
#include "gemm/gemm_sm90_position.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_producer16.cuh"
#include "gemm/gemm_sm90_split.cuh"
#include "gemm/gemm_sm90_sums.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/relayout.cuh"
#include "gemm/stage_ring.cuh"
#include "gemm/stream_k.cuh"
#include "gemm/stream_k_parts.cuh"
#include "gemm/warp_mma.cuh"
#include "granularity.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_backward.cuh"
#include "norm/norm_backward_launch.cuh"
#include "norm/norm_backward_wide.cuh"
#include "norm/norm_row.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_rows_full.cuh"
#include "norm/norm_rows_wide.cuh"
#include "norm/norm_wide.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "pointwise/math.cuh"
#include "pointwise/math16.cuh"
#include "pointwise/math32.cuh"
#include "pointwise/math_exact.cuh"
#include "pointwise/math_fast.cuh"
#include "pointwise/pointwise.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cvt.cuh"
#include "ptx/grid.cuh"
#include "ptx/integer.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/packed.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma16.cuh"
#include "quantize/float_quantize.cuh"
#include "quantize/quantize_mx.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"
#include "vec8_tiles.cuh"

BOOST_AUTO_TEST_SUITE(test_templates_on_host)

namespace {

// Instantiates the kernels, because only instantiated templates are fully checked.
template <auto... kernels>
constexpr int kInstantiated = sizeof...(kernels);

using namespace ingot;

// What src/codegen/pointwise/pointwise_lowering.cpp writes, with every kind of input.
template <math::Grade M>
struct Fused {
  static constexpr u32 kInputs = 3;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix, InputKind::column, InputKind::row};
  static float apply(float x, float a0, float a1, float a2) {
    const float t0 = math::exp<M>(x) + math::expm1<M>(a0) + math::log<M>(a1) + math::log1p<M>(a2);
    const float t1 = math::tanh<M>(x) + math::sigmoid<M>(a0) + math::erf<M>(a1) + math::normal_cdf<M>(a2);
    const float t2 = math::sqrt<M>(x) + math::rsqrt<M>(a0) + math::divide<M>(a1, a2) + math::absolute(t0);
    return math::maximum(math::minimum(t0, t1), math::sign(t2) + math::step(a0) + math::reciprocal<M>(a1));
  }
};

template <class In>
constexpr int kOfInput =
    kInstantiated<&amax_partials<ValueSource<In>>, &amax_rows<ValueSource<In>>,
                  &amax_tiles<ValueSource<In>, AmaxTilesConfig{.tensor = true, .rows = true, .columns = true}>,
                  &column_sum_partials<In>, &column_sum_finish<In>, &combine<In>, &gemm_simt<In, In, In>,
                  &gemm_simt<In, In, f32>>;

template <class In, class Kind, bool Affine>
constexpr int kOfNorm =
    kInstantiated<&norm_backward<In, Kind, NormBackwardConfig{.affine = Affine}>,
                  &norm_rows<In, Kind, e4m3fn, NormRowsConfig{.affine = Affine, .result = true}>,
                  &norm_rows<In, Kind, e5m2fnuz, NormRowsConfig{.affine = Affine, .given_scale = true}>,
                  &norm_rows<In, Kind, NoCodes, NormRowsConfig{.affine = Affine, .result = true}>,
                  &norm_backward_wide<In, Kind, NormBackwardConfig{.affine = Affine}>,
                  (&norm_rows<In, Kind, NoCodes, NormRowsConfig{}>)>;

template <class In, class Kind, bool Affine>
constexpr int kOfNormInPairs =
    kInstantiated<&norm_rows_wide<In, Kind, e4m3fn, NormRowsConfig{.affine = Affine}, 3>,
                  (&norm_rows_wide<In, Kind, e5m2fnuz, NormRowsConfig{.affine = Affine, .given_scale = true}, 4>)>;

template <class In>
constexpr int kOfNormsInPairs = kOfNormInPairs<In, LayerNorm, false> + kOfNormInPairs<In, LayerNorm, true> +
                                kOfNormInPairs<In, RmsNorm, false> + kOfNormInPairs<In, RmsNorm, true>;

template <class In>
constexpr int kOfNorms = kOfNorm<In, LayerNorm, false> + kOfNorm<In, LayerNorm, true> + kOfNorm<In, RmsNorm, false> +
                         kOfNorm<In, RmsNorm, true>;

template <class In, class Out>
constexpr int kOfCast = kInstantiated<
    &cast_rows<ValueSource<In>, Out, CastRowsConfig{}>,
    &cast_rows<ValueSource<In>, Out, CastRowsConfig{.result = true}>,
    &cast_rows_wide<ValueSource<In>, Out, CastRowsConfig{}>, &cast_rows_columns<ValueSource<In>, Out>,
    &cast_row_groups<ValueSource<In>, Out, CastRowsConfig{.result = true}>,
    &cast_tiles<ValueSource<In>, Out,
                CastConfig{.codes = kTensorScale, .transposed = kTensorScale, .result = true, .sum = true}>,
    &cast_tiles<ValueSource<In>, Out, CastConfig{.codes = kRowScale, .transposed = kColumnScale, .given_scales = true}>,
    &cast_tiles<ValueSource<In>, Out,
                CastConfig{.codes = kRowGroupScale, .transposed = kColumnGroupScale, .sum = true}>,
    &cast_tiles<ValueSource<In>, Out, CastConfig{.transposed = kBlockScale, .given_scales = true, .result = true}>,
    &cast_tiles<GatheredSource<In>, Out, CastConfig{.codes = kRowScale, .transposed = kColumnScale}>,
    &cast_rows<GatheredSource<In>, Out, CastRowsConfig{}>, &cast_rows_wide<GatheredSource<In>, Out, CastRowsConfig{}>,
    &cast_experts<GatheredSource<In>, Out, CastConfig{.codes = kRowGroupScale, .transposed = kColumnGroupScale}>,
    &cast_experts<ValueSource<In>, Out,
                  CastConfig{
                      .codes = kTensorScale, .transposed = kTensorScale, .given_scales = true, .unaligned = true}>,
    &gemm_simt<Out, e5m2, In>>;

template <class Source>
constexpr int kOfFused = kInstantiated<
    &amax_tiles<Source, AmaxTilesConfig{.tensor = true, .rows = true, .columns = true}>,
    &cast_rows<Source, e4m3fn, CastRowsConfig{.result = true}>,
    &cast_rows_wide<Source, e4m3fn, CastRowsConfig{.result = true}>,
    &cast_row_groups<Source, e5m2, CastRowsConfig{.result = true}>, &amax_partials<Source>,
    &cast_tiles<Source, e5m2, CastConfig{.codes = kRowScale, .transposed = kColumnScale, .result = true, .sum = true}>,
    &amax_rows<Source>>;

template <class Source>
constexpr int kOfElementwise = kInstantiated<
    &elementwise<Source>, &elementwise_pair<Source, Fused<math::Reproducible32>>,
    &elementwise_amax<ElementwiseOutput<Source>>,
    &elementwise_amax<ElementwisePairOutput<Source, Fused<math::Reproducible32>>>,
    &elementwise_rows<ElementwiseOutput<Source>, Fused<math::Reproducible32>>,
    &elementwise_rows<ElementwisePairOutput<Source, Fused<math::Reproducible32>>, Fused<math::Reproducible32>>,
    &elementwise_maxima<ElementwiseOutput<Source>, NothingSummed>,
    &elementwise_maxima<ElementwisePairOutput<Source, Fused<math::Reproducible32>>, Fused<math::Reproducible32>>>;

template <class In>
constexpr int kOfQuantizes =
    kInstantiated<&quantize_mx<In, e4m3fn>, &quantize_mx<In, e5m2>, &quantize_mx<In, e3m2fn>, &quantize_mx<In, e2m3fn>,
                  &quantize_mx<In, e2m1fn>,
                  &float_quantize<In, FloatQuantizeConfig{.exponent_bits = 4, .mantissa_bits = 3}>,
                  &float_quantize<In, FloatQuantizeConfig{.exponent_bits = 1, .mantissa_bits = 6}>,
                  (&float_quantize<In, FloatQuantizeConfig{.exponent_bits = 3, .mantissa_bits = 0}>)>;

template <class In>
constexpr int kOfCasts = kOfCast<In, e4m3fn> + kOfCast<In, e5m2> + kOfCast<In, e4m3fnuz> + kOfCast<In, e5m2fnuz>;

}  // namespace

BOOST_AUTO_TEST_CASE(kernels_instantiate) {
  static_assert(kOfInput<f32> + kOfInput<bf16> + kOfInput<f16> == 3 * 8);
  static_assert(kOfCasts<f32> + kOfCasts<bf16> + kOfCasts<f16> == 3 * 4 * 15);
  using Unrounded = ValueSource<f16, Fused<math::Reproducible32>, ValueConfig{.unrounded = true}>;
  static_assert(kOfFused<ValueSource<bf16, Fused<math::Reproducible16>>> + kOfFused<Unrounded> +
                    kOfFused<ValueSource<f32, Fused<math::Fast>>> ==
                3 * 7);
  using InPlace = ValueSource<bf16, Fused<math::Reproducible16>, ValueConfig{.in_place = true}>;
  using WideInPlace = ValueSource<f32, Fused<math::Fast>, ValueConfig{.in_place = true}>;
  static_assert(kOfElementwise<InPlace> + kOfElementwise<WideInPlace> == 2 * 8);
  constexpr GemmSm90Config kShared{.fast_accumulation = true, .scale_b = template_granularity(kRowwise), .bias = true};
  constexpr auto kWithShared = &gemm_sm90<e4m3fn, e5m2, bf16, kShared>;
  constexpr GemmSm90Config kApart{.tiling = {.m = 64, .n = 128, .stages = 8, .pingpong = true},
                                  .scale_b = template_granularity(kRowGroups)};
  constexpr auto kWithApart = &gemm_sm90<e5m2, e5m2, f32, kApart>;
  constexpr GemmSm90Config kStreamK{.tiling = {.m = 64, .n = 128, .stages = 8, .stream_k = true},
                                    .fast_accumulation = true};
  constexpr auto kCut = &gemm_sm90<e4m3fn, e4m3fn, bf16, kStreamK>;
  static_assert(kInstantiated<kWithShared, kWithApart, kCut> == 3);
  constexpr GemmSm90Config kAcross{.fast_accumulation = true, .bias = true, .across_a = true, .across_b = true};
  constexpr auto kOf16Bits = &gemm_sm90<bf16, bf16, bf16, kAcross>;
  static_assert(kInstantiated<kOf16Bits> == 1);
  constexpr GemmSm90Config kAlong{.fast_accumulation = true, .across_b = true};
  using GradInput = Sm90Gemm<bf16, bf16, bf16, kAlong>;
  using GradWeight = Sm90Gemm<bf16, bf16, f32, kAcross>;
  using Twin = Sm90Gemm<e5m2, e4m3fn, bf16, kApart>;
  constexpr auto kPair = &gemm_sm90_pair<GradInput, GradWeight>;
  constexpr auto kTwins = &gemm_sm90_pair<Twin, Twin>;
  static_assert(kInstantiated<kPair, kTwins> == 2);
  constexpr GemmSm90Config kExperts{.scale_b = template_granularity(kRowwise), .experts = true};
  constexpr auto kGrouped = &gemm_sm90_grouped<e4m3fn, e5m2, bf16, kExperts>;
  constexpr GemmSm90Config kStretches{.scale_b = template_granularity(kRowwise), .experts = true, .along_k = true};
  constexpr auto kAlongK = &gemm_sm90_grouped<e4m3fn, e5m2, f32, kStretches>;
  constexpr GemmSm90Config kSlots{.tiling = {.m = 64, .n = 128, .stages = 8, .pingpong = true},
                                  .scale_b = template_granularity(kRowGroups),
                                  .experts = true,
                                  .along_k = true};
  constexpr auto kOfSlots = &gemm_sm90_grouped<e4m3fn, e5m2, f32, kSlots>;
  static_assert(kInstantiated<kGrouped, kAlongK, kOfSlots> == 3);
  static_assert(kInstantiated<&column_sum_experts_partials<bf16>, &column_sum_experts_finish<f16>> == 2);
  using Everything = Epilogue<f16, Fused<math::Fast>, bf16, EpilogueConfig{.preactivation = true, .amax = true}>;
  constexpr auto kEpilogue = &gemm_sm90<e4m3fn, e5m2, e4m3fn, kShared, Everything>;
  constexpr auto kAlike = &gemm_mma<e4m3fn, e5m2, e5m2fnuz, GemmMmaConfig{}, Everything>;
  constexpr auto kPlainly = &gemm_simt<e4m3fn, e5m2, bf16, Everything>;
  static_assert(kInstantiated<kEpilogue, kAlike, kPlainly> == 3);
  constexpr auto kCodes = &gemm_mma<e4m3fnuz, e5m2, bf16, GemmMmaConfig{.group_factors = true}>;
  constexpr auto kElements = &gemm_mma<bf16, bf16, f32, GemmMmaConfig{.tiling = {.m = 64, .n = 64}}>;
  static_assert(kInstantiated<kCodes, kElements> == 2);
  static_assert(kInstantiated<&amax_history, &amax_scales> == 2);
  static_assert(kOfQuantizes<f32> + kOfQuantizes<bf16> + kOfQuantizes<f16> == 3 * 8);
  static_assert(kInstantiated<&cast_stats_tiles<bf16, e4m3fn, CastStatsConfig{}>,
                              &cast_stats_tiles<f32, e5m2fnuz, CastStatsConfig{.transposed = true}>,
                              (&cast_stats_tiles<f16, Uncast, CastStatsConfig{}>), cast_stats_finish> == 4);
  static_assert(kOfNorms<f32> + kOfNorms<bf16> + kOfNorms<f16> == 3 * 4 * 6);
  static_assert(kOfNormsInPairs<bf16> + kOfNormsInPairs<f16> == 2 * 4 * 2);
}

BOOST_AUTO_TEST_CASE(every_template_is_included_above) {
  std::ifstream stream(INGOT_SOURCE_DIR "/tests/templates/test_templates_on_host.cpp");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  for (const auto& [name, content] : embedded_templates()) {
    BOOST_TEST(text.find("#include \"" + name + "\"") != std::string::npos, name << " is not included here");
  }
}

BOOST_AUTO_TEST_SUITE_END()
