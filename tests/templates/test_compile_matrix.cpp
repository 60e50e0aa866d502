// Compiles the kernels that can be asked for, for the supported targets: in CI one in 48, nightly all. A spill, a
// stack frame, or any warning of the front end or of ptxas is a failure. Needs NVRTC but no GPU.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/util/error.h"
#include "tests/cases.h"
#include "tests/support/fixed_set.h"
#include "tests/support/share.h"
#include "tests/templates/math_checks.h"
#include "tests/templates/math_kernels.h"

BOOST_AUTO_TEST_SUITE(test_compile_matrix)

using namespace ingot;

namespace {

struct Job {
  Source source;
  Target target;
  std::uint32_t rarer = 1;  // CI's part of these jobs is this many times smaller
};

// Empty if the kernel compiled cleanly.
std::string problem_with(const CompiledKernel& kernel) {
  std::string problem;
  const KernelResources& used = kernel.resources;
  if (used.spill_bytes != 0) problem += fmt::format("spills {} bytes\n", used.spill_bytes);
  if (used.stack_bytes != 0) problem += fmt::format("has a stack frame of {} bytes\n", used.stack_bytes);
  if (used.registers <= 0) problem += "reports no registers: ptxas's report was not read\n";
  if (kernel.cubin.empty()) problem += "gives no machine code\n";
  if (kernel.lowered_name.empty()) problem += "has no symbol\n";
  if (!kernel.log.empty()) problem += kernel.log + "\n";
  return problem;
}

// The problems of each job.
std::vector<std::string> compile_all(const NvrtcCompiler& compiler, const std::vector<Job>& jobs) {
  std::vector<std::string> problems;
  for (const Job& job : jobs) {
    try {
      problems.push_back(problem_with(compiler.compile(job.source, job.target)));
    } catch (const Error& error) {
      problems.push_back(fmt::format("{}\n{}\n", error.what(), error.log()));
    }
  }
  return problems;
}

const NvrtcCompiler& nvrtc() {
  static const std::unique_ptr<NvrtcCompiler> compiler = [] {
    const char* root = std::getenv("INGOT_CUDA_ROOT");
    std::string problem;
    auto opened = NvrtcCompiler::open(root != nullptr ? root : "", embedded_templates(), problem);
    BOOST_REQUIRE_MESSAGE(opened != nullptr, "this test needs NVRTC: " << problem);
    return opened;
  }();
  return *compiler;
}

// Which jobs this process compiles: one in 48, always the same (support/fixed_set.h), and of those that others stand
// for fewer; with `-- nightly` as arguments every kernel for every target. The name of a kernel and its target say
// whether CI has it: a new spec moves no other. `-- 3/8`: every eighth job from the fourth on, as NVRTC's front end
// runs one compile at a time in a process.
class Selection {
 public:
  static constexpr std::uint32_t kOneOf = 48;

  bool all() const { return all_; }

  std::vector<Job> of(const std::vector<Job>& jobs) const {
    std::vector<test::NamedCase> named;
    for (const Job& job : jobs) {
      named.push_back(
          {.name = job.source.name + " for " + print(job.target), .kinds = kinds_of(job), .rarer = job.rarer});
    }
    std::vector<Job> mine;
    std::size_t next = 0;
    for (const std::size_t i : test::FixedSet(kOneOf).of(named)) {
      if (share_.has(next++)) mine.push_back(jobs[i]);
    }
    return mine;
  }

 private:
  static std::vector<std::string> kinds_of(const Job& job) {
    std::vector<std::string> kinds{print(job.target)};
    std::istringstream lines(job.source.text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("#include")) kinds.push_back(line);
    }
    return kinds;
  }

  bool all_ = test::runs_nightly();
  test::Share share_ = test::Share::of_arguments();
};

const Selection& selection() {
  static const Selection made;
  return made;
}

// The target of a kernel that is compiled for one: by its name, so that a new kernel moves no other.
Target some_target(const std::string& name) {
  return kSupportedTargets[test::stable_hash(name) % kSupportedTargets.size()];
}

// `what`: the jobs, in the line that says how many were compiled and how long that took.
void expect_clean(const char* what, const std::vector<Job>& all) {
  const std::vector<Job> jobs = selection().of(all);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> problems = compile_all(nvrtc(), jobs);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    BOOST_TEST(problems[i].empty(), jobs[i].source.name << " for " << print(jobs[i].target) << ":\n"
                                                        << jobs[i].source.text << problems[i]);
  }
  fmt::print("{}: {} of {} compiles in {:.1f} s\n", what, jobs.size(), all.size(), seconds);
}

