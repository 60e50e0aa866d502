// Which kernels a cast takes; the template arguments of casts in tiles, and when a tile has 64 rows: what the kernel is
// generated with and what the host launches it with come from the same functions.
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

#include "cast/amax.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/cast_whole.cuh"

BOOST_AUTO_TEST_SUITE(test_cast_plan)

using namespace ingot;

namespace {

CastSpec cast(const std::string& words) { return std::get<CastSpec>(parse("cast bf16->e4m3fn " + words)); }

constexpr CastOutputConfig kTensor{true, {0, 0}};
constexpr CastOutputConfig kRow{true, {1, 0}};
constexpr CastOutputConfig kColumn{true, {0, 1}};

struct Rows {
  std::string words;
  Variant variant;
  std::int64_t rows, cols;
  unsigned with_clusters, without;  // expected, of an H200's 132 multiprocessors
};

// ---- The choice of kernels, against how it was made before there was a plan: by four functions of cuda_cast.cpp -----

constexpr CastDevice kH200{.multiprocessors = 132, .clusters = true, .block_shared = 227 * 1024};
constexpr CastDevice kA100{.multiprocessors = 108, .clusters = false, .block_shared = 163 * 1024};
constexpr CastDevice kRtx5090{.multiprocessors = 170, .clusters = true, .block_shared = 99 * 1024};
constexpr CastDevice kSmallPart{.multiprocessors = 16, .clusters = false, .block_shared = 227 * 1024};

struct FakeStream final : CastStream {
  std::optional<std::vector<Pass>> loaded{};  // during a capture
  std::int64_t registers_of_whole = 64;
  std::int64_t scratch = std::int64_t{1} << 40;
  CastDevice part{};

  bool may_launch(Pass pass) const override { return !loaded || std::ranges::find(*loaded, pass) != loaded->end(); }
  std::optional<std::int64_t> registers(Pass pass) const override {
    return may_launch(pass) ? std::optional(registers_of_whole) : std::nullopt;
  }
  bool may_take(std::int64_t bytes) const override { return bytes <= scratch; }
  CastDevice room() const override { return part; }
};

struct Before {
  const CastSpec& spec;
  const CastCall& call;
  const CastDevice& gpu;
  const FakeStream& stream;

