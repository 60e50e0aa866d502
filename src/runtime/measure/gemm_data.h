// Makes every tensor that a GEMM's spec asks for, in a backend's memory: bell-shaped values, which the library casts
// for FP8 operands. Those of b are so small that the sums are about 1, like bias and c, so that a mistake in any of
// them, or in a function of the sums, shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/measure/random_data.h"

namespace ingot {

struct GemmData {
  std::vector<Buffer> memory;
  GemmTensors tensors;
};

// How scale_inv of 1x128 groups are stored: row by row, or by group, as layers have them (CastTensors).
enum class FactorOrder : std::uint8_t { by_row, by_group };

// Matrices without padding, each in its own memory; outputs are uninitialized, except the amax, which is 0. The values
// depend on `seed` and the few dozen seeds after it.
GemmData make_gemm_data(RandomData& random, const GemmCall& call, std::uint64_t seed,
                        FactorOrder order = FactorOrder::by_group);

}  // namespace ingot
