// Which template instantiation computes a spec.
//
// The unit's first line gives the words of the spec that its kernel depends on, and no others: specs that differ only
// in what the kernel takes at run time (a GEMM's layouts, scales and bias) or that share a pass (the partial maxima of
// every tensorwise cast of bf16) then have one text, and so one entry in the cache and in the store.
#include "ingot/codegen/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "ingot/codegen/dequant/dequant_instance.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/pointwise/pointwise_render.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

using Instance = TemplateInstance;

constexpr const char* kFunctorName = "Fused";

std::string type(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

std::string source(Dtype in) { return fmt::format("ingot::ValueSource<{}>", type(in)); }

// The values of a cast, and what its passes have in common.
std::string source(const CastSpec& spec) {
  if (!spec.pointwise) return source(spec.in);
  return fmt::format("ingot::ValueSource<{}, ingot::{}, {}>", type(spec.in), kFunctorName, spec.unrounded);
}

std::string functor(const CastSpec& spec) {
  if (!spec.pointwise) return {};
  const bool to_f32 = spec.unrounded || spec.in == Dtype::f32;
  return render(spec.pointwise, kFunctorName,
                spec.fast_math ? PointwisePrecision::fast
                : to_f32       ? PointwisePrecision::reproducible32
                               : PointwisePrecision::reproducible16);
}

// The words of a cast that its values depend on.
std::string value_words(const CastSpec& spec) {
  if (!spec.pointwise) return std::string(name(spec.in));
  return fmt::format("{} of {}{}{}", name(spec.in), print(spec.pointwise), spec.unrounded ? " unrounded" : "",
                     spec.fast_math ? " fast" : "");
}

// The types of templates/scaling.cuh.
std::string scale_type(ScaleGranularity scale) {
  if (scale == kTensorwise) return "ingot::Tensorwise";
  if (scale == kRowwise) return "ingot::Rowwise";
  if (scale == kColumnwise) return "ingot::Columnwise";
  if (scale == kRowGroups) return "ingot::RowGroups";
  if (scale == kColumnGroups) return "ingot::ColumnGroups";
  return "ingot::Blocks";
}

Instance amax_partials(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_partials<{}>", source(in)),
          print(AmaxSpec{.in = in, .scale = kTensorwise}) + " (first pass)"};
}

Instance amax_rows(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_rows<{}>", source(in)), print(AmaxSpec{.in = in, .scale = kRowwise})};
}

std::string maxima_words(const FirstPass& wanted) {
  return fmt::format("{}{}{}", wanted.tensor ? " tensor" : "", wanted.rows ? " rows" : "",
                     wanted.columns ? " columns" : "");
}

Instance amax_tiles(const std::string& values, const FirstPass& wanted, const std::string& words) {
  return {"cast/amax.cuh",
          fmt::format("amax_tiles<{}, {}, {}, {}>", values, wanted.tensor, wanted.rows, wanted.columns),
          fmt::format("maxima of{} of {}", maxima_words(wanted), words)};
}

// The scale of an output, if a pass before the casts finds its maxima.
std::string listed_scale(const CastSpec& spec, bool written, ScaleGranularity scale) {
  const FirstPass wanted = first_pass(spec);
  const bool from_pass = (scale == kTensorwise && wanted.tensor) || (scale == kRowwise && wanted.rows) ||
                         (scale == kColumnwise && wanted.columns);
  return written && from_pass ? scale_type(scale) : "ingot::NotWritten";
}

Instance cast_list_maxima(const CastSpec& spec) {
  const ScaleGranularity transposed_scale = spec.transposed_scale.value_or(spec.scale);
  const bool own = spec.transposed && (spec.transposed_scale || !spec.codes);
  return {"cast/cast_list.cuh",
          fmt::format("cast_list_maxima<{}, {}, {}>", source(spec), listed_scale(spec, spec.codes, spec.scale),
                      listed_scale(spec, own, transposed_scale)),
          fmt::format("list: maxima for scale={} of {}",
                      spec.transposed_scale ? print(spec.scale) + "+" + print(transposed_scale) : print(spec.scale),
                      value_words(spec)),
          functor(spec)};
}