bool stands_for_its_kind(const KernelSpec& spec) {
  if (const auto* const cast = std::get_if<CastSpec>(&spec)) {
    return cast->in == Dtype::bf16 && cast->out == Dtype::e4m3fn;
  }
  if (const auto* const norm = std::get_if<NormSpec>(&spec)) {
    return norm->in == Dtype::bf16 && norm->out.value_or(Dtype::e4m3fn) == Dtype::e4m3fn;
  }
  if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) return gemm->out == Dtype::bf16 && gemm->a == gemm->b;
  return true;
}

// A kernel that stands for its kind is compiled for sm_90a and about one other target, of the others every sixth for
// one.
std::uint32_t rarer(bool stands_for_others, Target target) {
  constexpr auto kTargets = static_cast<std::uint32_t>(kSupportedTargets.size());
  if (!stands_for_others) return 6 * kTargets;
  return target == target_for(9, 0) ? 1 : kTargets;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_kernel_for_every_target) {
  struct Entry {
    Source source;
    bool stands_for_others;
  };
  std::map<std::string, Entry> sources;  // by text: many specs share a kernel
  for (const KernelSpec& spec : all_valid_specs()) {
    for (const Pass pass : passes(spec)) {
      const Source source = generate(spec, pass);
      sources.emplace(source.text, Entry{source, stands_for_its_kind(spec)});
    }
  }
  std::vector<Job> jobs;
  for (const auto& [text, entry] : sources) {
    for (const Target target : kSupportedTargets) {
      jobs.push_back({entry.source, target, rarer(entry.stands_for_others, target)});
    }
  }
  expect_clean("every kernel", jobs);
}

// Norms that are compiled for some numbers of columns.
BOOST_AUTO_TEST_CASE(norms_of_named_columns) {
  std::map<std::string, Job> jobs;
  for (const KernelSpec& spec : all_valid_specs()) {
    if (!std::holds_alternative<NormSpec>(spec)) continue;
    const bool stands = stands_for_its_kind(spec);
    for (const std::int64_t cols : {1024, 2048, 4096, 8192, 12288, 16384}) {
      const NormSpec norm = named_norm(std::get<NormSpec>(spec), cols);
      if (norm.cols == 0) continue;
      for (const Target target : kSupportedTargets) {
        if (target.major < 9) continue;  // never runs
        const Source source = generate(norm);
        const bool wanted = stands || test::stable_hash(source.name + print(target)) % 29 == 0;
        if (wanted) jobs.emplace(source.text + print(target), Job{source, target, rarer(stands, target)});
      }
    }
  }
  std::vector<Job> all;
  for (const auto& [text, job] : jobs) all.push_back(job);
  expect_clean("norms of named columns", all);
}

// The tensor-core GEMM of sm_90a: every candidate tiling, and with one of them every pair of formats, output, kind of
// scale_inv and bias. ptxas warns if it serialises wgmmas (C7510) or ignores setmaxnreg (C7508); this test then fails.
BOOST_AUTO_TEST_CASE(gemm_sm90_for_hopper) {
  std::map<std::string, Job> jobs;
  const auto add = [&](GemmSpec spec) {
    spec.kernel = GemmKernel::sm90;
    const Source source = generate(spec);
    jobs.emplace(source.text, Job{source, target_for(9, 0)});
  };
  for (const bool fast : {true, false}) {
    const GemmSpec base{.scale_a = kRowwise, .scale_b = kRowwise, .bias = true, .fast_accumulation = fast};
    for (const Dtype out : kHighPrecisionDtypes) {
      GemmSpec spec = base;
      spec.out = out;
      for (const GemmTiling& tiling : gemm_tilings(spec)) {
        spec.tiling = tiling;
        add(spec);
      }
    }
    for (const Dtype a : {Dtype::e4m3fn, Dtype::e5m2}) {
      for (const Dtype b : {Dtype::e4m3fn, Dtype::e5m2}) add({.a = a, .b = b, .fast_accumulation = fast});
    }
    for (const ScaleGranularity scale_b : {kBlocks, kRowGroups}) {
      GemmSpec grouped{.scale_a = kRowGroups, .scale_b = scale_b, .bias = true};
      for (const GemmTiling& tiling : gemm_tilings(grouped)) {
        grouped.tiling = tiling;
        add(grouped);
      }
    }
    for (const auto scale : {kTensorwise, kRowwise}) {
      for (const bool bias : {false, true}) add({.scale_b = scale, .bias = bias, .fast_accumulation = fast});
    }
  }
  std::vector<Job> unique;
  for (const auto& [text, job] : jobs) unique.push_back(job);
  expect_clean("gemm_sm90", unique);
}

