// Makes a CUDA graph of the work that a test enqueues on a stream.
#pragma once

#include <cuda.h>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/stream.h"

namespace ingot::test {

// Ends the capture whatever happens, so that the stream stays usable.
class Capture {
 public:
  Capture(const Driver& driver, Stream& stream) : driver_(&driver), stream_(&stream) {
    driver.check(driver.api().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                 "cuStreamBeginCapture");
  }
  ~Capture() {
    if (open_) end();
    if (graph_ != nullptr) driver_->api().cuGraphDestroy(graph_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture and returns its graph, or null if it failed. The graph lives as long as this object.
  CUgraph end() {
    open_ = false;
    driver_->api().cuStreamEndCapture(stream_->handle(), &graph_);
    return graph_;
  }

 private:
  const Driver* driver_;
  Stream* stream_;
  CUgraph graph_ = nullptr;
  bool open_ = true;
};

// A graph of the work that `work` enqueues; it can be launched any number of times.
class Graph {
 public:
  template <class Work>
  Graph(const Driver& driver, Stream& stream, const Work& work) : driver_(&driver), stream_(&stream) {
    Capture capture(driver, stream);
    work();
    CUgraph graph = capture.end();
    if (graph == nullptr) throw Error(ErrorCode::cuda_failed, "a graph", "the capture gave none");
    driver.check(driver.api().cuGraphInstantiate(&executable_, graph, 0), "cuGraphInstantiate");
  }
  ~Graph() { driver_->api().cuGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() { driver_->check(driver_->api().cuGraphLaunch(executable_, stream_->handle()), "cuGraphLaunch"); }

 private:
  const Driver* driver_;
  Stream* stream_;
  CUgraphExec executable_ = nullptr;
};

}  // namespace ingot::test
