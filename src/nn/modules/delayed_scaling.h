// Delayed scaling casts a tensor with a scale from earlier steps' maxima, so one pass over the tensor suffices; the
// same pass records the tensor's own amax for later steps. DelayedScaling holds the scales, current maxima and
// histories of a whole model in one device buffer, and updates them all in one launch.
//
//   DelayedScaling scaling(context.backend(), {.history_length = 16});
//   const int slot = scaling.add("layers.0.wq.input", Dtype::e4m3fn);
//   each step:
//     if (scaling.needs_start(slot)) scaling.start(slot, x, stream);
//     backend.cast({... .source = ScaleSource::given}, {... .scales = scaling.scale(slot), .amax = scaling.amax(slot)},
//                  stream);
//     data-parallel trainers: all-reduce(max) scaling.amaxes()
//     scaling.sync_amax_history(stream);
//
// A slot stands for one tensor that is cast with a single scale. AmaxHistorySpec (codegen/cast/amax_spec.h)
// defines how a step updates it. The rule is torchao's with one exception: a slot whose history is all zeros keeps its
// scale, where torchao would take 1e12 times FP8_MAX. So a slot that was never started keeps the scale 1 and an empty
// history; a step that leaves a layer out records 0 for it; and a layer that is left out until its history is all zeros
// continues with its last scale. A slot of which only zeros, or (where `finite`) overflows, have been seen has no scale
// either, and is to be started in each step until it has: sync_amax_history() reads which of the slots that the step
// has started are still at 1 and have a history of zeros.
//
// The device memory is allocated once, by the first start(), load() or allocate(), and never moves, because captured
// graphs hold its addresses. All slots must be added before. Casts that use an object, start() and sync_amax_history()
// must run on one stream or be ordered by the caller, and only one thread may call an object at a time. The backend
// must outlive the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

struct DelayedScalingOptions {
  int history_length = 16;  // steps, >= 1
  AmaxReduction reduction = AmaxReduction::max;
  // An overflow, a maximum of Inf or NaN, counts as 0: later steps do not know of it, as with a trainer that skips the
  // step. If the history has no other maximum (the first step; any step with most_recent), the scale stays as it is: 1
  // before the first. Without `finite` an overflow determines the scales for as long as the reduction takes it into
  // account: those of NaN are NaN, those of Inf are 0.
  bool finite = false;
};

struct DelayedSlot {
  std::string name;
  Dtype dtype;
  bool pow2 = false;
};

class INGOT_API DelayedScaling {
 public:
  // Throws Error{invalid_argument, invalid_spec} for invalid options.
  explicit DelayedScaling(Backend& backend, DelayedScalingOptions options = {});

  // Adds a slot for casts to an FP8 dtype and returns its index, from 0. `name` is UTF-8 and unique; pow2 rounds the
  // slot's scales down to powers of two. Throws Error{invalid_argument} for a name or dtype that breaks these rules,
  // and once the memory is allocated.
  int add(const std::string& name, Dtype dtype, bool pow2 = false);
  // Adds all of these, one after the other, or none if it throws. Returns the first index.
  int add(std::span<const DelayedSlot> slots);
  // Adds one for each of a layer's experts (grouped_linear.h), called "<name>.0", "<name>.1", and so on. Throws
  // Error{invalid_argument} without experts, too.
  int add_experts(const std::string& name, Dtype dtype, int experts, bool pow2 = false);
  int size() const { return static_cast<int>(slots_.size()); }

  // Allocates the memory if it is not there yet, for callers that need its addresses before the first step.
  void allocate(Stream& stream);
  bool is_allocated() const { return memory_.data() != nullptr; }

  // The slot's scale and current maximum, each f32[1], as Backend::cast() takes them. Throw Error{invalid_argument}
  // before the memory is allocated.
  Tensor scale(int slot) const;
  Tensor amax(int slot) const;
  // f32[size()]: the current maxima of all slots, contiguous. If an all-reduce(max) over them precedes each
  // sync_amax_history(), all ranks have the same scales from the first sync on.
  Tensor amaxes() const;

