// The device that the example runs on, its stream, and steps that are repeated. On a GPU a step is captured into a CUDA
// graph and replayed, which costs the host one call; on the CPU the step is called again.
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
  // May a kernel begin before the previous one has ended?
  bool overlaps_kernels() const;

 private:
  friend class Step;
  struct Cuda;
  ingot::Context* context_;
  std::unique_ptr<Cuda> cuda_;             // null on the CPU
  std::unique_ptr<ingot::Stream> stream_;  // null on a GPU
};

// The work that `enqueue` puts on the machine's stream. Call `enqueue` once before, so that kernels are compiled and
// memory is allocated.
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
