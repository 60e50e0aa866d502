// All that a GEMM reads and writes, in the memory of a backend: bell-shaped values, of which FP8 ones are cast by the
// library, whatever its spec asks for. b's are so small that the sums are of about 1, as everything beside them is: a
// bias, c or a function of the sums that is wrong then shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ingot/codegen/gemm/gemm_call.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/measure/random_data.h"

namespace ingot {

struct GemmData {
  std::vector<Buffer> memory;
  GemmTensors tensors;
};

// Matrices without padding, each with memory of its own; outputs hold anything, but for the amax, which is 0. `seed`
// and some tens after it decide the values.
GemmData make_gemm_data(RandomData& random, const GemmCall& call, std::uint64_t seed);

}  // namespace ingot