// The two steps of CastSchedule::rows_then_tiles as casts of their own.
CastSpec rows_step(const CastSpec& spec) {
  CastSpec rows = spec;
  rows.transposed = false;
  rows.sum.reset();
  return rows;
}
CastSpec tiles_step(const CastSpec& spec) {
  CastSpec tiles = spec;
  tiles.codes = false;
  tiles.result = false;
  return tiles;
}

// pow2 is a parameter; every sum is the same until it is rounded.
std::string kernel_words(CastSpec spec) {
  spec.pow2 = false;
  if (spec.sum) spec.sum = Dtype::f32;
  return print(spec);
}

Instance cast_rows(const CastSpec& spec) {
  return {"cast/cast_rows.cuh", fmt::format("cast_rows<{}, {}, {}>", source(spec), type(spec.out), spec.result),
          kernel_words(spec), functor(spec)};
}

Instance first_pass_instance(const CastSpec& spec) {
  if (cast_schedule(spec) == CastSchedule::rows_then_tiles) return cast_rows(rows_step(spec));
  if (spec.list) return cast_list_maxima(spec);
  const FirstPass wanted = first_pass(spec);
  const FirstPass::Kind kind = wanted.kind();
  if (!spec.pointwise && kind == FirstPass::Kind::partials) return amax_partials(spec.in);
  if (!spec.pointwise && kind == FirstPass::Kind::rows) return amax_rows(spec.in);
  const std::string values = value_words(spec);
  Instance made =
      kind == FirstPass::Kind::partials ? Instance{"cast/amax.cuh", fmt::format("amax_partials<{}>", source(spec)),
                                                   fmt::format("partial maxima of {}", values)}
      : kind == FirstPass::Kind::rows   ? Instance{"cast/amax.cuh", fmt::format("amax_rows<{}>", source(spec)),
                                                 fmt::format("maxima of rows of {}", values)}
                                        : amax_tiles(source(spec), wanted, values);
  made.functor = functor(spec);
  return made;
}

Instance column_sum_finish(Dtype out) {
  return {"cast/column_sum.cuh", fmt::format("column_sum_finish<{}>", type(out)),
          fmt::format("column_sum ->{}", name(out))};
}

Instance instance(const AmaxSpec& spec, Pass pass) {
  if (pass == Pass::first) return amax_partials(spec.in);
  if (spec.scale == kColumnwise) {
    return amax_tiles(source(spec.in), {.columns = true}, std::string(name(spec.in)));
  }
  // The maximum of the partial maxima is that of a matrix of one row.
  return amax_rows(spec.scale == kTensorwise ? Dtype::f32 : spec.in);
}

// The template arguments that casts in tiles have in common.
std::string codes_scale(const CastSpec& spec) { return spec.codes ? scale_type(spec.scale) : "ingot::NotWritten"; }
std::string transposed_scale(const CastSpec& spec) {
  return spec.transposed ? scale_type(spec.transposed_scale.value_or(spec.scale)) : "ingot::NotWritten";
}

Instance cast_whole(const CastSpec& spec) {
  return {"cast/cast_whole.cuh",
          fmt::format("cast_whole<{}, {}, {}, {}, {}, {}>", source(spec), type(spec.out), codes_scale(spec),
                      transposed_scale(spec), spec.result, spec.sum.has_value()),
          kernel_words(spec) + " (in one launch)", functor(spec)};
}

Instance instance(const CastSpec& spec, Pass pass) {
  if (pass == Pass::first) return first_pass_instance(spec);
  if (pass == Pass::finish) return column_sum_finish(*spec.sum);
  if (pass == Pass::whole) return cast_whole(spec);
  switch (cast_schedule(spec)) {
    case CastSchedule::rows: return cast_rows(spec);
    case CastSchedule::row_groups:
      return {"cast/cast_row_groups.cuh",
              fmt::format("cast_row_groups<{}, {}, {}>", source(spec), type(spec.out), spec.result), kernel_words(spec),
              functor(spec)};
    case CastSchedule::rows_then_tiles: return instance(tiles_step(spec), Pass::main);
    case CastSchedule::tiles: break;
  }
  const std::string words = kernel_words(spec);
  const std::string arguments = fmt::format("{}, {}, {}, {}, {}, {}", source(spec), type(spec.out), codes_scale(spec),
                                            transposed_scale(spec), spec.source == ScaleSource::given, spec.result);
  if (spec.list) return {"cast/cast_list.cuh", fmt::format("cast_list<{}>", arguments), words, functor(spec)};
  return {"cast/cast_tiles.cuh", fmt::format("cast_tiles<{}, {}>", arguments, spec.sum.has_value()), words,
          functor(spec)};
}

