// Times library calls on a GPU. They are captured into a CUDA graph, each call on the next copy of its buffers, so that
// no operand is still in the L2 from the call before. The graph is replayed between two events, after another replay
// that keeps the GPU busy, and at its clock, while the host enqueues what is timed. Several candidates take turns,
// round by round, and each is judged by its median, so that a drifting clock affects all alike.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ingot/runtime/graph.h"
#include "ingot/runtime/measure/measured_gpu.h"
#include "ingot/runtime/measure/timing.h"

namespace ingot {

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
