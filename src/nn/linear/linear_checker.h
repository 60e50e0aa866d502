// Names the tensors of a linear layer's call by the layer's name, and refuses those that break a rule: what the checks
// of linear_checks.h are made of.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/linear_tensors.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {

// A message is formatted only if a rule is broken.
inline bool share_memory(const MemoryRegion& region, const Tensor& tensor) {
  if (region.data == nullptr || region.bytes == 0 || tensor.empty()) return false;
  const auto* const begin = static_cast<const std::byte*>(region.data);
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  return data < begin + region.bytes && begin < data + byte_span(tensor, "tensor");
}

// What layers, and modules of several parts (a norm and its layer, an MLP), ask of their memory.
class ModuleChecker {
 public:
  explicit ModuleChecker(const std::string& subject) : subject_(&subject) {}

  [[noreturn]] void refuse(const char* name, const std::string& message) const {
    refuse_argument(fmt::format("{} {}", *subject_, name).c_str(), message);
  }

  void disjoint(const NamedTensor& written, std::initializer_list<NamedTensor> others) const {
    for (const NamedTensor& other : others) {
      if (!overlap(*written.tensor, *other.tensor)) continue;
      refuse(written.name, fmt::format("overlaps {}: give it separate memory", other.name));
    }
  }

  // Memory of at least that size, aligned, that overlaps no tensor.
  void region(const char* name, const MemoryRegion& region, std::size_t bytes,
              std::initializer_list<NamedTensor> tensors) const {
    if (bytes == 0) return;
    if (region.data == nullptr) {
      refuse(name, fmt::format("is missing; it must have {} bytes: the plan says how much memory a call needs", bytes));
    }
    if (region.bytes < bytes) {
      refuse(name, fmt::format("has {}, but needs {}: the plan says how much memory a call needs",
                               count_of(region.bytes, "byte"), bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(region.data) % kLinearAlignment != 0) {
      refuse(name, fmt::format("begins at {}, but must begin at a multiple of {} bytes", fmt::ptr(region.data),
                               kLinearAlignment));
    }
    for (const NamedTensor& tensor : tensors) {
      if (!share_memory({region.data, bytes}, *tensor.tensor)) continue;
      refuse(name, fmt::format("overlaps {}: give it separate memory", tensor.name));
    }
  }

  // The same of scratch, which a stream with an allocator would have given.
  void scratch(const MemoryRegion& region, std::size_t bytes, std::initializer_list<NamedTensor> tensors) const {
    if (bytes != 0 && region.data == nullptr) refuse("scratch", missing_scratch(bytes));
    this->region("scratch", region, bytes, tensors);
  }

  // Memory that a call needs, of a region that may be larger.
  struct Part {
    MemoryRegion region;
    std::size_t bytes;
  };
  void apart(const char* name, const Part& one, const char* of_other, const Part& other) const {
    if (one.region.data == nullptr || other.region.data == nullptr || one.bytes == 0 || other.bytes == 0) return;
    const auto* const first = static_cast<const std::byte*>(one.region.data);
    const auto* const second = static_cast<const std::byte*>(other.region.data);
    if (second >= first + one.bytes || first >= second + other.bytes) return;
    refuse(name, fmt::format("overlaps {}: give it separate memory", of_other));
  }
  void saved_apart(const MemoryRegion& saved, std::size_t saved_bytes, const MemoryRegion& scratch,
                   std::size_t scratch_bytes) const {
    apart("saved", {saved, saved_bytes}, "the scratch", {scratch, scratch_bytes});
  }

  // What a backward is given must be what a forward of this plan left.
  void stamp(const LinearSaved* saved, std::uint64_t plan) const {
    if (saved == nullptr || (!saved->kept && saved->plan == 0)) {
      refuse("backward", "has no forward() before it: run forward() first");
    }
    if (!saved->kept) {
      refuse("backward", "has no forward() before it that kept what it needs: run forward() first, or recompute()");
    }
    if (saved->plan == plan) return;
    refuse("saved", "was written by a forward of another plan: give this backward what its own forward kept");
  }

 private:
  const std::string* subject_;
};

class LinearChecker : public ModuleChecker {
 public:
  LinearChecker(const LinearPlan& plan, const DeviceApi& device_api)
      : ModuleChecker(plan.subject), plan_(&plan), device_(device_api.device()) {}

  void dtype(const NamedTensor& named, std::initializer_list<Dtype> allowed, const char* why) const {
    if (std::ranges::find(allowed, named.tensor->dtype) != allowed.end()) return;
    std::string names;
    for (const Dtype dtype : allowed) names += fmt::format("{}{}", names.empty() ? "" : " or ", ingot::name(dtype));
    if (!is_given(*named.tensor)) refuse(named.name, fmt::format("is missing; it must be {}{}", names, why));
    refuse(named.name, fmt::format("is {}, but must be {}{}", ingot::name(named.tensor->dtype), names, why));
  }

  void shape(const NamedTensor& named, std::int64_t rows, std::int64_t cols, const char* meaning) const {
    const Tensor& tensor = *named.tensor;
    if (tensor.rows == rows && tensor.cols == cols) return;
    if (!is_given(tensor)) {
      refuse(named.name, fmt::format("is missing; it must be [{}, {}] = {}", rows, cols, meaning));
    }
    refuse(named.name, fmt::format("is {}, but must be [{}, {}] = {}", describe(tensor), rows, cols, meaning));
  }

  void memory(const NamedTensor& named) const {
    try {
      check_memory(named.name, *named.tensor, device_);
    } catch (const Error& error) {
      refuse(named.name, error.message());
    }
  }

  void all(const NamedTensor& named, Dtype dtype, const char* why, std::int64_t rows, std::int64_t cols,
           const char* meaning) const {
    this->dtype(named, {dtype}, why);
    shape(named, rows, cols, meaning);
    memory(named);
  }

  // A row for each expert, one after the other.
  void of_experts(const NamedTensor& named, Dtype dtype, const char* why, std::int64_t experts,
                  std::int64_t cols) const {
    all(named, dtype, why, experts, cols, "[experts, out_features]");
    const Tensor& tensor = *named.tensor;
    if (tensor.rows > 1 && tensor.row_stride != cols) {
      refuse(named.name,
             fmt::format("is {}, but its rows must follow each other: give it dense memory", describe(tensor)));
    }
  }

  // An input of an expression is named by `of` alone, a tensor of the call with the layer.
  void disjoint(const NamedTensor& written, std::initializer_list<NamedTensor> others) const {
    for (const NamedTensor& other : others) {
      if (!overlap(*written.tensor, *other.tensor)) continue;
      refuse(written.name, fmt::format("overlaps {} {}: give it separate memory", plan_->subject, other.name));
    }
  }
  void disjoint_from_input(const NamedTensor& written, const char* of, const Tensor& input) const {
    if (overlap(*written.tensor, input)) refuse(written.name, fmt::format("overlaps {}: give it separate memory", of));
  }

  // The inputs of an expression: matrices [rows, cols] and column vectors of the values' dtype, column vectors of f32,
  // and row vectors of f32.
  void prologue_inputs(const PointwiseTensors& tensors, std::int64_t rows) const {
    inputs(kPrologueInputs, plan_->fusion.prologue, plan_->dtypes.input, tensors, rows, plan_->shape.in_features);
  }
  void epilogue_inputs(const PointwiseTensors& tensors, std::int64_t rows) const {
    inputs(kEpilogueInputs, plan_->fusion.epilogue, *plan_->dtypes.output, tensors, rows, plan_->shape.out_features);
  }

  void stream(const DeviceApi& device_api, const Stream& stream) const {
    if (&stream.device_api() == &device_api) return;
    refuse("stream", "belongs to another backend than the layer: make it from the layer's backend");
  }

  // `of`: the tensor that is cast with it. count: one for each expert, or one.
  void scale(const char* of, const LinearCast& cast, const LinearScale& scale, std::int64_t count = 1) const {
    if (!cast.any || cast.scaling == Scaling::dynamic) return;
    const auto check = [&](const char* part, const Tensor& tensor) {
      if (tensor.data != nullptr && tensor.dtype == Dtype::f32 && tensor.rows == 1 && tensor.cols == count &&
          tensor.device == device_) {
        return;
      }
      refuse(fmt::format("scales.{}.{}", of, part).c_str(),
             fmt::format("is {}, but must be f32[1, {}] on {}: {}", describe(tensor), count, print(device_),
                         cast.scaling == Scaling::fixed ? "linear_constants() makes fixed scales"
                                                        : "a delayed scale is the caller's"));
    };
    check("scale", scale.scale);
    if (cast.scaling == Scaling::delayed) check("amax", scale.amax);
  }

  void one(const LinearScales& scales) const {
    if (scales.one.data != nullptr || !plan_->folds()) return;
    refuse("scales.one", "is missing; the config folds scale_inv: linear_constants() makes it");
  }

  // One set of the weight's codes, and its scale_inv.
  void codes(const NamedTensor& codes, std::int64_t rows, std::int64_t cols, const NamedTensor& scale_inv,
             ScaleGranularity scale) const {
    const Dtype dtype = plan_->weight.any ? plan_->weight.spec.out : plan_->weight_again.spec.out;
    const char* const why = ": cast_weight() makes codes of the weight";
    if (!is_given(*codes.tensor) && rows != 0 && cols != 0) {
      refuse(codes.name, fmt::format("is missing; it must be {}[{}, {}]{}", name(dtype), rows, cols, why));
    }
    all(codes, dtype, ", the weight's format", rows, cols, "the weight as its GEMM reads it");
    const std::int64_t count = scale_count(scale, plan_->shape.out_features, plan_->shape.in_features);
    if (!is_given(*scale_inv.tensor) && count != 0) {
      refuse(scale_inv.name, fmt::format("is missing; codes come with their scale_inv, f32[1, {}], one for each {}",
                                         count, print(scale)));
    }
    this->dtype(scale_inv, {Dtype::f32}, ", as scale_inv are");
    if (scale_inv.tensor->rows != 1 || scale_inv.tensor->cols != count) {
      refuse(scale_inv.name, fmt::format("is {}, but must be [1, {}] = one factor for each {} of the weight",
                                         describe(*scale_inv.tensor), count, print(scale)));
    }
    memory(scale_inv);
  }

  const LinearPlan& plan() const { return *plan_; }

 private:
  using InputNames = std::array<const char*, kMaxPointwiseInputs>;
  static constexpr InputNames kPrologueInputs{"prologue_inputs[0]", "prologue_inputs[1]", "prologue_inputs[2]",
                                              "prologue_inputs[3]"};
  static constexpr InputNames kEpilogueInputs{"epilogue_inputs[0]", "epilogue_inputs[1]", "epilogue_inputs[2]",
                                              "epilogue_inputs[3]"};

  void inputs(const InputNames& names, const Pointwise& expression, Dtype values, const PointwiseTensors& tensors,
              std::int64_t rows, std::int64_t cols) const {
    const auto inputs = expression.inputs();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const NamedTensor named{names[i], &tensors[i]};
      if (i >= inputs.size()) {
        if (!is_given(tensors[i])) continue;
        refuse(named.name,
               fmt::format("is given, but the layer's expression there has {}", count_of(inputs.size(), "input")));
      }
      using Kind = PointwiseInput::Kind;
      const Kind kind = inputs[i].kind;
      dtype(named, {kind == Kind::row || kind == Kind::column_f32 ? Dtype::f32 : values}, "");
      shape(named, kind == Kind::matrix ? rows : 1, kind == Kind::row ? rows : cols,
            kind == Kind::matrix ? "a matrix of x's shape"
            : kind == Kind::row  ? "a value for each row"
                                 : "a value for each column");
      memory(named);
    }
  }

  const LinearPlan* plan_;
  Device device_;
};

}  // namespace ingot
