// generate(): the source of kernels against golden texts, how many launches and texts specs take, and refusals.
#include <boost/test/unit_test.hpp>
#include <map>
#include <string>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/runtime/util/error.h"

BOOST_AUTO_TEST_SUITE(test_generate)

using namespace ingot;

namespace {

struct Golden {
  std::string line;
  Pass pass;
  std::string text;
};

const std::vector<Golden> kGolden{
    {"amax bf16 scale=tensor", Pass::first,
     "// amax bf16 scale=tensor (first pass)\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_partials<ingot::ValueSource<ingot::bf16>>;\n"},
    {"amax bf16 scale=tensor", Pass::main,
     "// amax f32 scale=row\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_rows<ingot::ValueSource<ingot::f32>>;\n"},
    {"amax f16 scale=row", Pass::main,
     "// amax f16 scale=row\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_rows<ingot::ValueSource<ingot::f16>>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes pow2", Pass::main,
     "// cast bf16->e4m3fn scale=row out=codes\n"
     "#include \"cast/cast_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast bf16->e4m3fn scale=row+col out=codes,transposed pow2", Pass::whole,
     "// cast bf16->e4m3fn scale=row+col out=codes,transposed (in one launch)\n"
     "#include \"cast/cast_whole.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_whole<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 0, .cols = 1}}, .given_scales = false, .result = false, .sum = false, .unaligned = true}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes,transposed", Pass::unaligned,
     "// cast bf16->e4m3fn scale=row out=transposed (any alignment)\n"
     "#include \"cast/cast_tiles.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {}, .transposed = {.written = true, .scale = {.rows = 1, .cols = 0}}, "
     ".given_scales = false, .result = false, .sum = false, .unaligned = true}>;\n"},
    {"cast bf16->e4m3fn of=x*sqrt(gate) scale=tensor out=codes,transposed", Pass::keeping,
     "// values and partial maxima of bf16 of x * sqrt(gate)\n"
     "#include \"cast/amax.cuh\"\n"
     "namespace ingot {\n"
     "\n"
     "struct Fused {\n"
     "  static constexpr u32 kInputs = 1;\n"
     "  static constexpr bool kUsesX = true;\n"
     "  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix};\n"
     "  static INGOT_HOST_DEVICE float apply(float x, float a0) {\n"
     "    const float t0 = math::sqrt<math::Reproducible16>(a0);\n"
     "    const float t1 = x * t0;\n"
     "    return t1;\n"
     "  }\n"
     "};\n"
     "\n"
     "}  // namespace ingot\n"
     "constexpr auto kKernel = &ingot::amax_partials<ingot::ValueSource<ingot::bf16, ingot::Fused, "
     "ingot::ValueConfig{.unrounded = false}>, true>;\n"},
    {"cast bf16->e4m3fn of=x*sigmoid(x)*gate scale=row+col out=codes,transposed", Pass::kept,
     "// cast bf16->e4m3fn scale=row+col out=codes,transposed (kept values)\n"
     "#include \"cast/cast_tiles.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 0, .cols = 1}}, .given_scales = false, .result = false, .sum = false, .unaligned = true, "
     ".kept = true}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes,transposed pow2", Pass::first_wide,
     "// cast bf16->e4m3fn scale=row out=codes (wide rows)\n"
     "#include \"cast/cast_rows_wide.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows_wide<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"norm rms bf16->e4m3fn affine scale=row out=codes,stats cols=16384", Pass::main,
     "// norm rms bf16->e4m3fn affine scale=row out=codes cols=16384\n"
     "#include \"norm/norm_rows_wide.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_rows_wide<ingot::bf16, ingot::RmsNorm, ingot::e4m3fn, "
     "ingot::NormRowsConfig{.affine = true, .given_scale = false, .result = false}, 4>;\n"},
    {"norm rms bf16->e4m3fn affine scale=row out=codes,stats cols=8192", Pass::main,
     "// norm rms bf16->e4m3fn affine scale=row out=codes cols=8192\n"
     "#include \"norm/norm_rows_full.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_rows_full<ingot::bf16, ingot::RmsNorm, ingot::e4m3fn, "
     "ingot::NormRowsConfig{.affine = true, .given_scale = false, .result = false}, 8192>;\n"},
    {"norm_backward layer bf16 affine sums=bf16", Pass::wide,
     "// norm_backward layer bf16 affine sums=f32 (wide rows)\n"
     "#include \"norm/norm_backward_wide.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_backward_wide<ingot::bf16, ingot::LayerNorm, "
     "ingot::NormBackwardConfig{.affine = true}>;\n"},
    {"cast bf16->e4m3fn scale=1x128 out=codes", Pass::main,
     "// cast bf16->e4m3fn scale=1x128 out=codes\n"
     "#include \"cast/cast_row_groups.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_row_groups<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast bf16->e4m3fn scale=row+1x128 out=codes,transposed list", Pass::first,
     "// list: maxima for scale=row+1x128 of bf16\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list_maxima<ingot::ValueSource<ingot::bf16>, ingot::CastConfig{.codes = "
     "{.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {}}>;\n"},
    {"cast bf16->e4m3fn scale=row+1x128 out=codes,transposed list", Pass::main,
     "// cast bf16->e4m3fn scale=row+1x128 out=codes,transposed list\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 1, .cols = 128}}, .given_scales = false, .result = false, .sum = false}>;\n"},
    // The kernel is that of a list of casts, where there is one.
    {"amax bf16 scale=row list", Pass::main,
     "// list: maxima for scale=row of bf16\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list_maxima<ingot::ValueSource<ingot::bf16>, ingot::CastConfig{.codes = "
     "{.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {}}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes list", Pass::first,
     "// list: maxima for scale=row of bf16\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list_maxima<ingot::ValueSource<ingot::bf16>, ingot::CastConfig{.codes = "
     "{.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {}}>;\n"},
    {"amax f32 scale=128x128+tensor rounded=f16 list", Pass::main,
     "// list: maxima for scale=128x128+tensor of f32 rounded=f16\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list_maxima<ingot::RoundedSource<ingot::f32, ingot::f16>, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 128, .cols = 128}}, .transposed = {.written = "
     "true, .scale = {.rows = 0, .cols = 0}}}>;\n"},
    {"cast f32->e4m3fn scale=tensor out=codes given rounded=bf16 list", Pass::main,
     "// cast f32->e4m3fn scale=tensor out=codes given rounded=bf16 list\n"
     "#include \"cast/cast_list.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_list<ingot::RoundedSource<ingot::f32, ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 0, .cols = 0}}, .transposed = {}, .given_scales "
     "= true, .result = false, .sum = false}>;\n"},
    {"cast f32->e4m3fn scale=row+col out=codes,transposed rounded=bf16 stacked", Pass::first,
     "// stacked: maxima for scale=row+col of f32 rounded=bf16\n"
     "#include \"cast/cast_stack.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stack_maxima<ingot::RoundedSource<ingot::f32, ingot::bf16>, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 0, .cols = 1}}}>;\n"},
    {"cast bf16->e4m3fn scale=128x128 out=codes,transposed pow2 stacked", Pass::unaligned,
     "// cast bf16->e4m3fn scale=128x128 out=codes,transposed stacked (any alignment)\n"
     "#include \"cast/cast_stack.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stack<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 128, .cols = 128}}, .transposed = {.written = "
     "true, .scale = {.rows = 128, .cols = 128}}, .given_scales = false, .result = false, .sum = false, .unaligned = "
     "true}>;\n"},
    // The maxima are those of all rows.
    {"cast bf16->e4m3fn scale=row+col out=codes,transposed gathered", Pass::first,
     "// maxima of rows columns of bf16\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_tiles<ingot::ValueSource<ingot::bf16>, ingot::AmaxTilesConfig{.tensor = "
     "false, .rows = true, .columns = true}>;\n"},
    {"cast f16->e4m3fn scale=row out=codes pow2 gathered", Pass::main,
     "// cast f16->e4m3fn scale=row out=codes gathered\n"
     "#include \"cast/cast_gathered_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows<ingot::GatheredSource<ingot::f16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes gathered", Pass::wide,
     "// cast bf16->e4m3fn scale=row out=codes gathered (wide rows)\n"
     "#include \"cast/cast_gathered_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows_wide<ingot::GatheredSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast f16->e4m3fn scale=1x128 out=codes gathered", Pass::main,
     "// cast f16->e4m3fn scale=1x128 out=codes gathered\n"
     "#include \"cast/cast_gathered.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::GatheredSource<ingot::f16>, ingot::e4m3fn, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 128}}, .transposed = {}, .given_scales "
     "= false, .result = false, .sum = false}>;\n"},
    // Stacked matrices are one matrix to what goes along the rows.
    {"cast bf16->e4m3fn scale=1x128 out=codes stacked", Pass::main,
     "// cast bf16->e4m3fn scale=1x128 out=codes\n"
     "#include \"cast/cast_row_groups.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_row_groups<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes pow2 stacked", Pass::wide,
     "// cast bf16->e4m3fn scale=row out=codes (wide rows)\n"
     "#include \"cast/cast_rows_wide.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows_wide<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes,amax:col pow2 stacked", Pass::whole,
     "// cast bf16->e4m3fn scale=row out=codes (and the maxima of columns)\n"
     "#include \"cast/cast_rows_columns.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows_columns<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn>;\n"},
    {"cast bf16->e4m3fn scale=row out=codes,amax:col stacked", Pass::main,
     "// cast bf16->e4m3fn scale=row out=codes\n"
     "#include \"cast/cast_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows<ingot::ValueSource<ingot::bf16>, ingot::e4m3fn, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast f32->e4m3fn scale=row out=codes,amax:col rounded=bf16 stacked", Pass::first,
     "// stacked: maxima for scale=row+col of f32 rounded=bf16\n"
     "#include \"cast/cast_stack.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stack_maxima<ingot::RoundedSource<ingot::f32, ingot::bf16>, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 0, .cols = 1}}}>;\n"},
    {"cast f32->e5m2fnuz scale=row out=codes,transposed,sum:bf16 pow2", Pass::first,
     "// cast f32->e5m2fnuz scale=row out=codes\n"
     "#include \"cast/cast_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_rows<ingot::ValueSource<ingot::f32>, ingot::e5m2fnuz, "
     "ingot::CastRowsConfig{.result = false}>;\n"},
    {"cast f32->e5m2fnuz scale=row out=codes,transposed,sum:bf16 pow2", Pass::main,
     "// cast f32->e5m2fnuz scale=row out=transposed,sum:f32\n"
     "#include \"cast/cast_tiles.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::ValueSource<ingot::f32>, ingot::e5m2fnuz, "
     "ingot::CastConfig{.codes = {}, .transposed = {.written = true, .scale = {.rows = 1, .cols = 0}}, .given_scales = "
     "false, .result = false, .sum = true}>;\n"},
    {"cast f32->e5m2 scale=row out=transposed", Pass::first,
     "// amax f32 scale=row\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_rows<ingot::ValueSource<ingot::f32>>;\n"},
    {"cast f16->e5m2 scale=row+1x128 out=codes,transposed given", Pass::main,
     "// cast f16->e5m2 scale=row+1x128 out=codes,transposed given\n"
     "#include \"cast/cast_tiles.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::ValueSource<ingot::f16>, ingot::e5m2, "
     "ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, "
     ".scale = {.rows = 1, .cols = 128}}, .given_scales = true, .result = false, .sum = false}>;\n"},
    {"cast f16->e5m2 scale=row+col out=codes,transposed", Pass::first,
     "// maxima of rows columns of f16\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_tiles<ingot::ValueSource<ingot::f16>, ingot::AmaxTilesConfig{.tensor = "
     "false, .rows = true, .columns = true}>;\n"},
    {"cast f16->e5m2 scale=tensor out=transposed", Pass::first,
     "// amax f16 scale=tensor (first pass)\n"
     "#include \"cast/amax.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_partials<ingot::ValueSource<ingot::f16>>;\n"},
    {"cast f16->e5m2 scale=tensor out=transposed", Pass::main,
     "// cast f16->e5m2 scale=tensor out=transposed\n"
     "#include \"cast/cast_tiles.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_tiles<ingot::ValueSource<ingot::f16>, ingot::e5m2, "
     "ingot::CastConfig{.codes = {}, .transposed = {.written = true, .scale = {.rows = 0, .cols = 0}}, .given_scales = "
     "false, .result = false, .sum = false}>;\n"},
    {"gemm e4m3fn*e5m2->bf16 nt scale=tensor,row bias fast", Pass::main,
     "// gemm e4m3fn*e5m2->bf16\n"
     "#include \"gemm/gemm_simt.cuh\"\n"
     "constexpr auto kKernel = &ingot::gemm_simt<ingot::e4m3fn, ingot::e5m2, ingot::bf16>;\n"},
    {"cast_stats bf16->e4m3fn scale=1x128 transposed", Pass::first,
     "// cast_stats bf16->e4m3fn transposed\n"
     "#include \"cast/cast_stats.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stats_tiles<ingot::bf16, ingot::e4m3fn, ingot::CastStatsConfig{.transposed "
     "= true}>;\n"},
    {"cast_stats f32", Pass::first,
     "// cast_stats f32\n"
     "#include \"cast/cast_stats.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stats_tiles<ingot::f32, ingot::Uncast, ingot::CastStatsConfig{.transposed "
     "= false}>;\n"},
    {"cast_stats f32", Pass::main,
     "// cast_stats (finish)\n"
     "#include \"cast/cast_stats.cuh\"\n"
     "constexpr auto kKernel = &ingot::cast_stats_finish;\n"},
    {"column_sum bf16->f32", Pass::first,
     "// column_sum bf16 (first pass)\n"
     "#include \"cast/column_sum.cuh\"\n"
     "constexpr auto kKernel = &ingot::column_sum_partials<ingot::bf16>;\n"},
    {"column_sum bf16->f32", Pass::main,
     "// column_sum ->f32\n"
     "#include \"cast/column_sum.cuh\"\n"
     "constexpr auto kKernel = &ingot::column_sum_finish<ingot::f32>;\n"},
    {"norm rms bf16->e4m3fn affine scale=row out=codes,stats pow2", Pass::main,
     "// norm rms bf16->e4m3fn affine scale=row out=codes\n"
     "#include \"norm/norm_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_rows<ingot::bf16, ingot::RmsNorm, ingot::e4m3fn, "
     "ingot::NormRowsConfig{.affine = true, .given_scale = false, .result = false}>;\n"},
    {"norm layer f32->e5m2 scale=tensor out=codes,result given", Pass::main,
     "// norm layer f32->e5m2 scale=tensor out=codes,result given\n"
     "#include \"norm/norm_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_rows<ingot::f32, ingot::LayerNorm, ingot::e5m2, "
     "ingot::NormRowsConfig{.affine = false, .given_scale = true, .result = true}>;\n"},
    {"norm layer f16 out=stats", Pass::main,
     "// norm layer f16 out=stats\n"
     "#include \"norm/norm_rows.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_rows<ingot::f16, ingot::LayerNorm, ingot::NoCodes, "
     "ingot::NormRowsConfig{.affine = false, .given_scale = false, .result = false}>;\n"},
    {"norm_backward layer bf16 affine sums=bf16", Pass::main,
     "// norm_backward layer bf16 affine sums=f32\n"
     "#include \"norm/norm_backward.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_backward<ingot::bf16, ingot::LayerNorm, ingot::NormBackwardConfig{.affine "
     "= true}>;\n"},
    {"norm_backward layer bf16 affine zero_centred sums=bf16", Pass::main,
     "// norm_backward layer bf16 affine zero_centred sums=f32\n"
     "#include \"norm/norm_backward.cuh\"\n"
     "constexpr auto kKernel = &ingot::norm_backward<ingot::bf16, ingot::LayerNorm, ingot::NormBackwardConfig{.affine "
     "= true, .zero_centred = true}>;\n"},
    {"norm_backward layer bf16 affine sums=bf16", Pass::finish,
     "// column_sum ->bf16\n"
     "#include \"cast/column_sum.cuh\"\n"
     "constexpr auto kKernel = &ingot::column_sum_finish<ingot::bf16>;\n"},
    {"amax_history reduce=most_recent", Pass::main,
     "// amax_history\n"
     "#include \"cast/amax_history.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_history;\n"},
    {"amax_history reduce=max finite", Pass::main,
     "// amax_history\n"
     "#include \"cast/amax_history.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_history;\n"},
    {"amax_scales e5m2 pow2", Pass::main,
     "// amax_scales\n"
     "#include \"cast/amax_scales.cuh\"\n"
     "constexpr auto kKernel = &ingot::amax_scales;\n"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(golden_texts) {
  for (const Golden& golden : kGolden) {
    const Source source = generate(parse(golden.line), golden.pass);
    BOOST_TEST(source.text == golden.text);
    const char* const expected = golden.pass == Pass::first             ? " (first pass)"
                                 : golden.pass == Pass::finish          ? " (finish)"
                                 : golden.pass == Pass::whole           ? " (in one launch)"
                                 : golden.pass == Pass::unaligned       ? " (any alignment)"
                                 : golden.pass.variant == Variant::wide ? " (wide rows)"
                                 : golden.pass == Pass::keeping         ? " (first pass, keeping values)"
                                 : golden.pass == Pass::kept            ? " (kept values)"
                                                                        : "";
    BOOST_TEST(source.name == golden.line + expected);
  }
}

// A fused expression is one functor between the include and the instantiation (test_pointwise_render.cpp tests its
// text), in the precision that its values need; the finishing pass has none.
BOOST_AUTO_TEST_CASE(golden_texts_of_a_fused_cast) {
  using enum PointwisePrecision;
  const auto check = [](const char* line, Pass pass, const std::string& words, const std::string& functor,
                        const std::string& header, const std::string& kernel) {
    const Source source = generate(parse(line), pass);
    BOOST_TEST(source.text == "// " + words + "\n#include \"" + header + "\"\n" + functor +
                                  "constexpr auto kKernel = &ingot::" + kernel + ";\n");
  };
  const char* const tiles = "cast bf16->e5m2 of=x+bias[col] scale=tensor out=codes,transposed,sum:bf16 pow2";
  const std::string tiles_functor = render(parse_pointwise("x + bias[col]"), "Fused", reproducible16);
  check(tiles, Pass::first, "partial maxima of bf16 of x + bias[col]", tiles_functor, "cast/amax.cuh",
        "amax_partials<ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.unrounded = false}>>");
  check(tiles, Pass::main, "cast bf16->e5m2 of=x+bias[col] scale=tensor out=codes,transposed,sum:f32", tiles_functor,
        "cast/cast_tiles.cuh",
        "cast_tiles<ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.unrounded = false}>, "
        "ingot::e5m2, ingot::CastConfig{.codes = {.written = true, .scale = {.rows = 0, .cols = 0}}, .transposed = "
        "{.written = true, .scale = {.rows = 0, .cols = 0}}, .given_scales = false, .result = false, .sum = true}>");
  check(tiles, Pass::finish, "column_sum ->bf16", "", "cast/column_sum.cuh", "column_sum_finish<ingot::bf16>");

  check("cast f16->e4m3fn of=exp(x) scale=row out=codes,result unrounded", Pass::main,
        "cast f16->e4m3fn of=exp(x) scale=row out=codes,result unrounded",
        render(parse_pointwise("exp(x)"), "Fused", reproducible32), "cast/cast_rows.cuh",
        "cast_rows<ingot::ValueSource<ingot::f16, ingot::Fused, ingot::ValueConfig{.unrounded = true}>, ingot::e4m3fn, "
        "ingot::CastRowsConfig{.result = true}>");
  check("cast f32->e4m3fn of=exp(x) scale=row out=codes", Pass::main, "cast f32->e4m3fn of=exp(x) scale=row out=codes",
        render(parse_pointwise("exp(x)"), "Fused", reproducible32), "cast/cast_rows.cuh",
        "cast_rows<ingot::ValueSource<ingot::f32, ingot::Fused, ingot::ValueConfig{.unrounded = false}>, "
        "ingot::e4m3fn, ingot::CastRowsConfig{.result = false}>");
  check("cast bf16->e4m3fn of=exp(x) scale=row out=transposed fast", Pass::first,
        "maxima of rows of bf16 of exp(x) fast", render(parse_pointwise("exp(x)"), "Fused", fast), "cast/amax.cuh",
        "amax_rows<ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.unrounded = false}>>");
}

// The precision is that of the cast's values.
BOOST_AUTO_TEST_CASE(golden_texts_of_elementwise) {
  using enum PointwisePrecision;
  const auto check = [](const char* line, PointwisePrecision precision, const std::string& in) {
    const Source source = generate(parse(line));
    BOOST_TEST(source.name == line);
    BOOST_TEST(source.text == std::string("// ") + line + "\n#include \"cast/elementwise.cuh\"\n" +
                                  render(parse_pointwise("exp(x) + a[col]"), "Fused", precision) +
                                  "constexpr auto kKernel = &ingot::elementwise<ingot::ValueSource<ingot::" + in +
                                  ", ingot::Fused, ingot::ValueConfig{.in_place = true}>>;\n");
  };
  check("elementwise bf16 of=exp(x)+a[col]", reproducible16, "bf16");
  check("elementwise f32 of=exp(x)+a[col]", reproducible32, "f32");
  check("elementwise f16 of=exp(x)+a[col] fast", fast, "f16");
  BOOST_TEST(passes(parse("elementwise bf16 of=x")).size() == 1U);
}

// Both functors take everything that the kernel loads, in the order of the tensors.
BOOST_AUTO_TEST_CASE(golden_text_of_two_elementwise_expressions) {
  const Source source = generate(parse("elementwise bf16 of=a+b[col] second=x*c[row]-a"));
  BOOST_TEST(source.name == "elementwise bf16 of=a+b[col] second=x*c[row]-a");
  BOOST_TEST(source.text == R"(// elementwise bf16 of=a+b[col] second=x*c[row]-a
#include "cast/elementwise_pair.cuh"
namespace ingot {

struct Fused {
  static constexpr u32 kInputs = 3;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix, InputKind::column, InputKind::row};
  static INGOT_HOST_DEVICE float apply(float, float a0, float a1, float) {
    const float t0 = a0 + a1;
    return t0;
  }
};

}  // namespace ingot
namespace ingot {

struct Second {
  static constexpr u32 kInputs = 3;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix, InputKind::column, InputKind::row};
  static INGOT_HOST_DEVICE float apply(float x, float a0, float, float a2) {
    const float t0 = fused_multiply_add(x, a2, -a0);
    return t0;
  }
};

}  // namespace ingot
constexpr auto kKernel = &ingot::elementwise_pair<ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.in_place = true}>, ingot::Second>;
)");
  BOOST_TEST(passes(parse("elementwise bf16 of=x second=-x")).size() == 1U);
}

