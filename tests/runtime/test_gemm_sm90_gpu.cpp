// templates/gemm/gemm_sm90.cuh on a Hopper GPU, through Backend::gemm with kernel=sm90: against float64, exactly if the
// inputs are small integers. Outputs are poisoned, the bytes around them must stay untouched, and a second run must
// give the same bits. On other GPUs the tests are skipped.
//
// Suites for --run_test: small (for compute-sanitizer), first (few shapes, every tiling), tails, kinds, groups, large,
// refusals.
#include "support/gpu_test.h"

#include <array>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "support/expect_error.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_sm90_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

// Every tiling that the cost model considers for this kind of sum, and a few others.
std::vector<GemmTiling> tilings(const GemmSpec& kind) {
  std::vector<GemmTiling> all(gemm_tilings(kind).begin(), gemm_tilings(kind).end());
  if (kind.fast_accumulation) {
    all.push_back({256, 128, 1, 2, 4, false});
    all.push_back({128, 192, 2, 1, 5, false});
    all.push_back({128, 128, 1, 2, 6, true});
  }
  if (kind.scale_a == kRowGroups) all.push_back({128, 128, 1, 1, 3, false});  // scale_inv of one step at a time
  return all;
}

std::vector<KernelSpec> with_tilings(GemmSpec spec) {
  std::vector<KernelSpec> specs;
  spec.kernel = GemmKernel::sm90;
  for (const GemmTiling& tiling : tilings(spec)) {
    spec.tiling = tiling;
    specs.emplace_back(spec);
  }
  return specs;
}

struct Fixture : GemmOnGpu {
  Fixture() : GemmOnGpu(context()) { BOOST_REQUIRE_MESSAGE(on_hopper(), "this GPU is no Hopper"); }

  static bool on_hopper() { return context().cache().target() == target_for(9, 0); }
};

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

// More tiles than one in both directions, the last ones ragged, and more steps than a ring has stages (except for
// stream-K, whose blocks have few steps each).
constexpr Shape kRagged{300, 392, 2064};

BOOST_AUTO_TEST_CASE(every_tiling) {
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs =
        with_tilings({.scale_a = kRowwise, .scale_b = kRowwise, .bias = true, .fast_accumulation = fast});
    compile(specs);
    for (const KernelSpec& spec : specs) expect_right({.spec = spec, .shape = kRagged});
  }
}

