#include "ingot/runtime/jit/prepare_kernels.h"

#include <exception>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/warm_up.h"

namespace ingot {

namespace {

// Calls each(kernel) for all of them, in parallel with the warm-up's threads.
template <class Each>
void in_turn(const std::vector<KernelPass>& kernels, const std::function<void(const PrepareProgress&)>& progress,
             const Each& each) {
  std::exception_ptr failure;
  std::size_t done = 0;
  for (const KernelPass& kernel : kernels) {
    try {
      each(kernel);
    } catch (const Error&) {
      if (failure == nullptr) failure = std::current_exception();
    }
    ++done;
    if (progress) progress({.done = done, .total = kernels.size(), .kernel = print(kernel.spec)});
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

void prepare_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels,
                     const std::function<void(const PrepareProgress&)>& progress) {
  const WarmUp beside(cache, kernels);
  in_turn(kernels, progress, [&](const KernelPass& kernel) { static_cast<void>(cache.get(kernel.spec, kernel.pass)); });
}

void compile_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels, Target target,
                     const std::function<void(const PrepareProgress&)>& progress) {
  const WarmUp beside(cache, kernels, {.target = target});
  in_turn(kernels, progress, [&](const KernelPass& kernel) {
    static_cast<void>(cache.compiled(generate(kernel.spec, kernel.pass), target));
  });
}

}  // namespace ingot