// The functors are those of the kernels without the maximum.
// So does that of a row_sum, whose values are not rounded to 16 bits.
BOOST_AUTO_TEST_CASE(golden_text_of_elementwise_with_a_row_sum) {
  const std::string text = generate(parse("elementwise bf16 of=a row_sum=exp(x)*a")).text;
  BOOST_TEST(text.starts_with("// elementwise bf16 of=a row_sum=exp(x)*a\n#include \"cast/elementwise_rows.cuh\"\n"));
  BOOST_TEST(
      text.ends_with("constexpr auto kKernel = &ingot::elementwise_rows<ingot::ElementwiseOutput<"
                     "ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.in_place = true}>>, "
                     "ingot::Summed>;\n"));
  BOOST_TEST(text.find("math::Reproducible32") != std::string::npos);
  const std::string pair = generate(parse("elementwise bf16 of=a second=-a row_sum=a*x")).text;
  BOOST_TEST(pair.find("elementwise_rows<ingot::ElementwisePairOutput<") != std::string::npos);
}

// The functors are those of the kernels without the maxima.
BOOST_AUTO_TEST_CASE(golden_texts_of_elementwise_with_maxima) {
  const auto check = [](const std::string& line, const std::string& output, const std::string& summed) {
    const std::string text = generate(parse(line + " maxima")).text;
    const std::string plain = generate(parse(line)).text;
    const std::string begin = "// " + line + " maxima\n#include \"cast/elementwise_maxima.cuh\"\n";
    const std::string end = "constexpr auto kKernel = &ingot::elementwise_maxima<ingot::" + output +
                            "<ingot::ValueSource<ingot::bf16, ingot::Fused, ingot::ValueConfig{.in_place = true}>" +
                            (output == "ElementwiseOutput" ? ">" : ", ingot::Second>") + ", ingot::" + summed + ">;\n";
    BOOST_TEST((text.starts_with(begin) && text.ends_with(end)), text);
    const std::size_t functors = plain.find('\n', plain.find("#include")) + 1;
    BOOST_TEST(text.substr(begin.size(), text.size() - begin.size() - end.size()) ==
               plain.substr(functors, plain.find("constexpr auto kKernel") - functors));
    BOOST_TEST(passes(parse(line + " maxima")).size() == 1U);
  };
  check("elementwise bf16 of=x*a[col]", "ElementwiseOutput", "NothingSummed");
  check("elementwise bf16 of=x*a second=x-a row_sum=x", "ElementwisePairOutput", "Summed");
}

