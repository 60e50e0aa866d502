// The instantiation of templates/cast/amax_history.cuh: one kernel for both reductions.
#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

ExtraPasses extra_passes(const AmaxHistorySpec&) { return {}; }

// The reduction is a parameter of the kernel.
TemplateInstance template_instance(const AmaxHistorySpec&, Pass) {
  return {"cast/amax_history.cuh", "amax_history", "amax_history"};
}

}  // namespace ingot
