// cast on a GPU: which of the kernels of templates/cast/ run for a spec and a shape, and with which parameters.
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/cast/cast_operation.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "ingot/codegen/cast/cast_schedule.h"
#include "ingot/codegen/cast/cast_tiles_config.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/cast/amax_tiles_launch.h"
#include "ingot/runtime/cast/blocks_at_once.h"
#include "ingot/runtime/cast/factor_strides.h"
#include "ingot/runtime/visit.h"

#include "cast/cast_row_groups.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_wide.cuh"
#include "cast/cast_tiles.cuh"
#include "cast/cast_whole.cuh"
#include "cast/column_sum.cuh"

namespace ingot::cuda {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

GroupSteps factor_steps(const Tensor& factors, ScaleGranularity scale, std::int64_t cols) {
  const FactorStrides strides = factor_strides(factors, scale, cols);
  return {.row = strides.row, .group = strides.group};
}

// The factor of an empty extent, whose amax is 0.
float factor_of_nothing(const CastSpec& spec) {
  return visit_fp8(spec.out,
                   [&]<class Out>(Type<Out>) { return factor_from_scale(scale_from_amax<Out>(0.0F, spec.pow2)); });
}

// Where the first pass writes the maxima of one granularity, and where the main pass counts their readers.
struct MaximaOf {
  float* values = nullptr;
  u32* readers = nullptr;
};
struct Maxima {
  MaximaOf tensor, rows, columns;
  i64 tensor_count = 1;  // partial ones