// Two GEMMs in one launch: every tiling that they can have, with itself and the next.
BOOST_AUTO_TEST_CASE(gemm_sm90_pair_for_hopper) {
  std::map<std::string, Job> jobs;
  for (const GemmPairSpec& kinds : valid_specs<GemmPairSpec>()) {
    const std::vector<GemmSpec> first = pair_halves(without_kernel(kinds.first));
    const std::vector<GemmSpec> second = pair_halves(without_kernel(kinds.second));
    for (std::size_t i = 0; i < first.size(); ++i) {
      for (std::size_t next : {i, i + 1}) {
        GemmPairSpec pair{.first = first[i], .second = second[next % second.size()]};
        if (next != i) pair.second.epilogue.c = pair.second.out;
        const Source source = generate(pair);
        jobs.emplace(source.text, Job{source, target_for(9, 0)});
      }
    }
  }
  std::vector<Job> unique;
  for (const auto& [text, job] : jobs) unique.push_back(job);
  expect_clean("gemm_sm90_pair", unique);
}

// Grouped GEMMs: every tiling, for each kind of operands, scale_inv and output.
BOOST_AUTO_TEST_CASE(gemm_sm90_grouped_for_hopper) {
  std::map<std::string, Job> jobs;
  for (const GroupedGemmSpec& kind : valid_specs<GroupedGemmSpec>()) {
    GroupedGemmSpec spec = kind;
    for (const GemmTiling& tiling : grouped_tilings(kind)) {
      spec.gemm.kernel = GemmKernel::sm90;
      spec.gemm.tiling = tiling;
      const Source source = generate(spec);
      const bool stands = kind.gemm.a == kind.gemm.b && kind.gemm.out != Dtype::f16;
      jobs.emplace(source.text, Job{source, target_for(9, 0), stands ? 8U : 48U});
    }
  }
  std::vector<Job> unique;
  for (const auto& [text, job] : jobs) unique.push_back(job);
  expect_clean("gemm_sm90_grouped", unique);
}

// GEMMs with decoded weights. In CI, for each format, kind of scale_inv and kernel, those that use most registers;
// every kernel that packs; and every tiling that is offered for some number of tokens. Nightly, every spec.
BOOST_AUTO_TEST_CASE(decoded_weights) {
  std::map<std::string, Job> jobs;
  const auto add = [&](const KernelSpec& spec, std::optional<Target> only, std::uint32_t rarer = 1) {
    const Source source = generate(spec);
    const Target target = only.value_or(some_target(source.name));
    jobs.emplace(source.text + print(target), Job{source, target, rarer});
  };
  for (const PackWeightSpec& spec : valid_specs<PackWeightSpec>()) add(spec, {});
  for (DequantMatmulSpec spec : valid_specs<DequantMatmulSpec>()) {
    if (!selection().all() && spec.out != Dtype::f32) continue;
    if (spec.kernel == DequantKernel::sm90) {
      add(spec, target_for(9, 0), 3);
      continue;
    }
    for (const DequantTiling& tiling :
         {DequantTiling{.tokens = 64, .rows = 64, .depth = 128, .stages = 3, .k_warps = 2},
          DequantTiling{.tokens = 32, .rows = 128, .depth = 128, .stages = 3, .k_warps = 2}}) {
      spec.tiling = tiling;
      add(spec, {}, 3);
    }
  }
  const MatmulDevice place{.target = target_for(9, 0), .multiprocessors = 132};
  const auto add_offered = [&](DequantMatmulSpec spec, const MatmulSize& size) {
    spec.kernel = DequantKernel::sm90;
    for (const DequantTiling& tiling : dequant_tilings(spec, size, place)) {
      spec.tiling = tiling;
      add(spec, target_for(9, 0));
    }
  };
  const DequantMatmulSpec fp8{.weight = Dtype::e4m3fn, .scale = kRowwise};
  const DequantMatmulSpec mx{.weight = Dtype::e2m1fn, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu};
  for (DequantMatmulSpec spec : {fp8,
                                 {.weight = Dtype::e5m2, .scale = kRowGroups},
                                 {.x = Dtype::f16, .weight = Dtype::e5m2fnuz, .out = Dtype::f16},
                                 {.weight = Dtype::e2m3fn, .scale = kRowGroups32},
                                 mx}) {
    for (const std::int64_t m : {1, 16, 32, 64, 128, 256}) {
      for (const bool experts : {false, true}) {
        spec.experts = experts;
        add_offered(spec, {m, 10240, 8192});
      }
    }
  }
  // Many experts with few rows have other tilings, and where K is short.
  for (DequantMatmulSpec spec : {fp8, mx, {.x = Dtype::f16, .weight = Dtype::e5m2fnuz, .out = Dtype::f16}}) {
    spec.experts = true;
    for (const std::int64_t m : {2, 6, 16, 20, 32, 64}) {
      for (const std::int64_t k : {768, 8192}) add_offered(spec, {m, 65536, k});
    }
  }
  std::vector<Job> unique;
  for (const auto& [text, job] : jobs) unique.push_back(job);
  expect_clean("dequant_matmul", unique);
}

