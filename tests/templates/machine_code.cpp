// machine_code [share [word [target]]]: prints a line for each kernel that Ingot can make for a target (default:
// sm_90a): a digest of its machine code, its registers and spills, and what it computes. With a word, only for kernels
// whose specs begin with it ("cast", "norm_backward"; "" for all). scripts/compare_kernels.sh compares the lines of two
// builds, or of one that reads its templates from two folders (INGOT_TEMPLATES).
//
// The kernels are those of every spec in the lists of valid ones; every tiling of gemm_sm90 with each kind of
// scale_inv, sum and output; every tiling of gemm_mma, and every one that dequant_matmul is offered for some number of
// tokens; and the fused casts, expressions and epilogues of tests/cases.h. share: 3/8 means every eighth kernel from
// the fourth on, because NVRTC's front end runs one compile at a time in a process.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"
#include "ingot/runtime/util/error.h"
#include "tests/cases.h"
#include "tests/support/machine_code.h"

using namespace ingot;

namespace {

constexpr int kMultiprocessors = 132;  // of an H100 and an H200

// The kernels to compile, each source text once.
class Kernels {
 public:
  explicit Kernels(Target target) : target_(target) {}

  void add(const KernelSpec& spec) {
    for (const Pass pass : passes(spec)) {
      if (!can_run(spec, pass)) continue;
      const Source source = generate(spec, pass);
      if (seen_.emplace(source.text, source.name).second) sources_.push_back(source);
    }
  }
  const std::vector<Source>& sources() const { return sources_; }

 private:
  // Kernels named sm90 need wgmma; blocks that share rows of norms need clusters.
  bool can_run(const KernelSpec& spec, Pass pass) const {
    const auto* const gemm = std::get_if<GemmSpec>(&spec);
    const auto* const dequant = std::get_if<DequantMatmulSpec>(&spec);
    if ((gemm != nullptr && gemm->kernel == GemmKernel::sm90) ||
        (dequant != nullptr && dequant->kernel == DequantKernel::sm90)) {
      return target_ == target_for(9, 0);
    }
    const auto* const norm = std::get_if<NormSpec>(&spec);
    const bool backward = std::holds_alternative<NormBackwardSpec>(spec);
    const bool shared = (norm != nullptr && norm->cols != 0) || (backward && pass == Pass::wide);
    return !shared || target_.major >= 9;
  }

