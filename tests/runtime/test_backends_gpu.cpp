// Compares CUDA with the CPU reference on every case of tests/cases.h. The bits must be the same, with two exceptions:
// GEMMs on tensor cores are compared with float64 within a tolerance, and exactly if the inputs are small integers;
// expressions with fast math are compared with the CPU's values within a bound (support/pointwise_reference.h).
//
// With `-- 3/8` as last arguments, runs only that share of the specs (support/share.h), in every suite but huge: the
// CPU takes most of the time, and scripts/gpu_check.sh runs as many shares at once as there are cores. Tests that are
// no list of cases run in the first share.
//
// Suites for --run_test: small (a subset that is short enough for compute-sanitizer), every, large, huge (past 2^31
// elements), streams.
#include "support/gpu_test.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cases.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"
#include "support/capture.h"
#include "support/compare.h"
#include "support/expect_error.h"
#include "support/pointwise_reference.h"
#include "support/reference.h"
#include "support/run_case.h"
#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_backends_gpu)

namespace {

// One context for the program, so that a kernel is compiled once.
Context& context() {
  static Context one(cuda_options());
  return one;
}

// Tensor-core kernels, cuBLASLt's or the library's own, sum in another order than the CPU; the library may choose them
// unless the spec names the kernel that sums as the CPU does.
bool tensor_cores_may_take(const GemmSpec& spec) { return spec.kernel != GemmKernel::simt; }

double gemm_tolerance(const GemmSpec& spec) {
  if (spec.out == Dtype::bf16) return 0x1p-8;
  if (!is_fp8(spec.a)) return spec.out == Dtype::f32 ? 1e-4 : 1e-3;
  return spec.fast_accumulation ? 5e-3 : 1e-3;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  Share share = Share::of_arguments();
  std::unique_ptr<Backend> cpu = make_cpu_backend(share.threads());
  Stream cpu_stream{*cpu};
  InputMaker maker;
  GemmReference gemm_reference;

  // Describes the first fault of the CUDA backend's outputs; empty if there is none.
  std::string fault_of(const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
    if (std::string fault = damage(outputs); !fault.empty()) return fault;
    const Matrices expected = run(c, inputs, *cpu, cpu_stream);
    const CastSpec* const cast = std::get_if<CastSpec>(&c.spec);
    const ElementwiseSpec* const elementwise = std::get_if<ElementwiseSpec>(&c.spec);
    const bool fast = (cast != nullptr && cast->fast_math) || (elementwise != nullptr && elementwise->fast_math);
    if (fast) return fast_difference(expected, outputs);
    std::string fault;
    for (const auto& [what, matrix] : outputs) {
      fault = bit_difference(what, expected.at(what), matrix);
      if (!fault.empty()) break;
    }
    const GemmSpec* const gemm = std::get_if<GemmSpec>(&c.spec);
    if (fault.empty() || gemm == nullptr || !tensor_cores_may_take(*gemm)) return fault;
    const bool exact = c.input == Input::integers;
    const Expected reference = gemm_reference(*gemm, c.shape, inputs, exact);
    return exact ? value_difference("out", reference, outputs.at("out"))
                 : norm_difference("out", reference, outputs.at("out"), gemm_tolerance(*gemm));
  }

  // Compiles the kernels of this share's cases.
  void compile_share(std::vector<KernelSpec> specs) const {
    std::erase_if(specs, [&](const KernelSpec& spec) { return !share.has(print(spec)); });
    warm(context().cache(), specs, context().cache().target(), share.threads());
  }

  // The kernels that the cases name. (Which one a GEMM gets that names none depends on its size.)
  template <class Chosen>
  static std::vector<KernelSpec> kernels_of(const std::vector<Case>& all, const Chosen& chosen) {
    std::vector<KernelSpec> specs;
    std::unordered_set<std::string> seen;
    for (const Case& c : all) {
      const auto* const gemm = std::get_if<GemmSpec>(&c.spec);
      if (!chosen(c) || (gemm != nullptr && gemm->kernel == GemmKernel::automatic)) continue;
      if (seen.insert(print(c.spec)).second) specs.push_back(c.spec);
    }
    return specs;
  }

  template <class Chosen>
  void run_all(const std::vector<Case>& all, const Chosen& chosen) {
    if (share.count > 1) compile_share(kernels_of(all, chosen));
    int faults = 0;
    int run_count = 0;
    bool any = false;
    for (const Case& c : all) {
      if (!chosen(c)) continue;
      any = true;
      if (!share.has(print(c.spec))) continue;
      const SharedMatrices inputs = maker.inputs(c);
      const std::string fault = fault_of(c, inputs, run(c, inputs, cuda, stream));
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      faults += fault.empty() ? 0 : 1;
      if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
      ++run_count;
    }
    BOOST_TEST(any);
    std::cout << run_count << " cases\n";
  }
};

template <class Spec>
constexpr auto of_kind = [](const Case& c) { return std::holds_alternative<Spec>(c.spec); };

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

// A few of each kind of kernel: bf16 input, one OCP and one fnuz format, every odd shape and memory layout.
BOOST_AUTO_TEST_CASE(a_subset_agrees) {
  run_all(cases(SizeClass::ci), [](const Case& c) {
    if (c.shape.rows * c.shape.cols > 40000 || c.shape.inner > 100) return false;
    if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) {
      return is_fused(c.spec) ||
             (cast->in == Dtype::bf16 && !cast->pow2 && (cast->out == Dtype::e4m3fn || cast->out == Dtype::e5m2fnuz));
    }
    if (const auto* const gemm = std::get_if<GemmSpec>(&c.spec)) {
      return typical(*gemm) && gemm->bias && !gemm->fast_accumulation && gemm->a == gemm->b &&
             (gemm->a == Dtype::e4m3fn || gemm->a == Dtype::e5m2fnuz || gemm->a == Dtype::bf16);
    }
    if (const auto* const norm = std::get_if<NormSpec>(&c.spec)) return norm->affine || !norm->out;
    return true;
  });
}

