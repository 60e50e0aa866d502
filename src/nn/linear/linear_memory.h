// Where the parts of a linear layer's memory are. A LinearPlan says so before anything runs, so that the memory can
// come from anywhere: a layer's own buffers, a framework's allocator, the pool of a graph.
//
// There are four regions. Each begins at a multiple of kLinearAlignment, and so does each of its parts. A part that the
// plan does not need has used = false.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

inline constexpr std::size_t kLinearAlignment = 256;

// Memory of the caller: at least `bytes` from `data`.
struct MemoryRegion {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// A tensor's place in a region.
struct TensorPlace {
  Dtype dtype = Dtype::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // in elements
  std::size_t offset = 0;       // from the region's begin, in bytes
  bool used = false;

  // A default Tensor where the place is not used.
  Tensor in(const MemoryRegion& region, Device device) const {
    if (!used) return {};
    void* const data = region.data == nullptr ? nullptr : static_cast<std::byte*>(region.data) + offset;
    return {.data = data, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = row_stride, .device = device};
  }
  // From the first element to the end of the last.
  std::size_t bytes() const {
    if (!used || rows == 0 || cols == 0) return 0;
    return static_cast<std::size_t>(((rows - 1) * row_stride + cols) * size_of(dtype));
  }
  bool operator==(const TensorPlace&) const = default;
};

// The weight's codes for the output GEMM, and transposed ones for grad_input's. They do not depend on the number of
// tokens.
struct LinearWeightMemory {
  TensorPlace codes{};       // [N, K]
  TensorPlace transposed{};  // [K, N]
  TensorPlace scale_inv{};
  TensorPlace transposed_scale_inv{};
  TensorPlace amax{};  // f32[1], written and not used: where the scale is fixed
  std::size_t bytes = 0;

  std::array<TensorPlace, 5> parts() const { return {codes, transposed, scale_inv, transposed_scale_inv, amax}; }
};

// What forward keeps for backward.
struct LinearSavedMemory {
  TensorPlace input_transposed{};  // [K, M]: the input's codes for grad_weight
  TensorPlace input_scale_inv{};
  TensorPlace input_values{};   // [M, K]: a prologue's values, for a grad_weight in high precision
  TensorPlace preactivation{};  // [M, N]: where the epilogue is differentiated
  std::size_t bytes = 0;

  std::array<TensorPlace, 4> parts() const { return {input_transposed, input_scale_inv, input_values, preactivation}; }
  // The bytes of the tensors themselves, without the gaps between them.
  std::size_t bytes_of_parts() const {
    std::size_t sum = 0;
    for (const TensorPlace& part : parts()) sum += part.bytes();
    return sum;
  }
};

// Used within one forward.
struct LinearForwardScratch {
  TensorPlace input_codes{};  // [M, K]
  TensorPlace input_scale_inv{};
  TensorPlace input_values{};  // [M, K]: a prologue's values, for an output GEMM in high precision
  TensorPlace observed{};      // [M, K]: the same, where only an observer wants them
  TensorPlace amax{};          // f32[1], written and not used: where the scale is fixed
  TensorPlace bias{};          // [N]: rounded to what the output GEMM takes
  std::size_t bytes = 0;

  std::array<TensorPlace, 6> parts() const {
    return {input_codes, input_scale_inv, input_values, observed, amax, bias};
  }
};

// Used within one backward.
struct LinearBackwardScratch {
  TensorPlace codes{};       // [M, N]: grad_output's, for grad_input
  TensorPlace transposed{};  // [N, M]: for grad_weight
  TensorPlace scale_inv{};
  TensorPlace transposed_scale_inv{};
  TensorPlace values{};            // [M, N]: grad_output times the epilogue's derivative
  TensorPlace input_transposed{};  // [K, M]: the input cast again
  TensorPlace input_scale_inv{};
  TensorPlace weight_transposed{};  // [K, N]: the weight cast again
  TensorPlace weight_scale_inv{};
  TensorPlace observed{};        // [M, N]: as LinearForwardScratch::observed
  TensorPlace observed_input{};  // [M, K]
  TensorPlace amaxes{};          // f32[3], written and not used: of grad_output, input and weight with fixed scales
  TensorPlace expanded{};        // [M, N]: a grad_output that is given as one element
  TensorPlace expanded_row{};    // [N]: one row of it
  std::size_t bytes = 0;

  std::array<TensorPlace, 14> parts() const {
    return {codes,
            transposed,
            scale_inv,
            transposed_scale_inv,
            values,
            input_transposed,
            input_scale_inv,
            weight_transposed,
            weight_scale_inv,
            observed,
            observed_input,
            amaxes,
            expanded,
            expanded_row};
  }
};

struct LinearMemory {
  LinearWeightMemory weight{};
  LinearSavedMemory saved{};
  LinearForwardScratch forward{};
  LinearBackwardScratch backward{};
};

}  // namespace ingot
