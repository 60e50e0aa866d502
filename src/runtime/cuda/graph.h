// A CUDA graph: what a step enqueues on a stream is recorded once and then replayed, which costs the host one call
// instead of one for each kernel.
//
//   step();                                 // once before: kernels are compiled and memory is allocated
//   Graph graph(stream, step);              // recorded, not run
//   for (...) graph.replay(stream);
//
// A replay uses the addresses that the step used: its tensors and the layers' memory have to stay where they are, and
// their owners have to live, as long as the graph is replayed. The operations' own scratch memory belongs to the graph.
// So replays of different graphs may run concurrently if their tensors do not overlap, whatever streams they were
// captured from; those of one graph must run in one order, which Stream::wait_for() makes between streams.
#pragma once

#include <functional>
#include <memory>

#include "ingot/api.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

class GraphScratch;  // runtime/cuda/captured_graph.h

// Move-only. One thread at a time may use it. The device must outlive it. A graph that was moved from may only be
// assigned to or destroyed.
class INGOT_API Graph {
 public:
  // Records what `work` enqueues on the stream, and on streams that join by Stream::wait_for() and are waited for in
  // the end. It runs none of it. The stream is usable afterwards, whatever happens. Throws what `work` throws, and
  // Error{invalid_argument, cuda_failed}: the CPU's stream, the default stream, a stream that is being captured, work
  // that breaks the capture off or enqueues nothing.
  Graph(Stream& stream, const std::function<void()>& work);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  // Enqueues all of the work on any stream of the same device. Throws Error{invalid_argument, cuda_failed}.
  void replay(Stream& stream);

  // Records `work` again and puts it in the place of what was recorded: the same kernels with other arguments in the
  // instantiated graph, which is quick. Where the driver refuses that (other kernels, another order) it is instantiated
  // anew, and false is returned. After an error the graph is as it was.
  bool update(Stream& stream, const std::function<void()>& work);

 private:
  struct Recorded;
  static Recorded record(Stream& stream, const std::function<void()>& work);

  DeviceApi* device_api_;
  std::unique_ptr<GraphScratch> scratch_;  // outlives the work that uses it
  std::unique_ptr<CapturedWork> captured_;
};

}  // namespace ingot
