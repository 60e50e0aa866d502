// cast on a GPU: the launches of its plan (codegen/cast/cast_plan.h), and their parameters.
#include "ingot/runtime/cast/cuda_cast.h"

#include <limits>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/visit.h"

#include "cast/cast_row_groups.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_wide.cuh"
#include "cast/cast_tiles.cuh"
#include "cast/cast_whole.cuh"
#include "cast/column_sum.cuh"

namespace ingot::cuda {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

GroupSteps factor_steps(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t cols) {
  const ScaleInvStrides strides = scale_inv_strides(scale_inv, scale, cols);
  return {.row = strides.row, .group = strides.group};
}

// The factor of an empty extent, whose amax is 0.
float scale_inv_of_nothing(const CastSpec& spec) {
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

// Maxima that many blocks raise, starting from zero, and that the main pass sets back to zero; and two more such words,
// the grid barrier.
struct RaisedMaxima {
  Maxima maxima;
  u32* barrier;
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
          .barrier = readers + 1 + down + across};
}

// Those of a matrix whose rows are gathered. The main pass cannot set them back, because any of its tiles may read any
// row's; a fill clears them before they are raised.
Maxima cleared_maxima(const Tensor& input, float* memory, const Stream& stream, Launcher& launcher) {
  const i64 words = 1 + input.rows + input.cols;
  launcher.fill_zero(memory, static_cast<std::size_t>(words) * sizeof(float), stream);
  return {.tensor = {memory, nullptr}, .rows = {memory + 1, nullptr}, .columns = {memory + 1 + input.rows, nullptr}};
}

// `kept`: where Pass::keeping writes the values.
Maxima launch_first_pass(const CastSpec& spec, const CastTensors& tensors, const CastPlan& plan, const KeptValues& kept,
                         float* memory, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const FirstPass wanted = first_pass(spec);
  const Pass first = *plan.first;
  Maxima maxima;
  if (wanted.kind() == FirstPass::Kind::partials) {
    const bool computed = !spec.pointwise.empty();
    const SourceParams source = computed ? source_of(tensors) : flattened(source_of(tensors));
    maxima.tensor = {memory, nullptr};
    const u64 bytes = static_cast<u64>(size_of(spec.in));
    const u32 threads = AmaxPartialsLaunch::threads(source.cols, bytes, computed);
    const Kernel& kernel = launcher.kernel(spec, first, stream);
    const i64 resident =
        first == Pass::keeping ? blocks_at_once(kernel, threads, launcher) : AmaxPartialsLaunch::kMaxBlocks;
    maxima.tensor_count = AmaxPartialsLaunch::grid(source.rows, source.cols, threads, bytes, resident);
    launcher.launch(kernel, spec, first, {.grid_x = Launcher::checked_grid(maxima.tensor_count), .block = threads},
                    AmaxPartialsParams{source, memory, kept}, stream);
  } else if (wanted.kind() == FirstPass::Kind::rows) {
    maxima.rows = {memory, nullptr};
    launcher.launch(spec, first, RowsLaunch::grid(input.rows, input.cols), RowsLaunch::threads(input.cols),
                    AmaxRowsParams{source_of(tensors), memory, RowsLaunch::threads_log2(input.cols)}, stream);
  } else if (wanted.kind() == FirstPass::Kind::tiles) {
    // Raised maxima must be cleared again, so every kernel must be loaded before the first one runs.
    for (const Pass pass : {first, plan.main}) launcher.kernel(spec, pass, stream);
    if (spec.sum) launcher.kernel(spec, Pass::finish, stream);
    maxima = spec.gathered ? cleared_maxima(input, memory, stream, launcher) : raised_maxima(input, stream).maxima;
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

// The pass along the rows: `maxima` may be null.
void launch_rows(const CastSpec& spec, Pass pass, const CastRowsWideShape& wide, const CastTensors& tensors,
                 float* maxima, const Stream& stream, Launcher& launcher) {
  const i64 cols = tensors.input.cols;
  const CastRowsParams params{.source = spec.gathered ? gathered_source_of(tensors) : source_of(tensors),
                              .codes = tensors.codes.data,
                              .factors = floats(tensors.scale_inv),
                              .result = tensors.result.data,
                              .codes_stride = tensors.codes.row_stride,
                              .result_stride = tensors.result.row_stride,
                              .maxima = maxima,
                              .threads_log2 = CastRowsLaunch::threads_log2(cols, value_bytes(spec)),
                              .pow2 = spec.pow2};
  if (pass.variant == Variant::wide) {
    launcher.launch(spec, pass,
                    {.grid_x = static_cast<unsigned>(params.source.rows) * wide.blocks,
                     .block = wide.threads,
                     .cluster = wide.blocks,
                     .shared_bytes = wide.shared_bytes},
                    params, stream);
    return;
  }
  launcher.launch(spec, pass, CastRowsLaunch::grid(params.source.rows, params.threads_log2),
                  CastRowsLaunch::threads(params.threads_log2), params, stream);
}

void cast_row_groups(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher) {
  const u32 threads_log2 = CastRowGroupsLaunch::threads_log2(tensors.input.cols, value_bytes(spec));
  const CastRowGroupsParams params{.source = source_of(tensors),
                                   .codes = tensors.codes.data,
                                   .factors = floats(tensors.scale_inv),
                                   .result = tensors.result.data,
                                   .codes_stride = tensors.codes.row_stride,
                                   .result_stride = tensors.result.row_stride,
                                   .threads_log2 = threads_log2,
                                   .pow2 = spec.pow2,
                                   .factor_steps = factor_steps(tensors.scale_inv, spec.scale, tensors.input.cols)};
  launcher.launch(spec, Pass::main, CastRowsLaunch::grid(tensors.input.rows, threads_log2),
                  CastRowsLaunch::threads(threads_log2), params, stream);
}

void launch_whole(const CastSpec& spec, const CastPlan& plan, CastTilesParams params, const Tensor& input,
                  Stream& stream, Launcher& launcher) {
  const RaisedMaxima raised = raised_maxima(input, stream);
  const auto give = [&](ScaleGranularity scale, CastOutput& output) {
    raised.maxima.give(scale, output);
    output.amax = reinterpret_cast<u32*>(output.from);
  };
  give(spec.scale, params.codes);
  give(spec.transposed_scale.value_or(spec.scale), params.transposed);
  // All blocks run at once: those of tiles of 128 rows do (cast_plan()), and of smaller ones each has a multiprocessor.
  const auto tiles = static_cast<unsigned>(CastTilesLaunch::grid(input.rows, input.cols, 1, params.rows_log2));
  launcher.launch(spec, Pass::whole,
                  {.grid_x = tiles,
                   .block = CastTilesLaunch::kThreads,
                   .cluster = plan.one_cluster ? tiles : 1U,
                   .cooperative = !plan.one_cluster},
                  CastWholeParams{params, plan.one_cluster ? nullptr : raised.barrier}, stream);
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

// The main pass over the tiles, after a first one or none.
void launch_tiles(const CastSpec& spec, const CastPlan& plan, CastTilesParams params, Stream& stream,
                  Launcher& launcher) {
  const i64 rows = params.source.rows;
  const i64 cols = params.source.cols;
  const Kernel& kernel = launcher.kernel(spec, plan.main, stream);
  if (plan.takes_two) {
    const i64 resident = blocks_at_once(kernel, CastTilesLaunch::kThreads, launcher);
    params.tiles_per_block = CastTilesLaunch::tiles_per_block(rows, cols, resident);
  }
  const i64 grid = CastTilesLaunch::grid(rows, cols, params.tiles_per_block, params.rows_log2);
  launcher.launch(
      kernel, spec, plan.main,
      {.grid_x = Launcher::checked_grid(grid), .block = CastTilesLaunch::kThreads, .waits_for_end = plan.waits_for_end},
      params, stream);
}

void cast_tiles(const CastSpec& spec, const CastPlan& plan, const CastTensors& tensors, Stream& stream,
                Launcher& launcher) {
  CastTilesParams params = tiles_params(spec, tensors);
  const Tensor& input = tensors.input;
  // One scratch for all, because a second call would invalidate the first: kept values, sums, maxima.
  const CastScratch& parts = plan.scratch;
  u8* const memory =
      parts.bytes() == 0 ? nullptr : static_cast<u8*>(stream.scratch(static_cast<std::size_t>(parts.bytes())));
  auto* const partial_sums = reinterpret_cast<float*>(memory + parts.kept_bytes);
  float* const memory_of_maxima = partial_sums + parts.sums;
  params.partial_sums = partial_sums;
  params.rows_log2 = plan.tile_rows_log2;
  try {
    if (plan.main == Pass::whole) {
      launch_whole(spec, plan, params, input, stream, launcher);
    } else if (cast_schedule(spec) == CastSchedule::rows_then_tiles) {
      // Both kernels write the scale_inv, the same ones.
      params.transposed.from = memory_of_maxima;
      launch_rows(spec, *plan.first, plan.wide, tensors, params.transposed.from, stream, launcher);
    } else if (plan.first) {
      const bool keeps = plan.main == Pass::kept;
      const KeptValues values{keeps ? memory : nullptr, parts.kept_stride};
      const Maxima maxima = launch_first_pass(spec, tensors, plan, values, memory_of_maxima, stream, launcher);
      if (keeps) {
        params.source = {
            .input = memory, .rows = input.rows, .cols = input.cols, .input_stride = parts.kept_stride, .operands = {}};
      }
      maxima.give(spec.scale, params.codes);
      maxima.give(spec.transposed_scale.value_or(spec.scale), params.transposed);
    }
    if (plan.main != Pass::whole) launch_tiles(spec, plan, params, stream, launcher);
  } catch (...) {
    stream.spoil_zeros();  // maxima may have been raised that no kernel will clear
    throw;
  }
  if (plan.finish) finish_sum(spec, partial_sums, tensors, stream, launcher);
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

SourceParams gathered_source_of(const CastTensors& tensors) {
  SourceParams source = source_of(tensors);
  const i64 last = min_of(i64{tensors.input.rows} - 1, i64{std::numeric_limits<std::int32_t>::max()});
  source.rows = tensors.row_index.rows;
  source.operands[0] = {tensors.row_index.data, last};
  return source;
}

CastCall call_of(const CastSpec& spec, const CastTensors& tensors) {
  const auto rows = [](const Tensor& t, u32 bytes) {
    return rows_aligned<u8>(t.data, t.row_stride * size_of(t.dtype), bytes);
  };
  return {.rows = spec.gathered ? tensors.row_index.rows : tensors.input.rows,
          .cols = tensors.input.cols,
          .source_aligned = source_aligned(spec, tensors),
          .outputs_aligned = rows(tensors.codes, kVec8) && (!spec.result || rows(tensors.result, 16)),
          .transposed_aligned = !spec.transposed || rows(tensors.transposed, 16),
          .knows_amax = tensors.known_amax.data != nullptr,
          .input_rows = spec.gathered ? std::optional(tensors.input.rows) : std::nullopt};
}

CastTilesParams tiles_params(const CastSpec& spec, const CastTensors& tensors) {
  const auto bits = [](const Tensor& amax) { return static_cast<u32*>(amax.data); };
  const bool two_scales = spec.transposed_scale.has_value();
  const std::int64_t cols = tensors.input.cols;
  const Tensor& from = tensors.known_amax.data != nullptr ? tensors.known_amax : tensors.scales;
  const bool known = tensors.known_transposed_amax.data != nullptr;
  const Tensor& transposed_from = known ? tensors.known_transposed_amax : tensors.transposed_scales;
  const Tensor& transposed_scale_inv = two_scales ? tensors.transposed_scale_inv : tensors.scale_inv;
  return {.source = spec.gathered ? gathered_source_of(tensors) : source_of(tensors),
          .codes = {.codes = tensors.codes.data,
                    .stride = tensors.codes.row_stride,
                    .from = floats(from),
                    .from_count = 1,
                    .factors = floats(tensors.scale_inv),
                    .amax = bits(tensors.amax),
                    .readers = nullptr,
                    .factor_steps = factor_steps(tensors.scale_inv, spec.scale, cols)},
          .transposed = {.codes = tensors.transposed.data,
                         .stride = tensors.transposed.row_stride,
                         .from = floats(two_scales ? transposed_from : from),
                         .from_count = 1,
                         .factors = floats(transposed_scale_inv),
                         .amax = bits(two_scales ? tensors.transposed_amax : tensors.amax),
                         .readers = nullptr,
                         .factor_steps =
                             factor_steps(transposed_scale_inv, spec.transposed_scale.value_or(spec.scale), cols)},
          .result = tensors.result.data,
          .result_stride = tensors.result.row_stride,
          .partial_sums = nullptr,
          .pow2 = spec.pow2};
}

void fill_scale_inv(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const float factor = scale_inv_of_nothing(spec);
  for (const Tensor& scale_inv : {tensors.scale_inv, tensors.transposed_scale_inv}) {
    if (!scale_inv.empty()) launcher.fill(scale_inv.data, factor, scale_inv.cols, stream);
  }
  if (!tensors.found_amax.empty()) launcher.fill(tensors.found_amax.data, 0.0F, tensors.found_amax.cols, stream);
  if (!tensors.sum.empty()) {
    const std::int64_t bytes = tensors.sum.cols * size_of(*spec.sum);
    launcher.fill_zero(tensors.sum.data, static_cast<std::size_t>(bytes), stream);
  }
}

CastExpertsParams experts_params(const CastSpec& spec, const CastTensors& tensors) {
  const CastTilesParams all = tiles_params(spec, tensors);
  return {.all = all, .experts = expert_rows_params(tensors.ends, all.source.rows)};
}

void cast_experts(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher) {
  const CastExpertsParams params = experts_params(spec, tensors);
  const SourceParams& source = params.all.source;
  if (source.cols == 0 && !has_expert_scales(spec)) return;  // given ones have scale_inv all the same
  const i64 grid = CastExpertsLaunch::grid(source.rows, source.cols, params.experts.experts);
  launcher.launch(spec, Pass::main, {.grid_x = Launcher::checked_grid(grid), .block = CastTilesLaunch::kThreads},
                  params, stream);
}

void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  if (spec.experts) return cast_experts(spec, tensors, stream, launcher);
  if (tensors.input.empty() && spec.source == ScaleSource::dynamic) {
    return fill_scale_inv(spec, tensors, stream, launcher);
  }
  if (spec.stacked && cast_schedule(spec) == CastSchedule::tiles) return cast_stack(spec, tensors, stream, launcher);
  const CastPlan plan =
      cast_plan(spec, call_of(spec, tensors), cast_device(launcher), CastStreamOf(spec, stream, launcher));
  if (finds_columns(spec) && plan.main == Pass::whole) return cast_rows_columns(spec, tensors, stream, launcher);
  if (finds_columns(spec)) find_columns(spec, tensors, stream, launcher);
  switch (cast_schedule(spec)) {
    case CastSchedule::rows: return launch_rows(spec, plan.main, plan.wide, tensors, nullptr, stream, launcher);
    case CastSchedule::row_groups: return cast_row_groups(spec, tensors, stream, launcher);
    case CastSchedule::rows_then_tiles:
    case CastSchedule::tiles: return cast_tiles(spec, plan, tensors, stream, launcher);
  }
}

}  // namespace ingot::cuda
