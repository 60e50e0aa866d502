// The instantiations of templates/norm that compute norm and norm_backward. Specs that differ only in parameters of the
// kernel share one.
#include <fmt/format.h>

#include <utility>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"

#include "norm/norm_rows_wide.cuh"

namespace ingot {
namespace {

const char* type_text(NormKind kind) { return kind == NormKind::layer ? "ingot::LayerNorm" : "ingot::RmsNorm"; }

}  // namespace

ExtraPasses extra_passes(const NormSpec&) { return {}; }

TemplateInstance template_instance(const NormSpec& spec, Pass) {
  // pow2 is a parameter of the kernel, and so is whether statistics are written beside other outputs.
  NormSpec kernel = spec;
  kernel.pow2 = false;
  kernel.stats = !spec.out && !spec.result;
  const std::string config = aggregate_text(
      "NormRowsConfig", {field("affine", spec.affine), field("given_scale", spec.source == ScaleSource::given),
                         field("result", spec.result)});
  const std::string arguments = fmt::format("{}, {}, {}, {}", type_text(spec.in), type_text(spec.kind),
                                            spec.out ? type_text(*spec.out) : "ingot::NoCodes", config);
  if (spec.cols == 0) return {"norm/norm_rows.cuh", fmt::format("norm_rows<{}>", arguments), print_spec(kernel)};
  return {"norm/norm_rows_wide.cuh",
          fmt::format("norm_rows_wide<{}, {}>", arguments, NormRowsWideLaunch::vec8s(spec.cols)), print_spec(kernel)};
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
  // The kernel's name is also that of its header.
  const auto [name, words] =
      pass == Pass::wide ? std::pair{"norm_backward_wide", " (wide rows)"} : std::pair{"norm_backward", ""};
  return {fmt::format("norm/{}.cuh", name),
          fmt::format("{}<{}, {}, {}>", name, type_text(spec.in), type_text(spec.kind), config),
          print_spec(kernel) + words};
}

}  // namespace ingot
