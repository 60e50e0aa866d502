// Compiles what training will launch before the first step: the kernels that one step of the models asks for when it
// runs without a GPU (ingot/runtime/context/dry_run.h), and the example's own.
#pragma once

#include <span>

#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/runtime/context/context.h"
#include "options.h"

namespace train_lm {

// The kernels that training steps of these models ask the library for on that GPU.
ingot::Recording recording_of(const Options& options, std::span<const ingot::LinearConfig> configs,
                              const ingot::Gpu& gpu);

// On a GPU everything is compiled and loaded when it returns (Context::prepare). On a machine without one, all but the
// GEMMs go into the store, for a machine that has a GPU and the same store. Does nothing without NVRTC.
void prepare(ingot::Context& context, const Options& options, std::span<const ingot::LinearConfig> configs);

}  // namespace train_lm
