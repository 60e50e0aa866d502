// Grouped GEMMs as specs: their lines, what is refused, their kernels' source, and the choice of a tiling.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <set>
#include <string>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "support/expect_error.h"
#include "support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_grouped_gemm_spec)

using namespace ingot;
using namespace ingot::test;

namespace {

GroupedGemmSpec spec_of(const std::string& line) { return std::get<GroupedGemmSpec>(parse("grouped_gemm " + line)); }

std::string message(const std::string& line) {
  return error_of([&] { parse("grouped_gemm " + line); }, ErrorCode::invalid_spec);
}

}  // namespace

BOOST_AUTO_TEST_CASE(lines_are_read_back) {
  for (const char* const line :
       {"grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast",
        "grouped_gemm bf16*bf16->f32 nt kernel=sm90:64x128:1x1:8:pingpong",
        "grouped_gemm e5m2*e4m3fn->f16 nt scale=tensor,row bias kernel=sm90", "grouped_gemm bf16*bf16->bf16 nt along=k",
        "grouped_gemm e5m2*e4m3fn->f32 nt scale=row,row c=f32 fast along=k"}) {
    BOOST_TEST(print(parse(line)) == line);
  }
  std::set<std::size_t> hashes;
  for (const GroupedGemmSpec& spec : valid_specs<GroupedGemmSpec>()) {
    validate(spec);
    BOOST_TEST((parse(print(spec)) == KernelSpec(spec)), print(spec));
    BOOST_TEST(hashes.insert(hash_value(spec)).second, print(spec));
    BOOST_TEST(hash_value(spec) != hash_value(spec.gemm), print(spec));
  }
  // Of rows, with a bias and without; along K, without blocks; and to f32 with c.
  BOOST_TEST(hashes.size() == 2 * (4U * 3 * (4 * 2 + 2) + 4) + (4U * 3 * (4 * 2 + 1) + 4) + (4U * (4 * 2 + 1) + 2));
}

