#include "ingot/nn/modules/linear_owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/delayed_scaling.h"

namespace ingot {
namespace {

MemoryRegion region_of(const StreamBlock& block) { return {block.data(), block.bytes()}; }

}  // namespace

MemoryRegion OwnerMemory::buffer(DeviceApi& device_api, std::size_t bytes, Stream& stream) {
  buffer_.reserve(device_api, bytes, stream);
  return {buffer_.data(), buffer_.bytes()};
}

MemoryRegion OwnerMemory::renew(DeviceApi& device_api, std::size_t bytes, Stream& stream) {
  if (stream.allocator() == nullptr) return buffer(device_api, bytes, stream);
  // What was allocated outside of a capture must not be released within it.
  if (device_api.capturing(stream)) {
    captured_ = stream.kept(bytes);
    return region_of(captured_);
  }
  captured_ = {};
  block_ = {};  // first, so that the allocator can give it again
  block_ = stream.kept(bytes);
  return region_of(block_);
}

MemoryRegion OwnerMemory::reserve(DeviceApi& device_api, std::size_t bytes, Stream& stream) {
  if (block_.data() != nullptr && block_.bytes() >= bytes) return region_of(block_);
  if (stream.allocator() == nullptr || (buffer_.data() != nullptr && buffer_.bytes() >= bytes)) {
    return buffer(device_api, bytes, stream);
  }
  if (device_api.capturing(stream)) {
    refuse_argument("stream",
                    fmt::format("is capturing a graph, and the layer needs {} bytes that outlive it, but has only {}: "
                                "run the step once before capturing it",
                                bytes, block_.bytes()));
  }
  StreamBlock grown = stream.kept(bytes);
  if (block_.data() != nullptr) outgrown_.push_back(std::move(block_));
  block_ = std::move(grown);
  return region_of(block_);
}

LinearOwner::LinearOwner(Backend& backend, LinearOptions options) : backend_(&backend), options_(std::move(options)) {
  if (options_.side != nullptr && &options_.side->device_api() != &backend_->device_api()) {
    refuse_argument("Float8Linear side", "belongs to another backend than the layer: make it from the layer's backend");
  }
}

void LinearOwner::add_slots(std::initializer_list<OwnedLinear> layers) {
  DelayedScaling* delayed = nullptr;
  std::vector<DelayedSlot> slots;
  std::vector<int*> indices;
  for (const auto& [owner, plan] : layers) {
    const auto add = [&, &options = owner->options_](const char* tensor, const std::optional<Cast>& cast, int& index) {
      if (!cast || cast->scaling != Scaling::delayed) return;
      if (options.delayed == nullptr) {
        refuse_argument(
            "Float8Linear delayed",
            fmt::format("is missing, but {} has delayed scales: give LinearOptions the model's DelayedScaling",
                        tensor));
      }
      delayed = options.delayed;
      slots.push_back({fmt::format("{}.{}", options.name, tensor), cast->dtype, cast->pow2});
      indices.push_back(&index);
    };
    add("input", plan->scaling.input, owner->slots_.input);
    add("weight", plan->scaling.weight, owner->slots_.weight);
    add("grad_output", plan->scaling.grad_output, owner->slots_.grad_output);
  }
  if (delayed == nullptr) return;
  int next = delayed->add(slots);
  for (int* index : indices) *index = next++;
}

void LinearOwner::release() {
  if (weight_is_listed_) return;
  weight_is_current_ = false;
  weight_memory_ = {};
  codes_ = {};
}

// ---- scales --------------------------------------------------------------------------------------------------------

void LinearOwner::make_constants(const LinearPlan& plan, Stream& stream) {
  if (constant_memory_.data() != nullptr || !plan.has_constants) return;
  constant_memory_.reserve(*backend_, kLinearConstantBytes, stream);
  constants_ = linear_constants(plan, *backend_, region_of(constant_memory_), stream);
}

bool LinearOwner::needs_start(int slot) const { return slot >= 0 && options_.delayed->needs_start(slot); }

void LinearOwner::give(LinearScale& to, const LinearCast& cast, const LinearScale& fixed, int slot, bool has_data,
                       Stream& stream) {
  if (!cast.any || cast.scaling == Scaling::dynamic) return;
  if (slot < 0) {
    to = fixed;
    return;
  }
  to = options_.delayed->scale_of_cast(slot, has_data, stream);
  if (to.start) starting_.push_back(slot);
}

void LinearOwner::give_input_scale(const LinearPlan& plan, LinearPass pass, std::int64_t tokens, LinearScale& to,
                                   Stream& stream) {
  starting_.clear();
  make_constants(plan, stream);
  give(to, plan.input_of(plan.effective(pass)), constants_.input, slots_.input,
       tokens != 0 && plan.shape.in_features != 0, stream);
}

void LinearOwner::note_started(const Stream& stream) {
  for (const int slot : starting_) options_.delayed->note_started(slot, stream);
  starting_.clear();
}

// ---- the weight ----------------------------------------------------------------------------------------------------

bool LinearOwner::weight_is_cast(const LinearPlan& plan, const Tensor& weight) const {
  return !plan.weight.any || (weight_is_current_ && weight.data == cast_weight_.data &&
                              weight.dtype == cast_weight_.dtype && weight.row_stride == cast_weight_.row_stride);
}

WeightCastTensors LinearOwner::prepare_weight(const LinearPlan& plan, const Tensor& weight, Stream& stream) {
  weight_is_current_ = false;
  make_constants(plan, stream);
  WeightCastTensors cast{.weight = weight,
                         .into = weight_memory_.reserve(*backend_, plan.weight_memory().bytes, stream)};
  give(cast.scale, plan.weight, constants_.weight, slots_.weight, !weight.empty(), stream);
  codes_ = weight_codes(plan, cast.into, backend_->device());
  cast_weight_ = weight;
  return cast;
}

// The casts of a list come later, perhaps in every replay of a graph, so a scale that starts does so by a cast here.
WeightCastTensors LinearOwner::list_weight(const LinearPlan& plan, const Tensor& weight, Stream& stream) {
  weight_is_listed_ = true;
  starting_.clear();
  WeightCastTensors cast = prepare_weight(plan, weight, stream);
  if (!cast.scale.start) return cast;
  enqueue_cast_weight(plan, *backend_, cast, {.stream = stream});
  note_started(stream);
  cast.scale.start.reset();
  return cast;
}

// A cast that is only recorded leaves the codes as they were, and so whose they are.
void LinearOwner::weight_was_cast(const Tensor& weight, const Stream& stream) {
  if (backend_->device_api().capturing(stream)) return;
  cast_weight_ = weight;
  weight_is_current_ = true;
}

void LinearOwner::start_weight(const LinearPlan& plan, const Tensor& weight, std::int64_t tokens, Stream& stream) {
  if (weight_is_cast(plan, weight)) return;
  // The first delayed scale is computed in the order of the layer's own stream.
  if (needs_start(slots_.weight) || !uses_side(plan, tokens, most_on_side_forward_, stream)) return;
  const WeightCastTensors cast = prepare_weight(plan, weight, stream);
  options_.side->wait_for(stream);
  side_is_busy_ = true;
  enqueue_cast_weight(plan, *backend_, cast, {.stream = *options_.side});
  weight_is_enqueued(*options_.side);
}

// ---- the side stream -----------------------------------------------------------------------------------------------

bool LinearOwner::may_use_side(const LinearPlan& plan, std::int64_t tokens) const {
  const bool is_small = LinearOptions::is_small(tokens, plan.shape.in_features, plan.shape.out_features);
  return options_.side != nullptr && is_small && options_.observer == nullptr &&
         !backend_->device_api().checks_memory();
}

bool LinearOwner::uses_side(const LinearPlan& plan, std::int64_t tokens, std::int64_t& most, Stream& stream) {
  if (!may_use_side(plan, tokens) || (tokens > most && backend_->device_api().capturing(stream))) return false;
  most = std::max(most, tokens);
  return true;
}

void LinearOwner::join(Stream& stream) {
  if (!side_is_busy_) return;
  stream.wait_for(*options_.side);
  side_is_busy_ = false;
}

LinearOwner::Call::~Call() {
  try {
    owner_->join(*stream_);
  } catch (const Error&) {  // the context is broken; the next call reports it
    owner_->side_is_busy_ = false;
  }
}

// ---- backward ------------------------------------------------------------------------------------------------------

Stream* LinearOwner::before_backward(const LinearPlan& plan, const LinearGradients& wants,
                                     const LinearGradientDtypes& dtypes, std::int64_t tokens, LinearScales& scales,
                                     Stream& stream) {
  starting_.clear();
  make_constants(plan, stream);
  const auto [in, out, bias] = plan.shape;
  give(scales.grad_output, plan.grad_output_of(wants).cast, constants_.grad_output, slots_.grad_output,
       tokens != 0 && out != 0, stream);
  if (wants.weight) {
    give(scales.input, plan.input_again, constants_.input, slots_.input, tokens != 0 && in != 0, stream);
  }
  if (wants.input) {
    give(scales.weight, plan.weight_again, constants_.weight, slots_.weight, in != 0 && out != 0, stream);
  }
  scales.one = constants_.one;
  const bool small = wants.input && wants.weight && may_use_side(plan, tokens);
  side_is_busy_ = small && !multiplies_together(plan, *backend_, tokens, dtypes) &&
                  uses_side(plan, tokens, most_on_side_backward_, stream);
  // The weight's cast, which a forward runs there, needs no more memory for more tokens.
  if (small && !backend_->device_api().capturing(stream))
    most_on_side_forward_ = std::max(most_on_side_forward_, tokens);
  return side_is_busy_ ? options_.side : nullptr;
}

}  // namespace ingot
