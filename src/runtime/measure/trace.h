// What the library launched, when, and how long it took, as a trace that chrome://tracing, Perfetto and others show.
//
//   {
//     Trace trace(context.backend(), stream);
//     ... a step, whose layers have a TraceRanges(trace) as their observer ...
//     trace.write("step.json");
//   }
//
// A process "host" has the ranges and, for each launch, the time that enqueueing it took, a track to a thread; a
// process named after the device has the launches as they ran and the span of each range's launches, a track to a
// stream. A launch's name is its spec's line; its args are the layer and the innermost range. Of the CPU's backend all
// times are the host's.
//
// An event stands before and after each launch, which keeps kernels from overlapping: a traced step takes longer than
// others, and its gaps are those of the events. Launches of the library's own kernels and of cuBLASLt are seen, fills
// and copies are not.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/jit/launch_hook.h"

namespace ingot {

class Trace final : public LaunchHook {
 public:
  // From here to its end all launches of the backend are recorded, on any stream and thread; no other thread launches
  // while a trace begins or ends, and a backend has one at a time. `stream` relates the device's clock to the host's,
  // for which it is waited for. Throws Error{invalid_argument} where the stream is capturing a graph.
  Trace(Backend& backend, Stream& stream);
  ~Trace() override;

  // A range of this thread's, within the one that it pushed last: what it launches until pop() is the layer's
  // "forward", "output" or the like.
  void push(std::string_view layer, std::string_view what);
  void pop() noexcept;

  // The trace so far, as JSON ("traceEvents"). Waits for all that it recorded.
  std::string json();
  // Throws Error{io_failed}.
  void write(const std::filesystem::path& file);

  // Throws Error{invalid_argument} where the stream is capturing a graph: the events would be the graph's.
  void before(const Stream& stream) override;
  void after(const KernelSpec& spec, Pass pass, const Stream& stream) override;

 private:
  struct DestroyMark {
    Backend* backend;
    void operator()(void* mark) const noexcept { backend->destroy_mark(mark); }
  };
  using Mark = std::unique_ptr<void, DestroyMark>;
  struct Range {
    std::string layer;
    std::string what;
    int thread = 0;
    std::optional<std::size_t> parent{};
    double begin_us = 0;
    double end_us = -1;  // open
  };
  struct Launch {
    std::string name;
    int thread = 0;
    int stream = 0;
    std::optional<std::size_t> range{};
    double begin_us = 0;  // the host's
    double end_us = 0;
    Mark begin;
    Mark end;
  };
  struct Thread {
    int number = 0;
    std::vector<std::size_t> open;  // ranges
    double begin_us = 0;            // of the launch that is being enqueued
    Mark begin{nullptr, DestroyMark{nullptr}};
  };

  double now_us() const;
  Mark mark(const Stream& stream);
  Thread& this_thread();
  void require_no_capture(const Stream& stream) const;

  Backend* backend_;
  std::mutex mutex_;  // guards all below
  std::chrono::steady_clock::time_point start_;
  Mark origin_;  // on the device, at origin_us_ of the host
  double origin_us_ = 0;
  std::map<std::thread::id, Thread> threads_;
  std::map<const Stream*, int> streams_;
  std::vector<Range> ranges_;
  std::vector<Launch> launches_;
};

}  // namespace ingot
