// Which template instantiation computes a spec.
//
// The unit's first line gives the words of the spec that its kernel depends on, and no others: specs that differ only
// in what the kernel takes at run time (a GEMM's layouts, scales and bias) or that share a pass (the partial maxima of
// every tensorwise cast of bf16) then have one text, and so one entry in the cache and in the store.
#include "ingot/codegen/generate.h"

#include <fmt/format.h>

#include <variant>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// One instantiation: template header, kernel with its arguments, and the words for the comment.
struct Instance {
  std::string header;
  std::string kernel;
  std::string words;
};

std::string type(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

std::string source(Dtype in) { return fmt::format("ingot::ValueSource<{}>", type(in)); }

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
  return {"amax.cuh", fmt::format("amax_partials<{}>", type(in)),
          print(AmaxSpec{.in = in, .scale = kTensorwise}) + " (first pass)"};
}

Instance amax_rows(Dtype in) {
  return {"amax.cuh", fmt::format("amax_rows<{}>", source(in)), print(AmaxSpec{.in = in, .scale = kRowwise})};
}

Instance amax_tiles(Dtype in, const FirstPass& wanted) {
  return {"amax.cuh", fmt::format("amax_tiles<{}, {}, {}, {}>", source(in), wanted.tensor, wanted.rows, wanted.columns),
          fmt::format("amax {} of{}{}{}", name(in), wanted.tensor ? " tensor" : "", wanted.rows ? " rows" : "",
                      wanted.columns ? " columns" : "")};
}

Instance first_pass_instance(Dtype in, const FirstPass& wanted) {
  switch (wanted.kind()) {
    case FirstPass::Kind::partials: return amax_partials(in);
    case FirstPass::Kind::rows: return amax_rows(in);
    default: return amax_tiles(in, wanted);
  }
}

Instance instance(const AmaxSpec& spec, Pass pass) {
  if (pass == Pass::first) return amax_partials(spec.in);
  if (spec.scale == kColumnwise) return amax_tiles(spec.in, {.columns = true});
  // The maximum of the partial maxima is that of a matrix of one row.
  return amax_rows(spec.scale == kTensorwise ? Dtype::f32 : spec.in);
}

Instance instance(const CastSpec& spec, Pass pass) {
  if (pass == Pass::first) return first_pass_instance(spec.in, first_pass(spec));
  // pow2 is a parameter.
  CastSpec without_pow2 = spec;
  without_pow2.pow2 = false;
  const std::string words = print(without_pow2);
  if (cast_schedule(spec) == CastSchedule::rows) {
    return {"cast_rows.cuh", fmt::format("cast_rows<{}, {}, false>", source(spec.in), type(spec.out)), words};
  }
  const ScaleGranularity transposed_scale = spec.transposed_scale.value_or(spec.scale);
  return {"cast_tiles.cuh",
          fmt::format("cast_tiles<{}, {}, {}, {}, {}, false, false>", source(spec.in), type(spec.out),
                      spec.codes ? scale_type(spec.scale) : "ingot::NotWritten",
                      spec.transposed ? scale_type(transposed_scale) : "ingot::NotWritten",
                      spec.source == ScaleSource::given),
          words};
}

Instance instance(const GemmSpec& spec, Pass) {
  return {"gemm_simt.cuh", fmt::format("gemm_simt<{}, {}, {}>", type(spec.a), type(spec.b), type(spec.out)),
          fmt::format("gemm {}*{}->{}", name(spec.a), name(spec.b), name(spec.out))};
}

Instance instance(const ColumnSumSpec& spec, Pass pass) {
  if (pass == Pass::first) {
    return {"column_sum.cuh", fmt::format("column_sum_partials<{}>", type(spec.in)),
            fmt::format("column_sum {} (first pass)", name(spec.in))};
  }
  return {"column_sum.cuh", fmt::format("column_sum_finish<{}>", type(spec.out)),
          fmt::format("column_sum ->{}", name(spec.out))};
}

std::string kind_type(NormKind kind) { return kind == NormKind::layer ? "ingot::LayerNorm" : "ingot::RmsNorm"; }

Instance instance(const NormSpec& spec, Pass) {
  // pow2 is a parameter, and so is whether statistics are written where anything else is.
  NormSpec shared = spec;
  shared.pow2 = false;
  shared.stats = !spec.out && !spec.result;
  return {"norm_rows.cuh",
          fmt::format("norm_rows<{}, {}, {}, {}, {}, {}>", type(spec.in), kind_type(spec.kind), spec.affine,
                      spec.out ? type(*spec.out) : "ingot::NoCodes", spec.source == ScaleSource::given, spec.result),
          print(shared)};
}

Instance instance(const NormBackwardSpec& spec, Pass pass) {
  // The sums' second pass is that of any sum of columns.
  if (spec.affine && pass == Pass::main) return instance(ColumnSumSpec{.in = spec.in, .out = spec.sums}, pass);
  NormBackwardSpec shared = spec;
  shared.sums = Dtype::f32;
  return {"norm_backward.cuh",
          fmt::format("norm_backward<{}, {}, {}>", type(spec.in), kind_type(spec.kind), spec.affine), print(shared)};
}

bool takes_two(const AmaxSpec& spec) { return spec.scale == kTensorwise; }
bool takes_two(const CastSpec& spec) {
  return cast_schedule(spec) == CastSchedule::tiles && first_pass(spec).kind() != FirstPass::Kind::none;
}
bool takes_two(const GemmSpec&) { return false; }
bool takes_two(const ColumnSumSpec&) { return true; }
bool takes_two(const NormSpec&) { return false; }
bool takes_two(const NormBackwardSpec& spec) { return spec.affine; }

}  // namespace

CastSchedule cast_schedule(const CastSpec& spec) {
  const bool one_row_at_a_time = spec.scale == kRowwise && !spec.transposed && spec.source == ScaleSource::dynamic;
  return one_row_at_a_time ? CastSchedule::rows : CastSchedule::tiles;
}

FirstPass::Kind FirstPass::kind() const {
  const int count = (tensor ? 1 : 0) + (rows ? 1 : 0) + (columns ? 1 : 0);
  if (count == 0) return Kind::none;
  if (count == 1 && tensor) return Kind::partials;
  return count == 1 && rows ? Kind::rows : Kind::tiles;
}

FirstPass first_pass(const CastSpec& spec) {
  FirstPass wanted;
  if (spec.source == ScaleSource::given) return wanted;
  for (const ScaleGranularity scale : {spec.scale, spec.transposed_scale.value_or(spec.scale)}) {
    wanted.tensor |= scale == kTensorwise;
    wanted.rows |= scale == kRowwise;
    wanted.columns |= scale == kColumnwise;
  }
  return wanted;
}

bool has_first_pass(const KernelSpec& spec) {
  return std::visit([](const auto& s) { return takes_two(s); }, spec);
}

Source generate(const KernelSpec& spec, Pass pass) {
  validate(spec);
  const std::string line = print(spec);
  if (pass == Pass::first && !has_first_pass(spec)) {
    throw Error(ErrorCode::invalid_spec, line, "this kernel has no first pass: it is one launch; ask for Pass::main");
  }
  const Instance made = std::visit([pass](const auto& s) { return instance(s, pass); }, spec);
  return {.name = pass == Pass::first ? line + " (first pass)" : line,
          .text = fmt::format("// {}\n#include \"{}\"\nconstexpr auto {} = &ingot::{};\n", made.words, made.header,
                              kKernelName, made.kernel)};
}

}  // namespace ingot