  Target target_;
  std::map<std::string, std::string> seen_;
  std::vector<Source> sources_;
};

void add_sm90_tilings(GemmSpec spec, Kernels& kernels) {
  spec.kernel = GemmKernel::sm90;
  const std::vector<GemmTiling> all(gemm_tilings(spec).begin(), gemm_tilings(spec).end());
  for (const GemmTiling& tiling : all) {
    spec.tiling = tiling;
    kernels.add(spec);
  }
}

void add_gemms(Kernels& kernels) {
  for (const Dtype out : kHighPrecisionDtypes) {
    for (const bool fast : {true, false}) {
      for (const ScaleGranularity scale : {kTensorwise, kRowwise}) {
        add_sm90_tilings({.out = out, .scale_a = kRowwise, .scale_b = scale, .bias = true, .fast_accumulation = fast},
                         kernels);
      }
    }
    for (const ScaleGranularity scale_b : {kBlocks, kRowGroups}) {
      add_sm90_tilings({.out = out, .scale_a = kRowGroups, .scale_b = scale_b}, kernels);
    }
  }
  for (const KernelSpec& spec : all_valid_specs()) {
    const auto* const valid = std::get_if<GemmSpec>(&spec);
    if (valid == nullptr || valid->a == Dtype::f32) continue;
    GemmSpec gemm = *valid;
    gemm.kernel = GemmKernel::mma;
    for (const GemmTiling& tiling : kMmaTilings) {
      gemm.tiling = tiling;
      kernels.add(gemm);
    }
    gemm.tiling.reset();
    gemm.kernel = GemmKernel::sm90;
    if (is_ocp(gemm.a) && is_ocp(gemm.b)) kernels.add(gemm);
  }
  for (GemmSpec spec : test::epilogue_specs()) {
    kernels.add(spec);
    if (spec.a == Dtype::f32) continue;
    spec.kernel = GemmKernel::mma;
    kernels.add(spec);
    if (!is_ocp(spec.a) || !is_ocp(spec.b)) continue;
    spec.kernel = GemmKernel::sm90;
    kernels.add(spec);
  }
}

void add_dequants(Target target, Kernels& kernels) {
  const MatmulDevice device{.target = target, .multiprocessors = kMultiprocessors};
  for (const PackWeightSpec& spec : valid_specs<PackWeightSpec>()) kernels.add(spec);
  for (const DequantMatmulSpec& spec : valid_specs<DequantMatmulSpec>()) {
    if (spec.out == spec.x) kernels.add(spec);
  }
  for (const DequantMatmulSpec& of : {DequantMatmulSpec{.weight = Dtype::e4m3fn, .scale = kRowwise},
                                      {.weight = Dtype::e5m2, .scale = kRowGroups},
                                      {.x = Dtype::f16, .weight = Dtype::e5m2fnuz, .out = Dtype::f16},
                                      {.weight = Dtype::e2m3fn, .scale = kRowGroups32},
                                      {.weight = Dtype::e2m1fn, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu}}) {
    for (const std::int64_t m : {1, 8, 16, 32, 64, 128, 256}) {
      for (DequantMatmulSpec spec : dequant_kernels(of, device)) {
        for (const DequantTiling& tiling : dequant_tilings(spec, {m, 10240, 8192}, device)) {
          spec.tiling = tiling;
          kernels.add(spec);
        }
      }
    }
  }
}

Kernels all_kernels(Target target) {
  Kernels kernels(target);
  for (const KernelSpec& spec : all_valid_specs()) kernels.add(spec);
  for (const KernelSpec& spec : test::fused_specs()) kernels.add(spec);
  for (const KernelSpec& spec : test::elementwise_specs()) kernels.add(spec);
  for (const CombineSpec& spec : valid_specs<CombineSpec>()) kernels.add(spec);
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) kernels.add(spec);
  for (const FloatQuantizeSpec& spec : valid_specs<FloatQuantizeSpec>()) {
    if ((spec.exponent_bits + spec.mantissa_bits) % 3 == 1) kernels.add(spec);
  }
  add_gemms(kernels);
  add_dequants(target, kernels);
  return kernels;
}

void print_share(std::size_t index, std::size_t count, const std::string& word, Target target) {
  const char* const root = std::getenv("INGOT_CUDA_ROOT");
  const char* const templates = std::getenv("INGOT_TEMPLATES");
  std::string problem;
  const auto compiler = NvrtcCompiler::open(
      root != nullptr ? root : "", templates != nullptr ? read_templates(templates) : embedded_templates(), problem);
  if (compiler == nullptr) throw Error(ErrorCode::not_found, "NVRTC", problem);
  const Kernels kernels = all_kernels(target);
  for (std::size_t i = index; i < kernels.sources().size(); i += count) {
    const Source& source = kernels.sources()[i];
    if (!word.empty() && !source.name.starts_with(word + " ")) continue;
    const CompiledKernel kernel = compiler->compile(source, target);
    fmt::print("{} {:3} {:2} {}\n", test::machine_code_digest(kernel.cubin), kernel.resources.registers,
               kernel.resources.spill_bytes, source.name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string share = argc > 1 ? argv[1] : "0/1";
    if (share == "--count") {
      fmt::print("{}\n", all_kernels(target_for(9, 0)).sources().size());
      return 0;
    }
    const auto slash = share.find('/');
    const std::string name = argc > 3 ? argv[3] : "sm_90a";
    const std::optional<Target> target = parse_target(name);
    if (!target.has_value()) throw Error(ErrorCode::invalid_argument, name, "no target; one is sm_90a");
    print_share(std::stoul(share), std::stoul(share.substr(slash + 1)), argc > 2 ? argv[2] : "", *target);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "machine_code: {}\n", error.what());
    return 1;
  }
}
