#include "ingot/nn/dist/parallel_scales.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/delayed_scaling.h"

namespace ingot {
namespace {

constexpr std::array kTensors{LinearTensor::input, LinearTensor::weight, LinearTensor::grad_output};
constexpr std::array kTensorNames{"input", "weight", "grad_output"};
constexpr std::size_t kSlotBytes = 256;
static_assert(kStartingScaleBytes + sizeof(float) <= kSlotBytes);

std::size_t index_of(LinearTensor tensor) { return static_cast<std::size_t>(tensor); }

bool is_dynamic_tensorwise(const std::optional<Cast>& cast) {
  return cast && cast->scaling == Scaling::dynamic && cast->granularity == kTensorwise;
}

// The casts of a tensor, in the two GEMMs that read it.
std::array<std::optional<Cast>*, 2> casts_of(LinearConfig& config, LinearTensor tensor) {
  switch (tensor) {
    case LinearTensor::input: return {&config.output.a, &config.grad_weight.b};
    case LinearTensor::weight: return {&config.output.b, &config.grad_input.b};
    default: return {&config.grad_input.a, &config.grad_weight.a};
  }
}

const std::optional<Cast>& first_cast(const LinearPlan& plan, LinearTensor tensor) {
  return *plan.scaling.all()[index_of(tensor)];
}

}  // namespace

LinearConfig with_given_scales(LinearConfig config, const DividedTensors& divided) {
  for (const LinearTensor tensor : kTensors) {
    const auto [first, second] = casts_of(config, tensor);
    const bool whole = (!*first || is_dynamic_tensorwise(*first)) && (!*second || is_dynamic_tensorwise(*second));
    if (!divided.has(tensor) || !whole) continue;
    if (*first) (*first)->scaling = Scaling::delayed;
    if (*second) (*second)->scaling = Scaling::delayed;
  }
  return config;
}

ParallelScales::ParallelScales(Backend& backend, const LinearPlan& plan, const LinearConfig& config,
                               const DividedTensors& divided, DelayedScaling* delayed)
    : backend_(&backend), plan_(plan), divided_(divided), delayed_(delayed) {
  std::vector<DelayedSlot> slots;
  LinearConfig own = config;
  for (const LinearTensor tensor : kTensors) {
    const std::optional<Cast>& cast = first_cast(plan, tensor);
    if (!cast || cast->scaling == Scaling::dynamic) continue;
    Entry& entry = entries_[index_of(tensor)];
    entry.cast = *cast;
    entry.source = cast->scaling == Scaling::fixed ? Source::constant : Source::group;
    const auto [first, second] = casts_of(own, tensor);
    if ((*first ? *first : *second)->scaling != Scaling::delayed) continue;
    const char* const name = kTensorNames[index_of(tensor)];
    if (delayed == nullptr) {
      refuse_argument((plan.subject + " delayed").c_str(),
                      fmt::format("is missing, but {} has delayed scales: give the model's DelayedScaling", name));
    }
    entry.source = Source::delayed;
    entry.slot = static_cast<int>(slots.size());
    slots.push_back({fmt::format("{}.{}", plan.name, name), cast->dtype, cast->pow2});
  }
  if (slots.empty()) return;
  const int begin = delayed->add(slots);
  for (Entry& entry : entries_) {
    if (entry.source == Source::delayed) entry.slot += begin;
  }
}

// Once, and not within a capture: the memory stays where it is.
void ParallelScales::make_constants(Stream& stream) {
  if (memory_.data() != nullptr) return;
  memory_.reserve(*backend_, kSlotBytes * entries_.size() + kLinearConstantBytes, stream);
  auto* next = static_cast<std::byte*>(memory_.data());
  constants_ = linear_constants(plan_, *backend_, {next + kSlotBytes * entries_.size(), kLinearConstantBytes}, stream);
  for (Entry& entry : entries_) {
    const Tensor raised = vector(next + kStartingScaleBytes, Dtype::f32, 1, backend_->device());
    if (entry.source == Source::group) {
      entry.scale = starting_scale(*backend_, entry.cast, raised, {next, kStartingScaleBytes}, stream);
    }
    next += kSlotBytes;
  }
}

void ParallelScales::measure(const LinearScale& scale, const Tensor& values, bool is_divided, Comm& comm,
                             Stream& stream) {
  const AmaxHistoryTensors& slot = *scale.start;
  backend_->amax({.in = values.dtype}, {.input = values, .amax = slot.amax}, stream);
  if (is_divided) comm.all_reduce_max(slot.amax, stream);
  backend_->amax_history(scale.start_spec, slot, stream);
}

LinearScale ParallelScales::of(LinearTensor tensor, const Tensor& values, Comm& comm, Stream& stream) {
  make_constants(stream);
  const Entry& entry = entries_[index_of(tensor)];
  if (entry.source == Source::none) return {};
  if (entry.source == Source::constant) {
    return tensor == LinearTensor::input    ? constants_.input
           : tensor == LinearTensor::weight ? constants_.weight
                                            : constants_.grad_output;
  }
  const bool is_delayed = entry.source == Source::delayed;
  LinearScale scale = is_delayed ? delayed_->scale_of_cast(entry.slot, !values.empty(), stream) : entry.scale;
  if (!scale.start) return scale;
  measure(scale, values, divided_.has(tensor), comm, stream);
  scale.start.reset();
  if (is_delayed) delayed_->note_started(entry.slot, stream);
  return scale;
}

Tensor ParallelScales::one(Stream& stream) {
  make_constants(stream);
  return constants_.one;
}

}  // namespace ingot
