// Where the example runs: a stream, and steps that are repeated. On a GPU a step is captured into a CUDA graph and
// replayed, which takes the host one call; on the CPU it is called again.
#pragma once

#include <functional>
#include <memory>

#include "ingot/runtime/context.h"
#include "ingot/runtime/stream.h"

namespace generate {

class Machine {
 public:
  explicit Machine(ingot::Context& context);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  ingot::Context& context() const { return *context_; }
  ingot::Backend& backend() const { return context_->backend(); }
  ingot::Stream& stream();
  // May a kernel begin before the one ahead of it has ended?
  bool overlaps_kernels() const;

 private:
  friend class Step;
  struct Cuda;
  ingot::Context* context_;
  std::unique_ptr<Cuda> cuda_;             // null on the CPU
  std::unique_ptr<ingot::Stream> stream_;  // of the CPU
};

// What `enqueue` puts on the machine's stream. It has been called once before, so that all it needs is there.
class Step {
 public:
  // Throws ingot::Error{cuda_failed}, and what `enqueue` throws.
  Step(Machine& machine, const std::function<void()>& enqueue);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void run();

 private:
  Machine* machine_;
  std::function<void()> enqueue_;
  void* executable_ = nullptr;  // the graph
};

}  // namespace generate