BOOST_AUTO_TEST_CASE(what_there_is_no_kernel_for_is_told) {
  const std::string fp8 = "e4m3fn*e4m3fn->bf16 nt scale=row,row";
  const auto expect = [](const std::string& line, const std::string& fault) {
    const std::string found = message(line);
    BOOST_TEST(found == "grouped_gemm " + line + ": " + fault);
  };
  expect("e4m3fnuz*e4m3fn->bf16 nt scale=row,row",
         "a is e4m3fnuz and b is e4m3fn, but grouped GEMMs multiply e4m3fn and e5m2, or two operands of bf16 or of "
         "f16, only");
  expect("f32*f32->f32 nt",
         "a is f32 and b is f32, but grouped GEMMs multiply e4m3fn and e5m2, or two operands of bf16 or of f16, only");
  expect("bf16*bf16->bf16 nn", "the layouts are not nt, but grouped GEMMs read both operands in rows along k");
  expect("bf16*bf16->bf16 tt", "the layouts are not nt, but grouped GEMMs read both operands in rows along k");
  expect(fp8 + " kernel=mma:64x64", "kernel is mma, but sm90 alone has grouped GEMMs: leave kernel out");
  expect(fp8 + " kernel=simt", "kernel is simt, but sm90 alone has grouped GEMMs: leave kernel out");
  expect(fp8 + " kernel=sm90 staged=a", "staged is set, but grouped GEMMs read operands as they are stored");
  expect(fp8 + " bias along=k", "bias is set, but grouped GEMMs along K have none");
  expect(fp8 + " epilogue=max(x,0)", "it has an epilogue, but grouped GEMMs have none");
  expect(fp8 + " also=amax", "it has an epilogue, but grouped GEMMs have none");
  expect("e4m3fn*e4m3fn->e4m3fn nt scale=row,row", "out is e4m3fn, but must be one of f32, bf16, f16");
  expect(fp8 + " kernel=sm90:128x128:1x1:6:cooperative:streamk",
         "tiling has stream-K, but where tiles are is known on the device only");
  expect(fp8 + " kernel=sm90:128x160:1x1:5:cooperative",
         "tiling has a tile of 160 columns, but grouped GEMMs take a multiple of 64");
  expect("bf16*bf16->f32 nt kernel=sm90:128x192:2x1:5:pingpong",
         "tiling has 192 outputs in each thread, but where those are f32 its registers hold 128: take a smaller tile");
  expect("e4m3fn*e4m3fn->f32 nt scale=tensor,tensor kernel=sm90:128x192:2x1:5:pingpong",  // and without `fast`
         "tiling has 192 outputs in each thread, but where those are f32 its registers hold 128: take a smaller tile");
  expect(
      "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=sm90:128x192:2x1:5:pingpong",
      "tiling has 288 sums in each thread, but its registers hold 192: set fast, which needs fewer, or take a smaller "
      "tile");
  expect("bf16*bf16->bf16 nt kernel=sm90:64x64:1x1:13:pingpong",
         "tiling has 235728 bytes of shared memory with those for where experts end, but a block has 232448: fewer "
         "stages or a smaller tile");
  expect(fp8 + " c=f32", "it has an epilogue, but grouped GEMMs have none");
  expect("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 along=k",
         "scale is 1x128,128x128, but must be tensor or row for both, or 1x128 for both: along K, blocks would have "
         "columns of the gradient in common");
  expect(fp8 + " epilogue=max(x,0) along=k",
         "its epilogue does more than add c, but grouped GEMMs along K have no other");
  expect(fp8 + " also=amax along=k", "its epilogue does more than add c, but grouped GEMMs along K have no other");
  expect(fp8 + " c=f32 along=k", "c is f32 and out is bf16, but grouped GEMMs add f32 to f32 only");
  expect("bf16*bf16->f32 nt c=bf16 along=k", "c is bf16 and out is f32, but grouped GEMMs add f32 to f32 only");
  BOOST_TEST(
      message(fp8 + " along=n") ==
      "grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=row,row along=n: \"along=n\" is no word of grouped_gemm; expected "
      "nt, nn, tt, tn, scale=<granularity>,<granularity>, bias, c=<dtype>, epilogue=<expression>, "
      "also=preactivation,amax, fast, kernel=<kernel>, along=k or staged=a,b");
  BOOST_TEST(message(fp8 + " along=k along=k").ends_with("\"along=k\" gives along a second time"));
  // A GEMM's own rules come first.
  BOOST_TEST(message("e4m3fn*bf16->e5m2 nt")
                 .ends_with("out is e5m2, but must be bf16 (as the high-precision operand is) "
                            "or f32"));
}

BOOST_AUTO_TEST_CASE(a_kernels_source_names_its_tiling) {
  const Source source = generate(spec_of("e4m3fn*e5m2->bf16 nt scale=tensor,row fast"));
  BOOST_TEST(source.text.starts_with(
      "// grouped_gemm e4m3fn*e5m2->bf16 nt scale=row,row fast kernel=sm90:128x128:2x1:6:pingpong\n"
      "#include \"gemm/gemm_sm90_grouped.cuh\"\n"));
  BOOST_TEST(source.text.find(".experts = true") != std::string::npos, source.text);
  // Whether a has one scale_inv or one for each row is a parameter.
  BOOST_TEST(generate(spec_of("e4m3fn*e5m2->bf16 nt scale=row,row fast")).text == source.text);
  BOOST_TEST(generate(spec_of("e4m3fn*e5m2->bf16 nt scale=row,tensor fast")).text != source.text);
  BOOST_TEST(source.text.find("along_k") == std::string::npos, source.text);
  const Source along_k = generate(spec_of("e4m3fn*e5m2->f32 nt scale=row,row c=f32 along=k"));
  BOOST_TEST(along_k.text.find(".experts = true, .along_k = true}, ingot::Epilogue<") != std::string::npos,
             along_k.text);
}

BOOST_AUTO_TEST_CASE(tilings_along_k_follow_an_experts_output) {
  const GroupedGemmSpec spec = spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row fast along=k");
  const auto tiling = [&](std::int64_t m, std::int64_t n) {
    const GroupedGemmSpec chosen = with_grouped_tiling(spec, {.m = m, .n = n, .k = 32768}, 32, 132);
    validate(chosen);
    BOOST_TEST(chosen.along_k);
    return *chosen.gemm.tiling;
  };
  BOOST_TEST(tiling(2048, 7168).m * tiling(2048, 7168).n >= 128 * 128);
  BOOST_TEST(tiling(64, 64).m * tiling(64, 64).cluster_m == 64);
  const MatmulSize none{.m = 64, .n = 64, .k = 0};
  BOOST_TEST(with_grouped_tiling(spec, none, 512, 132).gemm.tiling.has_value());
}

