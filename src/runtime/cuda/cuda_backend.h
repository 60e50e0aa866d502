// The operations on a GPU: generated kernels, and cuBLASLt for the GEMMs that it can do.
#pragma once

#include <memory>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/kernel_cache.h"

namespace ingot {

class Driver;
class CublasLt;

// `cublaslt` may be null: every GEMM then runs on the generated kernel. All arguments outlive the backend.
std::unique_ptr<Backend> make_cuda_backend(const Driver& driver, int device_index, KernelCache& cache,
                                           CublasLt* cublaslt);

}  // namespace ingot