// GEMMs with an epilogue: gemm_simt's and gemm_mma's for some target each; gemm_sm90's, for operands that wgmma
// takes, for Hopper, with the tilings that have most and fewest registers to spare, and in stream-K with fewest.
BOOST_AUTO_TEST_CASE(every_epilogue) {
  std::vector<Job> jobs;
  for (GemmSpec spec : test::epilogue_specs()) {
    const Target target = some_target(print(spec));
    spec.kernel = GemmKernel::simt;
    jobs.push_back({generate(spec), target});
    if (spec.a == Dtype::f32) continue;
    spec.kernel = GemmKernel::mma;
    for (const GemmTiling& tiling : kMmaTilings) {
      spec.tiling = tiling;
      jobs.push_back({generate(spec), target});
    }
    if (!is_ocp(spec.a) || !is_ocp(spec.b)) continue;
    spec.kernel = GemmKernel::sm90;
    spec.tiling.reset();
    const std::vector<GemmTiling> tilings(gemm_tilings(spec).begin(), gemm_tilings(spec).end());
    const auto narrow = std::ranges::find_if(tilings, [](const GemmTiling& t) { return t.n % 64 != 0; });
    const auto of_64 = static_cast<std::size_t>(narrow - tilings.begin());  // the last of these has the most sums
    std::vector<std::size_t> chosen{0, 2, 3, of_64 - 1, tilings.size() - 1};
    for (std::size_t i = 0; i < tilings.size(); ++i) {
      const bool large = tilings[i].m * tilings[i].n >= (has_group_scale_inv(spec) ? 128 * 128 : 256 * 128);
      if (tilings[i].stream_k && large) chosen.push_back(i);
    }
    for (const std::size_t i : chosen) {
      spec.tiling = tilings[i];
      jobs.push_back({generate(spec), target_for(9, 0)});
    }
  }
  expect_clean("epilogues", jobs);
}

// The tensor-core GEMM for every target: in CI, those tiles, kinds of operand and kinds of scale_inv that use most
// registers.
BOOST_AUTO_TEST_CASE(gemm_mma_for_every_target) {
  std::vector<std::string> lines{"e4m3fn*e4m3fn->bf16 kernel=mma:128x128",
                                 "e5m2fnuz*e5m2fnuz->f32 kernel=mma:128x128",
                                 "e4m3fn*e5m2->bf16 scale=1x128,128x128 kernel=mma:128x128",
                                 "e5m2fnuz*e4m3fnuz->f32 scale=1x128,1x128 kernel=mma:128x128",
                                 "bf16*bf16->bf16 kernel=mma:128x128",
                                 "f16*f16->f32 kernel=mma:128x128",
                                 "e4m3fn*e4m3fnuz->f16 kernel=mma:64x64",
                                 "e5m2fnuz*e5m2fnuz->bf16 scale=1x128,128x128 kernel=mma:64x64"};
  std::map<std::string, Source> sources;
  for (const std::string& line : lines) {
    const Source source = generate(parse("gemm " + line));
    sources.emplace(source.text, source);
  }
  if (selection().all()) {
    for (const KernelSpec& spec : all_valid_specs()) {
      const auto* const gemm = std::get_if<GemmSpec>(&spec);
      if (gemm == nullptr || gemm->a == Dtype::f32) continue;
      for (const GemmTiling& tiling : kMmaTilings) {
        GemmSpec tiled = *gemm;
        tiled.kernel = GemmKernel::mma;
        tiled.tiling = tiling;
        const Source source = generate(tiled);
        sources.emplace(source.text, source);
      }
    }
  }
  std::vector<Job> jobs;
  for (const auto& [text, source] : sources) {
    for (const Target target : kSupportedTargets) jobs.push_back({source, target});
  }
  expect_clean("gemm_mma", jobs);
}