  void give(ScaleGranularity scale, CastOutput& output) const {
    const MaximaOf& found = scale == kTensorwise ? tensor : scale == kRowwise ? rows : columns;
    output.from = found.values;
    output.from_count = tensor_count;
    output.readers = found.readers;
  }
};

// How many floats of scratch memory the first pass needs for its maxima, if each has one writer.
i64 maxima_count(const CastSpec& spec, const Tensor& input) {
  if (cast_schedule(spec) == CastSchedule::rows_then_tiles) return input.rows;
  const FirstPass wanted = first_pass(spec);
  switch (wanted.kind()) {
    case FirstPass::Kind::none: return 0;
    case FirstPass::Kind::partials: return AmaxPartialsLaunch::kMaxBlocks;
    case FirstPass::Kind::rows: return input.rows;
    case FirstPass::Kind::tiles: return 0;  // raised_maxima()
  }
  return 0;
}

// Maxima that many blocks raise, starting from zero, and that the main pass sets back to zero; and two more such words,
// with which blocks meet.
struct RaisedMaxima {
  Maxima maxima;
  u32* meeting;
};
RaisedMaxima raised_maxima(const Tensor& input, Stream& stream) {
  const i64 rows = input.rows;
  const i64 columns = input.cols;
  const i64 down = CastTilesLaunch::tiles_down(rows, CastTilesLaunch::kFewestRowsLog2);
  const i64 across = CastTilesLaunch::tiles_along(columns);
  const i64 words = 2 + rows + columns + down + across + 2;
  auto* const values = static_cast<float*>(stream.zeros(static_cast<std::size_t>(words) * sizeof(float)));
  auto* const readers = reinterpret_cast<u32*>(values + 1 + rows + columns);
  return {.maxima = {.tensor = {values, readers},
                     .rows = {values + 1, readers + 1},
                     .columns = {values + 1 + rows, readers + 1 + down}},
          .meeting = readers + 1 + down + across};
}

// `main`: the pass that will read the maxima; Pass::kept reads `kept` too.
Maxima launch_first_pass(const CastSpec& spec, const CastTensors& tensors, Pass main, const KeptValues& kept,
                         float* memory, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const FirstPass wanted = first_pass(spec);
  const Pass first = main == Pass::kept ? Pass::keeping : Pass::first;
  Maxima maxima;
  if (wanted.kind() == FirstPass::Kind::partials) {
    const bool computed = !spec.pointwise.empty();
    const SourceParams source = computed ? source_of(tensors) : flattened(source_of(tensors));
    maxima.tensor = {memory, nullptr};
    const u64 bytes = static_cast<u64>(size_of(spec.in));
    const u32 threads = AmaxPartialsLaunch::threads(source.cols, bytes, computed);
    const Kernel& kernel = launcher.kernel(spec, first, stream);
    const i64 resident =
        main == Pass::kept ? blocks_at_once(kernel, threads, launcher) : AmaxPartialsLaunch::kMaxBlocks;
    maxima.tensor_count = AmaxPartialsLaunch::grid(source.rows, source.cols, threads, bytes, resident);
    launcher.launch(kernel, spec, first, {.grid_x = Launcher::checked_grid(maxima.tensor_count), .block = threads},
                    AmaxPartialsParams{source, memory, kept}, stream);
  } else if (wanted.kind() == FirstPass::Kind::rows) {
    maxima.rows = {memory, nullptr};
    launcher.launch(spec, Pass::first, RowsLaunch::grid(input.rows, input.cols), RowsLaunch::threads(input.cols),
                    AmaxRowsParams{source_of(tensors), memory, RowsLaunch::threads_log2(input.cols)}, stream);
  } else if (wanted.kind() == FirstPass::Kind::tiles) {
    // Raised maxima must be cleared again, so every kernel must be loaded before the first one runs.
    for (const Pass pass : {first, main}) launcher.kernel(spec, pass, stream);
    if (spec.sum) launcher.kernel(spec, Pass::finish, stream);
    maxima = raised_maxima(input, stream).maxima;
    const auto bits = [](const MaximaOf& of, bool asked) {
      return asked ? reinterpret_cast<u32*>(of.values) : nullptr;
    };
    const AmaxTilesParams params{.source = source_of(tensors),
                                 .tensor = bits(maxima.tensor, wanted.tensor),
                                 .rows = bits(maxima.rows, wanted.rows),
                                 .columns = bits(maxima.columns, wanted.columns),
                                 .kept = kept};
    launch_amax_tiles(spec, first, params, stream, launcher);
  }
  return maxima;
}

u64 value_bytes(const CastSpec& spec) { return spec.unrounded ? 4U : static_cast<u64>(size_of(spec.in)); }

// May kernels read the rows of the values 16 bytes at a time?
bool source_aligned(const CastSpec& spec, const CastTensors& tensors) {
  const auto rows = [](const Tensor& t) { return rows_aligned<u8>(t.data, t.row_stride * size_of(t.dtype), 16); };
  bool all = tensors.input.cols % kVec8 == 0 && (!spec.pointwise.uses_x() || rows(tensors.input));
  const auto inputs = spec.pointwise.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& operand = tensors.inputs[i];
    switch (inputs[i].kind) {
      case PointwiseInput::Kind::matrix: all = all && rows(operand); break;
      case PointwiseInput::Kind::column:
      case PointwiseInput::Kind::column_f32: all = all && aligned(operand.data, 16); break;
      case PointwiseInput::Kind::row: break;
    }
  }
  return all;
}

// How blocks share the rows, if rows have blocks of their own; otherwise `blocks` is 0.
CastRowsWideShape wide_shape(const CastSpec& spec, const CastTensors& tensors, const Stream& stream,
                             const Launcher& launcher) {
  using Launch = CastRowsWideLaunch;
  const Tensor& input = tensors.input;
  const u64 bytes = value_bytes(spec);
  if (input.cols < Launch::min_cols(bytes) || input.rows > CastRowsLaunch::kMaxBlocks / kMaxClusterBlocks) return {};
  const Tensor& result = tensors.result;
  const bool written = rows_aligned<u8>(tensors.codes.data, tensors.codes.row_stride, kVec8) &&
                       (!spec.result || rows_aligned<u8>(result.data, result.row_stride * size_of(result.dtype), 16));
  if (!written || !source_aligned(spec, tensors)) return {};
  return Launch::shape({.rows = input.rows,
                        .cols = input.cols,
                        .value_bytes = bytes,
                        .computed = !spec.pointwise.empty(),
                        .many_inputs = spec.pointwise.inputs().size() > 1,
                        .block_shared = launcher.block_shared_bytes(),
                        .multiprocessors = static_cast<u32>(launcher.multiprocessors()),
                        .clusters = launcher.overlapping() &&
                                    (input.cols <= Launch::kept_cols(bytes) || launcher.room(stream).large_clusters)});
}

