// templates/gemm/gemm_mma.cuh on a GPU, through Backend::gemm with kernel=mma; see support/gemm_on_gpu.h.
// (tests/templates/test_gemm_mma_emulated.cpp runs the same kernel on the host.)
//
// Suites for --run_test: small (one of each kind, short enough for compute-sanitizer), tails, kinds, placements, large,
// routes.
#include "support/gpu_test.h"

#include <array>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/context.h"
#include "support/expect_error.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_mma_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture : GemmOnGpu {
  Fixture() : GemmOnGpu(context()) {}
};

GemmSpec with_tile(GemmSpec spec, const GemmTiling& tiling) {
  spec.kernel = GemmKernel::mma;
  spec.tiling = tiling;
  return spec;
}

std::vector<KernelSpec> with_tiles(const std::vector<GemmSpec>& kinds) {
  std::vector<KernelSpec> specs;
  for (const GemmSpec& kind : kinds) {
    for (const GemmTiling& tiling : kMmaTilings) specs.emplace_back(with_tile(kind, tiling));
  }
  return specs;
}

// Equal and mixed formats, the 16-bit types, scale_inv of all kinds.
std::vector<GemmSpec> typical_kinds() {
  return {{.a = Dtype::e4m3fn, .b = Dtype::e5m2, .scale_a = kRowwise, .scale_b = kRowwise, .bias = true},
          {.a = Dtype::e4m3fnuz, .b = Dtype::e5m2fnuz, .out = Dtype::f32, .scale_b = kRowwise},
          {.a = Dtype::e5m2, .b = Dtype::e4m3fnuz, .out = Dtype::f16, .scale_a = kRowwise, .bias = true},
          {.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::f32, .bias = true},
          {.a = Dtype::f16, .b = Dtype::f16, .out = Dtype::f16},
          {.scale_a = kRowGroups, .scale_b = kBlocks},
          {.a = Dtype::e5m2fnuz, .b = Dtype::e4m3fn, .scale_a = kRowGroups, .scale_b = kRowGroups, .bias = true}};
}

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(one_of_each_kind) {
  const std::vector<KernelSpec> specs = with_tiles(typical_kinds());
  compile(specs);
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {128, 128, 64}, .input = Input::integers});
    expect_right({.spec = spec, .shape = {129, 70, 200}, .input = Input::integers});
    expect_right({.spec = spec, .shape = {70, 131, 163}, .placement = {3, 1}});
    expect_right({.spec = spec, .shape = {5, 7, 0}});
  }
}

// With one row of scale_inv for each group of K; by gemm_simt as well.
BOOST_AUTO_TEST_CASE(scale_inv_by_group) {
  std::vector<KernelSpec> specs;
  for (GemmSpec kind : typical_kinds()) {
    if (!has_group_scale_inv(kind)) continue;
    for (const GemmTiling& tiling : kMmaTilings) specs.emplace_back(with_tile(kind, tiling));
    kind.kernel = GemmKernel::simt;
    specs.emplace_back(kind);
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    for (const std::int64_t k : {0, 1, 127, 128, 129, 1000}) {
      expect_right({.spec = spec, .shape = {70, 261, k}, .a_by_group = true, .b_by_group = true});
      expect_right({.spec = spec, .shape = {70, 261, k}, .input = Input::integers, .a_by_group = true});
      expect_right({.spec = spec, .shape = {7, 131, k}, .input = Input::integers, .b_by_group = true});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tails, Fixture)

// Every pair of M and N with both tiles; K and the kind of call vary with the case, so that each K meets each kind.
BOOST_AUTO_TEST_CASE(of_m_n_and_k) {
  constexpr std::array<std::int64_t, 8> kExtents{1, 7, 16, 17, 100, 127, 129, 1000};
  constexpr std::array<std::int64_t, 9> kDepths{1, 7, 16, 17, 100, 127, 129, 1000, 0};
  const std::vector<GemmSpec> kinds = typical_kinds();
  compile(with_tiles(kinds));
  std::size_t turn = 0;
  for (const std::int64_t m : kExtents) {
    for (const std::int64_t n : kExtents) {
      for (const GemmTiling& tiling : kMmaTilings) {
        for (int time = 0; time < 2; ++time, ++turn) {
          const Input input = turn % 3 == 0 ? Input::normal : Input::integers;
          expect_right({.spec = with_tile(kinds[turn % kinds.size()], tiling),
                        .shape = {m, n, kDepths[turn % kDepths.size()]},
                        .input = input});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(kinds, Fixture)

// Every pair of formats with every kind of scale_inv; outputs vary with the case.
BOOST_AUTO_TEST_CASE(of_formats) {
  std::vector<KernelSpec> specs;
  std::size_t turn = 0;
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) {
      const GemmSpec base{.a = a, .b = b, .out = kHighPrecisionDtypes[turn++ % kHighPrecisionDtypes.size()]};
      const auto add = [&](ScaleGranularity scale_a, ScaleGranularity scale_b) {
        GemmSpec spec = base;
        spec.scale_a = scale_a;
        spec.scale_b = scale_b;
        spec.bias = specs.size() % 2 == 0;
        specs.emplace_back(with_tile(spec, kMmaTilings[turn % 2]));
      };
      for (const auto scale_a : {kTensorwise, kRowwise}) {
        for (const auto scale_b : {kTensorwise, kRowwise}) add(scale_a, scale_b);
      }
      add(kRowGroups, kBlocks);
      add(kRowGroups, kRowGroups);
    }
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {300, 391, 1033}});
    expect_right({.spec = spec, .shape = {300, 391, 272}, .input = Input::integers});
  }
}

BOOST_AUTO_TEST_CASE(of_layouts) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const Dtype out : {dtype, Dtype::f32}) {
      for (const Layout layout_a : {Layout::k_major, Layout::mn_major}) {
        for (const Layout layout_b : {Layout::k_major, Layout::mn_major}) {
          const GemmSpec kind{
              .a = dtype, .b = dtype, .out = out, .layout_a = layout_a, .layout_b = layout_b, .bias = true};
          for (const KernelSpec& spec : with_tiles({kind})) {
            expect_right({.spec = spec, .shape = {300, 391, 1033}});
            expect_right({.spec = spec, .shape = {129, 200, 272}, .input = Input::integers});
            expect_right({.spec = spec, .shape = {129, 200, 272}, .placement = {8, 8}});
          }
        }
      }
    }
  }
}

