// The instantiation of templates/gemm/relayout.cuh that copies or transposes FP8 codes.
#include <fmt/format.h>

#include "ingot/codegen/gemm/relayout_spec.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

ExtraPasses extra_passes(const RelayoutSpec&) { return {}; }

TemplateInstance template_instance(const RelayoutSpec& spec, Pass) {
  return {"gemm/relayout.cuh",
          fmt::format("relayout<{}>", aggregate_text("RelayoutConfig", {field("transposed", spec.transposed)})),
          print_spec(spec)};
}

}  // namespace ingot