BOOST_AUTO_TEST_CASE(every_tiling_with_scale_inv_of_groups) {
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    const std::vector<KernelSpec> specs = with_tilings({.scale_a = kRowGroups, .scale_b = scale_b});
    compile(specs);
    for (const KernelSpec& spec : specs) {
      expect_right({.spec = spec, .shape = kRagged});
      expect_right({.spec = spec, .shape = kRagged, .a_by_group = true, .b_by_group = true});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(first, Fixture)

BOOST_AUTO_TEST_CASE(whole_tiles) {
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs = with_tilings({.fast_accumulation = fast});
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Shape shape : {Shape{256, 256, 128}, Shape{256, 256, 1024}, Shape{1536, 2048, 640}}) {
        expect_right({.spec = spec, .shape = shape, .input = Input::integers});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tails, Fixture)

// Every pair of M and N with every tiling; K varies with the case. Rowwise scale_inv and a bias, which must not be read
// out of bounds.
BOOST_AUTO_TEST_CASE(of_m_n_and_k) {
  constexpr std::array<std::int64_t, 8> kExtents{1, 7, 16, 17, 100, 127, 129, 1000};
  constexpr std::array<std::int64_t, 7> kDepths{16, 48, 128, 144, 512, 528, 1040};
  std::size_t turn = 0;
  for (const bool fast : {true, false}) {
    const GemmSpec base{.scale_a = kRowwise, .scale_b = kRowwise, .bias = true, .fast_accumulation = fast};
    const std::vector<KernelSpec> specs = with_tilings(base);
    compile(specs);
    for (const std::int64_t m : kExtents) {
      for (const std::int64_t n : kExtents) {
        for (const KernelSpec& spec : specs) {
          const Input input = turn % 3 == 0 ? Input::integers : Input::normal;
          expect_right({.spec = spec, .shape = {m, n, kDepths[turn++ % kDepths.size()]}, .input = input});
        }
      }
    }
  }
}

// Rows of every matrix start at multiples of 16 bytes with padding between them; the output's rows do not.
BOOST_AUTO_TEST_CASE(of_pitches) {
  for (const Dtype out : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (const Shape shape : {Shape{129, 200, 272}, Shape{70, 131, 96}}) {
      expect_right({.spec = GemmSpec{.out = out, .kernel = GemmKernel::sm90},
                    .shape = shape,
                    .placement = {.padding = 16, .offset = 16}});
    }
  }
}

// The output's rows start at multiples of 16 bytes but do not end at one: the kernel must not write the bytes after
// them.
BOOST_AUTO_TEST_CASE(of_rows_that_end_anywhere) {
  for (const bool fast : {true, false}) {
    const GemmSpec bf16{.fast_accumulation = fast, .kernel = GemmKernel::sm90};
    const GemmSpec f32{.out = Dtype::f32, .fast_accumulation = fast, .kernel = GemmKernel::sm90};
    for (const std::int64_t n : {1, 129, 257, 1001}) {
      expect_right({.spec = f32, .shape = {130, n, 125}, .placement = {.padding = 3}});
      expect_right({.spec = bf16, .shape = {130, n, 121}, .placement = {.padding = 7}});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(kinds, Fixture)

// Formats, outputs, scales, bias and sums, in all combinations that interact in the kernel.
BOOST_AUTO_TEST_CASE(of_calls) {
  std::vector<KernelSpec> specs;
  for (const bool fast : {true, false}) {
    for (const Dtype a : {Dtype::e4m3fn, Dtype::e5m2}) {
      for (const Dtype b : {Dtype::e4m3fn, Dtype::e5m2}) {
        specs.emplace_back(GemmSpec{.a = a, .b = b, .fast_accumulation = fast, .kernel = GemmKernel::sm90});
      }
    }
    for (const Dtype out : kHighPrecisionDtypes) {
      for (const auto scale_a : {kTensorwise, kRowwise}) {
        for (const auto scale_b : {kTensorwise, kRowwise}) {
          for (const bool bias : {false, true}) {
            specs.emplace_back(GemmSpec{.out = out,
                                        .scale_a = scale_a,
                                        .scale_b = scale_b,
                                        .bias = bias,
                                        .fast_accumulation = fast,
                                        .kernel = GemmKernel::sm90,
                                        .tiling = gemm_tilings({.fast_accumulation = fast})[0]});
          }
        }
      }
    }
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {300, 392, 1040}});
    expect_right({.spec = spec, .shape = {300, 392, 272}, .input = Input::integers});
  }
}

// NaN reaches exactly the outputs that depend on it.
BOOST_AUTO_TEST_CASE(of_inputs) {
  for (const bool fast : {true, false}) {
    const GemmSpec spec{.out = Dtype::f32, .fast_accumulation = fast, .kernel = GemmKernel::sm90};
    expect_right({.spec = spec, .shape = {200, 136, 256}, .input = Input::nan});
    expect_right({.spec = spec, .shape = {200, 136, 256}, .input = Input::zeros});
  }
}

// GEMMs that cuBLASLt refuses come here without being named.
BOOST_AUTO_TEST_CASE(of_calls_that_the_library_routes) {
  expect_right({.spec = parse("gemm e5m2*e5m2->bf16 fast"), .shape = {300, 392, 1040}});
  expect_right({.spec = parse("gemm e4m3fn*e4m3fn->bf16 scale=tensor,row"), .shape = {300, 392, 1040}});
  expect_right({.spec = parse("gemm e4m3fn*e4m3fn->bf16 scale=row,row bias"), .shape = {300, 391, 1040}});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(groups, Fixture)

// scale_inv for each 128 of K: tails of all three sizes, several tiles per block, with and without a bias.
BOOST_AUTO_TEST_CASE(of_k) {
  constexpr std::array kShapes{Shape{1, 1, 16},       Shape{256, 256, 256},  Shape{129, 100, 144},
                               Shape{17, 1000, 1040}, Shape{1000, 127, 400}, Shape{300, 392, 2064},
                               Shape{7, 16, 128}};
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    for (const bool bias : {false, true}) {
      const std::vector<KernelSpec> specs = with_tilings({.scale_a = kRowGroups, .scale_b = scale_b, .bias = bias});
      compile(specs);
      for (const KernelSpec& spec : specs) {
        for (const Shape& shape : kShapes) {
          expect_right({.spec = spec, .shape = shape});
          expect_right({.spec = spec, .shape = shape, .input = Input::integers});
        }
        if (!bias) expect_right({.spec = spec, .shape = {3000, 2100, 400}});
      }
    }
  }
}

// With one row of scale_inv for each group, as casts of transposed operands write them: for both operands, and for one
// at a time.
BOOST_AUTO_TEST_CASE(by_group) {
  constexpr std::array kShapes{Shape{1, 1, 16}, Shape{129, 100, 144}, Shape{300, 392, 2064}, Shape{1000, 127, 400}};
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    const std::vector<KernelSpec> specs = with_tilings({.scale_a = kRowGroups, .scale_b = scale_b});
    compile(specs);
    std::size_t turn = 0;
    for (const KernelSpec& spec : specs) {
      for (const Shape& shape : kShapes) {
        const bool a = turn++ % 2 == 0;
        expect_right({.spec = spec, .shape = shape, .a_by_group = true, .b_by_group = true});
        expect_right({.spec = spec, .shape = shape, .input = Input::integers, .a_by_group = a, .b_by_group = !a});
      }
      expect_right({.spec = spec, .shape = {3000, 2100, 400}, .a_by_group = true, .b_by_group = true});
    }
  }
}

BOOST_AUTO_TEST_CASE(of_calls) {
  std::vector<KernelSpec> specs;
  for (const Dtype a : {Dtype::e4m3fn, Dtype::e5m2}) {
    for (const Dtype b : {Dtype::e4m3fn, Dtype::e5m2}) {
      specs.emplace_back(GemmSpec{.a = a, .b = b, .out = Dtype::f32, .scale_a = kRowGroups, .scale_b = kBlocks});
    }
  }
  specs.emplace_back(GemmSpec{.out = Dtype::f16, .scale_a = kRowGroups, .scale_b = kRowGroups});
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {300, 392, 1040}});  // the library's own choice
    expect_right({.spec = spec, .shape = {60, 39, 300}});     // a size for gemm_mma
    expect_right({.spec = spec, .shape = {300, 392, 1040}, .a_by_group = true, .b_by_group = true});
    expect_right({.spec = spec, .shape = {60, 39, 300}, .a_by_group = true, .b_by_group = true});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(large, Fixture)

// Several tiles per block, with every tiling.
BOOST_AUTO_TEST_CASE(many_tiles) {
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs =
        with_tilings({.scale_a = kRowwise, .scale_b = kRowwise, .fast_accumulation = fast});
    compile(specs);
    for (const KernelSpec& spec : specs) expect_right({.spec = spec, .shape = {3000, 4104, 528}});
  }
}

BOOST_AUTO_TEST_CASE(deep_sums) {
  for (const char* const line : {"gemm e4m3fn*e4m3fn->f32 fast kernel=sm90", "gemm e4m3fn*e4m3fn->f32 kernel=sm90",
                                 "gemm e5m2*e5m2->f32 kernel=sm90"}) {
    expect_right({.spec = parse(line), .shape = {260, 300, 16384}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(refusals, Fixture)

BOOST_AUTO_TEST_CASE(say_why) {
  const KernelSpec forced = parse("gemm e4m3fn*e4m3fn->bf16 kernel=sm90");
  check_contains(refusal({.spec = forced, .shape = {8, 8, 24}}), {"multiples of 16 bytes", "leave kernel out"});
  check_contains(refusal({.spec = forced, .shape = {8, 8, 32}, .placement = {8, 0}}), {"multiples of 16 bytes"});
  check_contains(refusal({.spec = parse("gemm e5m2*e5m2->bf16 kernel=cublaslt"), .shape = {16, 16, 32}}),
                 {"kernel cublaslt does not multiply e5m2 by e5m2", "leave kernel out"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