std::string b_factors(const GemmSpec& spec) {
  const bool grouped = has_group_factors(spec);
  return fmt::format("ingot::Sm90Factors::{}", grouped ? (spec.scale_b == kBlocks ? "blocks" : "groups")
                                                       : (spec.scale_b == kRowwise ? "rows" : "one"));
}

bool plain(const GemmEpilogue& epilogue) { return epilogue == GemmEpilogue{}; }

// The last argument of a GEMM's kernel, where it does more than factors and bias.
std::string epilogue_argument(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (plain(epilogue)) return {};
  return fmt::format(", ingot::Epilogue<{}, ingot::{}, {}, {}, {}>", epilogue.c ? type(*epilogue.c) : "ingot::NoMatrix",
                     epilogue.pointwise ? kFunctorName : "Identity", type(epilogue_dtype(spec)), epilogue.preactivation,
                     epilogue.amax);
}

std::string functor(const GemmSpec& spec, PointwisePrecision precision) {
  return spec.epilogue.pointwise ? render(spec.epilogue.pointwise, kFunctorName, precision) : std::string();
}

// Whether a has one factor or one for each row is the kernel's parameter, what b has is its argument.
Instance gemm_sm90(const GemmSpec& spec) {
  GemmSpec kernel = spec;
  if (!has_group_factors(spec)) kernel.scale_a = kRowwise;
  kernel.tiling = spec.tiling.value_or(gemm_tilings(spec).front());
  // Once they are staged, operands lie as all others do.
  kernel.layout_a = kernel.layout_b = Layout::k_major;
  kernel.staged_a = kernel.staged_b = false;
  const GemmTiling& t = *kernel.tiling;
  return {"gemm/gemm_sm90.cuh",
          fmt::format("gemm_sm90<{}, {}, {}, ingot::Sm90Tiling{{{}, {}, {}, {}, {}, {}{}}}, {}, {}, {}{}>",
                      type(spec.a), type(spec.b), type(spec.out), t.m, t.n, t.cluster_m, t.cluster_n, t.stages,
                      t.pingpong, t.stream_k ? ", true" : "", spec.fast_accumulation, b_factors(spec), spec.bias,
                      epilogue_argument(spec)),
          print(kernel), functor(spec, PointwisePrecision::fast)};
}

// What all but gemm_sm90 depends on: layouts, factors and bias are parameters.
std::string kernel_words(const GemmSpec& spec) {
  if (!plain(spec.epilogue))
    return print(GemmSpec{.a = spec.a, .b = spec.b, .out = spec.out, .epilogue = spec.epilogue});
  return fmt::format("gemm {}*{}->{}", name(spec.a), name(spec.b), name(spec.out));
}

// Layouts, scales and bias are parameters, but for factors of groups.
Instance gemm_mma(const GemmSpec& spec) {
  const GemmTiling t = spec.tiling.value_or(kMmaTilings[0]);
  const bool grouped = has_group_factors(spec);
  return {"gemm/gemm_mma.cuh",
          fmt::format("gemm_mma<{}, {}, {}, ingot::MmaTiling{{{}, {}}}, {}{}>", type(spec.a), type(spec.b),
                      type(spec.out), t.m, t.n, grouped, epilogue_argument(spec)),
          fmt::format("{}{} kernel=mma:{}", kernel_words(spec), grouped ? " groups" : "", print_mma_tiling(t)),
          functor(spec, PointwisePrecision::fast)};
}

