#include "ingot/nn/modules/delayed_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ingot/codegen/types/dtype.h"
#include "ingot/nn/recipe/delayed_scaling_state.h"
#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr const char* kSubject = "delayed scaling";
constexpr const char* kStateSubject = "delayed scaling state";

[[noreturn]] void refuse(const std::string& subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

bool is_utf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

constexpr float kNoScale = 1.0F;

// Were there no data yet to make a scale from? (A scale of 1 with a maximum in the history is a real one.)
bool is_missing(std::uint32_t scale, std::span<const std::uint32_t> history) {
  return scale == std::bit_cast<std::uint32_t>(kNoScale) &&
         std::ranges::all_of(history, [](std::uint32_t amax) { return amax == 0; });
}

// Increasingly rare, because some tensors never get a scale: a frozen weight of zeros, for example.
bool is_time_to_look(std::int64_t steps) {
  if (steps <= 3) return true;
  const auto bits = static_cast<std::uint64_t>(steps);
  return steps >= 16 && std::has_single_bit(bits) && std::countr_zero(bits) % 2 == 0;
}

// The memory in floats: first one array over all slots for each quantity, then the histories.
struct Arrays {
  std::size_t slots;
  std::size_t length;

  std::size_t amax() const { return 0; }
  std::size_t scale() const { return slots; }
  std::size_t limits() const { return 2 * slots; }
  std::size_t pow2() const { return 3 * slots; }
  std::size_t history(std::size_t slot = 0) const { return 4 * slots + slot * length; }
  std::size_t size() const { return history(slots); }
};

}  // namespace

DelayedScaling::DelayedScaling(Backend& backend, DelayedScalingOptions options)
    : backend_(&backend), options_(options) {
  validate(spec());
  if (options.history_length < 1) {
    refuse(kSubject, fmt::format("history_length is {}, but must be at least 1", options.history_length));
  }
}

int DelayedScaling::add(const std::string& name, Dtype dtype, bool pow2) {
  const std::string subject = fmt::format("delayed scaling slot \"{}\"", name);
  if (memory_.data() != nullptr) {
    refuse(subject, "is added after the first use of the memory, which cannot move any more; add all slots before");
  }
  if (name.empty()) refuse(subject, "has no name, but its state is saved by it");
  if (!is_utf8(name)) refuse(kSubject, "the name of a slot must be UTF-8, as its state is saved by it");
  if (!is_fp8(dtype)) {
    refuse(subject, fmt::format("is of {}, but must be of one of {}", ingot::name(dtype), list(kFp8Dtypes)));
  }
  if (!by_name_.emplace(name, size()).second) refuse(subject, "already exists; each slot needs its own name");
  slots_.push_back({.name = name, .dtype = dtype, .pow2 = pow2, .has_scale = false});
  return size() - 1;
}

int DelayedScaling::add(std::span<const DelayedSlot> slots) {
  const int first = size();
  try {
    for (const auto& [name, dtype, pow2] : slots) add(name, dtype, pow2);
  } catch (...) {
    for (; size() > first; slots_.pop_back()) by_name_.erase(slots_.back().name);
    throw;
  }
  return first;
}

int DelayedScaling::add_experts(const std::string& name, Dtype dtype, int experts, bool pow2) {
  if (experts < 1) {
    refuse(fmt::format("delayed scaling slots \"{}\"", name),
           fmt::format("are of {} experts, but a layer must have at least 1", experts));
  }
  std::vector<DelayedSlot> slots;
  for (int e = 0; e < experts; ++e) slots.push_back({fmt::format("{}.{}", name, e), dtype, pow2});
  const int first = add(slots);
  slots_[static_cast<std::size_t>(first)].experts = experts;
  return first;
}

const DelayedScaling::Slot& DelayedScaling::at(int slot) const {
  if (slot < 0 || slot >= size()) {
    refuse(kSubject, fmt::format("there is no slot {}: {} were added, numbered from 0", slot, size()));
  }
  return slots_[static_cast<std::size_t>(slot)];
}

bool DelayedScaling::has_scale(int slot) const { return at(slot).has_scale; }
bool DelayedScaling::needs_start(int slot) const { return !at(slot).has_scale || at(slot).missing; }

// ---- memory ------------------------------------------------------------------------------------------------------

// The contents of the memory before the first step.
std::vector<std::uint32_t> DelayedScaling::initial() const {
  const Arrays arrays{slots_.size(), static_cast<std::size_t>(options_.history_length)};
  std::vector<std::uint32_t> values(arrays.size(), 0);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    values[arrays.scale() + i] = std::bit_cast<std::uint32_t>(kNoScale);
    values[arrays.limits() + i] = std::bit_cast<std::uint32_t>(fp8_max(slots_[i].dtype));
    values[arrays.pow2() + i] = std::bit_cast<std::uint32_t>(slots_[i].pow2 ? 1.0F : 0.0F);
  }
  return values;
}