BOOST_AUTO_TEST_CASE(golden_texts_of_elementwise_with_an_amax) {
  const auto check = [](const std::string& line, const std::string& kernel) {
    const Source source = generate(parse(line + " amax"));
    std::string expected = generate(parse(line)).text;
    const auto replace = [&](const std::string& from, const std::string& to) {
      BOOST_REQUIRE(expected.find(from) != std::string::npos);
      expected.replace(expected.find(from), from.size(), to);
    };
    replace("// " + line, "// " + line + " amax");
    const std::size_t header = expected.find("\"cast/");
    replace(expected.substr(header, expected.find('\n', header) - header), "\"cast/elementwise_amax.cuh\"");
    const std::size_t last = expected.find("constexpr auto kKernel");
    replace(expected.substr(last), "constexpr auto kKernel = &ingot::elementwise_amax<ingot::" + kernel + ">;\n");
    BOOST_TEST(source.text == expected);
    BOOST_TEST(passes(parse(line + " amax")).size() == 1U);
  };
  const std::string values = "<ingot::ValueSource<ingot::f16, ingot::Fused, ingot::ValueConfig{.in_place = true}>";
  check("elementwise f16 of=x*a[col]", "ElementwiseOutput" + values + ">");
  check("elementwise f16 of=x*a second=x-a", "ElementwisePairOutput" + values + ", ingot::Second>");
}

