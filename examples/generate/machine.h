// The device that the example runs on, its stream, and steps that are repeated. On a GPU a step is captured into a CUDA
// graph and replayed, which costs the host one call; on the CPU the step is called again.
#pragma once

#include <functional>
#include <optional>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"

namespace generate {

class Machine {
 public:
  explicit Machine(ingot::Context& context);

  ingot::Context& context() const { return *context_; }
  ingot::Backend& backend() const { return context_->backend(); }
  ingot::DeviceApi& device_api() const { return context_->device_api(); }
  ingot::Stream& stream() { return stream_; }
  // May a kernel begin before the previous one has ended?
  bool overlaps_kernels() const { return overlaps_kernels_; }

 private:
  ingot::Context* context_;
  ingot::Stream stream_;
  bool overlaps_kernels_;
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
  std::optional<ingot::Graph> graph_;  // none on the CPU
};

}  // namespace generate
