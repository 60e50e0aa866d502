// The operations on a GPU: generated kernels, and cuBLASLt for the GEMMs that it can do.
#pragma once

#include <memory>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {

class Driver;
class CublasLt;
class MatmulChoices;
class MatmulManifest;

// What a GEMM may go to, and who is told of it; each may be null.
struct GemmServices {
  CublasLt* cublaslt = nullptr;      // without: no GEMM runs on it
  MatmulChoices* choices = nullptr;  // what tuning has found
  MatmulManifest* manifest = nullptr;
  bool compiles = true;  // can kernels of ours be made here?
};

// All arguments outlive the backend.
std::unique_ptr<Backend> make_cuda_backend(const Driver& driver, int device_index, KernelCache& cache,
                                           const GemmServices& services);

}  // namespace ingot