// Expressions by themselves, casts with expressions, and casts with sums in every granularity: all for Hopper, a
// third for every target.
BOOST_AUTO_TEST_CASE(every_fused_kernel) {
  std::vector<KernelSpec> specs = test::fused_specs();
  for (const KernelSpec& spec : test::fused_specs()) {
    CastSpec list = std::get<CastSpec>(spec);
    list.list = true;
    if (!list.sum) specs.emplace_back(list);
  }
  for (const KernelSpec& spec : test::elementwise_specs()) specs.push_back(spec);
  for (const CombineSpec& spec : valid_specs<CombineSpec>()) specs.emplace_back(spec);
  for (const KernelSpec& spec : all_valid_specs()) {
    const auto* const cast = std::get_if<CastSpec>(&spec);
    if (cast == nullptr || cast->pow2) continue;
    const bool chosen = stands_for_its_kind(spec) && cast->codes && cast->transposed;
    CastSpec with_sum = *cast;
    with_sum.sum = Dtype::f32;
    if (selection().all() || chosen) specs.emplace_back(with_sum);
  }
  std::map<std::string, Job> jobs;
  for (const KernelSpec& spec : specs) {
    for (const Pass pass : passes(spec)) {
      const Source source = generate(spec, pass);
      for (const Target target : kSupportedTargets) {
        jobs.emplace(print(target) + source.text, Job{source, target, target == target_for(9, 0) ? 1U : 3U});
      }
    }
  }
  std::vector<Job> unique;
  for (const auto& [text, job] : jobs) unique.push_back(job);
  expect_clean("expressions and sums", unique);
}

