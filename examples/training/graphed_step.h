// A step that runs as it is at first, while kernels are compiled and memory is allocated, and from a CUDA graph then.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"

namespace training {

class GraphedStep {
 public:
  // The work must enqueue the same kernels with the same arguments each time; what differs between steps is read from
  // device memory (schedule.h). `launches` counts what has been launched so far. Without `graph` the work always runs
  // as it is.
  GraphedStep(ingot::Stream& stream, std::function<void()> work, std::function<std::int64_t()> launches, bool graph);

  void run();

  // Kernels of replays, less those of the capture, which launched none: to be added to what `launches` counts.
  std::int64_t replayed_launches() const { return replays_ * launches_of_one_ - (graph_ ? launches_of_one_ : 0); }

 private:
  // Delayed scales begin in the first step, and the weights' codes are first made of updated weights in the second.
  static constexpr int kEager = 2;

  ingot::Stream* stream_;
  std::function<void()> work_;
  std::function<std::int64_t()> launches_;
  bool use_graph_;
  int eager_ = 0;
  std::optional<ingot::Graph> graph_;
  std::int64_t replays_ = 0;
  std::int64_t launches_of_one_ = 0;
};

}  // namespace training