  // is_whole()
  bool whole() const {
    const i64 tiles = CastTilesLaunch::grid(call.rows, call.cols);
    const bool aligned_copy = !spec.pointwise && call.source_aligned;
    if (tiles > gpu.multiprocessors * 3 || !has_pass(spec, Pass::whole)) return false;
    if (aligned_copy && !(tiles <= 8 && gpu.clusters)) return false;
    if (aligned_copy && !(tiles <= 8 && stream.part.clusters)) return false;
    if (tiles > stream.part.multiprocessors * 3 || !stream.may_launch(Pass::whole)) return false;
    return tiles <= stream.part.multiprocessors * resident_blocks(stream.registers_of_whole, 256);
  }
  // computes_once()
  bool keeps() const {
    const FirstPass::Kind kind = first_pass(spec).kind();
    if (!has_pass(spec, Pass::kept)) return false;
    const i64 bytes = call.rows * ((call.cols + 7) / 8 * 8) * size_of(spec.in);
    const i64 sums = spec.sum ? (call.rows + 127) / 128 * call.cols : 0;
    const i64 maxima = kind == FirstPass::Kind::partials ? i64{AmaxPartialsLaunch::kMaxBlocks} : 0;
    const bool large = bytes >= (24 << 20) || kind == FirstPass::Kind::tiles;
    return bytes <= (256 << 20) && (large || !stream.may_launch(Pass::first)) && stream.may_launch(Pass::keeping) &&
           stream.may_launch(Pass::kept) && stream.may_take(bytes + (sums + maxima) * 4);
  }
  // tiles_pass()
  bool unaligned() const {
    return spec.transposed && !(call.transposed_aligned && call.source_aligned) && stream.may_launch(Pass::unaligned);
  }
  // launch_rows()
  bool wide(Pass pass) const {
    const std::uint64_t bytes = spec.unrounded ? 4 : static_cast<std::uint64_t>(size_of(spec.in));
    if (call.cols < CastRowsWideLaunch::min_cols(bytes) || call.rows > 0x7fffffff / 8) return false;
    if (!call.outputs_aligned || !call.source_aligned) return false;
    const bool clusters = gpu.clusters && (call.cols <= CastRowsWideLaunch::kept_cols(bytes) || stream.part.clusters);
    const CastRowsWideShape shape = CastRowsWideLaunch::shape({call.rows, call.cols, bytes, !spec.pointwise.empty(),
                                                               spec.pointwise.inputs().size() > 1, gpu.block_shared,
                                                               static_cast<u32>(gpu.multiprocessors), clusters});
    return shape.blocks != 0 && stream.may_launch(pass);
  }
  std::vector<Pass> passes() const {
    const CastSchedule schedule = cast_schedule(spec);
    if (schedule == CastSchedule::rows) return {wide(Pass::wide) ? Pass::wide : Pass::main};
    if (schedule == CastSchedule::row_groups) return {Pass::main};
    std::vector<Pass> all;
    if (whole()) {
      all = {Pass::whole};
    } else if (keeps()) {
      all = {Pass::keeping, Pass::kept};
    } else {
      if (schedule == CastSchedule::rows_then_tiles) {
        all = {wide(Pass::first_wide) ? Pass::first_wide : Pass::first};
      } else if (has_pass(spec, Pass::first)) {
        all = {Pass::first};
      }
      all.push_back(unaligned() ? Pass::unaligned : Pass::main);
    }
    if (spec.sum && call.cols > 0) all.push_back(Pass::finish);
    return all;
  }
};

std::vector<Pass> passes(const CastPlan& plan) {
  std::vector<Pass> all{plan.main};
  if (plan.first) all.insert(all.begin(), *plan.first);
  if (plan.finish) all.push_back(Pass::finish);
  return all;
}

std::vector<CastSpec> all_casts() {
  std::vector<CastSpec> casts;
  const auto add = [&](const std::vector<KernelSpec>& specs, bool representative) {
    for (const KernelSpec& spec : specs) {
      const auto* const cast = std::get_if<CastSpec>(&spec);
      // Formats and rounding change no choice.
      const bool counts = !representative || (cast != nullptr && cast->out == Dtype::e4m3fn && !cast->pow2);
      if (cast != nullptr && counts && !cast->list) casts.push_back(*cast);
    }
  };
  add(all_valid_specs(), true);
  add(test::fused_specs(), false);
  return casts;
}

std::vector<FakeStream> all_streams(const CastDevice& gpu) {
  using Passes = std::vector<Pass>;
  std::vector<FakeStream> streams;
  for (const std::optional<Passes>& loaded :
       {std::optional<Passes>{}, std::optional(Passes{}), std::optional(Passes{Pass::first, Pass::main, Pass::finish}),
        std::optional(Passes{Pass::whole, Pass::unaligned, Pass::wide, Pass::first_wide}),
        std::optional(Passes{Pass::main, Pass::keeping, Pass::kept})}) {
    FakeStream stream;
    stream.loaded = loaded;
    stream.part = gpu;
    streams.push_back(stream);
    stream.registers_of_whole = 128;
    stream.scratch = 30'000'000;
    stream.part = kSmallPart;
    streams.push_back(stream);
  }
  return streams;
}

}  // namespace

