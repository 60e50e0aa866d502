// The operations on the CPU: plain loops over templates/numerics.cuh and scaling.cuh, to be checked by eye. The bits of
// everything but a GEMM are the GPU's.
#pragma once

#include <memory>

#include "ingot/runtime/backend.h"

namespace ingot {

class MatmulManifest;

// threads: 0 = all cores. `manifest` is told of every GEMM, and may be null.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0, MatmulManifest* manifest = nullptr);

}  // namespace ingot
