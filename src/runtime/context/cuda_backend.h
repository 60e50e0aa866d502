// Every operation on a GPU: generated kernels, and cuBLASLt for the GEMMs that it supports.
#pragma once

#include <memory>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/tuning/matmul_services.h"

namespace ingot {

class Driver;

// All arguments must outlive the backend.
std::unique_ptr<Backend> make_cuda_backend(const Driver& driver, int device_index, KernelCache& cache,
                                           const MatmulServices& services);

}  // namespace ingot