// Shapes of one cluster, of many tiles, of too many, and back: each launch begins with the state that the last one
// left.
BOOST_AUTO_TEST_CASE(casts_in_one_launch_agree) {
  std::vector<Case> all;
  for (const Shape& shape : {Shape{77, 120}, Shape{200, 1000}, Shape{300, 500}, Shape{1001, 640}, Shape{2048, 2500},
                             Shape{256, 512}, Shape{6000, 1300}, Shape{130, 131}}) {
    for (const Input input : {Input::normal, Input::nan}) {
      const auto add = [&](const KernelSpec& spec) {
        const auto* const cast = std::get_if<CastSpec>(&spec);
        if (cast == nullptr || !has_pass(spec, Pass::whole)) return;
        if (!cast->pointwise && (cast->in != Dtype::bf16 || cast->out != Dtype::e4m3fn || cast->pow2)) return;
        all.push_back({.spec = spec, .shape = shape, .input = input});
        all.push_back({.spec = spec, .shape = shape, .input = input, .placement = {.padding = 3, .offset = 1}});
      };
      for (const KernelSpec& spec : all_valid_specs()) add(spec);
      for (const KernelSpec& spec : fused_specs()) add(spec);
    }
  }
  run_all(all, [](const Case&) { return true; });
}

// Transposed rows at every address, of full tiles and of parts: no byte around them may change.
BOOST_AUTO_TEST_CASE(transposed_codes_of_any_pitch_agree) {
  std::vector<Case> all;
  const auto add_all = [&](const KernelSpec& spec, Shape shape, Placement placement) {
    all.push_back({.spec = spec, .shape = shape, .placement = placement});
  };
  const auto transposes = [](const KernelSpec& spec) {
    const auto* const cast = std::get_if<CastSpec>(&spec);
    return cast != nullptr && has_pass(spec, Pass::unaligned) && !cast->list &&
           (cast->pointwise || (cast->in == Dtype::bf16 && cast->out == Dtype::e4m3fn && !cast->pow2));
  };
  std::vector<KernelSpec> specs = all_valid_specs();
  for (const KernelSpec& spec : fused_specs()) specs.push_back(spec);
  for (const KernelSpec& spec : specs) {
    if (!transposes(spec)) continue;
    add_all(spec, {3000, 40}, {});
    add_all(spec, {333, 1111}, {});
    add_all(spec, {333, 1111}, {.padding = 3, .offset = 1});
  }
  const KernelSpec given = parse("cast bf16->e4m3fn scale=tensor out=codes,transposed given");
  for (std::int64_t odd = 1; odd <= 33; ++odd) {
    add_all(given, {256 + odd, 136}, {});
    add_all(given, {256 + odd, 136}, {.padding = odd % 5, .offset = odd % 16});
  }
  run_all(all, [](const Case&) { return true; });
}

// Codes whose rows start at any address and end anywhere in a word, in one launch and of expressions: no byte around
// them may change.
BOOST_AUTO_TEST_CASE(codes_of_any_pitch_agree) {
  std::vector<Case> all;
  const std::string gradient = "cast bf16->e5m2 of=grad*(sigmoid(x)+x*(sigmoid(x)*(1-sigmoid(x)))) ";
  for (const std::string& line : {std::string("cast bf16->e4m3fn scale=row out=codes,transposed"),
                                  std::string("cast bf16->e4m3fn scale=row+col out=codes,transposed"),
                                  std::string("cast f16->e5m2 scale=tensor out=codes,transposed"),
                                  gradient + "scale=tensor out=codes,transposed,sum:f32 given",
                                  gradient + "scale=tensor out=codes,transposed,sum:f32"}) {
    const KernelSpec spec = parse(line);
    for (std::int64_t odd = 1; odd <= 17; ++odd) {
      all.push_back({.spec = spec, .shape = {131, 256 + odd}});
      all.push_back({.spec = spec, .shape = {70, odd}, .placement = {.padding = odd % 5, .offset = odd % 16}});
    }
    for (const Placement placement : {Placement{}, Placement{.padding = 2}, Placement{.padding = 3, .offset = 1}}) {
      all.push_back({.spec = spec, .shape = {333, 1111}, .placement = placement});
      all.push_back({.spec = spec, .shape = {333, 1111}, .input = Input::nan, .placement = placement});
    }
  }
  run_all(all, [](const Case&) { return true; });
}

// Norms of rows that fill their threads, few of them and more than run at once, and of rows of one vector less or more.
BOOST_AUTO_TEST_CASE(norms_of_full_rows_agree) {
  std::vector<Case> all;
  for (const char* const line : {"norm layer bf16->e4m3fn affine scale=row out=codes,stats",
                                 "norm rms bf16->e4m3fn affine scale=row out=codes,stats",
                                 "norm rms f16->e5m2 affine scale=row out=codes pow2"}) {
    const KernelSpec spec = parse(line);
    for (const Shape shape : {Shape{1, 1024}, Shape{4001, 1024}, Shape{5, 2048}, Shape{2001, 2048}, Shape{5, 4096},
                              Shape{1001, 4096}, Shape{5, 8192}, Shape{501, 8192}, Shape{9, 1016}, Shape{9, 1032},
                              Shape{9, 4088}, Shape{9, 4104}, Shape{9, 8184}}) {
      all.push_back({.spec = spec, .shape = shape});
    }
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      all.push_back({.spec = spec, .shape = {431, 8192}, .input = input});
      all.push_back({.spec = spec, .shape = {37, 1024}, .input = input, .placement = {.padding = 8}});
    }
    all.push_back({.spec = spec, .shape = {37, 2048}, .placement = {.padding = 3, .offset = 1}});
  }
  run_all(all, [](const Case&) { return true; });
}