BOOST_AUTO_TEST_CASE(chooses_as_before) {
  constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
      {0, 64},      {3, 0},       {1, 1},        {128, 128},  {256, 512},  {512, 1024},    {333, 1111},
      {1024, 1280}, {2048, 1024}, {3, 3072},     {3, 3080},   {40, 16392}, {3, 40968},     {3056, 4096},
      {3072, 4096}, {8192, 8192}, {20000, 8200}, {3, 425984}, {3, 425992}, {1 << 29, 4096}};
  std::size_t wrong = 0;
  std::size_t all = 0;
  std::vector<std::size_t> counts(21, 0);  // of each Pass::number()
  for (const CastDevice& gpu : {kH200, kA100, kRtx5090}) {
    std::vector<FakeStream> streams = all_streams(gpu);
    if (gpu.multiprocessors != kH200.multiprocessors) streams.resize(4);  // the others decide alike on every GPU
    for (const CastSpec& spec : all_casts()) {
      for (const auto& [rows, cols] : kShapes) {
        for (unsigned aligned = 0; aligned < 8; aligned = aligned == 0 ? 3 : aligned + 1) {
          const CastCall call{rows, cols, (aligned & 1U) != 0, (aligned & 2U) != 0, (aligned & 4U) != 0};
          for (const FakeStream& stream : streams) {
            const std::vector<Pass> found = passes(cast_plan(spec, call, gpu, stream));
            wrong += found == Before{spec, call, gpu, stream}.passes() ? 0U : 1U;
            for (const Pass pass : found) ++counts[pass.number()];
            ++all;
          }
        }
      }
    }
  }
  BOOST_TEST(wrong == 0U);
  BOOST_TEST_MESSAGE(all << " plans");
  for (const Pass pass : {Pass::first, Pass::main, Pass::finish, Pass::whole, Pass::unaligned, Pass::wide,
                          Pass::first_wide, Pass::keeping, Pass::kept}) {
    BOOST_TEST(counts[pass.number()] > 100U, suffix(pass));
  }
}

// What is launched with them.
BOOST_AUTO_TEST_CASE(plans) {
  FakeStream stream;
  stream.part = kH200;
  const auto plan = [&](const std::string& words, std::int64_t rows, std::int64_t cols) {
    return cast_plan(cast(words), {.rows = rows, .cols = cols}, kH200, stream);
  };
  const CastPlan rows = plan("scale=row out=codes", 3, 16392);
  BOOST_TEST((rows.main == Pass::wide && !rows.first && !rows.finish && rows.wide.blocks == 8U));
  BOOST_TEST(rows.scratch.bytes() == 0);

  const CastPlan whole = plan("scale=tensor out=codes,transposed", 256, 512);
  BOOST_TEST((whole.main == Pass::whole && !whole.first && whole.one_cluster && whole.tile_rows_log2 == 7U));
  const CastPlan grid = plan("of=silu(x) scale=tensor out=codes,transposed", 256, 640);
  BOOST_TEST((grid.main == Pass::whole && !grid.one_cluster && grid.tile_rows_log2 == 6U));

  const CastPlan kept = plan("of=grad*sigmoid(x) scale=row+col out=codes,transposed,sum:f32", 2048, 4100);
  BOOST_TEST((kept.first == Pass::keeping && kept.main == Pass::kept && kept.finish && !kept.takes_two));
  BOOST_TEST(kept.scratch.kept_stride == 4104);
  BOOST_TEST(kept.scratch.kept_bytes == 2048 * 4104 * 2);
  BOOST_TEST((kept.scratch.sums == 16 * 4100 && kept.scratch.maxima == 0));

  const CastPlan both = plan("scale=row out=codes,transposed", 4096, 4096);
  BOOST_TEST((both.first == Pass::first_wide && both.main == Pass::main && both.scratch.maxima == 4096));
  const CastPlan odd = cast_plan(cast("scale=tensor out=codes,transposed"),
                                 {.rows = 4096, .cols = 4096, .transposed_aligned = false}, kH200, stream);
  BOOST_TEST((odd.first == Pass::first && odd.main == Pass::unaligned && odd.takes_two));
}

