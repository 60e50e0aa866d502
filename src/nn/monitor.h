// Numbers that say whether FP8 is good enough for a tensor: what every cast of the observed layers did to its values,
// and what every GEMM put out.
//
//   Monitor monitor(context.backend(), {.every = 100});
//   ... layers with &monitor as their observer run one step ...
//   const bool observed = monitor.observing();  // step_done() begins the next step
//   monitor.step_done(stream);
//   if (observed) std::fputs(monitor.table().c_str(), stdout);
//
// A step that is observed costs one more pass over each cast's values and codes and over each GEMM's output, on the
// layers' stream, and one wait for the stream, in step_done(), which reads the results back. Other steps cost a
// comparison per event. While the stream is capturing a graph nothing is observed, which is said once: the graph's
// replays would be observed without anybody to read the results.
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

#include "ingot/nn/observer.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/cast/cast_stats.h"

namespace ingot {

struct MonitorOptions {
  int every = 1;    // of so many steps one is observed: step 0, step `every` ...
  int history = 1;  // observed steps whose records are kept
  // Told of each NaN and Inf, and of what is not observed. Default: a line on stderr.
  std::function<void(const std::string&)> warn{};
};

// A cast's values and codes, or a GEMM's output.
struct MonitorRecord {
  std::int64_t step = 0;
  std::string layer;
  std::string tensor;         // "input", "weight", "grad_output"; of a GEMM its role: "output", "grad_input" ...
  std::string gemms;          // that read the codes; of a GEMM empty
  CastStatsSpec spec;         // without `out`: a GEMM's
  std::int64_t elements = 0;  // of the tensor
  CastStats stats;

  bool is_cast() const { return spec.out.has_value(); }
  // Is there a NaN, an Inf, or a number whose code or factor is not finite?
  bool is_broken() const { return stats.nan_count + stats.inf_count + stats.spoiled != 0; }
  // Of all elements; 0 of an empty tensor.
  double saturated_fraction() const;
  double flushed_fraction() const;
  // 10 log10(sum x^2 / sum (x - code * factor)^2), in dB, over finite elements: Inf where there is no error, also of a
  // tensor of zeros.
  double sqnr() const;
};

class Monitor final : public LayerObserver {
 public:
  // Of layers on this backend, which outlives it. Throws Error{invalid_argument} for options that make no sense.
  explicit Monitor(Backend& backend, MonitorOptions options = {});

  // Throw Error{invalid_argument} where a step comes on two streams, or on another backend's.
  bool wants_values() const override { return observing(); }
  void cast(const CastEvent& event, Stream& stream) override;
  void gemm(const GemmEvent& event, Stream& stream) override;

  // The step's work has been enqueued: reads its results back, which waits for the stream, warns of every tensor with a
  // NaN or an Inf by its name, and begins the next step. `stream` is the layers'.
  void step_done(Stream& stream);

  std::int64_t step() const { return step_; }
  // Is the step that is running one of those that are observed?
  bool observing() const { return step_ % options_.every == 0; }

  // Of the observed steps that are kept, oldest first; of a step in the order of its work.
  std::vector<MonitorRecord> records() const;
  // The last observed step as a table for people: a line for each cast and each GEMM.
  std::string table() const;
  // The same as JSON, an object on each line; a number that is NaN or Inf is null there.
  std::string json_lines() const;

  // The next time that this layer casts this tensor, observed or not, its values and what they became go into
  // <layer>.<tensor>.step<n>.values.npy (f32), .codes.npy (u8) and .factors.npy (f32) in `folder`; transposed codes
  // into .transposed.npy and .transposed_factors.npy. Waits for the stream. Throws, from that cast, Error{io_failed}.
  void dump(std::string layer, std::string tensor, std::filesystem::path folder);

 private:
  struct Dump {
    std::string layer;
    std::string tensor;
    std::filesystem::path folder;
    std::optional<std::int64_t> step{};  // at which it was written
  };

  bool may_observe(const Stream& stream);
  void require_one_stream(const Stream& stream);
  void observe(const CastStatsSpec& spec, CastStatsTensors tensors, MonitorRecord record, Stream& stream);
  void write_dumps(const CastEvent& event, Stream& stream);
  Tensor next_slot();
  void warn_of(std::span<const MonitorRecord> step) const;

  Backend* backend_;
  MonitorOptions options_;
  std::int64_t step_ = 0;
  const Stream* stream_ = nullptr;  // of the running step
  bool told_of_capture_ = false;
  std::vector<Dump> dumps_;

  // Results on the device, in blocks of kSlots, of which the running step has used so many.
  static constexpr std::size_t kSlots = 256;
  std::vector<Buffer> blocks_;
  std::vector<MonitorRecord> running_;  // without stats yet
  std::deque<std::vector<MonitorRecord>> kept_;
};

}  // namespace ingot