BOOST_AUTO_TEST_CASE(which_specs_take_two_launches) {
  const auto two = [](const char* line) { return has_pass(parse(line), Pass::first); };
  BOOST_TEST(two("amax bf16 scale=tensor"));
  BOOST_TEST(!two("amax bf16 scale=row"));
  BOOST_TEST(two("cast bf16->e4m3fn scale=tensor out=codes"));
  BOOST_TEST(two("cast bf16->e4m3fn scale=tensor out=transposed"));
  BOOST_TEST(!two("cast bf16->e4m3fn scale=row out=codes"));
  BOOST_TEST(two("cast bf16->e4m3fn scale=row out=transposed"));
  BOOST_TEST(two("cast bf16->e4m3fn scale=row out=codes,transposed"));
  BOOST_TEST(!two("cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed"));
  BOOST_TEST(two("cast bf16->e4m3fn scale=128x128+col out=codes,transposed"));
  BOOST_TEST(!two("cast bf16->e4m3fn scale=tensor out=codes given"));
  BOOST_TEST(!two("gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast"));
  BOOST_TEST(two("column_sum f32->f32"));
  BOOST_TEST(!two("cast bf16->e4m3fn of=exp(x) scale=row out=codes,result"));
  BOOST_TEST(two("cast bf16->e4m3fn of=exp(x) scale=row out=codes,sum:f32"));

  const auto finished = [](const char* line) { return has_pass(parse(line), Pass::finish); };
  BOOST_TEST(finished("cast bf16->e4m3fn scale=row out=codes,sum:f32"));
  BOOST_TEST(!finished("cast bf16->e4m3fn of=exp(x) scale=row out=codes,result"));
  BOOST_TEST(!two("norm layer bf16->e4m3fn affine scale=row out=codes,result,stats"));
  BOOST_TEST(!two("norm_backward layer bf16 affine sums=f32"));
}

