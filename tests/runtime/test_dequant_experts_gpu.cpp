// dequant_matmul of experts on a GPU: against float64, within the bound of f32 sums and the output's rounding. Outputs
// are poisoned; rows that no expert has and the bytes around the output must stay untouched; rows of x that no expert
// has are NaN; a second run must give the same bits, and each call must be one launch.
//
// Suites for --run_test: small (for compute-sanitizer), cross, tilings, library.
#include "support/gpu_test.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/warm_up.h"
#include "support/compare.h"
#include "support/dequant_experts_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_dequant_experts_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

bool is_hopper() { return context().cache().target() == target_for(9, 0); }

DequantMatmulSpec spec_of(const std::string& words) {
  return std::get<DequantMatmulSpec>(parse("dequant_matmul " + words + " experts"));
}

DequantMatmulSpec in_tiles(DequantMatmulSpec spec, DequantKernel kernel, const DequantTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

// A tiling of each kernel that this GPU has, for few rows and for many.
std::vector<DequantMatmulSpec> with_kernels(const DequantMatmulSpec& spec) {
  std::vector<DequantMatmulSpec> all{
      in_tiles(spec, DequantKernel::mma, {.tokens = 8, .rows = 64, .depth = 128, .stages = 3, .k_warps = 2}),
      in_tiles(spec, DequantKernel::mma, {.tokens = 64, .rows = 128, .depth = 64, .stages = 3})};
  if (!is_hopper() || !is_packed(spec.layout)) return all;
  all.push_back(in_tiles(spec, DequantKernel::sm90, {.tokens = 16, .depth = 128, .stages = 4, .split = 2}));
  all.push_back(
      in_tiles(spec, DequantKernel::sm90, {.tokens = 32, .rows = 64, .depth = 64, .stages = 4, .k_warps = 2}));
  all.push_back(
      in_tiles(spec, DequantKernel::sm90, {.wgmma = true, .tokens = 64, .rows = 128, .depth = 64, .stages = 6}));
  return all;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  int runs = 0;
  int faults = 0;

  ~Fixture() { std::cout << runs << " cases\n"; }

  static void compile(const std::vector<DequantMatmulSpec>& specs) {
    warm(context().cache(), std::vector<KernelSpec>(specs.begin(), specs.end()), context().cache().target(), 0);
  }

  void expect_right(const DequantExpertsData& data, DequantMatmulSpec spec) {
    DequantExpertsCase named = data.of();
    named.spec = spec;
    PlacedDequantExperts placed(data, cuda, stream);
    const auto enqueue = [&] { cuda.dequant_matmul(spec, placed.tensors(), stream); };
    const std::int64_t launches = cuda.device_api().launches();
    enqueue();
    const bool nothing = named.m == 0 || named.n == 0;
    const bool one_launch = cuda.device_api().launches() == launches + (nothing ? 0 : 1);
    const GuardedMatrix first = placed.out(stream);
    std::string fault = one_launch ? data.fault_of(first) : "was not one launch";
    placed.poison(stream);
    placed.tensors().constant_weight = true;
    enqueue();
    if (fault.empty() && placed.out(stream).bytes() != first.bytes()) {
      fault = "again: " + bit_difference("out", first, placed.out(stream));
    }
    BOOST_CHECK_MESSAGE(fault.empty(), describe(named) << ": " << fault);
    faults += fault.empty() ? 0 : 1;
    if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
    ++runs;
  }

  void expect_right(const DequantExpertsCase& c) { expect_right(DequantExpertsData(c), c.spec); }

  // Whatever the ends are, the bytes around the output stay as they are, and nothing is read outside (memcheck).
  void expect_no_harm(const DequantExpertsCase& c, const std::vector<Ends>& wrong) {
    const DequantExpertsData data(c);
    PlacedDequantExperts placed(data, cuda, stream);
    for (const Ends& ends : wrong) {
      placed.poison(stream);
      placed.set_ends(ends, stream);
      placed.enqueue(stream);
      BOOST_TEST(placed.out(stream).damage() == "", describe(c));
    }
    placed.poison(stream);
    placed.set_ends(c.ends, stream);
    placed.enqueue(stream);
    BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
  }

  // Captures the case once, and replays it with each of these ends in its place, and with its own again.
  void expect_right_in_replays(const DequantExpertsCase& c, const std::vector<Ends>& others) {
    const DequantExpertsData data(c);
    PlacedDequantExperts placed(data, cuda, stream);
    placed.enqueue(stream);
    Graph captured(stream, [&] { placed.enqueue(stream); });
    std::vector<Ends> all = others;
    all.push_back(c.ends);
    for (const Ends& ends : all) {
      DequantExpertsCase with = c;
      with.ends = ends;
      const DequantExpertsData right(with);
      PlacedDequantExperts its(right, cuda, stream);
      its.enqueue(stream);
      // x's rows go where those ends have them; weights and scale_inv are the same.
      cuda.device_api().copy_from_host(placed.tensors().x.data, right.x().element(0, 0),
                                       static_cast<std::size_t>(c.m * c.k) * 2, stream);
      placed.poison(stream);
      placed.set_ends(ends, stream);
      captured.replay(stream);
      BOOST_TEST(right.fault_of(placed.out(stream)) == "", describe(with));
      BOOST_TEST((placed.out(stream).bytes() == its.out(stream).bytes()), describe(with));
      ++runs;
    }
  }
};

std::vector<DequantMatmulSpec> every_kind() {
  return {spec_of("bf16*e4m3fn->bf16 packed scale=row bias"),
          spec_of("bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu"),
          spec_of("f16*e4m3fn->f16 packed_f16 scale=row"),
          spec_of("f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu bias"),
          spec_of("bf16*e5m2->f32 packed scale=1x128"),
          spec_of("bf16*e2m3fn->bf16 packed scale=1x32"),
          spec_of("bf16*e3m2fn->bf16 packed scale=tensor"),
          spec_of("bf16*e4m3fn->bf16 packed scale=128x128 bias"),
          spec_of("bf16*e4m3fnuz->bf16 packed scale=1x64"),
          spec_of("bf16*e4m3fn->bf16 row_major scale=row"),
          spec_of("f16*e2m1fn->f16 row_major scale=1x32 factors=e8m0fnu")};
}

// Experts without rows first, last and between; one row each; ends at and next to the bounds of tiles; rows that no
// expert has; a last tile of few rows of the weight; more experts than warps' lanes; counts; NaN and Inf in weights.
std::vector<DequantExpertsCase> every_shape() {
  return {{.ends = balanced_ends(9, 9), .m = 9, .n = 72, .k = 144},
          {.ends = {0, 0, 8, 17, 17, 82, 82}, .m = 90, .n = 200, .k = 272, .faulty = true},
          {.ends = {64, 65, 129}, .m = 129, .n = 131, .k = 72, .placement = {.out_padding = 3}},
          {.ends = zipf_ends(150, 70), .m = 150, .n = 136, .k = 64},
          {.ends = {3, 0, 8, 1}, .m = 32, .n = 200, .k = 272, .capacity = 8},
          {.ends = {0, 70, 130, 0, 1}, .m = 650, .n = 72, .k = 136, .capacity = 130, .faulty = true},
          {.ends = {7}, .m = 7, .n = 8, .k = 8},
          {.ends = {0, 0, 0}, .m = 5, .n = 16, .k = 32},
          {.ends = {0, 0}, .m = 0, .n = 16, .k = 32}};
}

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

// ---- small ----------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(of_each_kind) {
  for (const std::size_t kind : {0U, 1U, 4U, 9U}) {
    const std::vector<DequantMatmulSpec> specs = with_kernels(every_kind()[kind]);
    compile(specs);
    for (const DequantMatmulSpec& spec : specs) {
      expect_right({.spec = spec, .ends = {0, 9, 9, 75, 75}, .m = 76, .n = 136, .k = 144});
      expect_right({.spec = spec, .ends = {0, 5, 1}, .m = 15, .n = 70, .k = 72, .capacity = 5});
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_ends_do_no_harm) {
  for (const DequantMatmulSpec& spec : with_kernels(every_kind()[1])) {
    expect_no_harm({.spec = spec, .ends = {4, 9, 13, 20}, .m = 20, .n = 136, .k = 144},
                   {{9, 4, 13, 20}, {-5, 4, kMost, 7}, {kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}});
  }
}

BOOST_AUTO_TEST_CASE(wrong_counts_do_no_harm) {
  for (const DequantMatmulSpec& spec : with_kernels(every_kind()[0])) {
    expect_no_harm({.spec = spec, .ends = {5, 0, 4}, .m = 15, .n = 136, .k = 144, .capacity = 5},
                   {{6, -1, kMost}, {kMost, kMost, kMost}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- cross ----------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(cross, Fixture)

BOOST_AUTO_TEST_CASE(every_kind_with_every_shape) {
  for (const DequantMatmulSpec& kind : every_kind()) {
    const std::vector<DequantMatmulSpec> specs = with_kernels(kind);
    compile(specs);
    for (DequantExpertsCase c : every_shape()) {
      c.spec = kind;
      const DequantExpertsData data(c);
      for (const DequantMatmulSpec& spec : specs) expect_right(data, spec);
    }
  }
}

// Rows of x, of codes and of outputs at any address: kernel mma takes them.
BOOST_AUTO_TEST_CASE(rows_anywhere) {
  for (const std::size_t kind : {0U, 1U, 9U, 10U}) {
    for (const DequantPlacement& placement :
         {DequantPlacement{.x_padding = 3, .x_offset = 1, .weight_padding = 6, .weight_offset = 1, .out_padding = 5},
          DequantPlacement{.x_padding = 8, .x_offset = 8, .weight_padding = 2, .out_padding = 1, .out_offset = 1}}) {
      expect_right(
          {.spec = every_kind()[kind], .ends = {1, 1, 12, 30}, .m = 31, .n = 133, .k = 264, .placement = placement});
    }
  }
}

BOOST_AUTO_TEST_CASE(as_many_experts_as_there_may_be) {
  for (const std::size_t kind : {0U, 1U}) {
    for (const DequantMatmulSpec& spec : with_kernels(every_kind()[kind])) {
      expect_right({.spec = spec, .ends = zipf_ends(700, 512), .m = 700, .n = 40, .k = 64});
      expect_right({.spec = spec, .ends = Ends(512, 1), .m = 1024, .n = 8, .k = 32, .capacity = 2});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- tilings --------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(tilings, Fixture)

// Every tiling that is offered for some number of rows, with several tiles for each multiprocessor.
BOOST_AUTO_TEST_CASE(every_tiling) {
  const MatmulDevice device{.target = context().cache().target(), .multiprocessors = 132};
  // The last one: rows of scale_inv that begin at multiples of four bytes, which come with the codes.
  for (const auto& [kind, k] : {std::pair{0U, 1160}, {1U, 1160}, {4U, 1160}, {1U, 1152}}) {
    DequantExpertsCase c{
        .spec = every_kind()[kind], .ends = {0, 1, 9, 9, 26, 59, 124, 131, 131}, .m = 132, .n = 3 * 1024 + 72, .k = k};
    const DequantExpertsData data(c);
    std::vector<DequantMatmulSpec> specs;
    for (const std::int64_t m : {1, 6, 16, 32, 64, 128}) {
      for (const DequantMatmulSpec& named : dequant_kernels(c.spec, device)) {
        for (const DequantTiling& tiling : dequant_tilings(named, {.m = m, .n = 16 * c.n, .k = c.k}, device)) {
          DequantMatmulSpec spec = in_tiles(named, named.kernel, tiling);
          if (std::ranges::find(specs, spec) == specs.end()) specs.push_back(std::move(spec));
        }
      }
    }
    compile(specs);
    for (const DequantMatmulSpec& spec : specs) expect_right(data, spec);
  }
}

// One expert with all rows: the bits of the matmul without experts, with the same tiling.
BOOST_AUTO_TEST_CASE(one_expert_has_the_bits_of_one_weight) {
  for (const std::size_t kind : {0U, 1U, 4U, 9U}) {
    for (const DequantMatmulSpec& spec : with_kernels(every_kind()[kind])) {
      const DequantExpertsData data({.spec = spec, .ends = {100}, .m = 100, .n = 520, .k = 1360});
      PlacedDequantExperts placed(data, cuda, stream);
      placed.enqueue(stream);
      const GuardedMatrix of_expert = placed.out(stream);
      placed.poison(stream);
      DequantMatmulSpec plain = spec;
      plain.experts = false;
      DequantMatmulTensors tensors = placed.tensors();
      tensors.ends = {};
      cuda.dequant_matmul(plain, tensors, stream);
      BOOST_TEST(bit_difference("out", of_expert, placed.out(stream)) == "", print(KernelSpec(spec)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- library --------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(library, Fixture)

// What the library takes if no tiling is named, for few rows and for many.
BOOST_AUTO_TEST_CASE(chooses_a_tiling) {
  for (const std::size_t kind : {0U, 1U}) {
    const DequantMatmulSpec spec = every_kind()[kind];
    expect_right({.spec = spec, .ends = {0, 0, 1, 1, 2, 3, 4, 4}, .m = 4, .n = 512, .k = 512});
    expect_right({.spec = spec, .ends = balanced_ends(64, 16), .m = 64, .n = 512, .k = 512});
    expect_right({.spec = spec, .ends = zipf_ends(300, 8), .m = 300, .n = 256, .k = 256});
  }
}

// Each replay of a captured graph takes the ends, or counts, that are then in the device's memory.
BOOST_AUTO_TEST_CASE(graphs_take_other_ends_in_each_replay) {
  for (const std::size_t kind : {0U, 1U}) {
    const DequantMatmulSpec spec = every_kind()[kind];
    expect_right_in_replays({.spec = spec, .ends = zipf_ends(70, 8), .m = 70, .n = 264, .k = 272},
                            {balanced_ends(70, 8), one_hot_ends(70, 8, 0), {0, 0, 0, 5, 5, 5, 5, 64}});
    expect_right_in_replays({.spec = spec, .ends = {1, 0, 3}, .m = 24, .n = 264, .k = 272, .capacity = 8},
                            {{8, 8, 8}, {0, 0, 1}, {0, 0, 0}});
  }
}

// Several in a row, with work of each on the same multiprocessors: nothing is left over from one to the next.
BOOST_AUTO_TEST_CASE(many_in_a_row) {
  const DequantExpertsData data({.spec = every_kind()[1], .ends = zipf_ends(60, 32), .m = 60, .n = 1032, .k = 1056});
  PlacedDequantExperts placed(data, cuda, stream);
  placed.enqueue(stream);
  const GuardedMatrix first = placed.out(stream);
  placed.poison(stream);
  for (int round = 0; round < 50; ++round) placed.enqueue(stream);
  BOOST_TEST((placed.out(stream).bytes() == first.bytes()));
}

BOOST_AUTO_TEST_CASE(what_no_kernel_takes_is_told) {
  const DequantMatmulSpec spec =
      in_tiles(every_kind()[0], DequantKernel::sm90, {.tokens = 16, .depth = 128, .stages = 4, .split = 2});
  const DequantExpertsData data({.spec = spec, .ends = {3, 8}, .m = 8, .n = 8, .k = 17});
  PlacedDequantExperts placed(data, cuda, stream);
  const std::string reason =
      is_hopper() ? "kernel sm90 needs rows of x at multiples of 16 bytes" : "kernel sm90 runs on sm_90a only";
  BOOST_TEST(error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument) ==
             print(KernelSpec(spec)) + ": " + reason + "; leave kernel out to have the library choose one");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