// Lists of what expressions do not have: maxima alone, and values that are rounded first. Stacked matrices, gathered
// rows, experts' rows.
BOOST_AUTO_TEST_CASE(lists_of_shards_stacked_matrices_and_gathered_rows) {
  std::vector<Job> jobs;
  const auto add = [&](const Source& source) {
    for (const Target target : kSupportedTargets) {
      jobs.push_back({source, target, target == target_for(9, 0) ? 1U : 3U});
    }
  };
  for (const char* const line :
       {"cast f32->e4m3fn scale=tensor out=codes given rounded=bf16 list",
        "cast f32->e4m3fn scale=row out=codes given rounded=f16 list",
        "cast f32->e5m2fnuz scale=col out=codes given rounded=bf16 list",
        "cast f32->e4m3fn scale=128x128 out=codes given rounded=f16 list",
        "cast f32->e5m2 scale=row+col out=codes,transposed given rounded=f16 list",
        "amax f32 scale=row+col rounded=f16 list", "amax f32 scale=tensor+row rounded=bf16 list",
        "amax bf16 scale=row+128x128 list", "amax f16 scale=128x128 list"}) {
    add(generate(parse(line)));
  }
  for (const char* const words :
       {"bf16->e4m3fn scale=tensor out=codes,transposed", "bf16->e4m3fn scale=row+col out=codes,transposed",
        "bf16->e4m3fn scale=128x128 out=codes,transposed", "f16->e5m2 scale=1x128+128x1 out=codes,transposed",
        "f32->e4m3fn scale=tensor out=codes,transposed rounded=bf16",
        "f16->e5m2fnuz scale=col+tensor out=codes,transposed",
        "f32->e4m3fn scale=row+col out=codes,transposed given rounded=bf16",
        "bf16->e4m3fn scale=row out=codes,amax:col", "f32->e4m3fn scale=row out=codes,amax:col",
        "f16->e5m2fnuz scale=row out=codes,amax:col", "f32->e5m2 scale=row out=codes,amax:col rounded=bf16"}) {
    const KernelSpec spec = parse(fmt::format("cast {} stacked", words));
    for (const Pass pass : passes(spec)) add(generate(spec, pass));
  }
  for (const char* const words :
       {"bf16->e4m3fn scale=tensor out=codes,transposed", "bf16->e4m3fn scale=row+col out=codes,transposed",
        "bf16->e4m3fn scale=row out=codes", "f16->e5m2 scale=1x128+128x1 out=codes,transposed",
        "f32->e4m3fn scale=row+col out=codes,transposed", "f16->e4m3fn scale=1x128 out=codes,transposed",
        "bf16->e5m2fnuz scale=row out=codes,transposed", "bf16->e4m3fn scale=col out=codes,transposed"}) {
    const KernelSpec spec = parse(fmt::format("cast {} gathered", words));
    for (const Pass pass : passes(spec)) {
      if (pass != Pass::first) add(generate(spec, pass));
    }
  }
  for (const char* const line : {"column_sum bf16->bf16 experts", "column_sum f32->f32 experts"}) {
    for (const Pass pass : {Pass::first, Pass::main}) add(generate(parse(line), pass));
  }
  for (const char* const words :
       {"bf16->e4m3fn scale=1x128+128x1 out=codes,transposed",
        "f16->e4m3fn scale=128x1 out=transposed",
        "bf16->e4m3fn scale=1x128+128x1 out=codes,transposed gathered",
        "f32->e4m3fn scale=1x128+128x1 out=codes,transposed gathered",
        "bf16->e5m2 scale=128x1 out=transposed gathered",
        "f16->e5m2fnuz scale=1x128+128x1 out=codes,transposed",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed fast",
        "f16->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed,result",
        "f32->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed",
        "bf16->e5m2 of=\"gelu(x) * up * router[row]\" scale=128x1 out=transposed",
        "bf16->e4m3fn scale=tensor out=codes,transposed given",
        "bf16->e5m2 scale=tensor out=codes,transposed given gathered",
        "f32->e4m3fn scale=tensor out=codes,transposed given gathered",
        "f16->e5m2fnuz scale=tensor out=transposed given",
        "f16->e5m2 scale=tensor out=codes given gathered",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=tensor out=codes,transposed given",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=tensor out=codes,transposed given fast",
        "f16->e4m3fn of=\"silu(x) * up * router[row]\" scale=tensor out=codes,transposed,result given",
        "f32->e4m3fn of=\"gelu(x) * up * router[row]\" scale=tensor out=codes,transposed given"}) {
    add(generate(parse(fmt::format("cast {} experts", words))));
  }
  expect_clean("lists of shards, stacked matrices, gathered rows and experts' rows", jobs);
}

// A cast that reads what its first pass wrote must not read it before that pass has ended.
BOOST_AUTO_TEST_CASE(kept_values_are_read_in_turn, *test::once()) {
  for (const char* const rest : {"scale=tensor out=codes,transposed", "scale=row+col out=codes,transposed,sum:f32"}) {
    const KernelSpec spec = parse(std::string("cast bf16->e5m2 of=grad*sigmoid(x) ") + rest);
    const std::string ptx = nvrtc().ptx(generate(spec, Pass::kept), {9, 0, true});
    const std::size_t wait = ptx.find("griddepcontrol.wait");
    BOOST_TEST(wait != std::string::npos, rest);
    for (const char* const access : {"ld.global", "st.global", "atom.", "red."}) {
      BOOST_TEST(ptx.find(access) > wait, rest << ": " << access << " comes before the wait");
    }
  }
}

// An index of rows, or where experts end, may be what the kernel before wrote. Where no pass of the cast's own has
// waited for that, nothing is read, or prefetched, before the wait.
BOOST_AUTO_TEST_CASE(an_index_is_read_in_turn, *test::once()) {
  const auto expect_in_turn = [](const KernelSpec& spec, Pass pass) {
    const std::string ptx = nvrtc().ptx(generate(spec, pass), {9, 0, true});
    const std::size_t wait = ptx.find("griddepcontrol.wait");
    BOOST_TEST(wait != std::string::npos);
    for (const char* const access : {"ld.global", "st.global", "prefetch"}) {
      BOOST_TEST(ptx.find(access) > wait, access << " comes before the wait");
    }
  };
  const std::string line = "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed";
  for (const Pass pass : {Pass::main, Pass::unaligned}) expect_in_turn(parse(line + " gathered"), pass);
  for (const char* const words : {" experts", " gathered experts"}) expect_in_turn(parse(line + words), Pass::main);
  expect_in_turn(parse("cast bf16->e4m3fn scale=tensor out=codes,transposed given gathered experts"), Pass::main);
}

