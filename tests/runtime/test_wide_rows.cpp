// Which rows the CUDA backend gives to the kernels for wide rows, by a dry run: a cast's rows that are wide enough for
// one block per row, and norms' of 8193 to 16384 columns, where the GPU has clusters (the variant `wide`, and norms'
// kernels for a number of columns). They must be readable in vectors.
// tests/runtime/test_backends_gpu.cpp tests the results.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/util/error.h"
#include "support/run_case.h"

BOOST_AUTO_TEST_SUITE(test_wide_rows)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Launched {
  std::vector<Pass> passes{};
  std::int32_t cols = 0;  // NormSpec::cols of the last norm's kernel
};

struct Hook : LaunchHook {
  void before(const Stream&) override {}
  void after(const KernelSpec& spec, Pass pass, const Stream&) override {
    launched.passes.push_back(pass);
    if (const auto* const norm = std::get_if<NormSpec>(&spec)) launched.cols = norm->cols;
  }
  Launched launched{};
};

struct Gpus {
  Launched all_launched(const char* line, Shape shape, Placement placement, const char* gpu) {
    const Case c{.spec = parse(line), .shape = shape, .placement = placement};
    DryRun dry(gpu_named(gpu));
    Stream stream(dry.backend());
    const SharedMatrices inputs = maker.inputs(c);
    Hook hook;
    dry.backend().device_api().set_launch_hook(&hook);
    run(c, inputs, dry.backend(), stream);
    dry.backend().device_api().set_launch_hook(nullptr);
    return hook.launched;
  }
  // The passes that are launched for a spec on a GPU.
  std::vector<Pass> launched(const char* line, Shape shape, Placement placement = {}, const char* gpu = "h200") {
    return all_launched(line, shape, placement, gpu).passes;
  }
  // NormSpec::cols of the kernel that is launched.
  std::int32_t cols(const char* line, Shape shape, Placement placement = {}, const char* gpu = "h200") {
    return all_launched(line, shape, placement, gpu).cols;
  }
  bool wide(const char* line, Shape shape, Placement placement = {}, const char* gpu = "h200") {
    return std::ranges::count(launched(line, shape, placement, gpu), Variant::wide, &Pass::variant) == 1;
  }
  InputMaker maker{};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(wide_rows, Gpus)

BOOST_AUTO_TEST_CASE(of_casts) {
  constexpr const char* kRows = "cast bf16->e4m3fn scale=row out=codes";
  BOOST_TEST(!wide(kRows, {3, 3072}));
  BOOST_TEST(wide(kRows, {3, 3080}));
  BOOST_TEST(wide(kRows, {3, 16392}));
  BOOST_TEST(wide(kRows, {3, 425984}));  // eight blocks, two of which have room on a multiprocessor
  BOOST_TEST(!wide(kRows, {3, 425992}));
  BOOST_TEST(!wide(kRows, {3, 18945}));
  BOOST_TEST(!wide(kRows, {3, 18944}, {.padding = 3}));
  // Without clusters, rows of which two have room in a multiprocessor's shared memory.
  BOOST_TEST(wide(kRows, {3, 36864}, {}, "a100"));
  BOOST_TEST(!wide(kRows, {3, 40968}, {}, "a100"));
  BOOST_TEST(wide(kRows, {3, 20480}, {}, "rtx4090"));
  BOOST_TEST(!wide(kRows, {3, 24584}, {}, "rtx4090"));
  BOOST_TEST(!wide("cast f32->e4m3fn scale=row out=codes", {3, 1536}));
  BOOST_TEST(wide("cast f32->e4m3fn scale=row out=codes", {3, 1544}));
  BOOST_TEST(wide("cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes unrounded", {3, 8200}));
  BOOST_TEST(wide("cast bf16->e4m3fn of=silu(x)*gate+bias[col] scale=row out=codes,result", {3, 18944}));
  BOOST_TEST(!wide("cast bf16->e4m3fn scale=1x128 out=codes", {3, 18944}));
  BOOST_TEST((launched(kRows, {3, 18944}) == std::vector{Pass::wide}));
  BOOST_TEST((launched("cast bf16->e4m3fn scale=row out=codes,transposed", {16, 18944}) ==
              std::vector{Pass::first_wide, Pass::main}));
}

// Nothing can be loaded during a capture. There, wide rows take the kernel of narrow ones if no call has loaded theirs.
BOOST_AUTO_TEST_CASE(of_casts_in_a_capture) {
  DryRun dry(gpu_named("h200"));
  Stream stream(dry.backend());
  const auto placed = [&](Shape shape) {
    const Case c{.spec = parse("cast bf16->e4m3fn scale=row out=codes"), .shape = shape};
    return std::make_unique<PlacedCase>(c, maker.inputs(c), dry.backend(), stream);
  };
  const auto narrow = placed({3, 1024});
  const auto rows = placed({3, 18944});
  Hook hook;
  dry.backend().device_api().set_launch_hook(&hook);
  narrow->enqueue(stream);
  const Graph first(stream, [&] { rows->enqueue(stream); });
  rows->enqueue(stream);
  const Graph second(stream, [&] { rows->enqueue(stream); });
  dry.backend().device_api().set_launch_hook(nullptr);
  BOOST_TEST((hook.launched.passes == std::vector{Pass::main, Pass::main, Pass::wide, Pass::wide}));
}

// Kernels for rows of this many columns: codes alone of 16-bit elements. From 8193 on, a pair of blocks takes each row.
BOOST_AUTO_TEST_CASE(of_norms) {
  constexpr const char* kCodes = "norm rms bf16->e4m3fn affine scale=row out=codes";
  for (const std::int64_t columns : {1024, 2048, 4096, 8192}) {
    BOOST_TEST(cols(kCodes, {132, columns}) == columns);
    BOOST_TEST(cols(kCodes, {1, columns - 8}) == 0);
    BOOST_TEST(cols(kCodes, {1, columns + 8}) == (columns == 8192 ? 12288 : 0));
    BOOST_TEST(cols("norm layer f16->e5m2 affine scale=row out=codes,stats pow2", {3, columns}) == columns);
    BOOST_TEST(cols("norm layer f16->e5m2 scale=row out=codes", {3, columns}) == 0);
    BOOST_TEST(cols("norm rms bf16->e4m3fn affine scale=tensor out=codes given", {3, columns}) == 0);
    BOOST_TEST(cols(kCodes, {3, columns}, {.padding = 8}) == columns);
    BOOST_TEST(cols(kCodes, {3, columns}, {.padding = 4}) == 0);
    BOOST_TEST(cols(kCodes, {3, columns}, {}, "a100") == 0);
  }
  BOOST_TEST(cols(kCodes, {132, 8200}) == 12288);
  BOOST_TEST(cols(kCodes, {3, 12288}) == 12288);
  BOOST_TEST(cols(kCodes, {3, 12296}) == 16384);
  BOOST_TEST(cols(kCodes, {3, 16384}) == 16384);
  BOOST_TEST(cols("norm layer f16->e5m2 scale=tensor out=codes,stats given", {3, 16384}) == 16384);
  for (const std::int64_t columns : {1024, 8192, 8200, 16384, 16392, 40960, 65536, 65544}) {
    for (const char* const line :
         {"norm rms bf16->e4m3fn affine scale=row out=codes,result", "norm rms f32->e4m3fn affine scale=row out=codes",
          "norm rms bf16 out=stats", "norm layer bf16 affine out=result"}) {
      BOOST_TEST(cols(line, {3, columns}) == 0, line);
    }
    if (columns > 16384) BOOST_TEST(cols(kCodes, {3, columns}) == 0);
  }
  BOOST_TEST(cols("norm rms bf16->e4m3fn affine scale=tensor out=codes given", {0, 16384}) == 0);
}

BOOST_AUTO_TEST_CASE(of_norms_backward) {
  constexpr const char* kBackward = "norm_backward rms bf16 affine sums=f32";
  BOOST_TEST(!wide(kBackward, {3, 8192}));
  BOOST_TEST((launched(kBackward, {3, 8200}) == std::vector{Pass::wide, Pass::finish}));
  BOOST_TEST(wide(kBackward, {3, 16384}));
  // Many rows stay in one block's shared memory, if two have room there.
  BOOST_TEST((launched(kBackward, {132, 13824}) == std::vector{Pass::main, Pass::finish}));
  BOOST_TEST(wide(kBackward, {131, 13824}));
  BOOST_TEST(wide(kBackward, {132, 13824}, {}, "rtx5090"));
  BOOST_TEST(wide("norm_backward layer f32", {132, 13824}));
  for (const Shape shape : {Shape{3, 16392}, Shape{132, 16392}, Shape{3, 65536}}) {
    BOOST_TEST((launched(kBackward, shape) == std::vector{Pass::main, Pass::finish}));
    BOOST_TEST((launched("norm_backward layer f32", shape) == std::vector{Pass::main}));
  }
}

// A recording made on the CPU names the kernels that a GPU would run.
BOOST_AUTO_TEST_CASE(of_norms_recorded_on_the_cpu) {
  Recorder recorder;
  const std::unique_ptr<Backend> cpu = make_cpu_backend(1, &recorder);
  Stream stream(*cpu);
  const auto records = [&](const char* line, Shape shape, const char* kernel) {
    const Case c{.spec = parse(line), .shape = shape};
    const SharedMatrices inputs = maker.inputs(c);
    run(c, inputs, *cpu, stream);
    const std::vector<KernelSpec> kernels = recorder.recording().kernels();
    return std::ranges::count(kernels, parse(kernel)) == 1;
  };
  BOOST_TEST(records("norm rms bf16 out=result", {2, 16384}, "norm rms bf16 out=result"));
  BOOST_TEST(records("norm rms bf16->e4m3fn scale=row out=codes", {2, 8200},
                     "norm rms bf16->e4m3fn scale=row out=codes cols=12288"));
  BOOST_TEST(records("norm rms bf16->e4m3fn affine scale=row out=codes", {2, 1024},
                     "norm rms bf16->e4m3fn affine scale=row out=codes cols=1024"));
  BOOST_TEST(!records("norm rms bf16->e4m3fn scale=row out=codes", {2, 16392},
                      "norm rms bf16->e4m3fn scale=row out=codes cols=16384"));
}

// Everything that is read or written in vectors has to be aligned for them.
BOOST_AUTO_TEST_CASE(in_vectors_only) {
  for (const char* const line : {"cast bf16->e4m3fn scale=row out=codes",
                                 "cast bf16->e4m3fn of=silu(x)*gate+bias[col] scale=row out=codes,result",
                                 "norm_backward layer bf16 affine sums=f32"}) {
    BOOST_TEST(wide(line, {3, 13824}, {.padding = 8}), line);
    BOOST_TEST(!wide(line, {3, 13825}), line);
    BOOST_TEST(!wide(line, {3, 13824}, {.padding = 4}), line);
    BOOST_TEST(!wide(line, {3, 13824}, {.offset = 4}), line);
  }
  constexpr const char* kNorm = "norm layer bf16->e4m3fn affine scale=row out=codes,stats";
  BOOST_TEST(cols(kNorm, {3, 13824}, {.padding = 8}) == 16384);
  BOOST_TEST(cols(kNorm, {3, 13825}) == 0);
  BOOST_TEST(cols(kNorm, {3, 13824}, {.padding = 4}) == 0);
  BOOST_TEST(cols(kNorm, {3, 13824}, {.offset = 4}) == 0);
}

// A kernel that the spec names runs, or the message says why it cannot.
BOOST_AUTO_TEST_CASE(of_norms_by_name) {
  constexpr const char* kNamed = "norm rms bf16->e4m3fn scale=row out=codes cols=12288";
  BOOST_TEST(cols(kNamed, {132, 11008}) == 12288);
  const auto message = [&](const char* line, Shape shape, Placement placement, const char* gpu) -> std::string {
    try {
      cols(line, shape, placement, gpu);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  const std::string refused = std::string(kNamed) +
                              ": cols names a kernel for GPUs of compute capability 9.0 and newer, and for fewer than "
                              "2^30 rows that can be read "
                              "and written 8 elements at a time: leave it out";
  BOOST_TEST(message(kNamed, {3, 11008}, {}, "a100") == refused);
  BOOST_TEST(message(kNamed, {3, 11009}, {}, "h200") == refused);
  BOOST_TEST(message(kNamed, {3, 11008}, {.padding = 4}, "h200") == refused);
  BOOST_TEST(message(kNamed, {3, 11008}, {}, "rtx5090") == "nothing");
  BOOST_TEST(cols("norm rms bf16->e4m3fn scale=tensor out=codes given cols=12288", {0, 11008}) == 0);
  BOOST_TEST(message(kNamed, {3, 12296}, {}, "h200") ==
             "norm input: has 12296 columns, but the spec says cols=12288, a kernel for 8193 to 12288");
  constexpr const char* kFull = "norm rms bf16->e4m3fn affine scale=row out=codes cols=8192";
  BOOST_TEST(cols(kFull, {132, 8192}) == 8192);
  BOOST_TEST(message(kFull, {3, 8184}, {}, "h200") ==
             "norm input: has 8184 columns, but the spec says cols=8192, a kernel for 8192");
  // A line of 0.1.0 that names a kernel which is gone.
  BOOST_TEST(cols("norm rms bf16 out=result cols=20480", {132, 18944}) == 0);
}

BOOST_AUTO_TEST_CASE(on_gpus_with_clusters_only) {
  for (const Gpu& gpu : known_gpus()) {
    const bool clusters = gpu.target.major >= 9;
    const std::string name(gpu.name);
    BOOST_TEST(wide("cast bf16->e4m3fn scale=row out=codes", {3, 131072}, {}, name.c_str()) == clusters, name);
    BOOST_TEST((cols("norm rms bf16->e4m3fn scale=row out=codes", {3, 13824}, {}, name.c_str()) != 0) == clusters,
               name);
    BOOST_TEST(wide("norm_backward rms bf16", {3, 13824}, {}, name.c_str()) == clusters, name);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
