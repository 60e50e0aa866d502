// Monitor tells whether FP8 is precise enough for each tensor: it collects statistics of what every cast of the
// observed layers did to its values, and of every GEMM's output.
//
//   Monitor monitor(context.backend(), {.every = 100});
//   ... layers with &monitor as their observer run one step ...
//   const bool observed = monitor.observing();  // step_done() begins the next step
//   monitor.step_done(stream);
//   if (observed) std::fputs(monitor.table().c_str(), stdout);
//
// An observed step costs one more pass over each cast's values and codes and over each GEMM's output, on the layers'
// stream, and one wait for the stream in step_done(), which reads the results back. Other steps cost one comparison per
// event. Nothing is observed while the stream is capturing a graph, because nobody would read the results of its
// replays; the monitor says so once.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/buffer.h"

namespace ingot {

struct MonitorOptions {
  int every = 1;    // observe one step in `every`: step 0, step `every` ...
  int history = 1;  // how many observed steps to keep records of
  // Called with a line of text for each NaN or Inf, and for what is not observed. Default: prints the line to stderr.
  std::function<void(const std::string&)> warn{};
};

// The statistics of one cast's values and codes, or of one GEMM's output.
struct INGOT_API MonitorRecord {
  std::int64_t step = 0;
  std::string layer;
  std::string tensor;         // "input", "weight", "grad_output"; for a GEMM its role: "output", "grad_input" ...
  std::string gemms;          // the GEMMs that read the codes; empty for a GEMM
  CastStatsSpec spec;         // `out` is empty for a GEMM
  std::int64_t elements = 0;  // of the tensor
  CastStats stats;

  bool is_cast() const { return spec.out.has_value(); }
  // Is there a NaN, an Inf, or a finite value whose code or factor is not finite?
  bool is_broken() const { return stats.nan_count + stats.inf_count + stats.spoiled != 0; }
  // Fractions of all elements; 0 for an empty tensor.
  double saturated_fraction() const;
  double flushed_fraction() const;
  // 10 log10(sum x^2 / sum (x - code * factor)^2), in dB, over finite elements. Inf where there is no error, which
  // includes tensors of zeros.
  double sqnr() const;
};

class INGOT_API Monitor final : public LayerObserver {
 public:
  // Observes layers on this backend, which must outlive the monitor. Throws Error{invalid_argument} for invalid
  // options.
  explicit Monitor(Backend& backend, MonitorOptions options = {});

  // Throw Error{invalid_argument} if one step arrives on two of CUDA's streams, or on a stream of another backend. Two
  // Streams may be of one CUDA stream, one for each thread: the calls of a monitor must come one after the other.
  // In observed steps, and in others while a dump waits for its tensor.
  bool wants_values() const override { return observing() || !dumps_.empty(); }
  void cast(const CastEvent& event, Stream& stream) override;
  void gemm(const GemmEvent& event, Stream& stream) override;

  // To be called when all work of a step is enqueued, with the layers' stream. Waits for the stream, reads the step's
  // results back, warns of every tensor that has a NaN or an Inf, by name, and begins the next step.
  void step_done(Stream& stream);

  std::int64_t step() const { return step_; }
  // Is the current step an observed one?
  bool observing() const { return step_ % options_.every == 0; }

  // The records of the observed steps that are kept, oldest step first, and within a step in the order of its work.
  std::vector<MonitorRecord> records() const;
  // The last observed step as a table for people: one line per cast and per GEMM.
  std::string table() const;
  // The same as JSON, one object per line; a NaN or Inf is written as null.
  std::string json_lines() const;

  // The next time this layer casts this tensor, in an observed step or not, writes the values and what they became into
  // `folder`: <layer>.<tensor>.step<n>.values.npy (f32), .codes.npy (u8) and .scale_inv.npy (f32); for transposed codes
  // .transposed.npy and .transposed_scale_inv.npy. That cast waits for the stream and may throw Error{io_failed}. Until
  // the step that writes them is done, layers also write the values that they compute within their casts, which takes
  // memory: do not capture a graph in between.
  void dump(std::string layer, std::string tensor, std::filesystem::path folder);

 private:
  struct Dump {
    std::string layer;
    std::string tensor;
    std::filesystem::path folder;
    std::optional<std::int64_t> step{};  // the step in which it was written
  };

  bool may_observe(const Stream& stream);
  bool is_in_order(const Stream& stream) const;
  void require_one_stream(const Stream& stream);
  void observe(const CastStatsSpec& spec, CastStatsTensors tensors, MonitorRecord record, Stream& stream);
  void write_dumps(const CastEvent& event, Stream& stream);
  Tensor next_slot();
  void warn_of(std::span<const MonitorRecord> step) const;

  Backend* backend_;
  MonitorOptions options_;
  std::int64_t step_ = 0;
  bool in_step_ = false;           // has the current step begun?
  CUstream_st* handle_ = nullptr;  // its stream's
  bool told_of_capture_ = false;
  std::vector<Dump> dumps_;

  // Device memory for results, in blocks of kSlots; the current step has used the first running_.size() slots.
  static constexpr std::size_t kSlots = 256;
  std::vector<Buffer> blocks_;
  std::vector<MonitorRecord> running_;  // of the current step, without stats yet
  std::deque<std::vector<MonitorRecord>> kept_;
};

}  // namespace ingot
