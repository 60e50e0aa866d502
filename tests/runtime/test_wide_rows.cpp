// Which rows the CUDA backend gives to clusters of blocks (the pass `wide`), by a dry run: rows that one block's
// registers do not hold, if they can be read in vectors and the GPU has clusters. tests/runtime/test_backends_gpu.cpp
// tests the results.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/dry_run.h"
#include "ingot/runtime/jit/launch_hook.h"
#include "ingot/runtime/stream.h"
#include "support/run_case.h"

using namespace ingot;
using namespace ingot::test;

namespace {

struct Passes : LaunchHook {
  void before(const Stream&) override {}
  void after(const KernelSpec&, Pass pass, const Stream&) override { launched.push_back(pass); }
  std::vector<Pass> launched{};
};

struct Gpus {
  // The passes that are launched for a spec on a GPU.
  std::vector<Pass> launched(const char* line, Shape shape, Placement placement = {}, const char* gpu = "h200") {
    const Case c{.spec = parse(line), .shape = shape, .placement = placement};
    DryRun dry(gpu_named(gpu));
    Stream stream(dry.backend());
    const SharedMatrices inputs = maker.inputs(c);
    Passes passes;
    dry.backend().set_launch_hook(&passes);
    run(c, inputs, dry.backend(), stream);
    dry.backend().set_launch_hook(nullptr);
    return passes.launched;
  }
  bool wide(const char* line, Shape shape, Placement placement = {}, const char* gpu = "h200") {
    return std::ranges::count(launched(line, shape, placement, gpu), Pass::wide) == 1;
  }
  InputMaker maker{};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(wide_rows, Gpus)

BOOST_AUTO_TEST_CASE(of_casts) {
  constexpr const char* kRows = "cast bf16->e4m3fn scale=row out=codes";
  BOOST_TEST(!wide(kRows, {3, 16384}));
  BOOST_TEST(wide(kRows, {3, 16392}));
  BOOST_TEST(wide(kRows, {3, 131072}));
  BOOST_TEST(!wide(kRows, {3, 131080}));
  BOOST_TEST(!wide("cast f32->e4m3fn scale=row out=codes", {3, 8192}));
  BOOST_TEST(wide("cast f32->e4m3fn scale=row out=codes", {3, 8200}));
  BOOST_TEST(wide("cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes unrounded", {3, 8200}));
  BOOST_TEST(wide("cast bf16->e4m3fn of=silu(x)*gate+bias[col] scale=row out=codes,result", {3, 18944}));
  BOOST_TEST(!wide("cast bf16->e4m3fn scale=1x128 out=codes", {3, 18944}));
  BOOST_TEST((launched(kRows, {3, 18944}) == std::vector{Pass::wide}));
  BOOST_TEST((launched("cast bf16->e4m3fn scale=row out=codes,transposed", {16, 18944}) ==
              std::vector{Pass::wide, Pass::main}));
}

BOOST_AUTO_TEST_CASE(of_norms) {
  constexpr const char* kNorm = "norm layer bf16->e4m3fn affine scale=row out=codes,result,stats";
  BOOST_TEST(!wide(kNorm, {3, 16384}));
  BOOST_TEST(wide(kNorm, {3, 16392}));
  BOOST_TEST(wide(kNorm, {3, 65536}));
  BOOST_TEST(!wide(kNorm, {3, 65544}));
  BOOST_TEST(wide("norm rms f32 out=stats", {3, 16392}));
  // Values of 16 bits are written by one block, if there are rows enough, and a multiprocessor has room for two rows of
  // two blocks, or of one if there is no gamma.
  BOOST_TEST(wide("norm rms bf16 affine out=result", {131, 28672}));
  BOOST_TEST(!wide("norm rms bf16 affine out=result", {132, 28672}));
  BOOST_TEST(wide("norm rms bf16 affine out=result", {132, 28680}));
  BOOST_TEST(!wide("norm rms bf16 out=result", {132, 57344}));
  BOOST_TEST(wide("norm rms bf16 out=result", {132, 57352}));
  BOOST_TEST(!wide("norm rms bf16 out=result", {170, 24576}, {}, "rtx5090"));
  BOOST_TEST(wide("norm rms bf16 out=result", {170, 24584}, {}, "rtx5090"));
  BOOST_TEST(wide("norm rms bf16 affine out=result", {170, 16392}, {}, "rtx5090"));
  BOOST_TEST(wide("norm rms f32 out=result", {132, 16392}));
  BOOST_TEST(wide("norm rms bf16->e4m3fn affine scale=row out=codes", {132, 16392}));
  BOOST_TEST(!wide("norm rms bf16->e4m3fn affine scale=tensor out=codes given", {0, 16392}));

  constexpr const char* kBackward = "norm_backward rms bf16 affine sums=f32";
  BOOST_TEST(!wide(kBackward, {3, 8192}));
  BOOST_TEST((launched(kBackward, {3, 8200}) == std::vector{Pass::wide, Pass::finish}));
  BOOST_TEST(wide(kBackward, {3, 65536}));
  BOOST_TEST(!wide(kBackward, {3, 65544}));
  // Many rows stay in one block's shared memory, if two have room there.
  BOOST_TEST((launched(kBackward, {132, 13824}) == std::vector{Pass::main, Pass::finish}));
  BOOST_TEST(wide(kBackward, {131, 13824}));
  BOOST_TEST(!wide(kBackward, {132, 28672}));
  BOOST_TEST(wide(kBackward, {132, 28680}));
  BOOST_TEST(wide(kBackward, {132, 13824}, {}, "rtx5090"));
  BOOST_TEST(wide("norm_backward layer bf16 affine sums=f32", {132, 16392}));
  BOOST_TEST(!wide("norm_backward layer bf16", {132, 28672}));
  BOOST_TEST(wide("norm_backward layer f32", {132, 13824}));
}

// Everything that is read or written in vectors has to be aligned for them.
BOOST_AUTO_TEST_CASE(in_vectors_only) {
  for (const char* const line : {"cast bf16->e4m3fn scale=row out=codes",
                                 "cast bf16->e4m3fn of=silu(x)*gate+bias[col] scale=row out=codes,result",
                                 "norm layer bf16->e4m3fn affine scale=row out=codes,result,stats",
                                 "norm_backward layer bf16 affine sums=f32"}) {
    BOOST_TEST(wide(line, {3, 18944}, {.padding = 8}), line);
    BOOST_TEST(!wide(line, {3, 18945}), line);
    BOOST_TEST(!wide(line, {3, 18944}, {.padding = 4}), line);
    BOOST_TEST(!wide(line, {3, 18944}, {.offset = 4}), line);
  }
}

BOOST_AUTO_TEST_CASE(on_gpus_with_clusters_only) {
  for (const Gpu& gpu : known_gpus()) {
    const bool clusters = gpu.target.major >= 9;
    const std::string name(gpu.name);
    BOOST_TEST(wide("cast bf16->e4m3fn scale=row out=codes", {3, 18944}, {}, name.c_str()) == clusters, name);
    BOOST_TEST(wide("norm rms bf16->e4m3fn scale=row out=codes", {3, 18944}, {}, name.c_str()) == clusters, name);
    BOOST_TEST(wide("norm_backward rms bf16", {3, 18944}, {}, name.c_str()) == clusters, name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
