// A linear layer run by linear_functions.h with memory of the test's own: its plan, the weight's codes, constants, and
// for each forward its saved memory. All memory is poisoned before a call.
#pragma once

#include <cstdint>
#include <vector>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/runtime/core/buffer.h"
#include "nn/linear_case.h"

namespace ingot::test {

// Memory of exactly as many bytes as asked for, filled with NaN.
class PoisonedRegion {
 public:
  PoisonedRegion(std::size_t bytes, Backend& backend, Stream& stream);
  operator MemoryRegion() const { return {memory_.data(), bytes_}; }  // NOLINT(google-explicit-constructor)

 private:
  std::size_t bytes_;
  Buffer memory_;
};

// What each forward has for itself.
struct FunctionSaved {
  FunctionSaved(const LinearPlan& plan, std::int64_t tokens, Backend& backend, Stream& stream)
      : memory(plan.saved_memory(tokens).bytes, backend, stream), saved{.memory = memory} {}

  PoisonedRegion memory;
  LinearSaved saved;
};

// The same in memory of the stream's allocator, for a LinearPlan, a NormLinearPlan or an MlpPlan.
struct AllocatedSaved {
  template <class Plan>
  AllocatedSaved(const Plan& plan, std::int64_t tokens, Stream& stream)
      : block(stream.kept(plan.saved_memory(tokens).bytes)), saved{.memory = {block.data(), block.bytes()}} {}

  LinearSaved* get() { return &saved; }
  std::size_t bytes() const { return saved.memory.bytes; }

  StreamBlock block;
  LinearSaved saved;
};

class FunctionLayer {
 public:
  FunctionLayer(const LinearPlanOptions& options, Backend& backend, Stream& stream);

  // The scales of a plan with delayed ones; its slots were added in the order of Float8Linear's.
  void use(const DelayedScaling& delayed);

  void cast_weight(const Tensor& weight, Stream& stream);
  // Casts the weight too where `cast` is set, as Float8Linear does.
  void forward(const LinearForward& tensors, LinearSaved* saved, Stream& stream, bool cast = false) const;
  void recompute(const LinearForward& tensors, LinearSaved& saved, Stream& stream) const;
  void backward(const LinearBackward& tensors, const LinearForward& of, const LinearSaved& saved, Stream& stream) const;

  LinearForwardTensors forward_tensors(const LinearForward& tensors, LinearSaved* saved,
                                       const MemoryRegion& scratch) const;
  LinearBackwardTensors backward_tensors(const LinearBackward& tensors, const LinearForward& of,
                                         const LinearSaved& saved, const MemoryRegion& scratch) const;

  const LinearPlan plan;
  Float8View codes;
  LinearScales scales;

 private:
  Backend* backend_;
  PoisonedRegion weight_;
  PoisonedRegion constants_;
};

}  // namespace ingot::test
