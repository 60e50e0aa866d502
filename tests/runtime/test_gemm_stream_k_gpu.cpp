// Stream-K (templates/gemm/stream_k.cuh) on a Hopper GPU: right results on shapes that are cut in all possible ways,
// and the same bits at every launch: in sequence, from graphs, on two streams at once. (test_gemm_epilogue_gpu tests
// epilogues, with every tiling.)
//
// Suites for --run_test: small (a few shapes with every tiling, short enough for compute-sanitizer), tails, kinds,
// ragged, launches.
#include "support/gpu_test.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/capture.h"
#include "support/expect_error.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_stream_k_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

// Every tiling that cuts along K, among those that the cost model considers for this kind of sum, and one more.
std::vector<KernelSpec> cut(GemmSpec spec) {
  std::vector<GemmTiling> tilings;
  for (const GemmTiling& tiling : gemm_tilings(spec)) {
    if (tiling.stream_k) tilings.push_back(tiling);
  }
  if (!has_group_scale_inv(spec)) tilings.push_back({.m = 128, .n = 192, .stages = 5, .stream_k = true});
  std::vector<KernelSpec> specs;
  spec.kernel = GemmKernel::sm90;
  for (const GemmTiling& tiling : tilings) {
    spec.tiling = tiling;
    specs.emplace_back(spec);
  }
  return specs;
}

struct Fixture : GemmOnGpu {
  Fixture() : GemmOnGpu(context()) {
    BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper");
  }
};

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(few_rows) {
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs = cut({.fast_accumulation = fast});
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Shape shape : {Shape{64, 1408, 1024}, Shape{100, 512, 640}, Shape{64, 128, 1040}}) {
        expect_right({.spec = spec, .shape = shape, .input = Input::integers});
      }
      expect_right({.spec = spec, .shape = {64, 640, 4096}});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tails, Fixture)

// Every pair of M and N with every tiling; K varies with the case: fewer steps than parts, parts of one step, all of
// them.
BOOST_AUTO_TEST_CASE(of_m_n_and_k) {
  constexpr std::array<std::int64_t, 7> kExtents{1, 17, 64, 100, 127, 129, 1000};
  constexpr std::array<std::int64_t, 11> kDepths{16, 128, 144, 256, 384, 400, 512, 528, 640, 1040, 2064};
  std::size_t turn = 0;
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs =
        cut({.scale_a = kRowwise, .scale_b = kRowwise, .bias = true, .fast_accumulation = fast});
    compile(specs);
    for (const std::int64_t m : kExtents) {
      for (const std::int64_t n : kExtents) {
        for (const KernelSpec& spec : specs) {
          const std::int64_t k = kDepths[turn++ % kDepths.size()];
          const Input input = turn % 3 == 0 && k <= 1040 ? Input::integers : Input::normal;
          expect_right({.spec = spec, .shape = {m, n, k}, .input = input});
        }
      }
    }
  }
}

