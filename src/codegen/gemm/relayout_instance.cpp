#include <fmt/format.h>

#include "ingot/codegen/gemm/relayout_spec.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

ExtraPasses extra_passes(const RelayoutSpec&) { return {}; }

TemplateInstance template_instance(const RelayoutSpec& spec, Pass) {
  return {"gemm/relayout.cuh", fmt::format("relayout<{}>", spec.transposed), print_spec(spec)};
}

}  // namespace ingot