// Values of costly expressions that the first pass keeps, of matrices that are large enough for it: aligned and not,
// and with columns that are no multiple of 8.
BOOST_AUTO_TEST_CASE(kept_values_agree) {
  std::vector<Case> all;
  const auto add = [&](const std::string& line, Shape shape, Placement placement = {}, Input input = Input::normal) {
    BOOST_TEST(has_pass(parse(line), Pass::kept), line);
    all.push_back({.spec = parse(line), .shape = shape, .input = input, .placement = placement});
  };
  const std::string of = " of=grad*(sigmoid(x)+x*(sigmoid(x)*(1-sigmoid(x)))) ";
  for (const char* const types : {"bf16->e5m2", "f16->e4m3fn", "f32->e4m3fn", "bf16->e4m3fnuz"}) {
    for (const char* const rest :
         {"scale=tensor out=codes,transposed", "scale=tensor out=codes,transposed,sum:f32 pow2",
          "scale=tensor out=transposed,result", "scale=row+col out=codes,transposed",
          "scale=row+col out=codes,transposed,result,sum:bf16", "scale=tensor+col out=codes,transposed",
          "scale=col out=codes,transposed"}) {
      const std::string line = "cast " + std::string(types) + of + rest;
      add(line, {3072, 4104});
      add(line, {3001, 4203}, {.padding = 3, .offset = 1});
    }
  }
  for (const Input input : {Input::nan, Input::inf, Input::zeros}) {
    add("cast bf16->e5m2" + of + "scale=tensor out=codes,transposed,sum:f32", {3072, 4104}, {}, input);
    add("cast bf16->e5m2" + of + "scale=row+col out=codes,transposed", {2100, 4100}, {}, input);
  }
  run_all(all, [](const Case&) { return true; });
}

// Rows that have their own block or cluster, and those around them: of few and of most columns, of columns and pitches
// that take the other kernel, with NaN, Inf and zeros.
BOOST_AUTO_TEST_CASE(wide_rows_agree) {
  std::vector<Case> all;
  std::vector<KernelSpec> specs = all_valid_specs();
  for (const KernelSpec& spec : fused_specs()) specs.push_back(spec);
  const auto stands_for_its_kind = [](const KernelSpec& spec) {
    if (const auto* const cast = std::get_if<CastSpec>(&spec)) {
      return cast->pointwise || (cast->out == Dtype::e4m3fn && !cast->pow2);
    }
    const auto* const norm = std::get_if<NormSpec>(&spec);
    return norm == nullptr ||
           (norm->affine && norm->stats && !norm->pow2 && norm->out.value_or(Dtype::e4m3fn) == Dtype::e4m3fn);
  };
  for (const KernelSpec& spec : specs) {
    const bool norm = std::holds_alternative<NormSpec>(spec) || std::holds_alternative<NormBackwardSpec>(spec);
    if (!(norm || has_pass(spec, Pass::wide) || has_pass(spec, Pass::first_wide)) || !stands_for_its_kind(spec))
      continue;
    for (const std::int64_t cols : {3080, 8200, 16384, 16392, 18945, 28672, 53248, 65536, 65544}) {
      all.push_back({.spec = spec, .shape = {3, cols}});
    }
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      all.push_back({.spec = spec, .shape = {3, 18944}, .input = input});
    }
    all.push_back({.spec = spec, .shape = {7, 18944}, .placement = {.padding = 8}});
    // In registers; in one block's shared memory, as there are rows enough; in that of the largest clusters.
    if (!norm) {
      for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
        all.push_back({.spec = spec, .shape = {3, 11008}, .input = input});
      }
      for (const std::int64_t padding : {3, 8}) {
        all.push_back({.spec = spec, .shape = {7, 11008}, .placement = {.padding = padding}});
      }
      for (const std::int64_t cols : {16392, 28672, 53248}) all.push_back({.spec = spec, .shape = {140, cols}});
      all.push_back({.spec = spec, .shape = {2, 151936}});
    }
    all.push_back({.spec = spec, .shape = {3, 18944}, .placement = {.padding = 3, .offset = 1}});
    all.push_back({.spec = spec, .shape = {20, 28672}});
    // More rows than the GPU has room for clusters: a cluster of a norm takes several.
    if (norm) all.push_back({.spec = spec, .shape = {800, 13824}});
    // Enough rows that gradients stay in one block's shared memory, and some that do not fit. Rows of more than 16384
    // columns are read again in each pass.
    if (norm) {
      for (const std::int64_t cols : {8200, 12288, 12296, 13824, 16384, 16392, 28672, 28680, 40960, 57352}) {
        all.push_back({.spec = spec, .shape = {300, cols}});
      }
      for (const std::int64_t rows : {7, 300}) {
        all.push_back({.spec = spec, .shape = {rows, 13824}, .placement = {.padding = 8}});
      }
      for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
        all.push_back({.spec = spec, .shape = {3, 13824}, .input = input});
      }
    }
  }
  run_all(all, [](const Case&) { return true; });
}

