// The weight of a linear layer in and out in FP8: between the codes and factors on the device that a LinearPlan's GEMMs
// read (linear_functions.h) and those on the host that checkpoints store (float8_checkpoint.h).
//
//   const Float8View codes = weight_from_state(plan, backend, state, region, stream);   // instead of cast_weight()
//   save_float8_weights(file, {{"layers.0.wq.", weight_state(plan, backend, codes, stream)}});
#pragma once

#include "ingot/api.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// Copies the codes of the output GEMM and their factors to the host, and waits for the device. Throws
// Error{invalid_argument} if the config has no such codes, or they are not given.
INGOT_API Float8WeightState weight_state(const LinearPlan& plan, Backend& backend, const Float8View& codes,
                                         Stream& stream);

// Copies codes and factors to `into`, plan.weight_memory() bytes, with the transposed codes where the plan has them,
// and returns them as views of it. Throws Error{invalid_argument} if the state contradicts itself, if its sizes or
// format are not the plan's, or if its factors cannot serve one of the plan's GEMMs: factors of rows serve grad_input
// only where they are folded (rowwise_folded()), those of a tensor serve every recipe, and those of blocks need blocks.
// Not within a capture.
INGOT_API Float8View weight_from_state(const LinearPlan& plan, Backend& backend, const Float8WeightState& state,
                                       const MemoryRegion& into, Stream& stream);

}  // namespace ingot
