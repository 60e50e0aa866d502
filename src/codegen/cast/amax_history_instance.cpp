// The instantiation of templates/cast/amax_history.cuh: one kernel for all specs.
#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

ExtraPasses extra_passes(const AmaxHistorySpec&) { return {}; }

// What a spec says are parameters of the kernel.
TemplateInstance template_instance(const AmaxHistorySpec&, Pass) {
  return {"cast/amax_history.cuh", "amax_history", "amax_history"};
}

}  // namespace ingot