// For compute-sanitizer: one spec of each kind of kernel, clusters of few blocks and of eight, and blocks that take
// several whole rows.
BOOST_AUTO_TEST_CASE(few_wide_rows_agree) {
  std::vector<Case> all;
  for (const char* const line :
       {"cast bf16->e4m3fn scale=row out=codes", "cast bf16->e4m3fn of=silu(x)*gate scale=row out=codes,result",
        "norm layer bf16->e4m3fn affine scale=row out=codes,result,stats",
        "norm rms bf16->e4m3fn affine scale=tensor out=codes given", "norm_backward layer bf16 affine sums=f32"}) {
    for (const std::int64_t cols : {3080, 11008, 18944, 65536})
      all.push_back({.spec = parse(line), .shape = {3, cols}});
  }
  for (const char* const line : {"norm layer bf16->e4m3fn affine scale=row out=codes,result,stats",
                                 "norm rms bf16->e4m3fn affine scale=row out=codes", "norm rms bf16 out=result",
                                 "norm_backward layer bf16", "norm_backward rms bf16 affine sums=f32"}) {
    for (const std::int64_t cols : {9216, 18944, 40960}) all.push_back({.spec = parse(line), .shape = {300, cols}});
  }
  run_all(all, [](const Case&) { return true; });
}

// The kernels for wide rows take the rows that they are for, and no others.
BOOST_AUTO_TEST_CASE(wide_rows_have_their_own_kernels, *once()) {
  struct Passes : LaunchHook {
    void before(const Stream&) override {}
    void after(const KernelSpec& spec, Pass pass, const Stream&) override {
      const auto* const norm = std::get_if<NormSpec>(&spec);
      wide = wide || pass.variant == Variant::wide || (norm != nullptr && norm->cols != 0);
    }
    bool wide = false;
  };
  const auto takes = [&](const char* line, Shape shape, Placement placement = {}) {
    const Case c{.spec = parse(line), .shape = shape, .placement = placement};
    const SharedMatrices inputs = maker.inputs(c);
    Passes passes;
    cuda.device_api().set_launch_hook(&passes);
    run(c, inputs, cuda, stream);
    cuda.device_api().set_launch_hook(nullptr);
    return passes.wide;
  };
  const bool clusters = context().info().target.major >= 9;
  constexpr const char* kRows = "cast bf16->e4m3fn scale=row out=codes";
  BOOST_TEST(!takes(kRows, {3, 3072}));
  BOOST_TEST(takes(kRows, {3, 3080}));
  BOOST_TEST(takes(kRows, {3, 16392}));
  BOOST_TEST(takes(kRows, {3, 151936}) == clusters);  // in shared memory; the widest that others hold have 36864
  BOOST_TEST(!takes(kRows, {3, 18945}));
  BOOST_TEST(!takes(kRows, {3, 18944}, {.padding = 3}));
  BOOST_TEST(takes("cast f32->e4m3fn scale=row out=codes", {3, 1544}));
  BOOST_TEST(takes("cast bf16->e4m3fn scale=row out=codes,transposed", {3, 18944}));
  constexpr const char* kNorm = "norm layer bf16->e4m3fn affine scale=row out=codes,stats";
  BOOST_TEST(!takes(kNorm, {3, 8184}));
  BOOST_TEST(takes(kNorm, {3, 8192}) == clusters);
  BOOST_TEST(takes(kNorm, {3, 8200}) == clusters);
  BOOST_TEST(takes(kNorm, {3, 16384}) == clusters);
  BOOST_TEST(!takes(kNorm, {3, 16392}));
  BOOST_TEST(!takes(kNorm, {3, 13825}));
  constexpr const char* kBackward = "norm_backward rms bf16 affine sums=f32";
  BOOST_TEST(!takes(kBackward, {3, 8192}));
  BOOST_TEST(takes(kBackward, {3, 8200}) == clusters);
  BOOST_TEST(takes(kBackward, {3, 16384}) == clusters);
  BOOST_TEST(!takes(kBackward, {3, 16392}));
  BOOST_TEST(!takes(kBackward, {3, 9216}, {.padding = 3}));
}

// A plain tensor runs as a cluster, one with an expression as many tiles that are on the GPU at once.
BOOST_AUTO_TEST_CASE(small_casts_are_one_launch, *once()) {
  const auto launches = [&](const char* line, Shape shape) {
    const Case c{.spec = parse(line), .shape = shape};
    const SharedMatrices inputs = maker.inputs(c);
    const std::int64_t before = cuda.device_api().launches();
    run(c, inputs, cuda, stream);
    return cuda.device_api().launches() - before;
  };
  constexpr const char* kPlain = "cast bf16->e4m3fn scale=tensor out=codes,transposed";
  constexpr const char* kFused = "cast bf16->e4m3fn of=silu(x)*gate+residual scale=row+col out=codes,transposed";
  BOOST_TEST(launches(kPlain, {256, 512}) == (context().info().target.major >= 9 ? 1 : 2));
  BOOST_TEST(launches(kPlain, {257, 512}) == 2);
  BOOST_TEST(launches(kPlain, {333, 1111}) == 1);
  BOOST_TEST(launches(kFused, {256, 512}) == 1);
  BOOST_TEST(launches(kFused, {1001, 640}) == 1);
  BOOST_TEST(launches(kFused, {16384, 640}) == 2);
}