BOOST_AUTO_TEST_CASE(which_specs_finish_sums) {
  const auto finishes = [](const char* line) { return has_pass(parse(line), Pass::finish); };
  BOOST_TEST(finishes("norm_backward layer bf16 affine sums=f32"));
  BOOST_TEST(!finishes("norm_backward layer bf16"));
  BOOST_TEST(!finishes("norm layer bf16->e4m3fn affine scale=row out=codes,result,stats"));
}

BOOST_AUTO_TEST_CASE(every_unit_has_three_lines) {
  for (const KernelSpec& spec : all_valid_specs()) {
    for (const Pass pass : passes(spec)) {
      const std::string text = generate(spec, pass).text;
      const auto second = text.find('\n') + 1;
      const auto third = text.find('\n', second) + 1;
      BOOST_TEST(text.starts_with("// "), text);
      BOOST_TEST(text.compare(second, 10, "#include \"") == 0, text);
      BOOST_TEST(text.substr(third).starts_with("constexpr auto kKernel = &ingot::"), text);
      BOOST_TEST(text.find('\n', third) == text.size() - 1, text);
    }
  }
}

// Specs that need the same kernel give the same text; otherwise it would be compiled and stored once per spec.
BOOST_AUTO_TEST_CASE(one_kernel_is_one_text) {
  std::map<std::string, std::string> texts;
  for (const KernelSpec& spec : all_valid_specs()) {
    for (const Pass pass : passes(spec)) {
      const std::string text = generate(spec, pass).text;
      const auto [at, is_new] = texts.emplace(text.substr(text.find("constexpr")), text);
      BOOST_TEST(at->second == text, spec);
    }
  }
  // In one launch: 3 x 4 x 32 casts whose maxima come first: of tensors and columns by codes alone, of rows too by
  // transposed ones, and 27 of the 36 pairs.
  // For any alignment: 3 x 4 x 83, all casts but those of codes alone. For wide rows: 3 x 4, rowwise codes.
  // amax: 3 partials, 3 rows, 3 x 4 kinds of tiles (columns, and any two of tensor, rows and columns);
  // casts: 3 x 4 x (48 pairs of granularities x 2 sources, of which rowwise codes with transposed ones, dynamic, are
  // the kernels of others); gemm 16 x 3 + 5, and 32 of one FP8 operand; column_sum 3 + 3; relayout 2;
  // cast_stats 3 x (4 formats, transposed or not, + 1) + 1;
  // norms: 2 kinds x 3 dtypes, affine or not, result or not, 4 formats x 2 sources; without codes a result, affine or
  // not, and plain statistics; norm_backward: affine, also with a zero-centred gamma, or not, for wide rows too. (Norms
  // name a kernel for wide rows by cols.)
  // amax_history 1; amax_scales 1.
  BOOST_TEST(texts.size() == 3U + 3U + 3U * 4U + 12U * (95U + 32U + 83U + 1U) + 53U + 6U + 2U * 3U * (4U * 8U + 3U) +
                                 2U * 18U + 32U + 2U + 28U + 1U + 1U);
}

