#pragma once
// A linear layer's weight that comes in FP8 with one factor, as FSDP gathers it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/error.h"
#include "torch_abi/torch_memory.h"

namespace ingot::python {

// Codes [N, K] and a f32 of one element, both the caller's.
struct Float8Weight {
  Float8Weight(const LinearPlan& plan, const TorchTensor& tensor, const TorchTensor& factor_tensor, Device device) {
    const LinearShape& shape = plan.shape;
    const auto refuse = [&](const char* part, const char* why) {
      throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, part}.text(), why);
    };
    const std::optional<Dtype> dtype = tensor.float8_dtype();
    const std::array<std::int64_t, 2> sizes{shape.out_features, shape.in_features};
    const std::array<std::int64_t, 2> strides{shape.in_features, 1};
    if (!dtype || tensor.device() != device || !std::ranges::equal(tensor.sizes(), sizes) ||
        (shape.in_features * shape.out_features > 0 && !std::ranges::equal(tensor.strides(), strides))) {
      refuse("weight", "must be FP8 of [out_features, in_features] on the input's device, by rows: gather it so");
    }
    if (factor_tensor.dtype() != Dtype::f32 || factor_tensor.device() != device ||
        !std::ranges::all_of(factor_tensor.sizes(), [](std::int64_t size) { return size == 1; })) {
      refuse("factor of weight", "must be float32 of one element on the input's device");
    }
    codes = matrix(tensor.data(), *dtype, shape.out_features, shape.in_features, device);
    factor = vector(factor_tensor.data(), Dtype::f32, 1, device);
  }

  Float8View for_output() const { return {.codes = codes, .factors = factor}; }
  // For grad_input, transposed into `memory`, of as many bytes as the weight has elements.
  Float8View for_grad_input(Backend& backend, Stream& stream, void* memory) const {
    const Tensor transposed = matrix(memory, codes.dtype, codes.cols, codes.rows, codes.device);
    backend.relayout({.transposed = true}, {.input = codes, .output = transposed}, stream);
    return {.transposed = transposed, .transposed_factors = factor};
  }
  std::size_t bytes() const { return static_cast<std::size_t>(codes.rows * codes.cols); }

  Tensor codes{};
  Tensor factor{};
};

}  // namespace ingot::python
