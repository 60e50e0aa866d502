// Kernels that apply one function of math.cuh to an array, for NVRTC.
#pragma once

#include <fmt/format.h>

#include <string>

#include "ingot/codegen/generate.h"

namespace ingot::checks {

// The same struct as in the kernel's text.
struct MathParams {
  const float* x;
  const float* y;
  float* out;
  unsigned count;
};

inline constexpr unsigned kMathThreads = 256;

// out = from_float<f32>(expression of x and y), elementwise; `expression` is in namespace ingot::math.
inline Source math_kernel(const std::string& expression) {
  return {.name = "math " + expression,
          .text = fmt::format(R"(#include "pointwise/math.cuh"
#include "numerics.cuh"
namespace ingot::math {{
struct Params {{
  const float* x;
  const float* y;
  float* out;
  unsigned count;
}};
INGOT_KERNEL void apply(const Params params) {{
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= params.count) return;
  const float x = params.x[i];
  [[maybe_unused]] const float y = params.y[i];
  params.out[i] = from_float<f32>({});
}}
}}
constexpr auto kKernel = &ingot::math::apply;
)",
                              expression)};
}

}  // namespace ingot::checks