Instance instance(const GemmSpec& spec, Pass) {
  if (spec.kernel == GemmKernel::cublaslt) {
    throw Error(ErrorCode::invalid_spec, print(spec),
                "cuBLASLt's kernels have no source here: leave kernel out, or take sm90, mma or simt");
  }
  if (spec.kernel == GemmKernel::sm90) return gemm_sm90(spec);
  if (spec.kernel == GemmKernel::mma) return gemm_mma(spec);
  return {"gemm/gemm_simt.cuh",
          fmt::format("gemm_simt<{}, {}, {}{}>", type(spec.a), type(spec.b), type(spec.out), epilogue_argument(spec)),
          kernel_words(spec), functor(spec, PointwisePrecision::reproducible32)};
}

Instance instance(const RelayoutSpec& spec, Pass) {
  return {"gemm/relayout.cuh", fmt::format("relayout<{}>", spec.transposed), print(spec)};
}

Instance instance(const ElementwiseSpec& spec, Pass) {
  return {"cast/elementwise.cuh",
          fmt::format("elementwise<ingot::ValueSource<{}, ingot::{}, false, true>>", type(spec.in), kFunctorName),
          print(spec), functor(cast_of_values(spec))};
}

// The granularity is a parameter.
Instance instance(const CastStatsSpec& spec, Pass pass) {
  if (pass == Pass::main) return {"cast/cast_stats.cuh", "cast_stats_finish", "cast_stats (finish)"};
  return {"cast/cast_stats.cuh",
          fmt::format("cast_stats_tiles<{}, {}, {}>", type(spec.in), spec.out ? type(*spec.out) : "ingot::Uncast",
                      spec.transposed),
          fmt::format("cast_stats {}{}{}", name(spec.in), spec.out ? fmt::format("->{}", name(*spec.out)) : "",
                      spec.transposed ? " transposed" : "")};
}

Instance instance(const ColumnSumSpec& spec, Pass pass) {
  if (pass == Pass::first) {
    return {"cast/column_sum.cuh", fmt::format("column_sum_partials<{}>", type(spec.in)),
            fmt::format("column_sum {} (first pass)", name(spec.in))};
  }
  return column_sum_finish(spec.out);
}

std::string kind_type(NormKind kind) { return kind == NormKind::layer ? "ingot::LayerNorm" : "ingot::RmsNorm"; }

Instance instance(const NormSpec& spec, Pass) {
  // pow2 is a parameter, and so is whether statistics are written where anything else is.
  NormSpec kernel = spec;
  kernel.pow2 = false;
  kernel.stats = !spec.out && !spec.result;
  return {"norm/norm_rows.cuh",
          fmt::format("norm_rows<{}, {}, {}, {}, {}, {}>", type(spec.in), kind_type(spec.kind), spec.affine,
                      spec.out ? type(*spec.out) : "ingot::NoCodes", spec.source == ScaleSource::given, spec.result),
          print(kernel)};
}

Instance instance(const NormBackwardSpec& spec, Pass pass) {
  if (pass == Pass::finish) return column_sum_finish(spec.sums);
  NormBackwardSpec kernel = spec;
  kernel.sums = Dtype::f32;  // rounded by the pass after
  return {"norm/norm_backward.cuh",
          fmt::format("norm_backward<{}, {}, {}>", type(spec.in), kind_type(spec.kind), spec.affine), print(kernel)};
}

// What is reduced is a parameter.
Instance instance(const AmaxHistorySpec&, Pass) { return {"cast/amax_history.cuh", "amax_history", "amax_history"}; }

Instance instance(const MxQuantizeSpec& spec, Pass) {
  return {"quantize/quantize_mx.cuh", fmt::format("quantize_mx<{}, {}>", type(spec.in), type(spec.out)), print(spec)};
}

Instance instance(const FloatQuantizeSpec& spec, Pass) {
  return {"quantize/float_quantize.cuh",
          fmt::format("float_quantize<{}, {}, {}>", type(spec.in), spec.exponent_bits, spec.mantissa_bits),
          print(spec)};
}

Instance instance(const PackWeightSpec& spec, Pass) { return dequant_instance(spec); }

Instance instance(const DequantMatmulSpec& spec, Pass) { return dequant_instance(spec); }

