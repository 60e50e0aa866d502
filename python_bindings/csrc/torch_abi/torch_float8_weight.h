// A linear layer's weight that comes as FP8 codes [N, K] and f32 factors, both the caller's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/error.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"

namespace ingot::python {

struct Float8Weight {
  // frozen: as checkpoints have it, with what the plan's cast of a weight has: a factor, or one for each row or block;
  // the codes may be a buffer of bytes. Otherwise as FSDP gathers it, with one factor.
  Float8Weight(const LinearPlan& plan, bool frozen, const TorchTensor& tensor, const TorchTensor& scale_inv,
               Device device)
      : frozen_(frozen) {
    const auto [in, out, bias] = plan.shape;
    std::int64_t count = 1;
    void* of_factors = nullptr;
    if (frozen) {
      const CastSpec& spec = plan.weight.spec;
      count = scale_count(spec.scale, out, in);
      codes = matrix(bytes_of(tensor, {plan.subject, "weight"}, in * out, device), spec.out, out, in, device);
      of_factors = factors_of(scale_inv, {plan.subject, "weight_scale"}, count, Dtype::f32, device);
    } else {
      require_gathered(plan, tensor, scale_inv, device);
      codes = matrix(tensor.data(), *tensor.float8_dtype(), out, in, device);
      of_factors = scale_inv.data();
    }
    factors = vector(of_factors, Dtype::f32, count, device);
  }

  Float8View for_output() const { return {.codes = codes, .factors = factors}; }
  // For grad_input, transposed into `memory` of bytes(). The codes are transposed anew each time: kept, they would take
  // as much memory again.
  Float8View for_grad_input(Backend& backend, Stream& stream, void* memory) const {
    Tensor transposed = matrix(memory, codes.dtype, codes.cols, codes.rows, codes.device);
    transposed.row_stride = code_pitch(codes.rows);
    if (!codes.empty()) backend.relayout({.transposed = true}, {.input = codes, .output = transposed}, stream);
    if (frozen_) return {.codes = codes, .transposed = transposed, .factors = factors};
    return {.transposed = transposed, .transposed_factors = factors};
  }
  std::size_t bytes() const { return static_cast<std::size_t>(codes.cols * code_pitch(codes.rows)); }

  Tensor codes{};
  Tensor factors{};

 private:
  static void require_gathered(const LinearPlan& plan, const TorchTensor& tensor, const TorchTensor& scale_inv,
                               Device device) {
    const auto refuse = [&](const char* part, const char* why) {
      throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, part}.text(), why);
    };
    const LinearShape& shape = plan.shape;
    const std::array<std::int64_t, 2> sizes{shape.out_features, shape.in_features};
    const std::array<std::int64_t, 2> strides{shape.in_features, 1};
    if (!tensor.float8_dtype() || tensor.device() != device || !std::ranges::equal(tensor.sizes(), sizes) ||
        (shape.in_features * shape.out_features > 0 && !std::ranges::equal(tensor.strides(), strides))) {
      refuse("weight", "must be FP8 of [out_features, in_features] on the input's device, by rows: gather it so");
    }
    if (scale_inv.dtype() != Dtype::f32 || scale_inv.device() != device ||
        !std::ranges::all_of(scale_inv.sizes(), [](std::int64_t size) { return size == 1; })) {
      refuse("factor of weight", "must be float32 of one element on the input's device");
    }
  }

  bool frozen_;
};

}  // namespace ingot::python