BOOST_AUTO_TEST_CASE(tilings_follow_the_rows_of_an_expert) {
  const GroupedGemmSpec spec = spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row fast");
  const auto tiling = [&](std::int64_t m, std::int64_t experts) {
    const GroupedGemmSpec chosen = with_grouped_tiling(spec, {.m = m, .n = 2048, .k = 7168}, experts, 132);
    BOOST_TEST((chosen.gemm.kernel == GemmKernel::sm90));
    validate(chosen);
    return *chosen.gemm.tiling;
  };
  BOOST_TEST(tiling(32768, 8).m * tiling(32768, 8).cluster_m >= 128);
  BOOST_TEST(tiling(256, 32).m == 64);
  BOOST_TEST(tiling(3, 512).m == 64);
  // A tiling that is named stays.
  const GroupedGemmSpec named = spec_of("bf16*bf16->bf16 nt kernel=sm90:128x64:1x1:8:pingpong");
  BOOST_TEST((with_grouped_tiling(named, {.m = 1 << 20, .n = 4096, .k = 4096}, 1, 132) == named));
  for (const GroupedGemmSpec& each : valid_specs<GroupedGemmSpec>()) {
    for (const GemmTiling& of : grouped_tilings(each)) {
      GroupedGemmSpec tiled = each;
      tiled.gemm.kernel = GemmKernel::sm90;
      tiled.gemm.tiling = of;
      validate(tiled);
    }
    BOOST_TEST(grouped_tilings(each).size() >= 6U);
  }
}

// With scale_inv of groups they are candidates where nothing is added; the choice leaves them out where they were not
// measured or lost.
BOOST_AUTO_TEST_CASE(three_warpgroups_and_256_columns_are_named) {
  const GemmTiling three{.m = 192, .n = 128, .stages = 4};
  const GemmTiling wide{.m = 128, .n = 256, .stages = 4};
  for (const GroupedGemmSpec& each : valid_specs<GroupedGemmSpec>()) {
    if (!has_group_scale_inv(each.gemm)) {
      BOOST_TEST(std::ranges::count(grouped_tilings(each), three) == 0, print(KernelSpec(each)));
      continue;
    }
    for (const GemmTiling& tiling : {three, wide}) {
      BOOST_TEST((std::ranges::count(grouped_tilings(each), tiling) == 1) == !each.gemm.epilogue.c,
                 print(KernelSpec(each)));
    }
    for (const std::int64_t rows : {256, 4096, 32768, 1 << 20}) {
      const MatmulSize size{.m = each.along_k ? 4096 : rows, .n = 14336, .k = each.along_k ? rows : 4096};
      const GemmTiling chosen = *with_grouped_tiling(each, size, 8, 132).gemm.tiling;
      BOOST_TEST((chosen != wide));
      if (each.along_k || each.gemm.scale_b != kRowGroups) BOOST_TEST((chosen != three));
    }
  }
}

// At the layers of gemm_blocks_tiles_h200.json, the fastest of those that may be chosen.
BOOST_AUTO_TEST_CASE(three_warpgroups_multiply_groups_of_many_rows) {
  const auto rows = [](MatmulSize size, std::int64_t experts) {
    return with_grouped_tiling(spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128"), size, experts, 132).gemm.tiling->m;
  };
  BOOST_TEST(rows({.m = 16384, .n = 14336, .k = 4096}, 8) == 192);
  BOOST_TEST(rows({.m = 32768, .n = 2048, .k = 7168}, 32) == 192);
  BOOST_TEST(rows({.m = 32768, .n = 7168, .k = 2048}, 32) == 192);
  BOOST_TEST(rows({.m = 16384, .n = 3072, .k = 4096}, 128) == 128);
  BOOST_TEST(rows({.m = 9600, .n = 2816, .k = 3584}, 24) == 128);
}

BOOST_AUTO_TEST_SUITE_END()
