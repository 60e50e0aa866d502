// Delayed scaling: a tensor is cast with a scale that the maxima of earlier steps gave, so that one pass over it does,
// which also records its own amax for the steps to come. Here are the scales, current maxima and histories of a whole
// model, in one device buffer, and one launch that updates them all.
//
//   DelayedScaling scaling(context.backend(), {.history_length = 16});
//   const int slot = scaling.add("layers.0.wq.input", Dtype::e4m3fn);
//   each step:
//     if (!scaling.has_scale(slot)) scaling.start(slot, x, stream);
//     backend.cast({... .source = ScaleSource::given}, {... .scales = scaling.scale(slot), .amax = scaling.amax(slot)},
//                  stream);
//     data-parallel trainers: all-reduce(max) scaling.amaxes()
//     scaling.sync_amax_history(stream);
//
// A slot is one tensor that is cast with a single scale. What a step does to it is AmaxHistorySpec's
// (codegen/cast/amax_history_spec.h), torchao's but for one thing: a slot whose history holds nothing but zeros keeps
// its scale, where torchao would take 1e12 times FP8_MAX. So a slot that was not started keeps the scale 1 and an empty
// history, a layer that a step leaves out is recorded as 0, and one that was left out for so long that its history has
// run empty goes on with its last scale. NaN is kept, in the history and in the scale, until it is the oldest and drops
// out.
//
// The device memory is made once, by the first start(), load() or allocate(), and never moves: captured graphs hold its
// addresses. So all slots are added before. The casts that use an object, start() and sync_amax_history() are for one
// stream, or ordered by the caller; calls of an object are for one thread at a time. The backend outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/cast/amax_history_spec.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

struct DelayedScalingOptions {
  int history_length = 16;  // steps, >= 1
  AmaxReduction reduction = AmaxReduction::max;
};

class DelayedScaling {
 public:
  // Throws Error{invalid_argument, invalid_spec} for options that cannot be.
  explicit DelayedScaling(Backend& backend, DelayedScalingOptions options = {});

  // A slot of this name (UTF-8, unique) for casts to an FP8 dtype; pow2: with scales rounded down to powers of two.
  // Numbered from 0. Throws Error{invalid_argument}, also once the memory is made.
  int add(const std::string& name, Dtype dtype, bool pow2 = false);
  int size() const { return static_cast<int>(slots_.size()); }

  // Makes the memory, if it is not there: for those who need its addresses before the first step.
  void allocate(Stream& stream);

  // f32[1], as Backend::cast() takes them. Throw Error{invalid_argument} before the memory is made.
  Tensor scale(int slot) const;
  Tensor amax(int slot) const;
  // f32[size()]: the current maxima of all slots in one piece. Where an all-reduce(max) over them comes before each
  // sync_amax_history(), all ranks have the same scales from the first one on.
  Tensor amaxes() const;

  // Has the slot had a first scale made, by start() or load()? The host's knowledge: the device is not asked.
  bool has_scale(int slot) const;

  // The first step of a slot: the amax of this data (f32, bf16 or f16; any shape) is the first of its history, and the
  // scale is made of it, so that a cast of the same data gives what dynamic scaling gives. It stays 1 where the data
  // are all zeros. Throws Error{invalid_argument} where the slot has had it, and while the stream is capturing: a
  // graph's replays would start anew.
  void start(int slot, const Tensor& input, Stream& stream);

  // Once per step for the model, after all casts of the step and before those of the next: the current maxima go into
  // the histories and are cleared, and all scales are made anew. One launch, which a graph can capture; nothing to do
  // before the memory is made.
  void sync_amax_history(Stream& stream);

  // Scales, current maxima and histories as one line of JSON, floats as their bits: load() restores them exactly, NaN
  // and Inf too. By slot name, in any order. save() waits for the stream.
  std::string save(Stream& stream) const;
  // Throws Error{invalid_argument} for text that is not as save() gave it, and where the slots, their dtypes or pow2,
  // or the length of the history are other than here; nothing is changed then. The reduction may be another.
  void load(std::string_view state, Stream& stream);

 private:
  struct Slot {
    std::string name;
    Dtype dtype;
    bool pow2;
    bool has_scale;
  };

  const Slot& at(int slot) const;
  AmaxHistoryTensors tensors(int first, int count) const;
  Tensor view(std::size_t first, int count) const;
  std::vector<std::uint32_t> initial() const;
  void write(const std::vector<std::uint32_t>& values, Stream& stream);

  Backend* backend_;
  DelayedScalingOptions options_;
  std::vector<Slot> slots_;
  std::map<std::string, int, std::less<>> by_name_;
  Buffer memory_;
};

}  // namespace ingot