BOOST_AUTO_TEST_CASE(memory_goes_there_and_back, *once()) {
  std::vector<unsigned char> sent(1000);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i);
  std::vector<unsigned char> back(1000, 0xff);
  Buffer buffer(cuda, sent.size());
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256 == 0U);
  cuda.device_api().copy_from_host(buffer.data(), sent.data(), sent.size(), stream);
  cuda.device_api().fill_zero(static_cast<std::byte*>(buffer.data()) + 100, 50, stream);
  cuda.device_api().copy_to_host(back.data(), buffer.data(), back.size(), stream);
  std::fill(sent.begin() + 100, sent.begin() + 150, static_cast<unsigned char>(0));
  BOOST_TEST_CHECK(back == sent, boost::test_tools::per_element());
  const Buffer copied(cuda, sent.size());
  cuda.device_api().copy(copied.data(), buffer.data(), sent.size(), stream);
  cuda.device_api().copy_to_host(back.data(), copied.data(), back.size(), stream);
  BOOST_TEST_CHECK(back == sent, boost::test_tools::per_element());
  BOOST_TEST(cuda.device_api().allocate(0) == nullptr);
  BOOST_TEST(cuda.device_api().is_allocated(buffer.data(), buffer.bytes()));
  BOOST_TEST(cuda.device_api().is_allocated(nullptr, 0));

  const std::vector<float> expected{0x1.8p-3F, 0x1.8p-3F, 0x1.8p-3F};
  std::vector<float> filled(expected.size());
  cuda.device_api().fill(static_cast<float*>(buffer.data()), expected[0], expected.size(), stream);
  cuda.device_api().copy_to_host(filled.data(), buffer.data(), expected.size() * sizeof(float), stream);
  BOOST_TEST_CHECK(filled == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(arguments_are_checked_before_anything_is_launched, *once()) {
  const Case c{.spec = AmaxSpec{.in = Dtype::bf16}, .shape = {8, 8}};
  PlacedCase placed(c, maker.inputs(c), cuda, stream);
  const std::int64_t launches = cuda.device_api().launches();
  placed.tensor("input").device = {};
  check_contains(error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument),
                 {"amax input", "on cpu", "works on cuda"});
  BOOST_TEST(cuda.device_api().launches() == launches);
  BOOST_TEST(placed.outputs(stream).at("amax").bits(0, 0) == 0xa5a5a5a5U);
}

BOOST_AUTO_TEST_SUITE_END()

// Not in suite `small`: memcheck reports the driver's refusals as errors.
BOOST_FIXTURE_TEST_CASE(freed_memory_is_not_allocated, Fixture, *once()) {
  constexpr std::size_t kBytes = std::size_t{64} << 20U;
  auto* const data = static_cast<std::byte*>(cuda.device_api().allocate(kBytes));
  BOOST_TEST(cuda.device_api().is_allocated(data, kBytes));
  BOOST_TEST(!cuda.device_api().is_allocated(data, std::size_t{1} << 48U));
  cuda.device_api().release(data);
  BOOST_TEST(!cuda.device_api().is_allocated(data, kBytes));
  cuda.device_api().synchronize(stream);  // asking has broken nothing
}

BOOST_FIXTURE_TEST_CASE(memory_that_is_not_there_is_an_error, Fixture, *once()) {
  check_contains(error_of([&] { cuda.device_api().allocate(std::size_t{1} << 50U); }, ErrorCode::out_of_memory),
                 {"bytes"});
}

BOOST_FIXTURE_TEST_SUITE(every, Fixture)

BOOST_AUTO_TEST_CASE(all_kernels_compile) {
  std::vector<KernelSpec> specs = all_specs();
  // A GEMM that the library gives to gemm_mma, in the tile for such small sizes.
  for (const KernelSpec& spec : all_valid_specs()) {
    const auto* const gemm = std::get_if<GemmSpec>(&spec);
    if (gemm == nullptr || gemm->a == Dtype::f32) continue;
    GemmSpec forced = *gemm;
    forced.kernel = GemmKernel::mma;
    forced.tiling = kMmaTilings[1];
    specs.emplace_back(forced);
  }
  compile_share(specs);
  BOOST_TEST(context().cache().stats().compiled + context().cache().stats().loaded > 0);
}

BOOST_AUTO_TEST_CASE(amax) { run_all(cases(SizeClass::ci), of_kind<AmaxSpec>); }
BOOST_AUTO_TEST_CASE(cast) { run_all(cases(SizeClass::ci), of_kind<CastSpec>); }
BOOST_AUTO_TEST_CASE(relayout) { run_all(cases(SizeClass::ci), of_kind<RelayoutSpec>); }
BOOST_AUTO_TEST_CASE(elementwise) { run_all(cases(SizeClass::ci), of_kind<ElementwiseSpec>); }
BOOST_AUTO_TEST_CASE(cast_stats) { run_all(cases(SizeClass::ci), of_kind<CastStatsSpec>); }
BOOST_AUTO_TEST_CASE(column_sum) { run_all(cases(SizeClass::ci), of_kind<ColumnSumSpec>); }
BOOST_AUTO_TEST_CASE(gemm) { run_all(cases(SizeClass::ci), of_kind<GemmSpec>); }
BOOST_AUTO_TEST_CASE(gemm_simt) {
  std::vector<Case> forced;
  for (Case c : cases(SizeClass::ci)) {
    auto* const gemm = std::get_if<GemmSpec>(&c.spec);
    if (gemm == nullptr || !typical(*gemm)) continue;
    gemm->kernel = GemmKernel::simt;
    forced.push_back(c);
  }
  run_all(forced, [](const Case&) { return true; });
}
BOOST_AUTO_TEST_CASE(norm) { run_all(cases(SizeClass::ci), of_kind<NormSpec>); }
BOOST_AUTO_TEST_CASE(norm_backward) { run_all(cases(SizeClass::ci), of_kind<NormBackwardSpec>); }
BOOST_AUTO_TEST_CASE(amax_history) { run_all(cases(SizeClass::ci), of_kind<AmaxHistorySpec>); }
BOOST_AUTO_TEST_CASE(amax_scales) { run_all(cases(SizeClass::ci), of_kind<AmaxScalesSpec>); }

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(large, Fixture)

