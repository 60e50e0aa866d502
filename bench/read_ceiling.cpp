#include "read_ceiling.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot::bench {
namespace {

struct ReadParams {
  const void* data;
  std::uint64_t count;  // in units of 16 bytes
  std::uint32_t* nothing;
};

constexpr const char* kText = R"(#include "platform.cuh"
namespace ingot {
struct ReadParams {
  const U32x4* data;
  u64 count;
  u32* nothing;
};
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(1024, 1) read_all(const ReadParams p) {
  constexpr u32 kAtOnce = 8;
  const u64 step = u64{gridDim.x} * blockDim.x;
  u64 i = u64{blockIdx.x} * blockDim.x + threadIdx.x;
  u32 bits = 0;
  for (; i + (kAtOnce - 1) * step < p.count; i += kAtOnce * step) {
    U32x4 v[kAtOnce];
    INGOT_UNROLL
    for (u32 j = 0; j < kAtOnce; ++j) v[j] = p.data[i + j * step];
    INGOT_UNROLL
    for (u32 j = 0; j < kAtOnce; ++j) bits ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < p.count; i += step) bits ^= p.data[i].x ^ p.data[i].y ^ p.data[i].z ^ p.data[i].w;
  // A store that almost never happens keeps the compiler from removing the loads.
  if (bits == 0x9e3779b9U) *p.nothing = bits;
}
}  // namespace ingot
constexpr auto kKernel = &ingot::read_all;
)";

}  // namespace

Source read_source() { return {.name = "read ceiling", .text = kText}; }

ReadCeiling::ReadCeiling(MeasuredGpu& gpu)
    : gpu_(&gpu), kernel_(&gpu.context().cache().get(read_source())), nothing_(gpu.backend(), sizeof(std::uint32_t)) {
  std::string problem;
  const auto driver = Driver::open(problem);
  multiprocessors_ = static_cast<unsigned>(driver->multiprocessors(gpu.context().device().index));
}

void ReadCeiling::enqueue(const Shape& shape, const void* data, std::size_t bytes) {
  kernel_->launch(
      gpu_->stream().handle(), {.grid_x = shape.blocks_per_multiprocessor * multiprocessors_, .block = shape.threads},
      ReadParams{.data = data, .count = bytes / 16, .nothing = static_cast<std::uint32_t*>(nothing_.data())});
}

double ReadCeiling::median_us(int copies, const std::function<const void*(int copy)>& begin_of, std::size_t bytes,
                              const MeasureOptions& options) {
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Shape& shape : kShapes) {
    const auto read = [&, shape](int copy) { enqueue(shape, begin_of(copy), bytes); };
    replays.push_back(std::make_unique<Replay>(*gpu_, RotatedCall{.copies = copies, .enqueue = read}, options));
  }
  const std::vector<Timing> timings = measure(replays, options);
  return std::ranges::min(timings, {}, &Timing::median_us).median_us;
}

}  // namespace ingot::bench
