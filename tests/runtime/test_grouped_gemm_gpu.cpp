// templates/gemm/gemm_sm90_grouped.cuh on a Hopper GPU, through Backend::grouped_gemm: every element of poisoned
// outputs against float64, exactly if the inputs are small integers; the rows that no expert has and the bytes
// around the output stay untouched; and a second run gives the same bits. Along K, columns that no expert has are NaN.
// On other GPUs the tests are skipped.
//
// Suites for --run_test: small (for compute-sanitizer), cross, tilings, library.
#include "support/gpu_test.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/warm_up.h"
#include "support/compare.h"
#include "support/expect_error.h"
#include "support/grouped_along_k_case.h"
#include "support/grouped_gemm_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_grouped_gemm_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

GroupedGemmSpec spec_of(const std::string& line) { return std::get<GroupedGemmSpec>(parse("grouped_gemm " + line)); }

GroupedGemmSpec in_tiles(GroupedGemmSpec spec, const GemmTiling& tiling) {
  spec.gemm.kernel = GemmKernel::sm90;
  spec.gemm.tiling = tiling;
  return spec;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  GroupedMaker maker;
  AlongKMaker along_k_maker;
  int runs = 0;
  int faults = 0;

  Fixture() { BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper"); }
  ~Fixture() { std::cout << runs << " cases\n"; }

  // right: if it holds an output, whose bits are the only right ones, that is compared; else it is given this one.
  void expect_right(const GroupedCase& c, GuardedMatrix* right = nullptr) {
    const GroupedData data(c, maker);
    PlacedGrouped placed(data, cuda, stream);
    const std::int64_t launches = cuda.device_api().launches();
    placed.enqueue(stream);
    const bool one_launch = cuda.device_api().launches() == launches + (c.m == 0 || c.n == 0 ? 0 : 1);
    const GuardedMatrix first = placed.out(stream);
    std::string fault = one_launch ? "" : "was not one launch";
    const bool known = right != nullptr && right->bytes() == first.bytes();
    if (fault.empty() && !known) fault = data.fault_of(first);
    if (fault.empty() && right != nullptr) *right = first;
    placed.poison(stream);
    placed.enqueue(stream);
    if (fault.empty() && placed.out(stream).bytes() != first.bytes()) {
      fault = "again: " + bit_difference("out", first, placed.out(stream));
    }
    count(fault, describe(c));
  }

  // The same along K.
  void expect_right_along_k(const AlongKCase& c, GuardedMatrix* right = nullptr) {
    const AlongKData data(c, along_k_maker);
    PlacedAlongK placed(data, cuda, stream);
    const std::int64_t launches = cuda.device_api().launches();
    placed.enqueue(stream);
    const bool one_launch = cuda.device_api().launches() == launches + (c.m == 0 || c.n == 0 ? 0 : 1);
    const GuardedMatrix first = placed.out(stream);
    std::string fault = one_launch ? "" : "was not one launch";
    const bool known = right != nullptr && right->bytes() == first.bytes();
    if (fault.empty() && !known) fault = data.fault_of(first);
    if (fault.empty() && right != nullptr) *right = first;
    placed.reset(stream);
    placed.enqueue(stream);
    if (fault.empty() && placed.out(stream).bytes() != first.bytes()) {
      fault = "again: " + bit_difference("out", first, placed.out(stream));
    }
    count(fault, describe(c));
  }

  void count(const std::string& fault, const std::string& described) {
    BOOST_CHECK_MESSAGE(fault.empty(), described << ": " << fault);
    faults += fault.empty() ? 0 : 1;
    if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
    ++runs;
  }

  void expect_right_both(GroupedCase c) {
    for (const bool exact : {true, false}) {
      c.exact = exact;
      expect_right(c);
    }
  }

  // Captures the case once, and replays it with each of these in its place, and with its own again.
  void expect_right_in_replays(const GroupedCase& c, std::vector<Ends> others) {
    const GroupedData data(c, maker);
    PlacedGrouped placed(data, cuda, stream);
    placed.enqueue(stream);
    Graph graph(stream, [&] { placed.enqueue(stream); });
    others.push_back(c.ends);
    for (const Ends& ends : others) {
      GroupedCase other = c;
      other.ends = ends;
      const GroupedData expected(other, maker);
      placed.poison(stream);
      placed.set_ends(ends, stream);
      graph.replay(stream);
      BOOST_TEST(expected.fault_of(placed.out(stream)) == "", describe(other));
      ++runs;
    }
  }

  void expect_right_in_replays_along_k(const AlongKCase& c, std::vector<Ends> others) {
    const AlongKData data(c, along_k_maker);
    PlacedAlongK placed(data, cuda, stream);
    placed.enqueue(stream);
    Graph graph(stream, [&] { placed.enqueue(stream); });
    others.push_back(c.ends);
    for (const Ends& ends : others) {
      AlongKCase other = c;
      other.ends = ends;
      const AlongKData expected(other, along_k_maker);
      placed.reset(stream);
      placed.set_ends(ends, stream);
      graph.replay(stream);
      BOOST_TEST(expected.fault_of(placed.out(stream)) == "", describe(other));
      ++runs;
    }
  }

  static void compile(const std::vector<GroupedGemmSpec>& specs) {
    const std::vector<KernelSpec> all(specs.begin(), specs.end());
    warm(context().cache(), all, context().cache().target(), 0);
  }
};

// Kinds of operands, scale_inv, sums and output.
std::vector<GroupedGemmSpec> every_kind() {
  return {spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row fast"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,tensor fast"),
          spec_of("e5m2*e4m3fn->f32 nt scale=tensor,row"),
          spec_of("bf16*bf16->bf16 nt"),
          spec_of("f16*f16->f32 nt"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"),
          spec_of("e4m3fn*e5m2->f32 nt scale=1x128,1x128"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast"),
          spec_of("e4m3fn*e4m3fn->f32 nt scale=1x128,128x128 bias"),
          spec_of("f16*f16->f16 nt bias")};
}

// Ragged in every way: Zipf, one hot, experts without rows first, last and between, one row each, rows beyond the last
// expert's, M no multiple of 8, last tiles of few columns, K no multiple of a step and none, odd output rows, one
// expert.
std::vector<GroupedCase> every_shape() {
  return {{.ends = zipf_ends(509, 8), .m = 509, .n = 640, .k = 1360},
          {.ends = one_hot_ends(700, 6, 3), .m = 700, .n = 264, .k = 272},
          {.ends = {0, 0, 129, 129, 300, 300}, .m = 333, .n = 200, .k = 400},
          {.ends = balanced_ends(64, 64), .m = 64, .n = 72, .k = 144},
          {.ends = balanced_ends(512, 4), .m = 512, .n = 256, .k = 128},
          {.ends = zipf_ends(1500, 512), .m = 1500, .n = 64, .k = 48},
          {.ends = {17, 40, 300}, .m = 300, .n = 135, .k = 77, .in_padding = 19, .out_padding = 2},
          {.ends = {7}, .m = 7, .n = 8, .k = 16},
          {.ends = {0, 1, 1}, .m = 1, .n = 130, .k = 144},
          {.ends = {0, 5, 200, 130, 0, 1}, .m = 1200, .n = 200, .k = 272, .capacity = 200},
          {.ends = {3, 0, 7, 1}, .m = 28, .n = 72, .k = 144, .out_padding = 2, .capacity = 7},
          {.ends = {0, 0, 0}, .m = 5, .n = 16, .k = 32},
          {.ends = {0, 0}, .m = 0, .n = 16, .k = 32},
          {.ends = {3, 3, 140}, .m = 150, .n = 72, .k = 0},
          {.ends = {5, 0, 9}, .m = 30, .n = 135, .k = 0, .capacity = 10}};
}

std::vector<GroupedGemmSpec> every_kind_along_k() {
  return {spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row fast along=k"),
          spec_of("e5m2*e4m3fn->bf16 nt scale=row,row along=k"),
          spec_of("e4m3fn*e4m3fn->f32 nt scale=tensor,tensor fast along=k"),
          spec_of("e4m3fn*e4m3fn->f32 nt scale=row,row fast c=f32 along=k"),
          spec_of("e4m3fn*e4m3fn->f32 nt scale=row,tensor c=f32 along=k"),
          spec_of("bf16*bf16->bf16 nt along=k"),
          spec_of("f16*f16->f32 nt along=k"),
          spec_of("bf16*bf16->f32 nt c=f32 along=k"),
          spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128 along=k"),
          spec_of("e5m2*e4m3fn->f32 nt scale=1x128,1x128 c=f32 along=k")};
}

// Experts without columns first, last and between; one column each; one hot expert; NaN in an expert's columns; ends at
// and next to the bounds of a step; columns that no expert has; last tiles of few rows and columns; odd output rows; no
// column at all.
std::vector<AlongKCase> every_shape_along_k() {
  return {{.ends = zipf_ends(2509, 8), .m = 200, .n = 264, .k = 2512, .of_nans = 2},
          {.ends = one_hot_ends(1700, 6, 3), .m = 136, .n = 328, .k = 1712, .of_nans = 3},
          {.ends = {0, 0, 129, 129, 300, 300}, .m = 300, .n = 72, .k = 320, .one_scale_inv = true},
          {.ends = {63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 384, 511}, .m = 64, .n = 192, .k = 512},
          {.ends = balanced_ends(64, 64), .m = 72, .n = 72, .k = 64},
          {.ends = balanced_ends(512, 4), .m = 256, .n = 256, .k = 512, .of_nans = 1},
          {.ends = zipf_ends(4000, 512), .m = 40, .n = 24, .k = 4000, .of_nans = 100},
          {.ends = {17, 40, 300}, .m = 135, .n = 67, .k = 301, .out_padding = 3},
          {.ends = {7}, .m = 8, .n = 8, .k = 16, .in_place = false, .beta = 0.5F},
          {.ends = {5, 9, 2000}, .m = 130, .n = 129, .k = 2000, .in_place = false, .beta = 2, .out_padding = 1},
          {.ends = {0, 1, 1}, .m = 1, .n = 130, .k = 16, .beta = 0},
          {.ends = {0, 0, 0}, .m = 70, .n = 200, .k = 32},
          {.ends = {0, 0}, .m = 70, .n = 200, .k = 0},
          {.ends = {0, 8}, .m = 0, .n = 16, .k = 16}};
}

// ---- small ----------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(of_each_kind) {
  std::vector<GroupedGemmSpec> kinds{
      in_tiles(every_kind()[0], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true}),
      in_tiles(every_kind()[1], {.m = 256, .n = 128, .cluster_n = 2, .stages = 4}),
      in_tiles(every_kind()[2], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true}),
      in_tiles(every_kind()[4], {.m = 128, .n = 128, .stages = 6}),
      in_tiles(every_kind()[5], {.m = 64, .n = 64, .stages = 12, .pingpong = true}),
      in_tiles(every_kind()[7], {.m = 128, .n = 128, .stages = 6}),
      in_tiles(every_kind()[7], {.m = 192, .n = 128, .stages = 4}),
      in_tiles(every_kind()[8], {.m = 192, .n = 128, .stages = 4}),
      in_tiles(every_kind()[9], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true}),
      in_tiles(every_kind()[10], {.m = 128, .n = 128, .stages = 6})};
  compile(kinds);
  for (const GroupedGemmSpec& kind : kinds) {
    if (has_group_scale_inv(kind.gemm)) {
      GroupedCase c{.spec = kind, .ends = {0, 129, 129, 325, 601}, .m = 604, .n = 136, .k = 1296, .by_group = true};
      expect_right_both(c);
      c.of_each = true;
      expect_right_both(c);
    }
    expect_right({.spec = kind, .ends = {0, 129, 129, 300, 300}, .m = 301, .n = 136, .k = 272, .exact = true});
    expect_right({.spec = kind, .ends = balanced_ends(9, 9), .m = 9, .n = 72, .k = 144});
    if (kind.gemm.scale_a == kTensorwise && is_fp8(kind.gemm.a)) {
      GroupedCase c{.spec = kind, .ends = {0, 129, 129, 300, 300}, .m = 301, .n = 136, .k = 272, .each_a = true};
      expect_right_both(c);
    }
    expect_right({.spec = kind, .ends = {0, 130, 7}, .m = 396, .n = 136, .k = 144, .exact = true, .capacity = 132});
    expect_right({.spec = kind, .ends = {0, 130, 137}, .m = 140, .n = 136, .k = 0});
  }
}