BOOST_AUTO_TEST_CASE(invalid_requests_are_refused) {
  const auto message = [](const KernelSpec& spec, Pass pass) -> std::string {
    try {
      generate(spec, pass);
    } catch (const Error& error) {
      BOOST_TEST((error.code() == ErrorCode::invalid_spec));
      return error.what();
    }
    return "no error";
  };
  BOOST_TEST(message(parse("cast bf16->e4m3fn scale=row out=codes"), Pass::first) ==
             "cast bf16->e4m3fn scale=row out=codes: this kernel has no first pass: ask for one of passes(spec)");
  BOOST_TEST(message(parse("cast bf16->e4m3fn scale=row out=codes"), Pass::whole) ==
             "cast bf16->e4m3fn scale=row out=codes: this kernel has none in one launch: ask for one of passes(spec)");
  BOOST_TEST(message(parse("cast bf16->e4m3fn scale=row out=codes"), Pass::unaligned) ==
             "cast bf16->e4m3fn scale=row out=codes: this kernel has none for any alignment: ask for one of "
             "passes(spec)");
  BOOST_TEST(message(parse("cast bf16->e4m3fn scale=col out=codes"), Pass::wide) ==
             "cast bf16->e4m3fn scale=col out=codes: this kernel has none for wide rows: ask for one of passes(spec)");
  // Cheap expressions, and those of one matrix, are computed twice.
  BOOST_TEST(message(parse("cast bf16->e4m3fn of=max(x,0)*gate scale=tensor out=codes,transposed"), Pass::kept) ==
             "cast bf16->e4m3fn of=max(x,0)*gate scale=tensor out=codes,transposed: this kernel has none for kept "
             "values: ask for one of passes(spec)");
  BOOST_TEST(message(parse("cast bf16->e4m3fn of=exp(x) scale=tensor out=codes,transposed"), Pass::keeping) ==
             "cast bf16->e4m3fn of=exp(x) scale=tensor out=codes,transposed: this kernel has none that keeps values: "
             "ask for one of passes(spec)");
  BOOST_TEST(message(parse("norm rms bf16 out=result"), Pass::wide) ==
             "norm rms bf16 out=result: this kernel has none for wide rows: ask for one of passes(spec)");
  BOOST_TEST(message(parse("cast bf16->e4m3fn scale=row out=codes"), Pass::finish) ==
             "cast bf16->e4m3fn scale=row out=codes: this kernel has no finishing pass: ask for one of passes(spec)");
  BOOST_TEST(message(AmaxSpec{.in = Dtype::e5m2}, Pass::main) ==
             "amax e5m2 scale=tensor: in is e5m2, but must be one of f32, bf16, f16");
}