BOOST_AUTO_TEST_CASE(matrices) {
  run_all(cases(SizeClass::gpu), [](const Case& c) { return !std::holds_alternative<GemmSpec>(c.spec); });
}
BOOST_AUTO_TEST_CASE(gemms) { run_all(cases(SizeClass::gpu), of_kind<GemmSpec>); }

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(huge, Fixture)

BOOST_AUTO_TEST_CASE(past_2_to_the_31_elements) {
  run_all(cases(SizeClass::huge), [](const Case&) { return true; });
}

BOOST_AUTO_TEST_SUITE_END()

// ---- streams, threads, graphs ------------------------------------------------------------------------------------

// Work of one launch, of several, of cuBLASLt, and of the kernels around it.
std::vector<Case> mixed_cases() {
  return {{.spec = parse("amax bf16 scale=tensor"), .shape = {120, 2080}},
          {.spec = parse("cast bf16->e4m3fn scale=tensor out=codes,transposed"), .shape = {512, 768}},
          {.spec = parse("cast f32->e5m2 scale=row out=transposed"), .shape = {37, 131}},
          {.spec = parse("cast bf16->e5m2 scale=row out=codes,transposed"), .shape = {256, 384}},
          {.spec = parse("cast bf16->e4m3fn scale=1x128 out=codes"), .shape = {256, 384}},
          {.spec = parse("cast bf16->e4m3fn of=silu(x)*gate+bias[col] scale=tensor out=codes,transposed,sum:f32"),
           .shape = {512, 768}},
          {.spec = parse("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor bias fast"), .shape = {256, 512, 768}},
          {.spec = parse("gemm bf16*bf16->bf16 nt bias"), .shape = {256, 512, 768}},
          {.spec = parse("gemm e4m3fnuz*e4m3fnuz->f32 nt scale=row,row"), .shape = {37, 131, 67}},
          {.spec = parse("column_sum bf16->f32"), .shape = {1000, 77}},
          {.spec = parse("elementwise bf16 of=silu(x)*gate"), .shape = {300, 1000}},
          {.spec = parse("elementwise bf16 of=silu(x)*gate second=gate*sigmoid(x)"), .shape = {300, 1000}},
          {.spec = parse("elementwise bf16 of=silu(x)*gate second=gate*sigmoid(x) amax"), .shape = {300, 1000}},
          {.spec = parse("cast_stats bf16->e4m3fn scale=1x128 transposed"), .shape = {300, 1024}},
          {.spec = parse("norm layer bf16->e4m3fn affine scale=row out=codes,result,stats"), .shape = {300, 1024}},
          {.spec = parse("norm rms bf16->e4m3fn scale=tensor out=codes given"), .shape = {300, 999}},
          {.spec = parse("norm_backward layer bf16 affine sums=bf16"), .shape = {700, 1024}},
          {.spec = parse("amax_history reduce=max"), .shape = {672, 16}},
          {.spec = parse("amax_scales e4m3fn"), .shape = {1, 1000}}};
}

void check_same(const Case& c, const Matrices& expected, const Matrices& actual, const char* when) {
  std::string fault = damage(actual);
  for (const auto& [what, matrix] : actual) {
    if (fault.empty()) fault = bit_difference(what, expected.at(what), matrix);
  }
  BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ", " << when << ": " << fault);
}

struct GraphFixture : Fixture {
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);
  std::optional<CurrentContext> current;

  GraphFixture() {
    BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
    current.emplace(*driver, context().device().index);
  }
};

BOOST_FIXTURE_TEST_SUITE(streams, GraphFixture, *once())

BOOST_AUTO_TEST_CASE(a_captured_graph_gives_the_same_bits) {
  for (const Case& c : mixed_cases()) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    placed.enqueue(stream);
    const Matrices expected = placed.outputs(stream);
    BOOST_TEST(!cuda.device_api().capturing(stream));

    Graph graph(stream, [&] {
      BOOST_TEST(cuda.device_api().capturing(stream));
      placed.enqueue(stream);
    });
    for (const char* const when : {"first replay", "second replay"}) {
      placed.poison(stream);
      graph.replay(stream);
      check_same(c, expected, placed.outputs(stream), when);
    }
    Stream other(cuda);
    placed.poison(stream);
    other.wait_for(stream);
    graph.replay(other);
    stream.wait_for(other);
    check_same(c, expected, placed.outputs(stream), "on another stream");

    PlacedCase beside(c, maker.inputs(c), cuda, stream);
    graph.update(stream, [&] { beside.enqueue(stream); });
    beside.poison(stream);
    graph.replay(stream);
    check_same(c, expected, beside.outputs(stream), "after an update");
  }
}

