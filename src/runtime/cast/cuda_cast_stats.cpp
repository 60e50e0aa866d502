// cast_stats on a GPU.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/cast_stats.cuh"

namespace ingot::cuda {

void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.empty()) return launcher.fill_zero(tensors.stats.data, sizeof(CastStats), stream);
  launcher.load(spec, stream);
  const i64 tiles = CastStatsLaunch::tiles(input.rows, input.cols);
  auto* const parts =
      static_cast<CastStatsPart*>(stream.scratch(static_cast<std::size_t>(tiles) * sizeof(CastStatsPart)));
  const CastStatsParams first{.input = input.data,
                              .rows = input.rows,
                              .cols = input.cols,
                              .input_stride = input.row_stride,
                              .codes = static_cast<const u8*>(tensors.codes.data),
                              .codes_stride = tensors.codes.row_stride,
                              .factors = static_cast<const float*>(tensors.scale_inv.data),
                              .steps = factor_steps(spec, tensors),
                              .parts = parts};
  launcher.launch(spec, Pass::first, tiles, CastStatsLaunch::kThreads, first, stream);
  const CastStatsFinishParams finish{
      .parts = parts, .count = tiles, .result = static_cast<CastStatsResult*>(tensors.stats.data)};
  launcher.launch(spec, Pass::main, 1, CastStatsLaunch::kThreads, finish, stream);
}

}  // namespace ingot::cuda
