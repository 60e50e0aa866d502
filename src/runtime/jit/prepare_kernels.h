// Compiles and loads kernels before they are needed, and returns when all are there.
#pragma once

#include <functional>
#include <vector>

#include "ingot/codegen/recorded_kernels.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/prepare_progress.h"

namespace ingot {

class KernelCache;

// On the calling thread and on threads that it starts (WarmUp). `progress` is called on the calling thread, after each
// kernel. When all have been tried, throws the error of the first, in the list's order, that failed.
void prepare_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels,
                     const std::function<void(const PrepareProgress&)>& progress);

// Likewise for any target and without a GPU: compiles into the store, and loads nothing.
void compile_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels, Target target,
                     const std::function<void(const PrepareProgress&)>& progress);

}  // namespace ingot
