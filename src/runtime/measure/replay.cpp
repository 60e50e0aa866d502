#include "ingot/runtime/measure/replay.h"
#include <string>
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

std::unique_ptr<Driver> open_driver(const Context& context) {
  std::string problem = "the context is on the CPU";
  std::unique_ptr<Driver> driver;
  if (context.device().type == DeviceType::cuda) driver = Driver::open(problem);
  if (driver == nullptr) throw Error(ErrorCode::not_found, "GPU", problem);
  return driver;
}

}  // namespace

MeasuredGpu::MeasuredGpu(Context& context)
    : context_(&context),
      driver_(open_driver(context)),
      current_(*driver_, context.device().index),
      stream_(context.backend()) {
  check(api().cuEventCreate(&begin_, CU_EVENT_DEFAULT), "cuEventCreate");
  check(api().cuEventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
}

MeasuredGpu::~MeasuredGpu() {
  if (begin_ != nullptr) static_cast<void>(api().cuEventDestroy(begin_));
  if (end_ != nullptr) static_cast<void>(api().cuEventDestroy(end_));
}

void MeasuredGpu::copy(void* to, const void* from, std::size_t bytes) const {
  check(api().cuMemcpyDtoDAsync(address(to), address(from), bytes, stream_.handle()), "cuMemcpyDtoDAsync");
}

void MeasuredGpu::fill(void* to, unsigned char byte, std::size_t bytes) const {
  check(api().cuMemsetD8Async(address(to), byte, bytes, stream_.handle()), "cuMemsetD8Async");
}

double MeasuredGpu::microseconds(const std::function<void()>& work) const {
  check(api().cuEventRecord(begin_, stream_.handle()), "cuEventRecord");
  work();
  check(api().cuEventRecord(end_, stream_.handle()), "cuEventRecord");
  check(api().cuEventSynchronize(end_), "cuEventSynchronize");
  float milliseconds = 0;
  check(api().cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return 1e3 * static_cast<double>(milliseconds);
}

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
