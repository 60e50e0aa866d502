#include "host_cost.h"

#include <array>
#include <chrono>
#include <variant>

#include "cast_cases.h"
#include "ingot/runtime/cuda/driver_api.h"

namespace ingot::bench {
namespace {

constexpr int kBatch = 100;  // calls: far fewer launches than the driver queues before it makes the host wait
constexpr std::size_t kParameterBytes = 96;  // what the casts' own parameter structs take, or a little more
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kCols = 256;

// The empty kernel, loaded and launched by the driver's own functions, without any of the library's.
class BareKernel {
 public:
  explicit BareKernel(Gpu& gpu) : gpu_(&gpu) {
    KernelCache& cache = gpu.context().cache();
    const auto compiled = cache.compiled(empty_kernel(), cache.target());
    const Driver::Api& api = gpu.api();
    gpu.check(api.cuLibraryLoadData(&library_, compiled->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
              "cuLibraryLoadData");
    const CUresult result = api.cuLibraryGetKernel(&kernel_, library_, compiled->lowered_name.c_str());
    if (result != CUDA_SUCCESS) static_cast<void>(api.cuLibraryUnload(library_));
    gpu.check(result, "cuLibraryGetKernel");
    attribute_.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute_.value.programmaticStreamSerializationAllowed = 1;
  }
  ~BareKernel() { static_cast<void>(gpu_->api().cuLibraryUnload(library_)); }
  BareKernel(const BareKernel&) = delete;
  BareKernel& operator=(const BareKernel&) = delete;

  void launch(bool programmatic) {
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = gpu_->stream().handle();
    config.attrs = programmatic ? &attribute_ : nullptr;
    config.numAttrs = programmatic ? 1 : 0;
    void* arguments[] = {parameter_.data()};
    gpu_->check(gpu_->api().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel_), arguments, nullptr),
                "cuLaunchKernelEx");
  }

 private:
  Gpu* gpu_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  CUlaunchAttribute attribute_{};
  std::array<std::byte, kParameterBytes> parameter_{};
};

// Nanoseconds of the host per call.
template <class Call>
double time_batch(Gpu& gpu, const Call& call) {
  using Clock = std::chrono::steady_clock;
  gpu.synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < kBatch; ++i) call();
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  return taken.count() / kBatch;
}

}  // namespace

Source empty_kernel() {
  return {.name = "empty kernel",
          .text = "struct Parameter { unsigned char bytes[" + std::to_string(kParameterBytes) +
                  "]; };\n"
                  "__global__ void nothing(Parameter) {}\n"
                  "constexpr auto kKernel = &nothing;\n"};
}

std::vector<HostCost> measure_host_cost(Gpu& gpu, RandomData& random, const MeasureOptions& options) {
  // A call of one launch and a call of two.
  const std::array lines{"cast bf16->e4m3fn scale=row out=codes", "cast bf16->e4m3fn scale=tensor out=codes"};
  BareKernel bare(gpu);
  Backend& backend = gpu.backend();
  Stream& stream = gpu.stream();
  std::vector<HostCost> costs;
  for (const char* const line : lines) {
    const auto spec = std::get<CastSpec>(parse(line));
    const Placed placed(cast_operation(spec, kRows, kCols), backend);
    fill(random, placed, 1);
    const CastTensors tensors = cast_tensors(placed.tensors());
    const auto cast = [&] { backend.cast(spec, tensors, stream); };
    const auto launch = [&] { bare.launch(false); };
    const auto launch_pdl = [&] { bare.launch(true); };

    HostCost cost{.spec = print(spec)};
    cast();  // loads the kernel
    const std::int64_t before = backend.launches();
    cast();
    cost.launches = backend.launches() - before;
    std::vector<double> calls;
    std::vector<double> launches;
    std::vector<double> launches_pdl;
    for (int round = 0; round < options.rounds; ++round) {
      calls.push_back(time_batch(gpu, cast));
      launches.push_back(time_batch(gpu, launch));
      launches_pdl.push_back(time_batch(gpu, launch_pdl));
    }
    cost.call_ns = median(calls);
    cost.bare_ns = median(launches);
    cost.bare_pdl_ns = median(launches_pdl);
    costs.push_back(cost);
    gpu.synchronize();
  }
  return costs;
}

}  // namespace ingot::bench