// Reproducible where bits must match the CPU reference; the GPU's own functions in tensor-core kernels.
BOOST_AUTO_TEST_CASE(a_gemm_with_an_epilogue) {
  const auto of = [](const char* line) { return generate(parse(line)).text; };
  const auto holds = [](const std::string& text, const std::string& part) {
    BOOST_TEST(text.find(part) != std::string::npos, text);
  };
  const std::string simt = of("gemm e4m3fn*e4m3fn->bf16 scale=row,row bias c=f32 epilogue=tanh(x)*gate also=amax");
  holds(simt, "// gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor c=f32 epilogue=tanh(x)*gate also=amax\n");
  holds(simt,
        "gemm_simt<ingot::e4m3fn, ingot::e4m3fn, ingot::bf16, ingot::Epilogue<ingot::f32, ingot::Fused, ingot::bf16, "
        "ingot::EpilogueConfig{.preactivation = false, .amax = true}>>;\n");
  holds(simt, "math::tanh<math::Reproducible32>(x)");
  const std::string sm90 = of("gemm e4m3fn*e4m3fn->e5m2 scale=row,row epilogue=tanh(x) also=preactivation kernel=sm90");
  holds(sm90,
        ".bias = false}, ingot::Epilogue<ingot::NoMatrix, ingot::Fused, ingot::bf16, "
        "ingot::EpilogueConfig{.preactivation = true, .amax = false}>>;\n");
  holds(sm90, "math::tanh<math::Fast>(x)");
  holds(of("gemm e4m3fn*e4m3fn->f32 c=bf16 kernel=simt"),
        ", ingot::Epilogue<ingot::bf16, ingot::Identity, ingot::f32, ingot::EpilogueConfig{.preactivation = false, "
        ".amax = false}>>;\n");
}