// Stages with columns of two experts, of the first's end, the second's beginning, both in one, and none; clusters that
// share them; both schedules; an output that is added to.
BOOST_AUTO_TEST_CASE(along_k_of_each_kind) {
  std::vector<GroupedGemmSpec> kinds{
      in_tiles(every_kind_along_k()[0], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true}),
      in_tiles(every_kind_along_k()[1], {.m = 128, .n = 128, .cluster_n = 2, .stages = 4}),
      in_tiles(every_kind_along_k()[3], {.m = 128, .n = 128, .stages = 6, .pingpong = true}),
      in_tiles(every_kind_along_k()[5], {.m = 64, .n = 64, .stages = 12, .pingpong = true}),
      in_tiles(every_kind_along_k()[8], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6}),
      in_tiles(every_kind_along_k()[8], {.m = 192, .n = 128, .stages = 4}),
      in_tiles(every_kind_along_k()[9], {.m = 192, .n = 128, .stages = 4}),
      in_tiles(every_kind_along_k()[9], {.m = 64, .n = 128, .stages = 8, .pingpong = true})};
  compile(kinds);
  for (const GroupedGemmSpec& kind : kinds) {
    expect_right_along_k({.spec = kind,
                          .ends = {0, 129, 129, 300, 301, 640, 640},
                          .m = 136,
                          .n = 200,
                          .k = 656,
                          .exact = true,
                          .of_nans = 3});
    expect_right_along_k({.spec = kind, .ends = balanced_ends(9, 9), .m = 72, .n = 72, .k = 16, .one_scale_inv = true});
  }
}

