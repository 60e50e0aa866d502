#include "ingot/runtime/measure/replay.h"

namespace ingot {

Replay::Replay(MeasuredGpu& gpu, const RotatedCall& call, const MeasureOptions& options)
    : gpu_(&gpu), copies_(call.copies), calls_(call.copies) {
  for (int i = 0; i < copies_; ++i) call.enqueue(i);
  gpu.synchronize();
  capture(call);
  launch();
  const int calls = calls_for(measure(), copies_, options.graph_us);
  if (calls == calls_) return;
  calls_ = calls;
  capture(call);
}

void Replay::capture(const RotatedCall& call) {
  graph_.emplace(gpu_->stream(), [&] {
    for (int i = 0; i < calls_; ++i) call.enqueue(i % copies_);
  });
}

void Replay::launch() { graph_->replay(gpu_->stream()); }

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
