// Several layers behind one norm: the one that computes it casts its values, and adds the others' gradients of them.
#include <algorithm>

#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/module_checks.h"
#include "ingot/nn/modules/norm_linear_parts.h"

namespace ingot {
namespace {

constexpr const char* kNames[] = {"grad_values[0]", "grad_values[1]"};

struct LayerRegions {
  LinearPass pass;
  MemoryRegion saved, scratch;
};

// The layer's own parts of the module's memory.
LayerRegions layer_regions(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                           const MemoryRegion& scratch) {
  const bool keeps = saved.data != nullptr || plan.linear.saves_no_bytes(tokens);
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const NormLinearSavedMemory kept = plan.saved_memory(tokens);
  const NormLinearForwardScratch used = plan.forward_scratch(tokens, pass);
  return {.pass = pass,
          .saved = part_of(saved, kept.layer_begin, kept.layer.bytes),
          .scratch = part_of(scratch, used.layer_begin, used.layer_bytes)};
}

}  // namespace

Float8View norm_linear_input_codes(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                   const MemoryRegion& scratch, Device device) {
  const LayerRegions regions = layer_regions(plan, tokens, saved, scratch);
  return linear_input_codes(plan.linear, tokens, regions.saved, regions.scratch, device);
}

Tensor norm_linear_input_values(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                const MemoryRegion& scratch, Device device) {
  const LayerRegions regions = layer_regions(plan, tokens, saved, scratch);
  if (regions.pass == LinearPass::training) {
    const NormLinearSavedMemory kept = plan.saved_memory(tokens);
    if (kept.values.used) return kept.values.in(saved, device);
    if (kept.layer.input_values.used) return kept.layer.input_values.in(regions.saved, device);
  }
  const NormLinearForwardScratch used = plan.forward_scratch(tokens, regions.pass);
  if (used.values.used) return used.values.in(scratch, device);
  return plan.linear.forward_scratch(tokens, regions.pass).input_values.in(regions.scratch, device);
}

void add_grad_values(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& t,
                     const Tensor& sum, Stream& stream) {
  const auto count = static_cast<std::size_t>(std::ranges::count_if(t.grad_values, is_given));
  if (count == 0) return;
  backend.elementwise(plan.add_grad_values[count - 1],
                      {.input = sum, .inputs = {t.grad_values[0], t.grad_values[1]}, .output = sum}, stream);
}

void check_grad_values(const NormLinearPlan& plan, const Backend& backend, const NormLinearBackwardTensors& t) {
  const ModuleChecker check(plan.subject);
  for (std::size_t i = 0; i < t.grad_values.size(); ++i) {
    const Tensor& tensor = t.grad_values[i];
    if (!is_given(tensor)) continue;
    if (i > 0 && !is_given(t.grad_values[i - 1])) {
      check.refuse(kNames[i], "is given without the one before it: give the first");
    }
    if (!plan.norm || !is_given(t.grad_input)) {
      check.refuse(kNames[i], "is given, but there is no norm's backward to add it for: give grad_input memory");
    }
    const Dtype dtype = plan.linear.dtypes.input;
    const std::int64_t cols = plan.linear.shape.in_features;
    if (tensor.dtype != dtype || tensor.rows != t.saved->tokens || tensor.cols != cols) {
      check.refuse(kNames[i], fmt::format("is {}, but must be {} [{}, {}] = [tokens, in_features]", describe(tensor),
                                          name(dtype), t.saved->tokens, cols));
    }
    try {
      check_memory(kNames[i], tensor, backend.device());
    } catch (const Error& error) {
      check.refuse(kNames[i], error.message());
    }
    const std::size_t scratch = t.scratch.data == nullptr ? 0 : t.scratch.bytes;
    const auto bytes = static_cast<std::int64_t>(scratch);
    const Tensor used{.data = t.scratch.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = bytes, .row_stride = bytes};
    check.disjoint({kNames[i], &tensor}, {{"the scratch", &used}, {"grad_input", &t.grad_input}});
  }
}

}  // namespace ingot
