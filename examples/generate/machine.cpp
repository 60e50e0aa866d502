#include "machine.h"

#include "ingot/runtime/util/error.h"

namespace generate {
namespace {

bool on_gpu(const ingot::Context& context) { return context.device().type == ingot::DeviceType::cuda; }

}  // namespace

// Every driver that Ingot uses knows programmatic dependent launch.
Machine::Machine(ingot::Context& context)
    : context_(&context),
      stream_(context.backend()),
      overlaps_kernels_(on_gpu(context) && context.cache().target().major >= 9) {}

Step::Step(Machine& machine, const std::function<void()>& enqueue) : machine_(&machine), enqueue_(enqueue) {
  if (!on_gpu(machine.context())) return;
  machine.device_api().synchronize(machine.stream());
  graph_.emplace(machine.stream(), enqueue);
}

// What the graph uses may be released next.
Step::~Step() {
  try {
    if (graph_) machine_->device_api().synchronize(machine_->stream());
  } catch (const ingot::Error&) {
    return;  // a broken GPU reports it to the next call that can throw
  }
}

void Step::run() {
  if (!graph_) return enqueue_();
  graph_->replay(machine_->stream());
}

}  // namespace generate