// Stacked matrices are cast in tiles, without the variants that see one matrix at a time; but along the rows as one.
BOOST_AUTO_TEST_CASE(plans_of_stacked_matrices) {
  FakeStream stream;
  stream.part = kH200;
  const auto plan = [&](const std::string& words, bool aligned = true) {
    const CastCall call{.rows = 256, .cols = 512, .transposed_aligned = aligned};
    return cast_plan(cast(words + " stacked"), call, kH200, stream);
  };
  for (const char* const words : {"scale=tensor out=codes,transposed", "scale=row out=codes,transposed",
                                  "scale=row+col out=codes,transposed", "scale=tensor out=codes"}) {
    const CastPlan found = plan(words);
    BOOST_TEST((found.first == Pass::first && found.main == Pass::main && !found.finish), words);
    BOOST_TEST((found.tile_rows_log2 == 7U && found.scratch.bytes() == 0), words);
  }
  BOOST_TEST((plan("scale=tensor out=codes,transposed", false).main == Pass::unaligned));
  const CastPlan blocks = plan("scale=128x128 out=codes,transposed");
  BOOST_TEST((!blocks.first && blocks.main == Pass::main));
  BOOST_TEST((cast_schedule(cast("scale=row out=codes stacked")) == CastSchedule::rows));
  BOOST_TEST((cast_schedule(cast("scale=1x128 out=codes stacked")) == CastSchedule::row_groups));
  const auto rounded = std::get<CastSpec>(parse("cast f32->e4m3fn scale=row out=codes rounded=bf16 stacked"));
  BOOST_TEST((cast_schedule(rounded) == CastSchedule::tiles));
}

// Gathered rows are cast along the rows if only these have scales, otherwise in tiles, after a pass over all rows of
// the input, whose maxima are in scratch memory.
BOOST_AUTO_TEST_CASE(plans_of_gathered_rows) {
  FakeStream stream;
  stream.part = kH200;
  const auto plan = [&](const std::string& words, bool aligned = true) {
    const CastCall call{.rows = 256, .cols = 512, .source_aligned = aligned, .input_rows = 33};
    return cast_plan(cast(words + " gathered"), call, kH200, stream);
  };
  const auto maxima = [&](const std::string& words) {
    const CastPlan found = plan(words);
    BOOST_TEST((found.first == Pass::first && found.main == Pass::main && !found.waits_for_end), words);
    BOOST_TEST((found.tile_rows_log2 == 7U && found.scratch.sums == 0), words);
    return found.scratch.maxima;
  };
  BOOST_TEST(maxima("scale=tensor out=codes,transposed") == AmaxPartialsLaunch::kMaxBlocks);
  const CastPlan rows = plan("scale=row out=codes");
  BOOST_TEST((!rows.first && rows.main == Pass::main && rows.scratch.bytes() == 0));
  BOOST_TEST(maxima("scale=row out=codes,transposed") == 33);
  BOOST_TEST(maxima("scale=row+col out=codes,transposed") == 1 + 33 + 512);
  BOOST_TEST((plan("scale=row+col out=codes,transposed", false).main == Pass::unaligned));
  const CastPlan groups = plan("scale=1x128 out=codes");
  BOOST_TEST((!groups.first && groups.main == Pass::main && !groups.waits_for_end && groups.scratch.bytes() == 0));
}

