// The ranks of data-parallel training: threads of this process, each with its own context, on the CPU or on a GPU each.
#pragma once

#include <functional>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/dist/comm.h"

namespace train_lm {

// Calls work(context, comm) on each rank: for rank 0 here and with `context`, which is of these options, for the others
// on a thread with a context of the same kind. On GPUs rank i has GPU i, and NCCL's communicators are made here, by the
// library that Ingot opens. Throws what a rank threw first; on GPUs it then ends the process, because the others would
// wait for ever. Throws ingot::Error{not_found} where there is no NCCL and ingot::Error{invalid_argument} where there
// are fewer GPUs than ranks.
void on_ranks(ingot::Context& context, const ingot::ContextOptions& options, int ranks,
              const std::function<void(ingot::Context&, ingot::Comm&)>& work);

}  // namespace train_lm