// NaN and Inf reach exactly the outputs that depend on them.
BOOST_AUTO_TEST_CASE(of_inputs) {
  for (GemmSpec kind : typical_kinds()) {
    kind.out = Dtype::f32;  // so that no finite result becomes Inf
    for (const Input input : {Input::nan, Input::zeros, Input::inf}) {
      expect_right({.spec = with_tile(kind, kMmaTilings[0]), .shape = {200, 136, 257}, .input = input});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(placements, Fixture)

// Rows and addresses at multiples of 16 bytes, of 4, and at neither; the output aligned to pairs and not.
BOOST_AUTO_TEST_CASE(of_rows) {
  for (const KernelSpec& spec : with_tiles(typical_kinds())) {
    for (const Placement placement :
         {Placement{16, 16}, Placement{16, 4}, Placement{4, 0}, Placement{12, 8}, Placement{3, 0}, Placement{0, 1},
          Placement{1, 1}, Placement{2, 2}, Placement{17, 3}}) {
      for (const Shape shape : {Shape{129, 200, 272}, Shape{70, 131, 97}}) {
        expect_right({.spec = spec, .shape = shape, .input = Input::integers, .placement = placement});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(large, Fixture)

// More tiles than SMs, and the library's own choice of the tile.
BOOST_AUTO_TEST_CASE(many_tiles) {
  for (GemmSpec kind : typical_kinds()) {
    kind.kernel = GemmKernel::mma;
    expect_right({.spec = kind, .shape = {3000, 2111, 528}});
    expect_right({.spec = kind, .shape = {1537, 2048, 333}});
  }
}

BOOST_AUTO_TEST_CASE(deep_sums) {
  for (const GemmTiling& tiling : kMmaTilings) {
    expect_right({.spec = with_tile({.out = Dtype::f32}, tiling), .shape = {260, 300, 16384}});
    expect_right(
        {.spec = with_tile({.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::f32}, tiling), .shape = {60, 70, 16383}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(routes, Fixture)

// GEMMs that cuBLASLt and gemm_sm90 refuse come here without being named, and f32 goes on to gemm_simt.
BOOST_AUTO_TEST_CASE(of_calls) {
  for (const char* const line : {"gemm e4m3fnuz*e4m3fnuz->bf16 scale=row,row", "gemm e5m2*e5m2fnuz->f32 bias",
                                 "gemm e4m3fn*e4m3fn->f16 scale=1x128,1x128", "gemm e4m3fn*e5m2->bf16"}) {
    const Case automatic{.spec = parse(line), .shape = {100, 132, 331}};
    Case forced = automatic;
    std::get<GemmSpec>(forced.spec).kernel = GemmKernel::mma;
    const SharedMatrices inputs = maker.inputs(automatic);
    BOOST_TEST(bit_difference("out", run(forced, inputs, cuda, stream).at("out"),
                              run(automatic, inputs, cuda, stream).at("out")) == "");
    expect_right(automatic);
  }
  expect_right({.spec = parse("gemm f32*f32->f32 nn"), .shape = {33, 35, 37}, .placement = {1, 1}});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
