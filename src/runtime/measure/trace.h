// Records what the library launches, when, and how long it takes, as a trace for chrome://tracing, Perfetto and others.
//
//   {
//     Trace trace(context.device_api(), stream);
//     ... a step, whose layers have a TraceRanges(trace) as their observer ...
//     trace.write("step.json");
//   }
//
// A process "host" shows the ranges and the time it took to enqueue each launch, with one track per thread. A process
// named after the device shows the launches as they ran and the span of each range's launches, with one track per
// stream. A launch is named by its spec's line; its args are the layer and the innermost range. With the CPU's backend
// all times are the host's.
//
// Events before and after each launch keep kernels from overlapping: a traced step takes longer than others, and its
// gaps come from the events. Launches of the library's kernels and of cuBLASLt are recorded; fills and copies are not.
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

#include "ingot/api.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/jit/kernel.h"

namespace ingot {

class INGOT_API Trace final : public LaunchHook {
 public:
  // Records all launches of the device, on any stream and thread, until destroyed. No other thread may launch while a
  // trace begins or ends, and a device can have one at a time. The constructor waits for `stream`, to relate the
  // device's clock to the host's. Throws Error{invalid_argument} where the stream is capturing a graph.
  Trace(DeviceApi& device_api, Stream& stream);
  ~Trace() override;

  // Opens a range of this thread, within the one that it pushed last. Launches until pop() belong to it, the layer's
  // "forward" or "output", for example.
  void push(std::string_view layer, std::string_view what);
  void pop() noexcept;

  // The trace so far, as JSON ("traceEvents"). Waits for everything recorded.
  std::string json();
  // Throws Error{io_failed}.
  void write(const std::filesystem::path& file);

  // Throws Error{invalid_argument} where the stream is capturing a graph: the events would be the graph's.
  void before(const Stream& stream) override;
  void after(const KernelSpec& spec, Pass pass, const Stream& stream) override;

 private:
  struct DestroyEvent {
    DeviceApi* device_api;
    void operator()(void* event) const noexcept { device_api->destroy_timing_event(event); }
  };
  using Event = std::unique_ptr<void, DestroyEvent>;
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
    Event begin;
    Event end;
  };
  struct Thread {
    int number = 0;
    std::vector<std::size_t> open;  // ranges
    double begin_us = 0;            // of the launch that is being enqueued
    Event begin{nullptr, DestroyEvent{nullptr}};
  };

  double now_us() const;
  Event record_event(const Stream& stream);
  Thread& this_thread();
  const void* identity(const Stream& stream) const;
  void require_no_capture(const Stream& stream) const;

  DeviceApi* device_api_;
  std::mutex mutex_;  // guards all below
  std::chrono::steady_clock::time_point start_;
  Event origin_;  // on the device, at origin_us_ of the host
  double origin_us_ = 0;
  std::map<std::thread::id, Thread> threads_;
  std::map<const void*, int> streams_;  // by what makes an order of work: see identity()
  std::vector<Range> ranges_;
  std::vector<Launch> launches_;
};

}  // namespace ingot
