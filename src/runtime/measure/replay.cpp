#include "ingot/runtime/measure/replay.h"

#include "ingot/runtime/cuda/driver_api.h"

namespace ingot {

Replay::Replay(Gpu& gpu, const RotatedCall& call, const MeasureOptions& options)
    : gpu_(&gpu), copies_(call.copies), calls_(call.copies) {
  for (int i = 0; i < copies_; ++i) call.enqueue(i);
  gpu.synchronize();
  try {
    capture(call);
    launch();
    const int calls = calls_for(measure(), copies_, options.graph_us);
    if (calls == calls_) return;
    calls_ = calls;
    destroy();
    capture(call);
  } catch (...) {
    destroy();
    throw;
  }
}

Replay::~Replay() { destroy(); }

void Replay::destroy() noexcept {
  if (executable_ != nullptr) static_cast<void>(gpu_->api().cuGraphExecDestroy(executable_));
  executable_ = nullptr;
}

// Ends the capture even after an error, so that the stream stays usable.
void Replay::capture(const RotatedCall& call) {
  const Driver::Api& api = gpu_->api();
  CUstream_st* const stream = gpu_->stream().handle();
  CUgraph graph = nullptr;
  gpu_->check(api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  try {
    for (int i = 0; i < calls_; ++i) call.enqueue(i % copies_);
  } catch (...) {
    if (api.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) static_cast<void>(api.cuGraphDestroy(graph));
    throw;
  }
  gpu_->check(api.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  const CUresult result = api.cuGraphInstantiate(&executable_, graph, 0);
  static_cast<void>(api.cuGraphDestroy(graph));
  gpu_->check(result, "cuGraphInstantiate");
}

void Replay::launch() { gpu_->check(gpu_->api().cuGraphLaunch(executable_, gpu_->stream().handle()), "cuGraphLaunch"); }

double Replay::measure() {
  launch();
  return gpu_->microseconds([&] { launch(); }) / calls_;
}

std::vector<Timing> measure(std::span<const std::unique_ptr<Replay>> replays, const MeasureOptions& options) {
  std::vector<std::vector<double>> samples(replays.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < replays.size(); ++i) samples[i].push_back(replays[i]->measure());
  }
  std::vector<Timing> timings;
  for (std::size_t i = 0; i < replays.size(); ++i) {
    timings.push_back(summarise(samples[i]));
    timings.back().calls = replays[i]->calls();
    timings.back().copies = replays[i]->copies();
  }
  return timings;
}

}  // namespace ingot
