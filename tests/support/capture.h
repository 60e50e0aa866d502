// A capture that a test leaves open while it calls what may not be called in one; graphs to replay are ingot::Graph.
#pragma once

#include <cuda.h>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"

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

}  // namespace ingot::test
