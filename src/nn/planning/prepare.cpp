#include "ingot/nn/planning/prepare.h"

#include "ingot/codegen/types/gpu.h"
#include "ingot/runtime/dry_run.h"

namespace ingot {
namespace {

// `run_on(backend)` runs the layers.
template <class RunOn>
void prepare_by(Context& context, const PrepareOptions& options, const RunOn& run_on) {
  if (context.device().type == DeviceType::cpu) return;
  // What layers ask for depends on the target alone, and which kernels follow from it is worked out for this GPU.
  if (const Gpu* const alike = gpu_of_target(context.cache().target())) {
    DryRun dry(*alike);
    run_on(dry.backend());
    context.prepare(dry.recording(), options.progress);
  }
  if (options.run_layers) run_on(context.backend());
}

}  // namespace

void prepare(Context& context, const TrainingRun& run, const PrepareOptions& options) {
  prepare_by(context, options, [&](Backend& backend) { run_training(backend, run); });
}

void prepare(Context& context, const DecodingRun& run, const PrepareOptions& options) {
  prepare_by(context, options, [&](Backend& backend) { run_decoding(backend, run); });
}

}  // namespace ingot
