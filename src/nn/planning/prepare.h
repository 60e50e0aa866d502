// Everything that the first step would wait for, before the first step: kernels are compiled on all cores and loaded,
// and the plans of all matmuls are made.
//
//   prepare(context, {.layers = training_layers(model), .recipes = {rowwise()}, .tokens = {8192}},
//           {.progress = [](const PrepareProgress& now) { std::printf("%zu of %zu\n", now.done, now.total); }});
#pragma once

#include <functional>

#include "ingot/api.h"
#include "ingot/nn/planning/layer_runs.h"
#include "ingot/runtime/context.h"

namespace ingot {

struct PrepareOptions {
  // Called on the calling thread, after each kernel. May throw: what it throws ends the preparation.
  std::function<void(const PrepareProgress&)> progress{};
  // Also runs each layer, on tensors of its own which are released again, so that cuBLASLt's choices are made, too.
  // This needs memory for one layer at a time.
  bool run_layers = true;
};

// Lists the kernels by a dry run, compiles and loads those that are missing (Context::prepare()), then runs the layers.
// Does nothing on the CPU, which needs none of it. Throws what the layers throw, and Error{compile_failed, not_found,
// cuda_failed, out_of_memory}.
INGOT_API void prepare(Context& context, const TrainingRun& run, const PrepareOptions& options = {});
INGOT_API void prepare(Context& context, const DecodingRun& run, const PrepareOptions& options = {});

}  // namespace ingot
