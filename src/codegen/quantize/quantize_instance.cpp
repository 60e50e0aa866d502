// The instantiations of templates/quantize that compute quantize_mx and float_quantize.
#include <fmt/format.h>

#include "ingot/codegen/quantize/quantize_spec.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

ExtraPasses extra_passes(const MxQuantizeSpec&) { return {}; }

TemplateInstance template_instance(const MxQuantizeSpec& spec, Pass) {
  return {"quantize/quantize_mx.cuh", fmt::format("quantize_mx<{}, {}>", type_text(spec.in), type_text(spec.out)),
          print_spec(spec)};
}

ExtraPasses extra_passes(const FloatQuantizeSpec&) { return {}; }

TemplateInstance template_instance(const FloatQuantizeSpec& spec, Pass) {
  return {"quantize/float_quantize.cuh",
          fmt::format("float_quantize<{}, {}>", type_text(spec.in),
                      aggregate_text("FloatQuantizeConfig", {field("exponent_bits", spec.exponent_bits),
                                                             field("mantissa_bits", spec.mantissa_bits)})),
          print_spec(spec)};
}

}  // namespace ingot