// Run-time parameters of a kernel are not part of its text, such as whether a has one scale_inv or one per row.
BOOST_AUTO_TEST_CASE(gemm_sm90_is_named_by_its_tiling) {
  const std::string text = generate(parse("gemm e4m3fn*e5m2->f16 scale=tensor,row bias fast "
                                          "kernel=sm90:128x128:2x1:6:pingpong"))
                               .text;
  BOOST_TEST(
      text ==
      "// gemm e4m3fn*e5m2->f16 nt scale=row,row bias fast kernel=sm90:128x128:2x1:6:pingpong\n"
      "#include \"gemm/gemm_sm90.cuh\"\n"
      "constexpr auto kKernel = &ingot::gemm_sm90<ingot::e4m3fn, ingot::e5m2, ingot::f16, "
      "ingot::GemmSm90Config{.tiling = {.m = 128, .n = 128, .cluster_m = 2, .cluster_n = 1, .stages = 6, .pingpong = "
      "true, .stream_k = false}, .fast_accumulation = true, .scale_b = {.rows = 1, .cols = 0}, .bias = true}>;\n");
  const auto of = [](const char* line) { return generate(parse(line)).text; };
  const std::string cut = of("gemm e4m3fn*e4m3fn->bf16 fast kernel=sm90:64x128:1x1:8:cooperative:streamk");
  BOOST_TEST(cut.find("fast kernel=sm90:64x128:1x1:8:cooperative:streamk\n") != std::string::npos, cut);
  BOOST_TEST(cut.find(".tiling = {.m = 64, .n = 128, .cluster_m = 1, .cluster_n = 1, .stages = 8, .pingpong = false, "
                      ".stream_k = true}, .fast_accumulation = true,") != std::string::npos,
             cut);
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 scale=row,row kernel=sm90") ==
             of("gemm e4m3fn*e4m3fn->bf16 scale=tensor,row kernel=sm90:128x192:2x1:5:cooperative"));
  const std::string grouped = of("gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 kernel=sm90");
  BOOST_TEST(grouped.find("scale=1x128,128x128 kernel=sm90:128x128:1x1:6:cooperative\n") != std::string::npos, grouped);
  BOOST_TEST(grouped.find(".fast_accumulation = false, .scale_b = {.rows = 128, .cols = 128}, .bias = false}>") !=
                 std::string::npos,
             grouped);
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128 kernel=sm90").find(".scale_b = {.rows = 1, .cols = 128}") !=
             std::string::npos);
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128") == of("gemm e4m3fn*e4m3fn->bf16"));
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 kernel=simt") == of("gemm e4m3fn*e4m3fn->bf16"));
  const std::string across = of("gemm bf16*bf16->bf16 tt bias kernel=sm90:128x128:2x1:6:pingpong");
  BOOST_TEST(across.starts_with("// gemm bf16*bf16->bf16 tt bias kernel=sm90:128x128:2x1:6:pingpong\n"), across);
  BOOST_TEST(across.find("gemm_sm90<ingot::bf16, ingot::bf16, ingot::bf16, ingot::GemmSm90Config{.tiling = {.m = 128, "
                         ".n = 128, .cluster_m = 2, .cluster_n = 1, .stages = 6, .pingpong = true, .stream_k = "
                         "false}, .fast_accumulation = true, .bias = true, .across_a = true, .across_b = false}>;") !=
                 std::string::npos,
             across);
  std::string message = "no error";
  try {
    generate(parse("gemm e4m3fn*e4m3fn->bf16 kernel=cublaslt"));
  } catch (const Error& error) {
    message = error.what();
  }
  BOOST_TEST(message ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=cublaslt: cuBLASLt's kernels have no source here: "
             "leave kernel out, or take sm90, mma or simt");
}

// Layouts, scales, bias and `fast` are parameters, or do not matter to this kernel; scale_inv of groups need another
// kernel.
BOOST_AUTO_TEST_CASE(gemm_mma_is_named_by_its_tile) {
  const auto of = [](const char* line) { return generate(parse(line)).text; };
  const std::string text = of("gemm e4m3fnuz*e5m2->f16 scale=tensor,row bias fast kernel=mma:64x64");
  BOOST_TEST(text ==
             "// gemm e4m3fnuz*e5m2->f16 kernel=mma:64x64\n"
             "#include \"gemm/gemm_mma.cuh\"\n"
             "constexpr auto kKernel = &ingot::gemm_mma<ingot::e4m3fnuz, ingot::e5m2, ingot::f16, "
             "ingot::GemmMmaConfig{.tiling = {.m = 64, .n = 64}, .group_factors = false}>;\n");
  BOOST_TEST(of("gemm e4m3fnuz*e5m2->f16 scale=row,row kernel=mma:64x64") == text);
  BOOST_TEST(of("gemm bf16*bf16->f32 tn kernel=mma") == of("gemm bf16*bf16->f32 nt bias kernel=mma:128x128"));
  const std::string grouped = of("gemm e5m2*e5m2->bf16 scale=1x128,128x128 kernel=mma");
  BOOST_TEST(grouped.find("groups kernel=mma:128x128\n") != std::string::npos, grouped);
  BOOST_TEST(grouped == of("gemm e5m2*e5m2->bf16 scale=1x128,1x128 bias kernel=mma"));
}

BOOST_AUTO_TEST_SUITE_END()