// The maxima of columns come with the codes if rows are aligned and fit a block; otherwise from a pass before them.
BOOST_AUTO_TEST_CASE(plans_with_maxima_of_columns) {
  FakeStream stream;
  stream.part = kH200;
  const auto of = [](const char* words) { return std::get<CastSpec>(parse(words)); };
  const CastSpec spec = of("cast bf16->e4m3fn scale=row out=codes,amax:col stacked");
  const CastSpec rounded = of("cast f32->e4m3fn scale=row out=codes,amax:col rounded=bf16 stacked");
  for (const std::int64_t cols : {8, 2048, 7168, 14336, 16384}) {
    for (const CastSpec& each : {spec, rounded}) {
      const CastPlan plan = cast_plan(each, {.rows = 4096, .cols = cols}, kH200, stream);
      BOOST_TEST((plan.main == Pass::whole && !plan.first && plan.scratch.bytes() == 0), cols);
    }
  }
  const auto two = [&](const CastSpec& each, const CastCall& call) {
    const CastPlan plan = cast_plan(each, call, kH200, stream);
    return plan.first == Pass::first ? plan.main : Pass::first;
  };
  BOOST_TEST((two(spec, {.rows = 4096, .cols = 24584}) == Pass::wide));
  BOOST_TEST((two(spec, {.rows = 4096, .cols = 2048, .source_aligned = false}) == Pass::main));
  BOOST_TEST((two(spec, {.rows = 4096, .cols = 7168, .outputs_aligned = false}) == Pass::main));
  // f32 takes twice the shared memory.
  CastDevice small = kH200;
  small.block_shared = 99 << 10;
  const auto whole = [&](const CastSpec& each) {
    return cast_plan(each, {.rows = 4096, .cols = 14336}, small, stream).main == Pass::whole;
  };
  BOOST_TEST(whole(spec));
  BOOST_TEST(!whole(rounded));
}

// A cast that knows its amax takes the main stage alone: not whole, no kept values, no memory for maxima.
BOOST_AUTO_TEST_CASE(plans_with_a_known_amax) {
  FakeStream stream;
  stream.part = kH200;
  for (const char* const words : {"scale=tensor out=codes,transposed", "of=grad*sigmoid(x) scale=tensor out=codes",
                                  "of=grad*sigmoid(x) scale=tensor out=codes,transposed,sum:f32",
                                  "scale=col out=transposed stacked", "scale=row+col out=codes,transposed"}) {
    const CastSpec spec = cast(words);
    for (const auto& [rows, cols] : {std::pair{256, 512}, {4096, 8192}}) {
      const CastCall call{.rows = rows, .cols = cols, .knows_amax = true};
      const CastPlan plan = cast_plan(spec, call, kH200, stream);
      BOOST_TEST((plan.main == Pass::main && !plan.first && plan.finish == spec.sum.has_value()), words);
      BOOST_TEST((plan.scratch.maxima == 0 && plan.scratch.kept_bytes == 0), words);
      BOOST_TEST(plan.tile_rows_log2 == 7U);
      BOOST_TEST(plan.waits_for_end, "nothing ahead of it has waited for the values");
      BOOST_TEST(!cast_plan(spec, {.rows = rows, .cols = cols}, kH200, stream).waits_for_end, words);
    }
  }
  BOOST_TEST(!cast_plan(cast("scale=tensor out=codes given"), {.rows = 256, .cols = 512}, kH200, stream).waits_for_end);
  const CastPlan odd =
      cast_plan(cast("scale=tensor out=codes,transposed"),
                {.rows = 300, .cols = 301, .transposed_aligned = false, .knows_amax = true}, kH200, stream);
  BOOST_TEST((odd.main == Pass::unaligned && !odd.first));
}

BOOST_AUTO_TEST_CASE(configurations) {
  const CastConfig given = cast_tiles_config(cast("scale=tensor out=codes,transposed given"), Variant::standard);
  BOOST_TEST((given.codes == kTensor && given.transposed == kTensor && given.given_scales && !given.unaligned));

  const CastSpec two = cast("of=silu(x) scale=row+col out=codes,transposed,result,sum:f32");
  const CastConfig unaligned = cast_tiles_config(two, Variant::unaligned);
  BOOST_TEST((unaligned.codes == kRow && unaligned.transposed == kColumn));
  BOOST_TEST((!unaligned.given_scales && unaligned.result && unaligned.sum && unaligned.unaligned && !unaligned.kept));
  BOOST_TEST((cast_tiles_config(two, Variant::kept).kept && cast_tiles_config(two, Variant::kept).unaligned));

  // After the pass for rows only the transposed codes are left; in one launch it is the whole cast.
  const CastSpec rows = cast("of=silu(x) scale=row out=codes,transposed,result");
  const CastConfig rest = cast_tiles_config(rows, Variant::standard);
  BOOST_TEST((!rest.codes.written && rest.transposed == kRow && !rest.result));
  const CastConfig whole = cast_tiles_config(rows, Variant::whole);
  BOOST_TEST((whole.codes == kRow && whole.transposed == kRow && whole.result && whole.unaligned));
}

