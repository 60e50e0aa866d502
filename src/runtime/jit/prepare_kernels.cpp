#include "ingot/runtime/jit/prepare_kernels.h"

#include <exception>

#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/warm_up.h"

namespace ingot {

void prepare_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels,
                     const std::function<void(const PrepareProgress&)>& progress) {
  const WarmUp beside(cache, kernels);
  std::exception_ptr failure;
  std::size_t done = 0;
  for (const KernelPass& each : kernels) {
    try {
      static_cast<void>(cache.get(each.spec, each.pass));
    } catch (const Error&) {
      if (failure == nullptr) failure = std::current_exception();
    }
    ++done;
    if (progress) progress({.done = done, .total = kernels.size(), .kernel = print(each.spec)});
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace ingot
