// The reference: every operation on the CPU, as plain loops over templates/numerics.cuh and scaling.cuh that can be
// checked by reading. It gives the GPU's bits, except for matmuls and for expressions with fast math.
#pragma once

#include <memory>

#include "ingot/api.h"
#include "ingot/runtime/context/backend.h"

namespace ingot {

class Recorder;

// threads: 0 = all cores. What a GPU would be asked for is noted in `recorder`, which may be null.
INGOT_API std::unique_ptr<Backend> make_cpu_backend(int threads = 0, Recorder* recorder = nullptr);

}  // namespace ingot
