// Recordings as values and as text, and the kernels that follow from them.
#include "ingot/codegen/recording.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"

BOOST_AUTO_TEST_SUITE(test_recording)

using namespace ingot;

namespace {

constexpr MatmulSize kSize{8192, 6144, 4096};

MatmulCall call(const char* line) { return parse_matmul_call(line); }

Recording of_matmul(const char* line) {
  Recording recording;
  recording.add(call(line));
  return recording;
}

std::string text_of(const KernelPass& kernel) { return generate(kernel.spec, kernel.pass).text; }

bool has(const std::vector<KernelPass>& kernels, const KernelSpec& spec) {
  const auto* const gemm = std::get_if<GemmSpec>(&spec);
  if (gemm != nullptr && gemm->kernel == GemmKernel::cublaslt) return false;  // has no source
  return std::ranges::any_of(
      kernels, [&](const KernelPass& kernel) { return text_of(kernel) == generate(spec, Pass::main).text; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(recordings)

BOOST_AUTO_TEST_CASE(keeps_each_thing_once_in_order) {
  Recording recording;
  BOOST_TEST(recording.empty());
  BOOST_TEST(recording.add(KernelSpec(RelayoutSpec{})));
  BOOST_TEST(recording.add(KernelSpec(CastSpec{})));
  BOOST_TEST(!recording.add(KernelSpec(RelayoutSpec{})));
  BOOST_TEST(recording.add(MatmulCall{.spec = GemmSpec{}, .size = {1, 2, 3}}));
  BOOST_TEST(!recording.add(MatmulCall{.spec = GemmSpec{.kernel = GemmKernel::simt}, .size = {1, 2, 3}}));
  BOOST_TEST(print(recording) == "# Ingot recording\n" + print(KernelSpec(RelayoutSpec{})) + "\n" +
                                     print(KernelSpec(CastSpec{})) +
                                     "\ngemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor 1 2 3\n");
}

BOOST_AUTO_TEST_CASE(every_spec_is_read_back) {
  Recording recording;
  for (const KernelSpec& spec : all_valid_specs()) {
    recording.add(spec);
    if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) recording.add({.spec = *gemm, .size = kSize});
  }
  for (const DequantMatmulSpec& spec : valid_specs<DequantMatmulSpec>()) {
    recording.add(KernelSpec(spec));
    recording.add({.spec = spec, .size = kSize});
  }
  for (const GemmSpec& spec : test::epilogue_specs()) recording.add({.spec = spec, .size = kSize});
  const ParsedRecording parsed = parse_recording(print(recording));
  BOOST_TEST(parsed.damaged == 0, parsed.first);
  BOOST_TEST((parsed.recording == recording));
}

// Merging is appending, and a GEMM manifest is a recording.
BOOST_AUTO_TEST_CASE(merged_as_values_and_as_text) {
  Recording one = of_matmul("gemm bf16*bf16->bf16 nt 8 8 8");
  one.add(KernelSpec(CastSpec{}));
  Recording other = of_matmul("gemm f16*f16->f16 nt 8 8 8");
  other.add(KernelSpec(CastSpec{}));
  other.add(KernelSpec(RelayoutSpec{}));
  Recording both = one;
  both.add(other);
  BOOST_TEST(both.kernels().size() == 2U);
  BOOST_TEST(both.matmuls().size() == 2U);
  BOOST_TEST((parse_recording(print(one) + print(other)).recording == both));
  BOOST_TEST(
      (parse_recording("gemm bf16*bf16->bf16 nt 8 8 8\n").recording == of_matmul("gemm bf16*bf16->bf16 nt 8 8 8")));
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_counted_and_cost_no_other) {
  const ParsedRecording parsed = parse_recording(
      std::string("# a comment\r\n\n  relayout transposed \r\nrelayout sideways\ngemm bf16*bf16->bf16 nt 8 8 x\n") +
      std::string("relayout \0 copied\n", 18) + std::string(100'000, 'x') + "\ngemm bf16*bf16->bf16 nt 8 8 0\n" +
      "gemm bf16*bf16->bf16 nt 8 8 99999999999999999999\ngemm f16*f16->f16 nt 8 8 8");
  BOOST_TEST(parsed.damaged == 6);
  BOOST_TEST(parsed.first == "line 4: \"sideways\" must be copied or transposed");
  BOOST_TEST(parsed.recording.kernels().size() == 1U);
  BOOST_TEST(parsed.recording.matmuls().size() == 1U);
  BOOST_TEST(parse_recording("gemm bf16*bf16->bf16 nt 8 8 x").first.starts_with("line 1: \"x\" is no k; expected"));
  BOOST_TEST(parse_recording(std::string("relayout\0copied", 15)).first == "line 1: has a NUL byte");
  BOOST_TEST(parse_recording(std::string(100'000, 'x')).first == "line 1: 100000 bytes are too many for a line");
  BOOST_TEST(parse_recording("").recording.empty());
}

// Twice the lines must not take four times as long, whatever the machine is doing: 80,000 of them once took 42 s.
BOOST_AUTO_TEST_CASE(long_recordings_are_read_in_linear_time) {
  std::string text;
  for (int m = 1; m <= 50'000; ++m) text += "gemm bf16*bf16->bf16 nt " + std::to_string(m) + " 8 8\n";
  const auto begin = std::chrono::steady_clock::now();
  BOOST_TEST(parse_recording(text).recording.matmuls().size() == 50'000U);
  BOOST_TEST(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 20.0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(recorded_kernels)

BOOST_AUTO_TEST_CASE(a_cast_has_all_its_passes_once) {
  Recording recording;
  recording.add(parse("cast bf16->e4m3fn scale=tensor out=codes"));
  recording.add(parse("cast bf16->e5m2 scale=tensor out=codes"));  // shares the first pass
  const std::vector<KernelPass> kernels = kernels_of(recording, matmul_device(gpu_named("h200")));
  std::size_t passes_of_both = 0;
  std::set<std::string> sources;
  for (const KernelSpec& spec : recording.kernels()) {
    for (const Pass pass : passes(spec)) {
      ++passes_of_both;
      sources.insert(generate(spec, pass).text);
    }
  }
  BOOST_TEST(sources.size() < passes_of_both);
  BOOST_TEST(kernels.size() == sources.size());
  for (const KernelPass& kernel : kernels) BOOST_TEST(sources.contains(text_of(kernel)));
}

// A cast gives each wide row a block on every GPU. norm_backward gives it a cluster, so that GPUs without clusters need
// no kernels for them.
BOOST_AUTO_TEST_CASE(wide_rows_have_kernels_where_they_can_run) {
  const auto passes_on = [](const char* line, const char* gpu) {
    Recording recording;
    recording.add(parse(line));
    std::vector<Pass> found;
    for (const KernelPass& kernel : kernels_of(recording, matmul_device(gpu_named(gpu)))) found.push_back(kernel.pass);
    return found;
  };
  for (const char* const gpu : {"h200", "b200", "l40s", "a100"}) {
    BOOST_TEST((passes_on("cast bf16->e4m3fn scale=row out=codes", gpu) == std::vector{Pass::main, Pass::wide}), gpu);
    const bool clusters = gpu_named(gpu).target.major >= 9;
    BOOST_TEST((passes_on("norm_backward rms bf16", gpu) ==
                (clusters ? std::vector{Pass::main, Pass::wide} : std::vector{Pass::main})),
               gpu);
  }
}

BOOST_AUTO_TEST_CASE(a_matmul_has_its_whole_order_but_cublaslt) {
  for (const char* const gpu : {"h200", "h20", "l40s", "a100", "b200"}) {
    const MatmulDevice device = matmul_device(gpu_named(gpu));
    for (const char* const line :
         {"gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 8192 6144 4096",
          "gemm e4m3fn*e4m3fn->bf16 tt scale=tensor,tensor 8192 6144 4096", "gemm bf16*bf16->bf16 nt 16 6144 4096"}) {
      const auto spec = std::get<GemmSpec>(call(line).spec);
      const std::vector<KernelPass> kernels = kernels_of(of_matmul(line), device);
      BOOST_TEST(!kernels.empty());
      for (const GemmSpec& each : gemm_order({.spec = spec, .size = call(line).size}, device)) {
        BOOST_TEST(has(kernels, each) == (each.kernel != GemmKernel::cublaslt));
        if (each.staged_a) BOOST_TEST(has(kernels, RelayoutSpec{.transposed = each.layout_a == Layout::mn_major}));
        if (each.staged_b) BOOST_TEST(has(kernels, RelayoutSpec{.transposed = each.layout_b == Layout::mn_major}));
      }
      for (const KernelPass& kernel : kernels) {
        const auto* const gemm = std::get_if<GemmSpec>(&kernel.spec);
        BOOST_TEST((gemm == nullptr || gemm->kernel != GemmKernel::cublaslt));
      }
    }
    constexpr const char* kDecode = "dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 6144 4096";
    const std::vector<KernelPass> kernels = kernels_of(of_matmul(kDecode), device);
    const auto order = dequant_order(std::get<DequantMatmulSpec>(call(kDecode).spec), call(kDecode).size, device);
    BOOST_TEST(kernels.size() == order.size());
    for (const DequantMatmulSpec& each : order) BOOST_TEST(has(kernels, each));
  }
}

// From their GEMMs alone, as a run on the CPU or on another GPU notes them.
BOOST_AUTO_TEST_CASE(small_gradients_have_the_kernel_of_one_launch) {
  Recording recording;
  for (const char* const line : {"gemm bf16*bf16->bf16 nt 512 384 256", "gemm bf16*bf16->bf16 nn 512 256 384",
                                 "gemm bf16*bf16->bf16 tn 384 256 512", "gemm bf16*bf16->f32 tn c=f32 384 256 512",
                                 "gemm bf16*bf16->bf16 nn c=bf16 512 256 384"}) {  // added to others of a shared input
    recording.add(call(line));
  }
  for (const char* const gpu : {"h200", "h20"}) {
    const MatmulDevice device = matmul_device(gpu_named(gpu));
    std::vector<GemmPairSpec> expected;
    for (const auto& [grad_input, grad_weight] : {std::pair{1U, 2U}, {1U, 3U}, {4U, 2U}, {4U, 3U}}) {
      const auto gemm = [&](std::size_t i) {
        const MatmulCall& matmul = recording.matmuls()[i];
        return GemmCall{.spec = std::get<GemmSpec>(matmul.spec), .size = matmul.size};
      };
      expected.push_back(*choose_gemm_pair(gemm(grad_input), gemm(grad_weight), device));
    }
    std::vector<GemmPairSpec> found;
    for (const KernelPass& kernel : kernels_of(recording, device)) {
      if (const auto* const pair = std::get_if<GemmPairSpec>(&kernel.spec)) found.push_back(*pair);
    }
    BOOST_TEST(found.size() == expected.size(), gpu);
    for (const GemmPairSpec& pair : expected) BOOST_TEST(std::ranges::count(found, pair) == 1, gpu);
  }
  for (const KernelPass& kernel : kernels_of(recording, matmul_device(gpu_named("l40s")))) {
    BOOST_TEST(!std::holds_alternative<GemmPairSpec>(kernel.spec));
  }
}

// The number of multiprocessors decides between tilings.
BOOST_AUTO_TEST_CASE(gpus_of_one_target_differ) {
  Recording recording;
  for (const std::int64_t m : {1, 16, 64, 256, 1024}) {
    recording.add(
        {.spec = call("dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 6144 4096").spec, .size = {m, 6144, 4096}});
  }
  const auto on = [&](const char* gpu) { return kernels_of(recording, matmul_device(gpu_named(gpu))); };
  BOOST_TEST((on("h100") == on("h200")));
  BOOST_TEST((on("h20") != on("h200")));
}

BOOST_AUTO_TEST_CASE(kernels_of_another_gpu_are_left_out) {
  Recording recording;
  recording.add(parse("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast kernel=sm90:128x256:2x1:4:cooperative"));
  recording.add(parse("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=cublaslt"));
  recording.add(parse("dequant_matmul bf16*e4m3fn->bf16 packed scale=row"));
  BOOST_TEST(kernels_of(recording, matmul_device(gpu_named("h200"))).size() == 1U);
  BOOST_TEST(kernels_of(recording, matmul_device(gpu_named("l40s"))).empty());
}

BOOST_AUTO_TEST_CASE(the_list_of_kernels_ends_when_asked) {
  Recording recording = of_matmul("gemm bf16*bf16->bf16 nt 8192 6144 4096");
  recording.add(KernelSpec(RelayoutSpec{}));
  recording.add(KernelSpec(RelayoutSpec{.transposed = true}));
  const MatmulDevice device = matmul_device(gpu_named("h200"));
  for (const int count : {0, 1, 2}) {
    int asked = 0;
    BOOST_TEST(kernels_of(recording, device, {.stop = [&] { return ++asked > count; }}).size() ==
               static_cast<std::size_t>(count));
  }
  BOOST_TEST(kernels_of(recording, device, {.stop = [] { return false; }}).size() > 2U);
}

BOOST_AUTO_TEST_CASE(tuned_kernels_of_the_recorded_matmuls_are_added) {
  constexpr const char* kLine = "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 8192 6144 4096";
  const MatmulDevice device = matmul_device(gpu_named("h200"));
  const auto plain = kernels_of(of_matmul(kLine), device);
  GemmSpec odd = std::get<GemmSpec>(call(kLine).spec);
  odd.kernel = GemmKernel::sm90;
  for (const GemmTiling& tiling : gemm_tilings(odd)) {
    odd.tiling = tiling;
    if (!has(plain, odd)) break;
  }
  BOOST_REQUIRE(!has(plain, odd));
  GemmSpec cublaslt = std::get<GemmSpec>(call(kLine).spec);
  cublaslt.kernel = GemmKernel::cublaslt;
  cublaslt.algorithm = 3;
  const std::vector<TunedMatmul> tuned{{.call = call(kLine), .chosen = odd},
                                       {.call = call(kLine), .chosen = cublaslt},
                                       {.call = {.spec = call(kLine).spec, .size = {1, 1, 1}}, .chosen = odd}};
  const auto with = kernels_of(of_matmul(kLine), device, {.tuned = TunedKernels(tuned)});
  BOOST_TEST(with.size() == plain.size() + 1);
  BOOST_TEST(has(with, odd));
  const std::vector<TunedMatmul> others{tuned.back()};
  BOOST_TEST((kernels_of(of_matmul(kLine), device, {.tuned = TunedKernels(others)}) == plain));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
