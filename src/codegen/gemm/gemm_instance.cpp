// The instantiations of templates/gemm that compute a GEMM. Layouts, scale_inv and a bias are mostly parameters of the
// kernels, so that GEMMs which differ in nothing else share one.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/types/template_text.h"
#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/util/error.h"

#include "gemm/gemm_sm90_tiling.cuh"

namespace ingot {
namespace {

static_assert(std::ranges::all_of(kGroupedScalesOfB,
                                  [](ScaleGranularity scale) {
                                    return sm90_has_factors(template_granularity(scale));
                                  }) &&
                  sm90_has_factors(template_granularity(kTensorwise)) &&
                  sm90_has_factors(template_granularity(kRowwise)),
              "sm90_has_factors() of templates/gemm/gemm_sm90_tiling.cuh lacks a granularity of GemmSpec::scale_b");

bool plain(const GemmEpilogue& epilogue) { return epilogue == GemmEpilogue{}; }

// The last argument of a GEMM's kernel, where it does more than apply scale_inv and bias.
std::string epilogue_argument(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (plain(epilogue)) return {};
  const std::string config =
      aggregate_text("EpilogueConfig", {field("preactivation", epilogue.preactivation), field("amax", epilogue.amax)});
  return fmt::format(", ingot::Epilogue<{}, ingot::{}, {}, {}>",
                     epilogue.c ? type_text(*epilogue.c) : "ingot::NoMatrix",
                     epilogue.pointwise ? kFunctorName : "Identity", type_text(epilogue_dtype(spec)), config);
}

std::string functor(const GemmSpec& spec, PointwisePrecision precision) {
  return spec.epilogue.pointwise ? render(spec.epilogue.pointwise, kFunctorName, precision) : std::string();
}

// Whether a has one scale_inv or one for each row is a parameter of the kernel; b's kind of scale_inv is a template
// argument.
GemmSpec sm90_kernel(const GemmSpec& spec) {
  GemmSpec kernel = spec;
  const bool fp8 = is_fp8(spec.a);
  if (fp8 && !has_group_scale_inv(spec)) kernel.scale_a = kRowwise;
  kernel.tiling = spec.tiling.value_or(gemm_tilings(spec).front());
  // Once they are staged, FP8 operands are stored as all others are.
  if (fp8) kernel.layout_a = kernel.layout_b = Layout::k_major;
  kernel.staged_a = kernel.staged_b = false;
  return kernel;
}

// What a kernel's groups are of, if it has any.
enum class Experts : std::uint8_t { none, rows, along_k };

std::string sm90_config(const GemmSpec& kernel, Experts experts) {
  const GemmTiling& t = *kernel.tiling;
  const std::string tiling = aggregate_text({field("m", t.m), field("n", t.n), field("cluster_m", t.cluster_m),
                                             field("cluster_n", t.cluster_n), field("stages", t.stages),
                                             field("pingpong", t.pingpong), field("stream_k", t.stream_k)});
  const auto sums = field("fast_accumulation", sums_in_tensor_cores(kernel));
  if (experts == Experts::along_k) {
    return aggregate_text("GemmSm90Config", {field("tiling", tiling), sums, field("scale_b", kernel.scale_b),
                                             field("experts", true), field("along_k", true)});
  }
  if (experts == Experts::rows && kernel.bias) {
    return aggregate_text("GemmSm90Config", {field("tiling", tiling), sums, field("scale_b", kernel.scale_b),
                                             field("bias", true), field("experts", true)});
  }
  if (experts == Experts::rows) {
    return aggregate_text("GemmSm90Config",
                          {field("tiling", tiling), sums, field("scale_b", kernel.scale_b), field("experts", true)});
  }
  return is_fp8(kernel.a)
             ? aggregate_text("GemmSm90Config", {field("tiling", tiling), sums, field("scale_b", kernel.scale_b),
                                                 field("bias", kernel.bias)})
             : aggregate_text("GemmSm90Config", {field("tiling", tiling), sums, field("bias", kernel.bias),
                                                 field("across_a", kernel.layout_a == Layout::mn_major),
                                                 field("across_b", kernel.layout_b == Layout::mn_major)});
}

std::string sm90_arguments(const GemmSpec& kernel, Experts experts = Experts::none) {
  return fmt::format("{}, {}, {}, {}{}", type_text(kernel.a), type_text(kernel.b), type_text(kernel.out),
                     sm90_config(kernel, experts), epilogue_argument(kernel));
}

TemplateInstance gemm_sm90(const GemmSpec& spec) {
  const GemmSpec kernel = sm90_kernel(spec);
  return {"gemm/gemm_sm90.cuh", fmt::format("gemm_sm90<{}>", sm90_arguments(kernel)), print_spec(kernel),
          functor(spec, PointwisePrecision::fast)};
}

// What kernels mma and simt depend on: layouts, scale_inv and bias are their parameters.
std::string kernel_words(const GemmSpec& spec) {
  if (!plain(spec.epilogue)) {
    return print_spec(GemmSpec{.a = spec.a, .b = spec.b, .out = spec.out, .epilogue = spec.epilogue});
  }
  return fmt::format("gemm {}*{}->{}", name(spec.a), name(spec.b), name(spec.out));
}

// Whether scale_inv are of groups is a template argument here.
TemplateInstance gemm_mma(const GemmSpec& spec) {
  const GemmTiling t = spec.tiling.value_or(kMmaTilings[0]);
  const bool grouped = has_group_scale_inv(spec);
  const std::string tiling = aggregate_text({field("m", t.m), field("n", t.n)});
  const std::string config =
      aggregate_text("GemmMmaConfig", {field("tiling", tiling), field("group_factors", grouped)});
  return {"gemm/gemm_mma.cuh",
          fmt::format("gemm_mma<{}, {}, {}, {}{}>", type_text(spec.a), type_text(spec.b), type_text(spec.out), config,
                      epilogue_argument(spec)),
          fmt::format("{}{} kernel=mma:{}", kernel_words(spec), grouped ? " groups" : "", print_mma_tiling(t)),
          functor(spec, PointwisePrecision::fast)};
}

TemplateInstance gemm_simt(const GemmSpec& spec) {
  return {"gemm/gemm_simt.cuh",
          fmt::format("gemm_simt<{}, {}, {}{}>", type_text(spec.a), type_text(spec.b), type_text(spec.out),
                      epilogue_argument(spec)),
          kernel_words(spec), functor(spec, PointwisePrecision::reproducible32)};
}

}  // namespace

ExtraPasses extra_passes(const GemmSpec&) { return {}; }

TemplateInstance template_instance(const GemmSpec& spec, Pass) {
  if (spec.kernel == GemmKernel::cublaslt) {
    throw Error(ErrorCode::invalid_spec, print_spec(spec),
                "cuBLASLt's kernels have no source here: leave kernel out, or take sm90, mma or simt");
  }
  if (spec.kernel == GemmKernel::sm90) return gemm_sm90(spec);
  if (spec.kernel == GemmKernel::mma) return gemm_mma(spec);
  return gemm_simt(spec);
}

ExtraPasses extra_passes(const GemmPairSpec&) { return {}; }

TemplateInstance template_instance(const GemmPairSpec& spec, Pass) {
  const GemmPairSpec kernel{.first = sm90_kernel(spec.first), .second = sm90_kernel(spec.second)};
  return {"gemm/gemm_sm90_pair.cuh",
          fmt::format("gemm_sm90_pair<ingot::Sm90Gemm<{}>, ingot::Sm90Gemm<{}>>", sm90_arguments(kernel.first),
                      sm90_arguments(kernel.second)),
          print_spec(kernel)};
}

TemplateInstance template_instance(const GroupedGemmSpec& spec, Pass) {
  GroupedGemmSpec kernel = spec;
  if (!spec.gemm.tiling) kernel.gemm.tiling = grouped_tilings(spec).front();
  kernel.gemm = sm90_kernel(kernel.gemm);
  kernel.gemm.kernel = GemmKernel::sm90;
  const Experts experts = spec.along_k ? Experts::along_k : Experts::rows;
  return {"gemm/gemm_sm90_grouped.cuh", fmt::format("gemm_sm90_grouped<{}>", sm90_arguments(kernel.gemm, experts)),
          print_spec(kernel)};
}

}  // namespace ingot
