// gemm_sm90 with operands of bf16 and f16 on a Hopper GPU, against float64: both dtypes, operands along and across K,
// every tiling and kind of epilogue. Outputs are poisoned, the bytes around them must stay untouched, and a second run
// must give the same bits.
//
// Suites for --run_test: small (for compute-sanitizer), tilings, shapes, library.
#include "support/gpu_test.h"

#include <array>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "support/compare.h"
#include "support/epilogue_reference.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_sm90_16bit_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

constexpr std::array kLayouts{"nt", "nn", "tn", "tt"};

// What follows the layouts in a line.
constexpr std::array<const char*, 8> kEpilogues{"",
                                                "bias",
                                                "epilogue=relu(x)",
                                                "bias epilogue=silu(x) also=preactivation",
                                                "epilogue=silu(x)*gate",
                                                "epilogue=x+residual",
                                                "epilogue=sigmoid(x)*w[col]+r[row] also=amax",
                                                "c=f32 also=amax"};

GemmSpec spec_of(const std::string& in, const std::string& out, const char* layouts, const char* epilogue) {
  return std::get<GemmSpec>(parse("gemm " + in + "*" + in + "->" + out + " " + layouts + " " + epilogue));
}

// M, N and K leave the same remainder by 8, so that one padding makes the rows of every matrix whole.
struct Sized {
  Shape shape;
  Placement placement;
};
constexpr std::array kSmall{Sized{{1, 1, 1}, {7, 0}}, Sized{{65, 137, 73}, {7, 8}}, Sized{{136, 264, 128}, {0, 0}}};
constexpr std::array kOdd{Sized{{1, 1, 1}, {7, 8}},         Sized{{1, 1001, 1033}, {7, 0}},
                          Sized{{17, 129, 65}, {7, 16}},    Sized{{127, 63, 191}, {1, 0}},
                          Sized{{129, 265, 121}, {7, 0}},   Sized{{300, 388, 1036}, {4, 8}},
                          Sized{{1000, 136, 2048}, {0, 0}}, Sized{{384, 512, 64}, {0, 0}}};

struct Fixture : GemmOnGpu {
  EpilogueReference all_outputs;

  Fixture() : GemmOnGpu(context()) {
    BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper");
  }

  void expect_right(const Case& c, double sum_error = kTensorCoreSum) {
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, cuda, stream);
    std::string fault = damage(outputs);
    if (fault.empty()) fault = all_outputs.fault(c, inputs, outputs, sum_error);
    if (fault.empty()) {
      const Matrices again = run(c, inputs, cuda, stream);
      for (const auto& [what, matrix] : outputs) {
        if (fault.empty()) fault = bit_difference(what, matrix, again.at(what));
      }
    }
    count(c, fault);
  }

  void expect_right(const KernelSpec& spec, const Sized& sized) {
    expect_right({.spec = spec, .shape = sized.shape, .placement = sized.placement});
    expect_right({.spec = spec, .shape = sized.shape, .input = Input::integers, .placement = sized.placement});
  }

  static std::vector<KernelSpec> tiled(GemmSpec spec) {
    std::vector<KernelSpec> specs;
    spec.kernel = GemmKernel::sm90;
    for (const GemmTiling& tiling : gemm_tilings(spec)) {
      spec.tiling = tiling;
      specs.emplace_back(spec);
    }
    return specs;
  }
};

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(of_each_layout) {
  std::vector<KernelSpec> specs;
  for (const char* const layouts : kLayouts) {
    for (const char* const tiling :
         {"128x256:2x1:4:cooperative", "192x128:1x2:5:pingpong", "64x128:1x1:8:cooperative:streamk"}) {
      specs.push_back(parse(std::string("gemm bf16*bf16->bf16 ") + layouts + " bias kernel=sm90:" + tiling));
    }
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    for (const Sized& sized : kSmall) expect_right(spec, sized);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tilings, Fixture)

BOOST_AUTO_TEST_CASE(of_each_layout) {
  for (const char* const layouts : kLayouts) {
    const std::vector<KernelSpec> specs = tiled(spec_of("bf16", "bf16", layouts, ""));
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Sized& sized : kOdd) expect_right(spec, sized);
    }
  }
}

BOOST_AUTO_TEST_CASE(of_several_tiles_to_a_block) {
  for (const char* const layouts : kLayouts) {
    const std::vector<KernelSpec> specs = tiled(spec_of("f16", "f16", layouts, ""));
    compile(specs);
    for (const KernelSpec& spec : specs) expect_right({.spec = spec, .shape = {3000, 2104, 136}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(shapes, Fixture)

// The tilings rotate: each epilogue, dtype and layout has another one.
BOOST_AUTO_TEST_CASE(of_each_epilogue) {
  std::vector<KernelSpec> specs;
  std::size_t turn = 0;
  for (const auto& [in, out] : {std::pair{"bf16", "bf16"}, {"bf16", "f32"}, {"f16", "f16"}, {"f16", "f32"}}) {
    for (const char* const layouts : kLayouts) {
      for (const char* const epilogue : kEpilogues) {
        const std::vector<KernelSpec> all = tiled(spec_of(in, out, layouts, epilogue));
        specs.push_back(all[turn++ % all.size()]);
      }
    }
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    for (const Sized& sized : kOdd) expect_right(spec, sized);
  }
}

// NaN and infinities reach exactly the outputs that depend on them, and beta = 0 leaves c unread.
BOOST_AUTO_TEST_CASE(of_inputs) {
  for (const char* const layouts : kLayouts) {
    GemmSpec spec = spec_of("bf16", "f32", layouts, "c=f32");
    spec.kernel = GemmKernel::sm90;
    for (const Input input : {Input::nan, Input::inf, Input::zeros}) {
      expect_right({.spec = spec, .shape = {200, 136, 256}, .input = input});
    }
    const Case unread{.spec = spec, .shape = {200, 136, 200}, .beta = 0};
    const SharedMatrices inputs = with_unset_c(unread, maker.inputs(unread));
    count(unread, all_outputs.fault(unread, inputs, run(unread, inputs, cuda, stream), kTensorCoreSum));
  }
}

BOOST_AUTO_TEST_CASE(of_deep_sums) {
  for (const char* const layouts : kLayouts) {
    GemmSpec spec = spec_of("bf16", "f32", layouts, "");
    spec.kernel = GemmKernel::sm90;
    expect_right({.spec = spec, .shape = {264, 304, 16384}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(library, Fixture)

// Wherever rows start, the library finds a kernel. It may be cuBLASLt's, which may round the sum to bf16 before it adds
// the bias.
BOOST_AUTO_TEST_CASE(takes_any_row) {
  constexpr double kRoundedSum = 0x1p-8;
  for (const char* const layouts : kLayouts) {
    for (const char* const epilogue : kEpilogues) {
      const GemmSpec spec = spec_of("bf16", "bf16", layouts, epilogue);
      expect_right({.spec = spec, .shape = {129, 200, 131}, .placement = {3, 1}}, kRoundedSum);
      expect_right({.spec = spec, .shape = {136, 200, 128}}, kRoundedSum);
    }
  }
}

BOOST_AUTO_TEST_CASE(refuses_by_name) {
  const KernelSpec forced = parse("gemm bf16*bf16->bf16 tn kernel=sm90");
  check_contains(refusal({.spec = forced, .shape = {9, 8, 24}}),
                 {"bf16 or f16 at addresses and row strides that are multiples of 16 bytes", "leave kernel out"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