// Writes the whole memory, and allocates it first if needed.
void DelayedScaling::write(const std::vector<std::uint32_t>& values, Stream& stream) {
  check_stream(stream, *backend_);
  if (backend_->device_api().capturing(stream)) {
    refuse(kSubject,
           "its memory is made and written from the host, which cannot be done while the stream is capturing a graph; "
           "run the step once before capturing it");
  }
  const std::size_t bytes = values.size() * sizeof(std::uint32_t);
  Buffer made = memory_.data() == nullptr ? Buffer(*backend_, bytes) : Buffer();
  backend_->device_api().copy_from_host(made.data() == nullptr ? memory_.data() : made.data(), values.data(), bytes,
                                        stream);
  if (made.data() != nullptr) memory_ = std::move(made);
}

void DelayedScaling::allocate(Stream& stream) {
  if (memory_.data() == nullptr && !slots_.empty()) write(initial(), stream);
}

Tensor DelayedScaling::view(std::size_t first, int count) const {
  if (memory_.data() == nullptr && count != 0) {
    refuse(kSubject, "has no memory yet: the first start(), load() or allocate() makes it");
  }
  return vector(static_cast<float*>(memory_.data()) + first, Dtype::f32, count, backend_->device());
}

AmaxHistoryTensors DelayedScaling::tensors(int first, int count) const {
  const Arrays arrays{slots_.size(), static_cast<std::size_t>(options_.history_length)};
  const auto slot = static_cast<std::size_t>(first);
  return {.amax = view(arrays.amax() + slot, count),
          .history = matrix(view(arrays.history(slot), count).data, Dtype::f32, count, options_.history_length,
                            backend_->device()),
          .scale = view(arrays.scale() + slot, count),
          .limits = view(arrays.limits() + slot, count),
          .pow2 = view(arrays.pow2() + slot, count)};
}

Tensor DelayedScaling::scale(int slot) const {
  static_cast<void>(at(slot));
  return tensors(slot, 1).scale;
}

Tensor DelayedScaling::amax(int slot) const {
  static_cast<void>(at(slot));
  return tensors(slot, 1).amax;
}

Tensor DelayedScaling::amaxes() const { return tensors(0, size()).amax; }

// ---- steps -------------------------------------------------------------------------------------------------------

void DelayedScaling::prepare_start(int slot, Stream& stream) {
  const auto refuse_start = [&](const char* why) {
    refuse(fmt::format("delayed scaling slot \"{}\"", at(slot).name), why);
  };
  if (!needs_start(slot)) refuse_start("has its first scale already; start() is for slots without (has_scale())");
  check_stream(stream, *backend_);
  if (!has_scale(slot) && backend_->device_api().capturing(stream)) {
    refuse_start(
        "is started while the stream is capturing a graph, whose replays would start it anew; run the step once "
        "before capturing it");
  }
  allocate(stream);
}

LinearScale DelayedScaling::scale_of_cast(int slot, bool has_data, Stream& stream) {
  const bool starts = needs_start(slot);
  if (starts) prepare_start(slot, stream);
  const AmaxHistoryTensors one = tensors(slot, 1);
  LinearScale made{.scale = one.scale, .amax = one.amax};
  if (!starts || !has_data) return made;
  made.start = one;
  made.start_spec = spec();
  return made;
}

// What is captured is not started: its replays are.
void DelayedScaling::note_started(int slot, const Stream& stream) {
  if (backend_->device_api().capturing(stream)) return;
  Slot& started = slots_[static_cast<std::size_t>(slot)];
  started.has_scale = true;
  started.missing = false;
  started.is_new = true;
}

LinearScale DelayedScaling::scale_of_experts(int first, int experts, const MemoryRegion& into, Stream& stream) {
  const Slot& one = at(first);
  if (one.experts == 0 || one.experts != experts) {
    refuse(fmt::format("delayed scaling slot \"{}\"", one.name),
           fmt::format("is {}; give the index that add_experts() returned for a layer's, and their number",
                       one.experts == 0
                           ? "not the first of a layer's experts"
                           : fmt::format("the first of {}, not of {}", count_of(one.experts, "expert"), experts)));
  }
  bool starts = false;
  for (int slot = first; slot < first + experts; ++slot) starts |= needs_start(slot);
  allocate(stream);
  const AmaxHistoryTensors all = tensors(first, experts);
  if (!starts) return {.scale = all.scale, .amax = all.amax};
  LinearScale made = starting_scale(*backend_, {.dtype = one.dtype, .pow2 = one.pow2}, all.amax, into, stream);
  made.start->known = all.scale;
  made.start_spec = spec();
  for (int slot = first; slot < first + experts; ++slot) {
    slots_[static_cast<std::size_t>(slot)].is_new |= needs_start(slot);
  }
  return made;
}