// `maxima` may be null.
void launch_rows(const CastSpec& spec, Pass pass, const CastTensors& tensors, float* maxima, const Stream& stream,
                 Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 cols = input.cols;
  const CastRowsParams params{.source = source_of(tensors),
                              .codes = tensors.codes.data,
                              .factors = floats(tensors.factors),
                              .result = tensors.result.data,
                              .codes_stride = tensors.codes.row_stride,
                              .result_stride = tensors.result.row_stride,
                              .maxima = maxima,
                              .threads_log2 = CastRowsLaunch::threads_log2(cols, value_bytes(spec)),
                              .pow2 = spec.pow2};
  const CastRowsWideShape wide = wide_shape(spec, tensors, stream, launcher);
  // Nothing may be loaded during a capture, and either kernel gives the same bits.
  const Kernel* const kernel = wide.blocks == 0 ? nullptr : launcher.find(spec, Pass::wide, stream);
  if (kernel != nullptr) {
    launcher.launch(*kernel, spec, Pass::wide,
                    {.grid_x = static_cast<unsigned>(input.rows) * wide.blocks,
                     .block = wide.threads,
                     .cluster = wide.blocks,
                     .shared_bytes = wide.shared_bytes},
                    params, stream);
    return;
  }
  launcher.launch(spec, pass, CastRowsLaunch::grid(input.rows, params.threads_log2),
                  CastRowsLaunch::threads(params.threads_log2), params, stream);
}

void cast_row_groups(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher) {
  const u32 threads_log2 = CastRowGroupsLaunch::threads_log2(tensors.input.cols, value_bytes(spec));
  const CastRowGroupsParams params{.source = source_of(tensors),
                                   .codes = tensors.codes.data,
                                   .factors = floats(tensors.factors),
                                   .result = tensors.result.data,
                                   .codes_stride = tensors.codes.row_stride,
                                   .result_stride = tensors.result.row_stride,
                                   .threads_log2 = threads_log2,
                                   .pow2 = spec.pow2,
                                   .factor_steps = factor_steps(tensors.factors, spec.scale, tensors.input.cols)};
  launcher.launch(spec, Pass::main, CastRowsLaunch::grid(tensors.input.rows, threads_log2),
                  CastRowsLaunch::threads(threads_log2), params, stream);
}

// The device for the tiles of casts in one launch.
CastTilesDevice device_of(const Launcher::Room& room, const Launcher& launcher) {
  return {.multiprocessors = room.multiprocessors, .clusters = launcher.overlapping() && room.large_clusters};
}

bool is_cluster(i64 tiles, const CastTilesDevice& device) {
  return tiles <= CastWholeLaunch::kMostInCluster && device.clusters;
}

// The kernel that casts the tiles: the one for unaligned rows where it is faster. Nothing may be loaded during a
// capture, and either gives the same bits.
Pass tiles_pass(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, const Launcher& launcher) {
  if (!spec.transposed) return Pass::main;
  const bool transposed = rows_aligned<u8>(tensors.transposed.data, tensors.transposed.row_stride, 16);
  if (transposed && source_aligned(spec, tensors)) return Pass::main;
  return launcher.may_launch(spec, Pass::unaligned, stream) ? Pass::unaligned : Pass::main;
}