// Rows start at multiples of 16 bytes with padding between them, which is loaded into the L2 but not used.
BOOST_AUTO_TEST_CASE(of_pitches) {
  for (const Dtype out : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (const KernelSpec& spec : cut({.out = out})) {
      for (const Shape shape : {Shape{70, 1000, 1040}, Shape{1000, 70, 1040}}) {
        expect_right({.spec = spec, .shape = shape, .placement = {.padding = 16, .offset = 16}});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(kinds, Fixture)

BOOST_AUTO_TEST_CASE(of_calls) {
  std::vector<KernelSpec> specs;
  const auto add = [&](const GemmSpec& kind) {
    const std::vector<KernelSpec> all = cut(kind);
    specs.push_back(all[specs.size() % all.size()]);
  };
  for (const bool fast : {true, false}) {
    for (const Dtype a : {Dtype::e4m3fn, Dtype::e5m2}) {
      for (const Dtype b : {Dtype::e4m3fn, Dtype::e5m2}) add({.a = a, .b = b, .fast_accumulation = fast});
    }
    for (const Dtype out : kHighPrecisionDtypes) {
      for (const auto scale_a : {kTensorwise, kRowwise}) {
        for (const auto scale_b : {kTensorwise, kRowwise}) {
          for (const bool bias : {false, true}) {
            add({.out = out, .scale_a = scale_a, .scale_b = scale_b, .bias = bias, .fast_accumulation = fast});
          }
        }
      }
    }
  }
  compile(specs);
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {64, 1000, 2064}});
    expect_right({.spec = spec, .shape = {300, 392, 1040}, .input = Input::integers});
  }
}

// scale_inv for each 128 of K: a part may begin at any of them.
BOOST_AUTO_TEST_CASE(of_groups) {
  constexpr std::array kShapes{Shape{1, 1, 16},      Shape{64, 1000, 2064}, Shape{129, 100, 1168}, Shape{17, 3000, 784},
                               Shape{300, 392, 528}, Shape{60, 128, 4096},  Shape{1500, 2100, 400}};
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    for (const bool bias : {false, true}) {
      const std::vector<KernelSpec> specs = cut({.scale_a = kRowGroups, .scale_b = scale_b, .bias = bias});
      compile(specs);
      for (const KernelSpec& spec : specs) {
        for (const Shape& shape : kShapes) {
          expect_right({.spec = spec, .shape = shape});
          if (shape.inner <= 1040) expect_right({.spec = spec, .shape = shape, .input = Input::integers});
          if (!bias) expect_right({.spec = spec, .shape = shape, .a_by_group = true, .b_by_group = true});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_inputs) {
  for (const bool fast : {true, false}) {
    for (const KernelSpec& spec : cut({.out = Dtype::f32, .fast_accumulation = fast})) {
      expect_right({.spec = spec, .shape = {64, 600, 1040}, .input = Input::nan});
      expect_right({.spec = spec, .shape = {64, 600, 1040}, .input = Input::zeros});
      expect_right({.spec = spec, .shape = {60, 300, 16384}});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(ragged, Fixture)

// More tiles than SMs: the tiles of two rounds are cut, the others are whole.
BOOST_AUTO_TEST_CASE(rounds) {
  for (const bool fast : {true, false}) {
    const std::vector<KernelSpec> specs =
        cut({.scale_a = kRowwise, .scale_b = kRowwise, .bias = true, .fast_accumulation = fast});
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Shape shape : {Shape{2304, 2304, 528}, Shape{3000, 4104, 400}, Shape{64, 30000, 528}}) {
        expect_right({.spec = spec, .shape = shape});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

struct LaunchFixture : Fixture {
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);
  std::optional<CurrentContext> current;
  std::vector<Case> cases;

  LaunchFixture() {
    BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
    current.emplace(*driver, context().device().index);
    for (const bool fast : {true, false}) {
      for (const KernelSpec& spec : cut({.out = Dtype::f32, .fast_accumulation = fast})) {
        cases.push_back({.spec = spec, .shape = {64, 4000, 2064}});
        cases.push_back({.spec = spec, .shape = {300, 1000, 1040}});
      }
    }
    for (const KernelSpec& spec : cut({.scale_a = kRowGroups, .scale_b = kRowGroups})) {
      cases.push_back({.spec = spec, .shape = {64, 4000, 2064}});
    }
  }

  static void expect_same(const Case& c, const Matrices& expected, const Matrices& actual, const char* when) {
    const std::string fault = bit_difference("out", expected.at("out"), actual.at("out"));
    BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ", " << when << ": " << fault);
  }
};

BOOST_FIXTURE_TEST_SUITE(launches, LaunchFixture)

// Single kernels without a fill between them: every launch finds the flags as the first one did.
BOOST_AUTO_TEST_CASE(one_after_the_other) {
  for (const Case& c : cases) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    placed.enqueue(stream);
    const Matrices expected = placed.outputs(stream);
    const std::int64_t before = cuda.device_api().launches();
    for (int i = 0; i < 100; ++i) placed.enqueue(stream);
    BOOST_TEST(cuda.device_api().launches() == before + 100);
    expect_same(c, expected, placed.outputs(stream), "after a hundred launches");
  }
}

// Kernels of other tilings and shapes, and casts, run between the launches: they share scratch memory and zeros.
BOOST_AUTO_TEST_CASE(among_others) {
  const Case cast{.spec = parse("cast bf16->e4m3fn scale=row+col out=codes,transposed"), .shape = {700, 900}};
  PlacedCase placed_cast(cast, maker.inputs(cast), cuda, stream);
  std::vector<std::unique_ptr<PlacedCase>> placed;
  std::vector<Matrices> expected;
  for (const Case& c : cases) {
    placed.push_back(std::make_unique<PlacedCase>(c, maker.inputs(c), cuda, stream));
    placed.back()->enqueue(stream);
    expected.push_back(placed.back()->outputs(stream));
    placed.back()->poison(stream);
  }
  for (int round = 0; round < 5; ++round) {
    for (const auto& one : placed) {
      one->enqueue(stream);
      placed_cast.enqueue(stream);
    }
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_same(cases[i], expected[i], placed[i]->outputs(stream), "among others");
  }
}

BOOST_AUTO_TEST_CASE(from_a_graph) {
  for (const Case& c : cases) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    placed.enqueue(stream);
    const Matrices expected = placed.outputs(stream);
    Graph graph(stream, [&] {
      for (int i = 0; i < 3; ++i) placed.enqueue(stream);
    });
    for (const char* const when : {"first replay", "second replay", "third replay"}) {
      placed.poison(stream);
      graph.replay(stream);
      expect_same(c, expected, placed.outputs(stream), when);
      placed.enqueue(stream);  // outside the graph, with the same flags
    }
  }
}

// Both streams use the whole GPU and each other's SMs: blocks of one wait while those of the other run.
BOOST_AUTO_TEST_CASE(on_two_streams_at_once) {
  Stream other(cuda);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& first = cases[i];
    const Case& second = cases[(i + 1) % cases.size()];
    PlacedCase placed_first(first, maker.inputs(first), cuda, stream);
    PlacedCase placed_second(second, maker.inputs(second), cuda, other);
    placed_first.enqueue(stream);
    placed_second.enqueue(other);
    const Matrices expected_first = placed_first.outputs(stream);
    const Matrices expected_second = placed_second.outputs(other);
    placed_first.poison(stream);
    placed_second.poison(other);
    for (int launch = 0; launch < 200; ++launch) {
      placed_first.enqueue(stream);
      placed_second.enqueue(other);
    }
    expect_same(first, expected_first, placed_first.outputs(stream), "on the first of two streams");
    expect_same(second, expected_second, placed_second.outputs(other), "on the second of two streams");
  }
}

BOOST_AUTO_TEST_CASE(a_capture_that_needs_memory_is_refused) {
  const Case& c = cases.front();
  compile({c.spec});
  Stream own(cuda);
  PlacedCase placed(c, maker.inputs(c), cuda, own);
  {
    const Capture capture(*driver, own);
    const std::string refusal = error_of([&] { placed.enqueue(own); }, ErrorCode::invalid_argument);
    check_contains(refusal, {"allocated during capture", "run the step once before capturing it"});
  }
  placed.enqueue(own);  // the stream works again
  const Matrices expected = placed.outputs(own);
  placed.enqueue(own);
  expect_same(c, expected, placed.outputs(own), "after a refusal");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