BOOST_AUTO_TEST_CASE(wrong_ends_along_k_do_no_harm) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::size_t kind : {0U, 8U}) {
    const GroupedGemmSpec of = every_kind_along_k()[kind];
    const GroupedGemmSpec spec = in_tiles(of, grouped_tilings(of).front());
    const AlongKData data({.spec = spec, .ends = {40, 90, 130, 200}, .m = 136, .n = 72, .k = 208}, along_k_maker);
    PlacedAlongK placed(data, cuda, stream);
    for (const Ends& ends :
         {Ends{90, 40, 130, 200}, {-5, 40, kMost, 7}, {kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}}) {
      placed.reset(stream);
      placed.set_ends(ends, stream);
      placed.enqueue(stream);
      BOOST_TEST(placed.out(stream).damage() == "");
    }
    placed.set_ends(data.of().ends, stream);
    placed.enqueue(stream);
    BOOST_TEST(data.fault_of(placed.out(stream)) == "");
  }
}

// Ends that decrease or leave the matrix: which rows an expert has is unspecified, but the bytes around the output stay
// as they are, and nothing is read outside (memcheck).
BOOST_AUTO_TEST_CASE(wrong_ends_do_no_harm) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const GroupedGemmSpec spec =
      in_tiles(every_kind()[0], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true});
  const GroupedData data({.spec = spec, .ends = {40, 90, 130, 200}, .m = 200, .n = 136, .k = 144}, maker);
  PlacedGrouped placed(data, cuda, stream);
  for (const Ends& ends :
       {Ends{90, 40, 130, 200}, {-5, 40, kMost, 7}, {kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}}) {
    placed.poison(stream);
    placed.set_ends(ends, stream);
    placed.enqueue(stream);
    BOOST_TEST(placed.out(stream).damage() == "");
  }
  placed.set_ends(data.of().ends, stream);
  placed.enqueue(stream);
  BOOST_TEST(data.fault_of(placed.out(stream)) == "");
}