// Both graphs are captured from one stream, and run side by side on two others: neither uses the other's scratch
// memory.
BOOST_AUTO_TEST_CASE(two_graphs_of_one_stream_run_side_by_side) {
  const auto cast_of = [](std::int64_t cols) {
    return Case{.spec = parse("cast bf16->e4m3fn scale=tensor out=codes"), .shape = {2048, cols}};
  };
  const std::array cases{cast_of(2048), cast_of(3072)};
  constexpr int kReplays = 50;
  const auto run_both = [&](bool side_by_side) {
    std::vector<std::unique_ptr<PlacedCase>> placed;
    std::vector<Graph> graphs;
    for (const Case& each : cases) {
      placed.push_back(std::make_unique<PlacedCase>(each, maker.inputs(each), cuda, stream));
      placed.back()->enqueue(stream);
      graphs.emplace_back(stream, [&] { placed.back()->enqueue(stream); });
      placed.back()->poison(stream);
    }
    cuda.device_api().synchronize(stream);
    Stream one(cuda), two(cuda);
    for (int i = 0; i < kReplays; ++i) {
      graphs[0].replay(one);
      graphs[1].replay(side_by_side ? two : one);
    }
    cuda.device_api().synchronize(one);
    cuda.device_api().synchronize(two);
    return std::array{placed[0]->outputs(stream), placed[1]->outputs(stream)};
  };
  const auto expected = run_both(false);
  const auto actual = run_both(true);
  for (std::size_t i = 0; i < actual.size(); ++i) check_same(cases[i], expected[i], actual[i], "side by side");
}

BOOST_AUTO_TEST_CASE(a_capture_that_needs_a_new_kernel_is_refused) {
  ContextOptions options = cuda_options();
  options.store_root = std::filesystem::path{};
  Context fresh(options);
  Stream own(fresh.backend());
  const Case c{.spec = parse("cast bf16->e4m3fn scale=row out=codes"), .shape = {16, 32}};
  PlacedCase placed(c, maker.inputs(c), fresh.backend(), own);
  {
    const Capture capture(*driver, own);
    const std::string refusal = error_of([&] { placed.enqueue(own); }, ErrorCode::invalid_argument);
    check_contains(refusal, {"captur", "before"});
  }
  BOOST_TEST(fresh.cache().stats().compiled == 0);
  check_same(c, poisoned_outputs(c), placed.outputs(own), "after the refusal");

  placed.enqueue(own);  // the stream works again
  BOOST_TEST(fault_of(c, maker.inputs(c), placed.outputs(own)) == "");
}

// A cast that takes one launch takes two in a capture, if no earlier call has loaded the one-launch kernel.
BOOST_AUTO_TEST_CASE(a_capture_after_a_larger_cast_needs_no_new_kernel) {
  Context fresh(cuda_options());
  Stream own(fresh.backend());
  const auto placed = [&](Shape shape) {
    const Case c{.spec = parse("cast bf16->e4m3fn scale=tensor out=codes"), .shape = shape};
    return std::make_unique<PlacedCase>(c, maker.inputs(c), fresh.backend(), own);
  };
  placed({1024, 1024})->enqueue(own);
  const auto small = placed({64, 128});
  {
    Graph graph(own, [&] { small->enqueue(own); });
    graph.replay(own);
    fresh.device_api().synchronize(own);
  }
  const Case c{.spec = parse("cast bf16->e4m3fn scale=tensor out=codes"), .shape = {64, 128}};
  BOOST_TEST(fault_of(c, maker.inputs(c), small->outputs(own)) == "");
}

// The caller's own context, next to the primary context that Ingot uses.
BOOST_AUTO_TEST_CASE(the_callers_context_is_put_back) {
  std::string missing;
  const Library library = Library::open("libcuda.so.1", missing);
  using Create = CUresult (*)(CUcontext*, unsigned, CUdevice);
  using Destroy = CUresult (*)(CUcontext);
  const auto create = reinterpret_cast<Create>(library.symbol("cuCtxCreate_v2"));
  const auto destroy = reinterpret_cast<Destroy>(library.symbol("cuCtxDestroy_v2"));
  BOOST_REQUIRE(create != nullptr);
  BOOST_REQUIRE(destroy != nullptr);
  const Driver::Api& api = driver->api();
  CUdevice device = 0;
  CUcontext theirs = nullptr;
  driver->check(api.cuCtxGetDevice(&device), "cuCtxGetDevice");
  driver->check(create(&theirs, 0, device), "cuCtxCreate");  // which makes it current

  const auto expect_theirs = [&](const char* after) {
    CUcontext found = nullptr;
    driver->check(api.cuCtxGetCurrent(&found), "cuCtxGetCurrent");
    BOOST_CHECK_MESSAGE(found == theirs, "after " << after << " another context is current than before");
  };
  for (const Case& c : mixed_cases()) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);  // allocate, copy_from_host
    expect_theirs("placing the tensors");
    placed.enqueue(stream);
    expect_theirs(name(c).c_str());
    BOOST_TEST(fault_of(c, maker.inputs(c), placed.outputs(stream)) == "");  // copy_to_host, synchronize
    expect_theirs("fetching the outputs");
  }
  { const Stream own(cuda); }
  expect_theirs("a stream's life");
  BOOST_TEST(!cuda.device_api().capturing(stream));
  expect_theirs("capturing()");
  {
    Context fresh(cuda_options());
    fresh.cache().get(AmaxSpec{.in = Dtype::bf16}, Pass::main);
    expect_theirs("loading a kernel");
  }
  expect_theirs("a context's life");
  driver->check(destroy(theirs), "cuCtxDestroy");
  driver->check(api.cuCtxSetCurrent(driver->context(context().device().index)), "cuCtxSetCurrent");
}

namespace {

// A function of libcuda that the library itself does not call.
template <class Function>
Function driver_function(const Library& library, const char* symbol, Function) {
  const auto found = reinterpret_cast<Function>(library.symbol(symbol));
  BOOST_REQUIRE_MESSAGE(found != nullptr, symbol);
  return found;
}

}  // namespace