// The kernel that casts all tiles at once, if they fit on the GPU and that is faster; otherwise null. Without an
// expression, which a pass for the maxima would compute twice, it is faster only as a cluster
// (docs/notes/casts.md), or if that pass could not read whole vectors.
struct WholeKernel {
  const Kernel* kernel = nullptr;
  CastTilesDevice device{};  // what the stream can use of it
};
WholeKernel whole_kernel(const CastSpec& spec, const ExtraPasses& extra, const CastTensors& tensors,
                         const Stream& stream, const Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 tiles = CastTilesLaunch::grid(input.rows, input.cols);
  if (tiles > launcher.multiprocessors() * CastWholeLaunch::kMostPerMultiprocessor || !extra.whole) return {};
  const bool aligned_copy = !spec.pointwise && source_aligned(spec, tensors);
  if (aligned_copy && !(tiles <= CastWholeLaunch::kMostInCluster && launcher.overlapping())) return {};
  const CastTilesDevice device = device_of(launcher.room(stream), launcher);
  if (aligned_copy && !is_cluster(tiles, device)) return {};
  if (tiles > device.multiprocessors * CastWholeLaunch::kMostPerMultiprocessor) return {};
  const Kernel* const kernel = launcher.find(spec, Pass::whole, stream);
  if (kernel == nullptr) return {};
  const i64 each = CastWholeLaunch::per_multiprocessor(kernel->resources().registers);
  return tiles <= device.multiprocessors * each ? WholeKernel{kernel, device} : WholeKernel{};
}

void launch_whole(const WholeKernel& whole, const CastSpec& spec, CastTilesParams params, const Tensor& input,
                  Stream& stream, Launcher& launcher) {
  const RaisedMaxima raised = raised_maxima(input, stream);
  const auto give = [&](ScaleGranularity scale, CastOutput& output) {
    raised.maxima.give(scale, output);
    output.amax = reinterpret_cast<u32*>(output.from);
  };
  give(spec.scale, params.codes);
  give(spec.transposed_scale.value_or(spec.scale), params.transposed);
  // All blocks run at once: those of tiles of 128 rows do (whole_kernel()), and of smaller ones each has a
  // multiprocessor.
  const i64 tiles = CastTilesLaunch::grid(input.rows, input.cols, 1, params.rows_log2);
  const bool clustered = is_cluster(tiles, whole.device);
  launcher.launch(*whole.kernel, spec, Pass::whole,
                  {.grid_x = static_cast<unsigned>(tiles),
                   .block = CastTilesLaunch::kThreads,
                   .cluster = clustered ? static_cast<unsigned>(tiles) : 1U,
                   .cooperative = !clustered},
                  CastWholeParams{params, clustered ? nullptr : raised.meeting}, stream);
}

// The values that the first pass writes, in `bytes` of scratch memory at `values`.
struct KeptMatrix {
  static constexpr i64 kMostBytes = i64{256} << 20;
  // Two matrices of fewer bytes stay in the L2 of a large GPU between the passes: then reading them again is as fast.
  static constexpr i64 kLeastBytes = i64{24} << 20;
  i64 stride = 0;  // elements
  i64 bytes = 0;

  static KeptMatrix of(const CastSpec& spec, const Tensor& input) {
    const i64 stride = ceil_div(i64{input.cols}, i64{kVec8}) * kVec8;
    return {stride, input.rows * stride * size_of(spec.in)};
  }
  SourceParams source(const Tensor& input, const void* values) const {
    return {.input = values, .rows = input.rows, .cols = input.cols, .input_stride = stride, .operands = {}};
  }
};

