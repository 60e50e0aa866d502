// Times library calls on a GPU. They are captured into a CUDA graph, each call on the next copy of its buffers, so that
// no operand is still in the L2 from the call before. The graph is replayed between two events, after another replay
// that keeps the GPU busy, and at its clock, while the host enqueues what is timed. Several candidates take turns,
// round by round, and each is judged by its median, so that a drifting clock affects all alike.
#pragma once

#include <cuda.h>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/measure/timing.h"

namespace ingot {

// A GPU to measure on: a context on CUDA, a stream, its events, and the driver for what the library's interface lacks.
class MeasuredGpu {
 public:
  // Throws Error{not_found} if the context is not on CUDA.
  explicit MeasuredGpu(Context& context);
  ~MeasuredGpu();
  MeasuredGpu(const MeasuredGpu&) = delete;
  MeasuredGpu& operator=(const MeasuredGpu&) = delete;

  Context& context() const { return *context_; }
  Backend& backend() const { return context_->backend(); }
  DeviceApi& device_api() const { return context_->device_api(); }
  Stream& stream() { return stream_; }
  const Driver::Api& api() const { return driver_->api(); }
  void check(CUresult result, const char* call) const { driver_->check(result, call); }

  void synchronize() { device_api().synchronize(stream_); }
  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill(void* to, unsigned char byte, std::size_t bytes) const;
  // The time on the GPU of what `work` enqueues on the stream.
  double microseconds(const std::function<void()>& work) const;

 private:
  Context* context_;
  std::unique_ptr<Driver> driver_;
  CurrentContext current_;
  Stream stream_;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
};

// One thing to time: enqueue(i) makes one call on the i-th copy of its buffers.
struct RotatedCall {
  int copies = 1;
  std::function<void(int copy)> enqueue;
};

struct MeasureOptions {
  int rounds = 25;
  double graph_us = 4000;  // roughly how long one replay lasts
};

// A candidate's calls as a graph. Before the capture every copy is called once, so that kernels are loaded and scratch
// memory is allocated.
class Replay {
 public:
  Replay(MeasuredGpu& gpu, const RotatedCall& call, const MeasureOptions& options);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch();
  // Microseconds per call of one replay directly after another.
  double measure();
  int calls() const { return calls_; }
  int copies() const { return copies_; }

 private:
  void capture(const RotatedCall& call);

  MeasuredGpu* gpu_;
  int copies_;
  int calls_;
  std::optional<Graph> graph_{};
};

// Round-robin over the replays.
std::vector<Timing> measure(std::span<const std::unique_ptr<Replay>> replays, const MeasureOptions& options);

}  // namespace ingot
