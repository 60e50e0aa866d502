// How a time is taken. Library calls are captured into a CUDA graph, each call on the next copy of its buffers, so that
// no operand is in the L2 because the call before left it there. The graph is replayed between two events, with another
// replay in front of them: the GPU is at work, and at its clock, while the host enqueues what is timed. Several
// candidates take turns, round by round, and each is told by its median: a clock that drifts drifts for all.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/current_context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/stream.h"
#include "operation.h"
#include "random_data.h"
#include "timing.h"

namespace ingot::bench {

// A CUDA context of Ingot's, with the driver at hand for what the library has no call for.
class Gpu {
 public:
  // Throws Error{not_found} where the context is not on CUDA.
  explicit Gpu(Context& context);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Context& context() const { return *context_; }
  Backend& backend() const { return context_->backend(); }
  Stream& stream() { return stream_; }
  const Driver::Api& api() const { return driver_->api(); }
  void check(CUresult result, const char* call) const { driver_->check(result, call); }

  void synchronize() { backend().synchronize(stream_); }
  void copy(void* to, const void* from, std::size_t bytes) const;
  // Outputs get bytes that no right result consists of, or the value that they start from.
  void poison(const Placed& placed);
  // What `work` enqueues on the stream takes on the GPU.
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
struct Candidate {
  int copies = 1;
  std::function<void(int copy)> enqueue;
};

struct MeasureOptions {
  int rounds = 25;
  double graph_us = 4000;  // about how long one replay lasts
};

// A candidate's calls as a graph. Every copy has been called once, outside of it: kernels are loaded, scratch is there.
class Replay {
 public:
  Replay(Gpu& gpu, const Candidate& candidate, const MeasureOptions& options);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch();
  // Microseconds per call of one replay that follows another.
  double measure();
  int calls() const { return calls_; }
  int copies() const { return copies_; }

 private:
  void capture(const Candidate& candidate);
  void destroy() noexcept;

  Gpu* gpu_;
  int copies_;
  int calls_;
  CUgraphExec executable_ = nullptr;
};

// Round-robin over the replays.
std::vector<Timing> measure(std::span<const std::unique_ptr<Replay>> replays, const MeasureOptions& options);

// An operation on as many copies of its buffers as copies_for() asks for, with random inputs.
class Rotation {
 public:
  Rotation(Gpu& gpu, RandomData& random, const Operation& operation);

  // Refers to this object.
  Candidate candidate(Gpu& gpu) const;
  const std::vector<Placed>& copies() const { return copies_; }

 private:
  std::vector<Placed> copies_;
};

}  // namespace ingot::bench