BOOST_AUTO_TEST_CASE(wrong_counts_do_no_harm) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const GroupedGemmSpec spec =
      in_tiles(every_kind()[0], {.m = 128, .n = 128, .cluster_m = 2, .stages = 6, .pingpong = true});
  const GroupedData data({.spec = spec, .ends = {50, 0, 49}, .m = 150, .n = 136, .k = 144, .capacity = 50}, maker);
  PlacedGrouped placed(data, cuda, stream);
  for (const Ends& counts : {Ends{51, -1, kMost}, {kMost, kMost, kMost}}) {
    placed.poison(stream);
    placed.set_ends(counts, stream);
    placed.enqueue(stream);
    BOOST_TEST(placed.out(stream).damage() == "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- cross ----------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(cross, Fixture)

BOOST_AUTO_TEST_CASE(every_kind_with_every_shape) {
  std::vector<GroupedGemmSpec> kinds;
  for (const GroupedGemmSpec& kind : every_kind()) kinds.push_back(in_tiles(kind, grouped_tilings(kind).front()));
  compile(kinds);
  for (const GroupedCase& shape : every_shape()) {
    for (const GroupedGemmSpec& kind : kinds) {
      GroupedCase c = shape;
      c.spec = kind;
      expect_right_both(c);
      if (kind.gemm.scale_a == kTensorwise && is_fp8(kind.gemm.a)) {
        c.each_a = true;
        expect_right(c);
        c.each_a = false;
      }
      if (!has_group_scale_inv(kind.gemm) || c.k == 0) continue;
      c.exact = true;
      c.by_group = true;
      expect_right(c);
      c.of_each = true;
      expect_right(c);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_kind_with_every_shape_along_k) {
  std::vector<GroupedGemmSpec> kinds;
  for (const GroupedGemmSpec& kind : every_kind_along_k()) {
    kinds.push_back(in_tiles(kind, grouped_tilings(kind).front()));
  }
  compile(kinds);
  for (const AlongKCase& shape : every_shape_along_k()) {
    for (const GroupedGemmSpec& kind : kinds) {
      for (const bool exact : {true, false}) {
        AlongKCase c = shape;
        c.spec = kind;
        c.exact = exact;
        const std::int64_t unit = 16 / size_of(kind.gemm.a);
        // Rows at multiples of 16 bytes; those of slots are without.
        c.in_padding = has_group_scale_inv(kind.gemm) ? 16 : (unit - c.k % unit) % unit;
        expect_right_along_k(c);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- tilings --------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(tilings, Fixture)

// More tiles than multiprocessors, and experts whose rows end anywhere in a tile. All tilings give the same bits here.
BOOST_AUTO_TEST_CASE(every_tiling) {
  for (const std::size_t kind : {0U, 1U, 5U, 7U, 8U, 9U, 10U}) {
    std::vector<GroupedGemmSpec> specs;
    for (const GemmTiling& tiling : grouped_tilings(every_kind()[kind])) {
      specs.push_back(in_tiles(every_kind()[kind], tiling));
    }
    compile(specs);
    for (const Ends& ends : {Ends{0, 1, 257, 300, 300, 811, 2000}, zipf_ends(2003, 6)}) {
      GuardedMatrix right;
      for (const GroupedGemmSpec& spec : specs) {
        expect_right({.spec = spec, .ends = ends, .m = 2003, .n = 2824, .k = 208, .exact = true}, &right);
      }
      if (!has_group_scale_inv(every_kind()[kind].gemm)) continue;
      for (const GroupedGemmSpec& spec : specs) {
        expect_right({.spec = spec, .ends = ends, .m = 2004, .n = 2824, .k = 208, .exact = true, .by_group = true});
      }
    }
  }
}

// The same along K, where experts have from no step to more than a round of the ring.
BOOST_AUTO_TEST_CASE(every_tiling_along_k) {
  for (const std::size_t kind : {0U, 1U, 3U, 5U, 8U}) {
    std::vector<GroupedGemmSpec> specs;
    for (const GemmTiling& tiling : grouped_tilings(every_kind_along_k()[kind])) {
      specs.push_back(in_tiles(every_kind_along_k()[kind], tiling));
    }
    compile(specs);
    for (const Ends& ends : {Ends{0, 1, 257, 300, 300, 811, 812, 813, 2500, 2600}, zipf_ends(2603, 12)}) {
      GuardedMatrix right;
      for (const GroupedGemmSpec& spec : specs) {
        expect_right_along_k({.spec = spec, .ends = ends, .m = 520, .n = 776, .k = 2608, .exact = true, .of_nans = 8},
                             &right);
      }
    }
  }
}

// One expert with all columns: the bits of gemm() with the same tiling.
BOOST_AUTO_TEST_CASE(one_expert_along_k_has_the_bits_of_gemm) {
  for (const std::size_t kind : {0U, 1U, 3U, 5U}) {
    const GroupedGemmSpec of = every_kind_along_k()[kind];
    const GroupedGemmSpec spec = in_tiles(of, grouped_tilings(of).front());
    const AlongKData data({.spec = spec, .ends = {1360}, .m = 1000, .n = 520, .k = 1360}, along_k_maker);
    PlacedAlongK placed(data, cuda, stream);
    placed.enqueue(stream);
    const GuardedMatrix grouped = placed.out(stream);
    placed.reset(stream);
    const GroupedGemmTensors& t = placed.tensors();
    cuda.gemm(spec.gemm,
              {.a = t.a, .b = t.b, .scale_inv_a = t.scale_inv_a, .scale_inv_b = t.scale_inv_b, .out = t.out, .c = t.c},
              stream);
    BOOST_TEST(bit_difference("gemm", grouped, placed.out(stream)) == "");
  }
}

// One expert with all rows: the bits of gemm() with the same tiling.
BOOST_AUTO_TEST_CASE(one_expert_has_the_bits_of_gemm) {
  for (const std::size_t kind : {0U, 5U, 7U}) {
    const GroupedGemmSpec spec = in_tiles(every_kind()[kind], grouped_tilings(every_kind()[kind]).front());
    const GroupedCase c{.spec = spec, .ends = {1000}, .m = 1000, .n = 520, .k = 1360};
    const GroupedData data(c, maker);
    PlacedGrouped placed(data, cuda, stream);
    placed.enqueue(stream);
    const GuardedMatrix grouped = placed.out(stream);
    placed.poison(stream);
    const GroupedGemmTensors& t = placed.tensors();
    cuda.gemm(spec.gemm, {.a = t.a, .b = t.b, .scale_inv_a = t.scale_inv_a, .scale_inv_b = t.scale_inv_b, .out = t.out},
              stream);
    BOOST_TEST(bit_difference("gemm", grouped, placed.out(stream)) == "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- library --------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(library, Fixture)

// What the library takes if no tiling is named, for few rows and for many.
BOOST_AUTO_TEST_CASE(chooses_a_tiling) {
  const GroupedGemmSpec spec = every_kind()[0];
  expect_right({.spec = spec, .ends = balanced_ends(40, 16), .m = 40, .n = 512, .k = 512, .exact = true});
  expect_right({.spec = spec, .ends = zipf_ends(4000, 8), .m = 4000, .n = 256, .k = 256, .exact = true});
}

// As for decoding: the counts of each step are those that are then in the device's memory.
BOOST_AUTO_TEST_CASE(graphs_take_other_counts_in_each_replay) {
  expect_right_in_replays(
      {.spec = every_kind()[7], .ends = {1, 0, 3}, .m = 24, .n = 264, .k = 272, .exact = true, .capacity = 8},
      {{8, 8, 8}, {0, 0, 1}, {0, 0, 0}});
}

// Each replay of a captured graph takes the ends that are then in the device's memory.
BOOST_AUTO_TEST_CASE(graphs_take_other_ends_in_each_replay) {
  expect_right_in_replays(
      {.spec = every_kind()[0], .ends = zipf_ends(700, 8), .m = 700, .n = 264, .k = 272, .exact = true},
      {balanced_ends(700, 8), one_hot_ends(700, 8, 0), {0, 0, 0, 5, 5, 5, 5, 640}});
}

BOOST_AUTO_TEST_CASE(graphs_take_other_ends_along_k_in_each_replay) {
  for (const std::size_t kind : {0U, 3U}) {
    expect_right_in_replays_along_k(
        {.spec = every_kind_along_k()[kind], .ends = zipf_ends(700, 8), .m = 264, .n = 272, .k = 704, .exact = true},
        {balanced_ends(700, 8), one_hot_ends(700, 8, 0), {0, 0, 0, 5, 5, 5, 5, 640}, {0, 0, 0, 0, 0, 0, 0, 0}});
  }
}

BOOST_AUTO_TEST_CASE(what_the_kernel_does_not_take_is_told) {
  const auto message = [&](const GroupedCase& c) {
    const GroupedData data(c, maker);
    PlacedGrouped placed(data, cuda, stream);
    return error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument);
  };
  const std::string line = print(every_kind()[0]) + ": ";
  const std::string no_other = "; grouped GEMMs have no other kernel";
  BOOST_TEST(message({.spec = every_kind()[0], .ends = {3, 8}, .m = 8, .n = 8, .k = 17}) ==
             line +
                 "kernel sm90 needs a and b in rows along k, at addresses and row strides that are multiples of 16 "
                 "bytes, unless they are staged" +
                 no_other);
  const AlongKData data({.spec = every_kind_along_k()[5], .ends = {3, 8}, .m = 8, .n = 8, .k = 9}, along_k_maker);
  PlacedAlongK placed(data, cuda, stream);
  BOOST_TEST(error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument) ==
             print(every_kind_along_k()[5]) +
                 ": kernel sm90 needs a and b of bf16 or f16 at addresses and row strides that are multiples of 16 "
                 "bytes" +
                 no_other);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