void DelayedScaling::start(int slot, const Tensor& input, Stream& stream) {
  prepare_start(slot, stream);
  if (input.empty()) return;
  const AmaxHistoryTensors one = tensors(slot, 1);
  backend_->amax({.in = input.dtype, .scale = kTensorwise}, {.input = input, .amax = one.amax}, stream);
  backend_->amax_history(spec(), one, stream);
  note_started(slot, stream);
}

void DelayedScaling::sync_amax_history(Stream& stream) {
  if (memory_.data() == nullptr) return;
  backend_->amax_history(spec(), tensors(0, size()), stream);
  if (!backend_->device_api().capturing(stream)) look_at_new_slots(stream);
}

// A slot that is not looked at is started again, which is right whether it has a scale or not.
void DelayedScaling::look_at_new_slots(Stream& stream) {
  if (std::ranges::none_of(slots_, &Slot::is_new)) return;
  bool looks = false;
  for (Slot& slot : slots_) {
    if (slot.is_new) looks |= is_time_to_look(++slot.new_steps);
  }
  std::vector<std::uint32_t> values = initial();
  if (looks)
    backend_->device_api().copy_to_host(values.data(), memory_.data(), values.size() * sizeof(std::uint32_t), stream);
  const Arrays arrays{slots_.size(), static_cast<std::size_t>(options_.history_length)};
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].is_new) {
      slots_[i].has_scale = true;
      slots_[i].missing = is_missing(values[arrays.scale() + i], {&values[arrays.history(i)], arrays.length});
    }
    slots_[i].is_new = false;
  }
}

// ---- state -------------------------------------------------------------------------------------------------------

std::string DelayedScaling::save(Stream& stream) const {
  std::vector<std::uint32_t> values = initial();
  if (memory_.data() != nullptr) {
    backend_->device_api().copy_to_host(values.data(), memory_.data(), values.size() * sizeof(std::uint32_t), stream);
  }
  const Arrays arrays{slots_.size(), static_cast<std::size_t>(options_.history_length)};
  DelayedScalingState state{.history_length = options_.history_length};
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const auto history = values.begin() + static_cast<std::ptrdiff_t>(arrays.history(i));
    state.slots.push_back({.name = slot.name,
                           .dtype = slot.dtype,
                           .pow2 = slot.pow2,
                           .has_scale = slot.has_scale,
                           .scale = values[arrays.scale() + i],
                           .amax = values[arrays.amax() + i],
                           .history = {history, history + options_.history_length}});
  }
  return print(state);
}

void DelayedScaling::load(std::string_view text, Stream& stream) {
  const DelayedScalingState state = parse_delayed_scaling_state(text);
  if (state.history_length != options_.history_length) {
    refuse(kStateSubject, fmt::format("has histories of {}, but this object's have {}",
                                      count_of(state.history_length, "step"), options_.history_length));
  }
  const Arrays arrays{slots_.size(), static_cast<std::size_t>(options_.history_length)};
  std::vector<std::uint32_t> values = initial();
  std::vector<Slot> slots = slots_;
  std::vector<bool> found(slots.size());
  for (const DelayedScalingState::Slot& saved : state.slots) {
    const auto named = by_name_.find(saved.name);
    if (named == by_name_.end()) {
      refuse(kStateSubject,
             fmt::format("has a slot \"{}\", which this object lacks; add the slots that were saved", saved.name));
    }
    const auto i = static_cast<std::size_t>(named->second);
    if (saved.dtype != slots[i].dtype) {
      refuse(kStateSubject, fmt::format("has slot \"{}\" for {}, but here it is for {}", saved.name, name(saved.dtype),
                                        name(slots[i].dtype)));
    }
    if (saved.pow2 != slots[i].pow2) {
      refuse(kStateSubject, fmt::format("has slot \"{}\" {} pow2, but here it is {}", saved.name,
                                        saved.pow2 ? "with" : "without", saved.pow2 ? "without" : "with"));
    }
    found[i] = true;
    slots[i].has_scale = saved.has_scale;
    slots[i].missing = saved.has_scale && is_missing(saved.scale, saved.history);
    slots[i].is_new = false;
    slots[i].new_steps = 0;
    values[arrays.scale() + i] = saved.scale;
    values[arrays.amax() + i] = saved.amax;
    std::ranges::copy(saved.history, values.begin() + static_cast<std::ptrdiff_t>(arrays.history(i)));
  }
  const auto missing = std::ranges::find(found, false);
  if (missing != found.end()) {
    refuse(kStateSubject, fmt::format("lacks slot \"{}\", which this object has",
                                      slots[static_cast<std::size_t>(missing - found.begin())].name));
  }
  if (!values.empty()) write(values, stream);
  slots_ = std::move(slots);
}

}  // namespace ingot
