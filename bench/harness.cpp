#include "harness.h"

#include <string>
#include <utility>

#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/error.h"

namespace ingot::bench {
namespace {

constexpr unsigned char kPoison = 0xa5;

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

std::unique_ptr<Driver> open_driver(const Context& context) {
  std::string problem = "the context is on the CPU";
  std::unique_ptr<Driver> driver;
  if (context.device().type == DeviceType::cuda) driver = Driver::open(problem);
  if (driver == nullptr) throw Error(ErrorCode::not_found, "GPU", problem);
  return driver;
}

}  // namespace

Gpu::Gpu(Context& context)
    : context_(&context),
      driver_(open_driver(context)),
      current_(*driver_, context.device().index),
      stream_(context.backend()) {
  check(api().cuEventCreate(&begin_, CU_EVENT_DEFAULT), "cuEventCreate");
  check(api().cuEventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Gpu::~Gpu() {
  if (begin_ != nullptr) static_cast<void>(api().cuEventDestroy(begin_));
  if (end_ != nullptr) static_cast<void>(api().cuEventDestroy(end_));
}

void Gpu::copy(void* to, const void* from, std::size_t bytes) const {
  check(api().cuMemcpyDtoDAsync(address(to), address(from), bytes, stream_.handle()), "cuMemcpyDtoDAsync");
}

void Gpu::poison(const Placed& placed) {
  for (const Operand& operand : placed.operation().operands) {
    const std::size_t bytes = byte_count(operand);
    if (operand.role != Operand::Role::output || bytes == 0) continue;
    if (operand.value) {
      const std::vector<float> values(bytes / sizeof(float), *operand.value);
      backend().copy_from_host(placed.tensors()[operand.name].data, values.data(), bytes, stream_);
      continue;
    }
    check(api().cuMemsetD8Async(address(placed.tensors()[operand.name].data), kPoison, bytes, stream_.handle()),
          "cuMemsetD8Async");
  }
}

double Gpu::microseconds(const std::function<void()>& work) const {
  check(api().cuEventRecord(begin_, stream_.handle()), "cuEventRecord");
  work();
  check(api().cuEventRecord(end_, stream_.handle()), "cuEventRecord");
  check(api().cuEventSynchronize(end_), "cuEventSynchronize");
  float milliseconds = 0;
  check(api().cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return 1e3 * static_cast<double>(milliseconds);
}

Replay::Replay(Gpu& gpu, const Candidate& candidate, const MeasureOptions& options)
    : gpu_(&gpu), copies_(candidate.copies), calls_(candidate.copies) {
  for (int i = 0; i < copies_; ++i) candidate.enqueue(i);
  gpu.synchronize();
  try {
    capture(candidate);
    launch();
    const int calls = calls_for(measure(), copies_, options.graph_us);
    if (calls == calls_) return;
    calls_ = calls;
    destroy();
    capture(candidate);
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

// The capture is ended whatever happens, so that the stream stays usable.
void Replay::capture(const Candidate& candidate) {
  const Driver::Api& api = gpu_->api();
  CUstream_st* const stream = gpu_->stream().handle();
  CUgraph graph = nullptr;
  gpu_->check(api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  try {
    for (int i = 0; i < calls_; ++i) candidate.enqueue(i % copies_);
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

Rotation::Rotation(Gpu& gpu, RandomData& random, const Operation& operation) {
  const int count = copies_for(working_set(operation));
  for (int i = 0; i < count; ++i) {
    copies_.emplace_back(operation, gpu.backend());
    random.fill(copies_.back(), static_cast<std::uint64_t>(i) * 1000);
  }
}

Candidate Rotation::candidate(Gpu& gpu) const {
  return {.copies = static_cast<int>(copies_.size()),
          .enqueue = [this, &gpu](int copy) { copies_[static_cast<std::size_t>(copy)].enqueue(gpu.stream()); }};
}

}  // namespace ingot::bench