  // Has the slot been started, by start() or load()? The host keeps track of this; nothing is read from the device.
  bool has_scale(int slot) const;
  // Is the slot to be started before it is cast next: has it not been, or was there nothing to make a scale of?
  bool needs_start(int slot) const;

  // The scale of a slot for a cast by a layer (linear_functions.h). Of a slot that needs a start, and if there are data
  // to cast, it is one that starts with them; note_started() then says that this cast is enqueued. Allocates the
  // memory, and throws as start() does.
  LinearScale scale_of_cast(int slot, bool has_data, Stream& stream);
  void note_started(int slot, const Stream& stream);
  // The scales of a layer's experts, f32[experts] each: `first` is what add_experts() has returned for them. While some
  // of them need a start, these have, in each cast, the scale of the rows that it casts, in `into`: kStartingScaleBytes
  // for each expert. sync_amax_history() makes their first one. An expert without rows goes on needing it; the others
  // keep theirs. Throws Error{invalid_argument} for other slots, and as scale_of_cast() does, but a call may be
  // captured.
  LinearScale scale_of_experts(int first, int experts, const MemoryRegion& into, Stream& stream);

  // Starts a slot without a layer: the amax of `input` (f32, bf16 or f16; any shape) becomes the first entry of its
  // history and determines its scale, so that a cast of the same data gives what dynamic scaling gives. If the data are
  // all zeros, or overflow where `finite`, the scale stays 1, and the slot needs a start in the next step, too. Without
  // data, as of a micro-batch without tokens, nothing is started, and the next data are the first. Throws
  // Error{invalid_argument} if the slot needs none, and for its first start while the stream is capturing, because
  // every replay of the graph would start the slot anew. A later one may be captured: its replays make a scale of the
  // history and the data.
  void start(int slot, const Tensor& input, Stream& stream);

  // To be called once per step for the whole model, after all casts of the step and before those of the next. Moves the
  // current maxima into the histories, clears them, and computes all scales anew, in one launch that a graph can
  // capture. Does nothing before the memory is allocated. After a step that has started slots it waits for the stream
  // and reads their scales and histories; of a slot that stays without one, in its steps 1, 2, 3, 16, 64, 256, and so
  // on, so that one that never sees data is not read for ever. A step whose slots all have scales, and a captured call,
  // read nothing.
  void sync_amax_history(Stream& stream);

  // Returns scales, current maxima and histories as one line of JSON. Floats are stored as their bits, so that load()
  // restores them exactly, NaN and Inf included. Slots are matched by name, in any order. save() waits for the stream.
  std::string save(Stream& stream) const;
  // Throws Error{invalid_argument} if the text is not what save() returned, or if slots, dtypes, pow2 or history length
  // differ from this object's; nothing is changed then. The reduction and `finite` may differ.
  void load(std::string_view state, Stream& stream);

 private:
  struct Slot {
    std::string name;
    Dtype dtype;
    bool pow2;
    bool has_scale;
    bool missing = false;        // has_scale, but there were no data to make a scale from
    bool is_new = false;         // started since the last sync_amax_history()
    std::int64_t new_steps = 0;  // in which it was
    int experts = 0;             // of the first one of a layer's experts: how many there are
  };

  const Slot& at(int slot) const;
  // Before a slot that needs a start gets one.
  void prepare_start(int slot, Stream& stream);
  AmaxHistoryTensors tensors(int first, int count) const;
  AmaxHistorySpec spec() const { return {.reduction = options_.reduction, .finite = options_.finite}; }
  Tensor view(std::size_t first, int count) const;
  std::vector<std::uint32_t> initial() const;
  void write(const std::vector<std::uint32_t>& values, Stream& stream);
  void look_at_new_slots(Stream& stream);

  Backend* backend_;
  DelayedScalingOptions options_;
  std::vector<Slot> slots_;
  std::map<std::string, int, std::less<>> by_name_;
  Buffer memory_;
};

}  // namespace ingot
