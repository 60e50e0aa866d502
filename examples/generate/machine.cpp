#include "machine.h"

#include <cuda.h>

#include <string>

#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/measure/gpu.h"

namespace generate {

// The library itself captures no graphs, so this file uses the driver, as the benchmarks do.
struct Machine::Cuda {
  explicit Cuda(ingot::Context& context) : gpu(context) {
    std::string problem;
    const std::unique_ptr<ingot::Driver> driver = ingot::Driver::open(problem);
    overlaps = driver != nullptr && driver->overlaps_kernels(context.device().index);
  }
  ingot::Gpu gpu;
  bool overlaps = false;
};

Machine::Machine(ingot::Context& context) : context_(&context) {
  if (context.device().type == ingot::DeviceType::cuda) {
    cuda_ = std::make_unique<Cuda>(context);
  } else {
    stream_ = std::make_unique<ingot::Stream>(context.backend());
  }
}
Machine::~Machine() = default;

ingot::Stream& Machine::stream() { return cuda_ != nullptr ? cuda_->gpu.stream() : *stream_; }
bool Machine::overlaps_kernels() const { return cuda_ != nullptr && cuda_->overlaps; }

Step::Step(Machine& machine, const std::function<void()>& enqueue) : machine_(&machine), enqueue_(enqueue) {
  if (machine.cuda_ == nullptr) return;
  ingot::Gpu& gpu = machine.cuda_->gpu;
  CUstream_st* const stream = gpu.stream().handle();
  CUgraph graph = nullptr;
  gpu.synchronize();
  gpu.check(gpu.api().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  try {
    enqueue();
  } catch (...) {  // end the capture in any case, so that the stream stays usable
    if (gpu.api().cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
      static_cast<void>(gpu.api().cuGraphDestroy(graph));
    throw;
  }
  gpu.check(gpu.api().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec executable = nullptr;
  const CUresult result = gpu.api().cuGraphInstantiate(&executable, graph, 0);
  static_cast<void>(gpu.api().cuGraphDestroy(graph));
  gpu.check(result, "cuGraphInstantiate");
  executable_ = executable;
}

Step::~Step() {
  if (executable_ == nullptr) return;
  ingot::Gpu& gpu = machine_->cuda_->gpu;
  static_cast<void>(gpu.api().cuStreamSynchronize(gpu.stream().handle()));
  static_cast<void>(gpu.api().cuGraphExecDestroy(static_cast<CUgraphExec>(executable_)));
}

void Step::run() {
  if (executable_ == nullptr) return enqueue_();
  ingot::Gpu& gpu = machine_->cuda_->gpu;
  gpu.check(gpu.api().cuGraphLaunch(static_cast<CUgraphExec>(executable_), gpu.stream().handle()), "cuGraphLaunch");
}

}  // namespace generate
