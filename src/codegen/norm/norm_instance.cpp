// The instantiations of templates/norm that compute norm and norm_backward. Specs that differ only in parameters of the
// kernel share one.
#include <fmt/format.h>

#include "ingot/codegen/cast/column_sum_instance.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {
namespace {

const char* type_text(NormKind kind) { return kind == NormKind::layer ? "ingot::LayerNorm" : "ingot::RmsNorm"; }

}  // namespace

ExtraPasses extra_passes(const NormSpec&) { return {.wide = true}; }

TemplateInstance template_instance(const NormSpec& spec, Pass pass) {
  // pow2 is a parameter of the kernel, and so is whether statistics are written beside other outputs.
  NormSpec kernel = spec;
  kernel.pow2 = false;
  kernel.stats = !spec.out && !spec.result;
  const std::string config = aggregate_text(
      "NormRowsConfig", {field("affine", spec.affine), field("given_scale", spec.source == ScaleSource::given),
                         field("result", spec.result)});
  const bool wide = pass == Pass::wide;
  return {wide ? "norm/norm_rows_wide.cuh" : "norm/norm_rows.cuh",
          fmt::format("{}<{}, {}, {}, {}>", wide ? "norm_rows_wide" : "norm_rows", type_text(spec.in),
                      type_text(spec.kind), spec.out ? type_text(*spec.out) : "ingot::NoCodes", config),
          print_spec(kernel) + (wide ? " (wide rows)" : "")};
}

ExtraPasses extra_passes(const NormBackwardSpec& spec) { return {.finish = spec.affine, .wide = true}; }

TemplateInstance template_instance(const NormBackwardSpec& spec, Pass pass) {
  if (pass == Pass::finish) return column_sum_finish(spec.sums);
  NormBackwardSpec kernel = spec;
  kernel.sums = Dtype::f32;  // the finishing pass rounds
  // Kernels of plain gammas keep the text, and so the stored machine code, that they had before there were others.
  const std::string config =
      spec.zero_centred
          ? aggregate_text("NormBackwardConfig", {field("affine", spec.affine), field("zero_centred", true)})
          : aggregate_text("NormBackwardConfig", {field("affine", spec.affine)});
  const bool wide = pass == Pass::wide;
  return {wide ? "norm/norm_backward_wide.cuh" : "norm/norm_backward.cuh",
          fmt::format("{}<{}, {}, {}>", wide ? "norm_backward_wide" : "norm_backward", type_text(spec.in),
                      type_text(spec.kind), config),
          print_spec(kernel) + (wide ? " (wide rows)" : "")};
}

}  // namespace ingot