// Each template compiles when it is the first and only one included.
BOOST_AUTO_TEST_CASE(every_template_alone) {
  std::vector<Job> jobs;
  for (const auto& [name, content] : embedded_templates()) {
    jobs.push_back({{.name = name + " alone",
                     .text = fmt::format("#include \"{}\"\n__global__ void empty() {{}}\n"
                                         "constexpr auto kKernel = &empty;\n",
                                         name)},
                    target_for(9, 0)});
  }
  expect_clean("templates by themselves", jobs);
}

// Casts to MX and roundings to formats. In CI of some roundings, for Hopper and about one other target each.
BOOST_AUTO_TEST_CASE(every_quantizing_kernel) {
  std::vector<KernelSpec> specs;
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) specs.emplace_back(spec);
  for (const FloatQuantizeSpec& spec : valid_specs<FloatQuantizeSpec>()) {
    if (selection().all() || (spec.exponent_bits + spec.mantissa_bits) % 3 == 1) specs.emplace_back(spec);
  }
  std::vector<Job> jobs;
  for (const KernelSpec& spec : specs) {
    const Source source = generate(spec);
    for (const Target target : kSupportedTargets) jobs.push_back({source, target, rarer(true, target)});
  }
  expect_clean("quantize_mx and float_quantize", jobs);
}

// Every function of math.cuh, because no kernel uses them all.
BOOST_AUTO_TEST_CASE(every_math_function_for_every_target) {
  std::vector<Job> jobs;
  for (const char* const grade : {"Reproducible16", "Reproducible32", "Fast"}) {
    std::string sum = fmt::format("divide<{}>(x, y)", grade);
    for (const auto& f : checks::kFunctions) sum += fmt::format(" + {}<{}>(x)", f.name, grade);
    for (const Target target : kSupportedTargets) jobs.push_back({checks::math_kernel(sum), target});
  }
  for (const Target target : kSupportedTargets) {
    jobs.push_back({checks::math_kernel("maximum(minimum(x, y), sign(x) + step(y) + absolute(x))"), target});
  }
  expect_clean("math functions", jobs);
}

// Shows that the test can fail: it reports a stack frame, a spill, a warning and an error.
BOOST_AUTO_TEST_CASE(faults_are_seen) {
  const auto job = [](std::string text) { return Job{{.name = "fault", .text = std::move(text)}, target_for(9, 0)}; };
  const std::vector<std::string> problems = compile_all(
      nvrtc(),
      {job("__global__ void stacked(int* x) {\n  volatile int a[64];\n  a[x[0] & 63] = 1;\n  x[1] = a[x[2] & 63];\n}\n"
           "constexpr auto kKernel = &stacked;\n"),
       job("__global__ void __launch_bounds__(1024, 2) spilling(float* x) {\n  float a[64];\n"
           "  for (int k = 0; k < 64; ++k) a[k] = x[k * 1024 + threadIdx.x];\n  __syncthreads();\n"
           "  for (int k = 0; k < 64; ++k) x[k * 1024 + threadIdx.x] = a[k] * a[63 - k];\n}\n"
           "constexpr auto kKernel = &spilling;\n"),
       job("__global__ void warned(int* x) {\n  int unused;\n  *x = 1;\n}\nconstexpr auto kKernel = &warned;\n"),
       job("__global__ void broken(int* x) { *x = y; }\nconstexpr auto kKernel = &broken;\n"),
       job("__global__ void clean(int* x) { *x = 1; }\nconstexpr auto kKernel = &clean;\n")});
  const std::vector<std::string> expected{"has a stack frame of 256 bytes", "spills ", "\"unused\" was declared",
                                          "\"y\" is undefined"};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BOOST_TEST(problems[i].find(expected[i]) != std::string::npos, i << ": " << problems[i]);
  }
  BOOST_TEST(problems.back() == "");
}

BOOST_AUTO_TEST_SUITE_END()