bool has_first(const AmaxSpec& spec) { return spec.scale == kTensorwise; }
bool has_first(const CastSpec& spec) {
  return cast_schedule(spec) == CastSchedule::rows_then_tiles || first_pass(spec).kind() != FirstPass::Kind::none;
}
bool has_first(const ColumnSumSpec&) { return true; }
bool has_first(const CastStatsSpec&) { return true; }
template <class Spec>
bool has_first(const Spec&) {
  return false;
}

bool has_finish(const CastSpec& spec) { return spec.sum.has_value(); }
bool has_finish(const NormBackwardSpec& spec) { return spec.affine; }
template <class Spec>
bool has_finish(const Spec&) {
  return false;
}

bool has_whole(const KernelSpec& spec) {
  const auto* const cast = std::get_if<CastSpec>(&spec);
  return cast != nullptr && has_first(*cast) && !cast->list;
}

const char* asked_for(Pass pass) {
  return pass == Pass::first ? "no first pass" : pass == Pass::finish ? "no finishing pass" : "none in one launch";
}

}  // namespace

CastSchedule cast_schedule(const CastSpec& spec) {
  if (spec.source != ScaleSource::dynamic || spec.list || !spec.codes) return CastSchedule::tiles;
  if (!spec.transposed) {
    if (spec.sum) return CastSchedule::tiles;
    if (spec.scale == kRowwise) return CastSchedule::rows;
    return spec.scale == kRowGroups ? CastSchedule::row_groups : CastSchedule::tiles;
  }
  return spec.scale == kRowwise && !spec.transposed_scale ? CastSchedule::rows_then_tiles : CastSchedule::tiles;
}

FirstPass::Kind FirstPass::kind() const {
  const int count = (tensor ? 1 : 0) + (rows ? 1 : 0) + (columns ? 1 : 0);
  if (count == 0) return Kind::none;
  if (count == 1 && tensor) return Kind::partials;
  return count == 1 && rows ? Kind::rows : Kind::tiles;
}

FirstPass first_pass(const CastSpec& spec) {
  FirstPass wanted;
  if (spec.source == ScaleSource::given || cast_schedule(spec) != CastSchedule::tiles) return wanted;
  for (const ScaleGranularity scale : {spec.scale, spec.transposed_scale.value_or(spec.scale)}) {
    wanted.tensor |= scale == kTensorwise;
    wanted.rows |= scale == kRowwise;
    wanted.columns |= scale == kColumnwise;
  }
  return wanted;
}

std::span<const Pass> passes(const KernelSpec& spec) {
  static constexpr std::array kAll{Pass::first, Pass::main, Pass::finish};
  static constexpr std::array kAndWhole{Pass::first, Pass::main, Pass::whole};
  static constexpr std::array kAndBoth{Pass::first, Pass::main, Pass::finish, Pass::whole};
  const auto [first, finish] = std::visit([](const auto& s) { return std::pair{has_first(s), has_finish(s)}; }, spec);
  if (has_whole(spec)) return finish ? std::span<const Pass>(kAndBoth) : std::span<const Pass>(kAndWhole);
  return std::span(kAll).subspan(first ? 0 : 1, (first ? 2U : 1U) + (finish ? 1U : 0U));
}

bool has_pass(const KernelSpec& spec, Pass pass) { return std::ranges::find(passes(spec), pass) != passes(spec).end(); }

const char* suffix(Pass pass) {
  return pass == Pass::first    ? " (first pass)"
         : pass == Pass::finish ? " (finish)"
         : pass == Pass::whole  ? " (in one launch)"
                                : "";
}

Source generate(const KernelSpec& spec, Pass pass) {
  validate(spec);
  const std::string line = print(spec);
  if (!has_pass(spec, pass)) {
    throw Error(ErrorCode::invalid_spec, line,
                fmt::format("this kernel has {}: ask for one of passes(spec)", asked_for(pass)));
  }
  const Instance made = std::visit([pass](const auto& s) { return instance(s, pass); }, spec);
  return {.name = line + suffix(pass),
          .text = fmt::format("// {}\n#include \"{}\"\n{}constexpr auto {} = &ingot::{};\n", made.words, made.header,
                              made.functor, kKernelName, made.kernel)};
}

}  // namespace ingot