// A context on a context of the caller's: everything runs and is stored there, the primary context has no part in it.
BOOST_AUTO_TEST_CASE(the_callers_context_takes_the_primary_ones_place) {
  std::string missing;
  const Library library = Library::open("libcuda.so.1", missing);
  const auto create =
      driver_function(library, "cuCtxCreate_v2", static_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(nullptr));
  const auto destroy = driver_function(library, "cuCtxDestroy_v2", static_cast<CUresult (*)(CUcontext)>(nullptr));
  const auto attribute = driver_function(library, "cuPointerGetAttribute",
                                         static_cast<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>(nullptr));
  CUdevice device = 0;
  CUcontext theirs = nullptr;
  driver->check(driver->api().cuCtxGetDevice(&device), "cuCtxGetDevice");
  driver->check(create(&theirs, 0, device), "cuCtxCreate");
  driver->check(driver->api().cuCtxSetCurrent(driver->context(context().device().index)), "cuCtxSetCurrent");
  {
    ContextOptions options = cuda_options();
    options.cuda_context = theirs;
    Context on_theirs(options);
    Stream own(on_theirs.backend());
    const Buffer memory(on_theirs.backend(), 1024);
    CUcontext of_memory = nullptr;
    driver->check(attribute(&of_memory, CU_POINTER_ATTRIBUTE_CONTEXT, reinterpret_cast<CUdeviceptr>(memory.data())),
                  "cuPointerGetAttribute");
    BOOST_TEST(of_memory == theirs);
    for (const Case& c : mixed_cases()) {
      PlacedCase placed(c, maker.inputs(c), on_theirs.backend(), own);
      placed.enqueue(own);
      BOOST_TEST(fault_of(c, maker.inputs(c), placed.outputs(own)) == "", name(c));
      placed.poison(own);
      Graph graph(own, [&] { placed.enqueue(own); });
      graph.replay(own);
      BOOST_TEST(fault_of(c, maker.inputs(c), placed.outputs(own)) == "", name(c) << ", replayed");
    }
  }
  driver->check(destroy(theirs), "cuCtxDestroy");
}

// A green context has some of the multiprocessors. The choice of kernels, and their grids, go by those.
BOOST_AUTO_TEST_CASE(a_green_context_has_its_own_multiprocessors) {
  std::string missing;
  const Library library = Library::open("libcuda.so.1", missing);
  const auto resource_of =
      driver_function(library, "cuDeviceGetDevResource", static_cast<decltype(&::cuDeviceGetDevResource)>(nullptr));
  const auto split = driver_function(library, "cuDevSmResourceSplitByCount",
                                     static_cast<decltype(&::cuDevSmResourceSplitByCount)>(nullptr));
  const auto describe = driver_function(library, "cuDevResourceGenerateDesc",
                                        static_cast<decltype(&::cuDevResourceGenerateDesc)>(nullptr));
  const auto create = driver_function(library, "cuGreenCtxCreate", static_cast<decltype(&::cuGreenCtxCreate)>(nullptr));
  const auto destroy =
      driver_function(library, "cuGreenCtxDestroy", static_cast<decltype(&::cuGreenCtxDestroy)>(nullptr));
  const auto from_green =
      driver_function(library, "cuCtxFromGreenCtx", static_cast<decltype(&::cuCtxFromGreenCtx)>(nullptr));
  CUdevice device = 0;
  driver->check(driver->api().cuCtxGetDevice(&device), "cuCtxGetDevice");
  CUdevResource all{}, part{};
  unsigned groups = 1;
  constexpr unsigned kAtLeast = 16;
  driver->check(resource_of(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  driver->check(split(&part, &groups, &all, nullptr, 0, kAtLeast), "cuDevSmResourceSplitByCount");
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext theirs = nullptr;
  driver->check(describe(&description, &part, 1), "cuDevResourceGenerateDesc");
  driver->check(create(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
  driver->check(from_green(&theirs, green), "cuCtxFromGreenCtx");
  {
    ContextOptions options = cuda_options();
    options.cuda_context = theirs;
    Context on_part(options);
    BOOST_TEST(on_part.tuning_machine().multiprocessors == static_cast<int>(part.sm.smCount));
    BOOST_TEST(part.sm.smCount < all.sm.smCount);
    Stream own(on_part.backend());
    for (const Case& c : mixed_cases()) {
      PlacedCase placed(c, maker.inputs(c), on_part.backend(), own);
      placed.enqueue(own);
      BOOST_TEST(fault_of(c, maker.inputs(c), placed.outputs(own)) == "", name(c));
    }
  }
  driver->check(destroy(green), "cuGreenCtxDestroy");
}

BOOST_AUTO_TEST_CASE(two_threads_with_a_stream_each) {
  const std::vector<Case> all = mixed_cases();
  std::vector<SharedMatrices> inputs;
  std::vector<Matrices> expected;
  for (const Case& c : all) {
    inputs.push_back(maker.inputs(c));
    expected.push_back(run(c, inputs.back(), cuda, stream));
  }
  std::array<std::string, 2> faults;
  const auto work = [&](std::string& fault) {
    try {
      Stream own(cuda);
      for (int round = 0; round < 20 && fault.empty(); ++round) {
        for (std::size_t i = 0; i < all.size() && fault.empty(); ++i) {
          const Matrices outputs = run(all[i], inputs[i], cuda, own);
          fault = damage(outputs);
          for (const auto& [what, matrix] : outputs) {
            if (fault.empty()) fault = bit_difference(name(all[i]) + " " + what, expected[i].at(what), matrix);
          }
        }
      }
    } catch (const Error& error) {
      fault = error.what();
    }
  };
  std::thread first(work, std::ref(faults[0]));
  std::thread second(work, std::ref(faults[1]));
  first.join();
  second.join();
  BOOST_TEST(faults[0] == "");
  BOOST_TEST(faults[1] == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