// Should the first pass of a cast that may keep its values write them? Computing them twice gives the same bits.
// `scratch`: the bytes that the cast needs otherwise. Maxima of rows or columns (amax_tiles) are worth it for small
// matrices too. During a capture nothing may be loaded, so that what earlier calls have loaded decides, and there may
// be no more memory.
bool computes_once(const CastSpec& spec, const KeptMatrix& kept, i64 scratch, const Stream& stream,
                   const Launcher& launcher) {
  if (kept.bytes > KeptMatrix::kMostBytes) return false;
  const bool large = kept.bytes >= KeptMatrix::kLeastBytes || first_pass(spec).kind() == FirstPass::Kind::tiles;
  return (large || !launcher.may_launch(spec, Pass::first, stream)) &&
         launcher.may_launch(spec, Pass::keeping, stream) && launcher.may_launch(spec, Pass::kept, stream) &&
         launcher.may_take(stream, static_cast<std::size_t>(kept.bytes + scratch));
}

// Adds the sums of the rows of tiles: partial_sums is f32[ceil(rows / 128), cols].
void finish_sum(const CastSpec& spec, const float* partial_sums, const CastTensors& tensors, Stream& stream,
                Launcher& launcher) {
  const Tensor& input = tensors.input;
  launcher.launch(spec, Pass::finish, ColumnSumFinishLaunch::grid(input.cols), ColumnSumFinishLaunch::kThreads,
                  ColumnSumFinishParams{.partials = partial_sums,
                                        .chunks = ceil_div(i64{input.rows}, CastTilesLaunch::kTile),
                                        .cols = input.cols,
                                        .sum = tensors.sum.data,
                                        .sum_cols = input.cols,
                                        .other_sum = nullptr},
                  stream);
}

void cast_tiles(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  CastTilesParams params = tiles_params(spec, tensors);
  const Tensor& input = tensors.input;
  // One scratch for all, because a second call would invalidate the first: kept values, sums, maxima.
  const ExtraPasses extra = extra_passes(spec);
  const WholeKernel in_one_launch = whole_kernel(spec, extra, tensors, stream, launcher);
  const bool whole = in_one_launch.kernel != nullptr;
  const i64 sums = spec.sum ? ceil_div(i64{input.rows}, CastTilesLaunch::kTile) * input.cols : 0;
  i64 scratch = (sums + (whole ? 0 : maxima_count(spec, input))) * i64{sizeof(float)};
  KeptMatrix kept = KeptMatrix::of(spec, input);
  const bool keeps = !whole && extra.kept && computes_once(spec, kept, scratch, stream, launcher);
  if (!keeps) kept = {};
  scratch += kept.bytes;
  const Pass main = whole ? Pass::whole : keeps ? Pass::kept : tiles_pass(spec, tensors, stream, launcher);
  u8* const memory = scratch == 0 ? nullptr : static_cast<u8*>(stream.scratch(static_cast<std::size_t>(scratch)));
  auto* const partial_sums = reinterpret_cast<float*>(memory + kept.bytes);
  params.partial_sums = partial_sums;
  const CastTilesDevice all{.multiprocessors = launcher.multiprocessors(), .clusters = launcher.overlapping()};
  params.rows_log2 = cast_tile_rows_log2(spec, main, input.rows, input.cols, whole ? in_one_launch.device : all);
  try {
    if (whole) {
      launch_whole(in_one_launch, spec, params, input, stream, launcher);
    } else if (cast_schedule(spec) == CastSchedule::rows_then_tiles) {
      // Both kernels write the factors, the same ones.
      params.transposed.from = partial_sums + sums;
      launch_rows(spec, Pass::first, tensors, params.transposed.from, stream, launcher);
    } else if (extra.first) {
      const KeptValues values{keeps ? memory : nullptr, kept.stride};
      const Maxima maxima = launch_first_pass(spec, tensors, main, values, partial_sums + sums, stream, launcher);
      if (keeps) params.source = kept.source(input, memory);
      maxima.give(spec.scale, params.codes);
      maxima.give(spec.transposed_scale.value_or(spec.scale), params.transposed);
    }
    if (!whole) {
      const Kernel& kernel = launcher.kernel(spec, main, stream);
      const bool computed = !spec.pointwise.empty() && !keeps;
      if (params.rows_log2 == CastTilesLaunch::kTileLog2 &&
          CastTilesLaunch::takes_two(computed, main == Pass::unaligned || keeps, keeps && spec.sum)) {
        const i64 resident = blocks_at_once(kernel, CastTilesLaunch::kThreads, launcher);
        params.tiles_per_block = CastTilesLaunch::tiles_per_block(input.rows, input.cols, resident);
      }
      const i64 grid = CastTilesLaunch::grid(input.rows, input.cols, params.tiles_per_block, params.rows_log2);
      launcher.launch(kernel, spec, main, {.grid_x = Launcher::checked_grid(grid), .block = CastTilesLaunch::kThreads},
                      params, stream);
    }
  } catch (...) {
    stream.spoil_zeros();  // maxima may have been raised that no kernel will clear
    throw;
  }
  if (spec.sum && input.cols > 0) finish_sum(spec, partial_sums, tensors, stream, launcher);
}

}  // namespace

