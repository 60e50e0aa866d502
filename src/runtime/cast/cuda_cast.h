// What single casts (cuda_cast.cpp), lists of casts (cuda_cast_list.cpp), casts of stacked matrices
// (cuda_cast_stack.cpp) and kernels of tiles of 8 columns to a thread (cuda_elementwise.cpp, cuda_quantize.cpp) share
// on a GPU: their kernels' parameters and launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/amax.cuh"
#include "cast/cast_experts.cuh"
#include "cast/cast_tile_shared.cuh"
#include "vec8_tiles.cuh"

namespace ingot::cuda {

inline CastDevice cast_device(const Launcher& launcher) {
  return {.multiprocessors = launcher.multiprocessors(),
          .clusters = launcher.overlapping(),
          .block_shared = launcher.block_shared_bytes()};
}

// What a stream allows for the plan of a cast.
class CastStreamOf final : public CastStream {
 public:
  CastStreamOf(const CastSpec& spec, const Stream& stream, const Launcher& launcher)
      : spec_(&spec), stream_(&stream), launcher_(&launcher) {}
  bool may_launch(Pass pass) const override { return launcher_->may_launch(*spec_, pass, *stream_); }
  std::optional<std::int64_t> registers(Pass pass) const override {
    const Kernel* const kernel = launcher_->find(*spec_, pass, *stream_);
    return kernel == nullptr ? std::nullopt : std::optional<std::int64_t>(kernel->resources().registers);
  }
  bool may_take(std::int64_t scratch_bytes) const override {
    return launcher_->may_take(*stream_, static_cast<std::size_t>(scratch_bytes));
  }
  CastDevice room() const override {
    const Launcher::Room room = launcher_->room(*stream_);
    return {.multiprocessors = room.multiprocessors,
            .clusters = launcher_->overlapping() && room.large_clusters,
            .block_shared = launcher_->block_shared_bytes()};
  }

 private:
  const CastSpec* spec_;
  const Stream* stream_;
  const Launcher* launcher_;
};

SourceParams source_of(const Tensor& input, std::span<const Tensor> inputs);
SourceParams source_of(const CastTensors& tensors);
// As GatheredSource reads it (templates/cast/cast_gathered.cuh).
SourceParams gathered_source_of(const CastTensors& tensors);

// The launch of a kernel whose blocks are tiles (vec8_tiles.cuh). Throws Error{invalid_argument} if there are too many.
LaunchShape shape_of(const Vec8Tiles::Grid& grid);

// What the plan of a cast depends on in its tensors.
CastCall call_of(const CastSpec& spec, const CastTensors& tensors);

// All parameters except the first pass's maxima and the sums, which are not there yet.
CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors);

// Casts stacked matrices in tiles.
void cast_stack(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);
// Of so many rows.
inline ExpertRowsParams expert_rows_params(const ExpertEnds& ends, i64 rows) {
  return {.ends = ends.data, .experts = static_cast<u32>(ends.experts), .rows = rows};
}
// Casts experts' rows in their slots.
void cast_experts(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher);
CastExpertsParams experts_params(const CastSpec& spec, const CastTensors& tensors);
// Clears the found_amax of columns, and raises them to those of stacked matrices: in a launch that casts the rows too
// (Pass::whole), or in one for nothing else (Pass::first).
void cast_rows_columns(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher);
void find_columns(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher);

// Writes the scale_inv of empty extents, whose scales are those of an amax of 0.
void fill_scale_inv(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher);

// The blocks of a kernel that the GPU runs at once, each with so much dynamic shared memory.
inline i64 blocks_at_once(const Kernel& kernel, u32 threads, const Launcher& launcher, u32 dynamic_shared = 0) {
  constexpr i64 kTaken = 1024;  // bytes of shared memory, from each block
  const KernelResources& resources = kernel.resources();
  const i64 of_block = resources.static_shared_bytes + i64{dynamic_shared} + kTaken;
  const i64 by_shared = (launcher.block_shared_bytes() + kTaken) / of_block;
  return launcher.multiprocessors() * max_of(i64{1}, min_of(resident_blocks(resources.registers, threads), by_shared));
}

// The launch of amax_tiles, for amax and for the first pass of a cast. `pass`: the spec's pass whose kernel that is.
template <AnyKernelSpec Spec>
void launch_amax_tiles(const Spec& spec, Pass pass, const AmaxTilesParams& params, const Stream& stream,
                       Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, pass, stream);
  const i64 resident = blocks_at_once(kernel, AmaxTilesLaunch::kThreads, launcher);
  const i64 grid = AmaxTilesLaunch::grid(params.source.rows, params.source.cols, resident);
  launcher.launch(kernel, spec, pass, {.grid_x = Launcher::checked_grid(grid), .block = AmaxTilesLaunch::kThreads},
                  params, stream);
}

}  // namespace ingot::cuda