// The generated text has the same arguments.
BOOST_AUTO_TEST_CASE(text) {
  const KernelSpec rows = cast("of=silu(x) scale=row out=codes,transposed,result");
  const std::string rest =
      "CastConfig{.codes = {}, .transposed = {.written = true, .scale = {.rows = 1, .cols = 0}}, .given_scales = "
      "false, "
      ".result = false, .sum = false";
  const std::string whole =
      "CastConfig{.codes = {.written = true, .scale = {.rows = 1, .cols = 0}}, .transposed = {.written = true, .scale "
      "= "
      "{.rows = 1, .cols = 0}}, .given_scales = false, .result = true, .sum = false, .unaligned = true}";
  const auto has = [&](Pass pass, const std::string& words) {
    return generate(rows, pass).text.find(words) != std::string::npos;
  };
  BOOST_TEST(has(Pass::main, rest + "}"));
  BOOST_TEST(has(Pass::unaligned, rest + ", .unaligned = true}"));
  BOOST_TEST(has(Pass::whole, whole));
}

BOOST_AUTO_TEST_CASE(rows_of_a_tile) {
  const std::string both = " out=codes,transposed";
  const std::string silu = "of=silu(x) ";
  const std::vector<Rows> cases{
      // In one launch: but for clusters, of up to eight tiles of 128 rows.
      {"scale=tensor" + both, Variant::whole, 1024, 1024, 6, 6},
      {"scale=row+col" + both, Variant::whole, 333, 1111, 6, 6},
      {"scale=tensor" + both, Variant::whole, 256, 512, 7, 6},
      {"scale=tensor" + both, Variant::whole, 256, 640, 6, 6},
      {"scale=tensor" + both, Variant::whole, 2048, 1024, 7, 7},  // 256 tiles of 64 rows
      {"scale=tensor out=codes,transposed,sum:f32", Variant::whole, 1024, 1024, 7, 7},
      {"scale=1x128+tensor" + both, Variant::whole, 1024, 1024, 7, 7},
      // With a given scale; aligned and without an expression from 33 tiles of 128 rows on.
      {"scale=tensor" + both + " given", Variant::standard, 512, 1024, 7, 7},
      {"scale=tensor" + both + " given", Variant::standard, 512, 1152, 6, 6},
      {"scale=row" + both + " given", Variant::standard, 1024, 1024, 6, 6},
      {"scale=tensor" + both + " given", Variant::unaligned, 128, 128, 6, 6},
      {silu + "scale=tensor" + both + " given", Variant::standard, 128, 128, 6, 6},
      {"scale=row+col" + both + " given", Variant::standard, 1024, 1024, 7, 7},
      {"scale=128x128" + both + " given", Variant::standard, 1024, 1024, 7, 7},
      // After a pass for the maxima: never.
      {"scale=tensor" + both, Variant::standard, 1024, 1024, 7, 7},
      {"scale=row" + both, Variant::standard, 1024, 1024, 7, 7},
      {"scale=row+col" + both, Variant::unaligned, 1024, 1024, 7, 7},
  };
  for (const Rows& each : cases) {
    BOOST_TEST_CONTEXT(each.words << ", " << each.rows << " x " << each.cols) {
      const CastSpec spec = cast(each.words);
      BOOST_TEST(cast_tile_rows_log2(spec, each.variant, each.rows, each.cols, {132, true}) == each.with_clusters);
      BOOST_TEST(cast_tile_rows_log2(spec, each.variant, each.rows, each.cols, {132, false}) == each.without);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