SourceParams source_of(const Tensor& input, std::span<const Tensor> inputs) {
  SourceParams source{
      .input = input.data, .rows = input.rows, .cols = input.cols, .input_stride = input.row_stride, .operands = {}};
  static_assert(kMaxInputs == kMaxPointwiseInputs);
  for (std::size_t i = 0; i < kMaxInputs; ++i) {
    source.operands[i] = {inputs[i].data, inputs[i].row_stride};
  }
  return source;
}

SourceParams source_of(const CastTensors& tensors) { return source_of(tensors.input, tensors.inputs); }

CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors) {
  const auto bits = [](const Tensor& amax) { return static_cast<u32*>(amax.data); };
  const bool two_scales = spec.transposed_scale.has_value();
  const std::int64_t cols = tensors.input.cols;
  const Tensor& transposed_factors = two_scales ? tensors.transposed_factors : tensors.factors;
  return {.source = source_of(tensors),
          .codes = {.codes = tensors.codes.data,
                    .stride = tensors.codes.row_stride,
                    .from = floats(tensors.scales),
                    .from_count = 1,
                    .factors = floats(tensors.factors),
                    .amax = bits(tensors.amax),
                    .readers = nullptr,
                    .factor_steps = factor_steps(tensors.factors, spec.scale, cols)},
          .transposed = {.codes = tensors.transposed.data,
                         .stride = tensors.transposed.row_stride,
                         .from = floats(two_scales ? tensors.transposed_scales : tensors.scales),
                         .from_count = 1,
                         .factors = floats(transposed_factors),
                         .amax = bits(two_scales ? tensors.transposed_amax : tensors.amax),
                         .readers = nullptr,
                         .factor_steps =
                             factor_steps(transposed_factors, spec.transposed_scale.value_or(spec.scale), cols)},
          .result = tensors.result.data,
          .result_stride = tensors.result.row_stride,
          .partial_sums = nullptr,
          .pow2 = spec.pow2};
}

void fill_factors(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const float factor = factor_of_nothing(spec);
  for (const Tensor& factors : {tensors.factors, tensors.transposed_factors}) {
    if (!factors.empty()) launcher.fill(factors.data, factor, factors.cols, stream);
  }
  if (!tensors.sum.empty()) {
    const std::int64_t bytes = tensors.sum.cols * size_of(*spec.sum);
    launcher.fill_zero(tensors.sum.data, static_cast<std::size_t>(bytes), stream);
  }
}

void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  if (tensors.input.empty() && spec.source == ScaleSource::dynamic) {
    return fill_factors(spec, tensors, stream, launcher);
  }
  switch (cast_schedule(spec)) {
    case CastSchedule::rows: return launch_rows(spec, Pass::main, tensors, nullptr, stream, launcher);
    case CastSchedule::row_groups: return cast_row_groups(spec, tensors, stream, launcher);
    case CastSchedule::rows_then_tiles:
    case CastSchedule::tiles: return cast_tiles(spec, tensors, stream, launcher);
  }
}

}  // namespace ingot::cuda
