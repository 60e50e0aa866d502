#include "ingot/runtime/cast/cuda_cast_stack.h"

#include <cstddef>

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/runtime/cast/cast_stack.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

namespace ingot::cuda {
namespace {

// The maxima of each matrix: of the first scales, and of the transposed codes if they have their own.
struct MaximaCounts {
  i64 first = 0;
  i64 transposed = 0;

  static MaximaCounts of(const CastSpec& spec, const CastTensors& tensors) {
    const auto count = [&](ScaleGranularity scale) {
      return from_first_pass(scale) ? scale_count(scale, stacked_rows(tensors), tensors.input.cols) : 0;
    };
    return {.first = count(spec.scale), .transposed = spec.transposed_scale ? count(*spec.transposed_scale) : 0};
  }
};

// From the parameters of the first two matrices.
CastStackParams params_of(const CastTilesParams& first, const CastTilesParams& second, u32 tiles) {
  CastStackParams made{.first = first, .steps = {}, .tiles = tiles};
  const auto moves = [&](auto* const& from, auto* const& to) {
    const auto offset = reinterpret_cast<const std::byte*>(&from) - reinterpret_cast<const std::byte*>(&first);
    made.steps[static_cast<std::size_t>(offset) / sizeof(u64)] =
        reinterpret_cast<const std::byte*>(to) - reinterpret_cast<const std::byte*>(from);
  };
  const auto output_moves = [&](const CastOutput& from, const CastOutput& to) {
    moves(from.codes, to.codes);
    moves(from.from, to.from);
    moves(from.factors, to.factors);
    moves(from.amax, to.amax);
  };
  moves(first.source.input, second.source.input);
  output_moves(first.codes, second.codes);
  output_moves(first.transposed, second.transposed);
  return made;
}

}  // namespace

std::int64_t stacked_maxima(const CastSpec& spec, const CastTensors& tensors) {
  const MaximaCounts counts = MaximaCounts::of(spec, tensors);
  return tensors.matrices * (counts.first + counts.transposed);
}

// The first scales' maxima of all matrices come before those of the transposed codes.
CastStackParams stack_params(const CastSpec& spec, const CastTensors& tensors, float* maxima) {
  const MaximaCounts counts = MaximaCounts::of(spec, tensors);
  const auto give = [](CastOutput& output, float* values) {
    output.from = values;
    output.from_count = 1;
    output.amax = reinterpret_cast<u32*>(values);
  };
  const auto matrix_params = [&](i64 index) {
    const CastTensors matrix = stacked_matrix(spec, tensors, index);
    CastTilesParams params = tiles_params(spec, matrix);
    if (finds_columns(spec)) params.transposed.amax = static_cast<u32*>(matrix.found_amax.data);
    if (maxima == nullptr) return params;
    if (counts.first != 0) give(spec.codes ? params.codes : params.transposed, maxima + index * counts.first);
    if (counts.transposed != 0) {
      give(params.transposed, maxima + tensors.matrices * counts.first + index * counts.transposed);
    }
    return params;
  };
  const i64 tiles = CastTilesLaunch::grid(stacked_rows(tensors), tensors.input.cols);
  // If there is one matrix, the second is where the next would be.
  return params_of(matrix_params(0), matrix_params(1), static_cast<u32>(tiles));
}

CastRowsColumnsParams rows_columns_params(const CastSpec& spec, const CastTensors& tensors, std::int64_t resident) {
  return {.source = source_of(tensors),
          .codes = tensors.codes.data,
          .factors = static_cast<float*>(tensors.scale_inv.data),
          .column_maxima = static_cast<u32*>(tensors.found_amax.data),
          .codes_stride = tensors.codes.row_stride,
          .matrix_rows = stacked_rows(tensors),
          .rows_per_block = CastRowsColumnsLaunch::rows_per_block(tensors.input.rows, resident),
          .pow2 = spec.pow2};
}

namespace {

LaunchShape tiles_shape(const CastTensors& tensors) {
  const i64 tiles = CastTilesLaunch::grid(stacked_rows(tensors), tensors.input.cols);
  return {.grid_x = Launcher::checked_grid(tensors.matrices * tiles), .block = CastTilesLaunch::kThreads};
}

void clear(const Tensor& maxima, const Stream& stream, Launcher& launcher) {
  launcher.fill_zero(maxima.data, static_cast<std::size_t>(maxima.cols) * sizeof(float), stream);
}

}  // namespace

void find_columns(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher) {
  const LaunchShape shape = tiles_shape(tensors);
  const Kernel& kernel = launcher.kernel(spec, Pass::first, stream);
  clear(tensors.found_amax, stream, launcher);
  launcher.launch(kernel, spec, Pass::first, shape, stack_params(spec, tensors, nullptr), stream);
}

void cast_rows_columns(const CastSpec& spec, const CastTensors& tensors, const Stream& stream, Launcher& launcher) {
  using Launch = CastRowsColumnsLaunch;
  const u64 bytes = value_bytes(spec);
  const u32 threads = Launch::threads(tensors.input.cols, bytes);
  const u32 shared_bytes = Launch::shared_bytes(threads, static_cast<u64>(size_of(spec.in)), bytes);
  const Kernel& kernel = launcher.kernel(spec, Pass::whole, stream);
  const i64 resident = blocks_at_once(kernel, threads, launcher, shared_bytes);
  const CastRowsColumnsParams params = rows_columns_params(spec, tensors, resident);
  clear(tensors.found_amax, stream, launcher);
  launcher.launch(kernel, spec, Pass::whole,
                  {.grid_x = Launcher::checked_grid(Launch::grid(tensors.input.rows, params.rows_per_block)),
                   .block = threads,
                   .shared_bytes = shared_bytes},
                  params, stream);
}

void cast_stack(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  if (tensors.matrices == 0) return;
  const LaunchShape shape = tiles_shape(tensors);
  const CastPlan plan = cast_plan(spec, call_of(spec, stacked_matrix(spec, tensors, 0)), cast_device(launcher),
                                  CastStreamOf(spec, stream, launcher));
  if (plan.main == Pass::whole) return cast_rows_columns(spec, tensors, stream, launcher);
  const Kernel& main = launcher.kernel(spec, plan.main, stream);  // before anything is enqueued
  float* maxima = nullptr;
  if (spec.found_amax == kTensorwise) {
    maxima = static_cast<float*>(tensors.found_amax.data);
  } else if (plan.first) {
    const auto bytes = static_cast<std::size_t>(stacked_maxima(spec, tensors)) * sizeof(float);
    maxima = static_cast<float*>(stream.scratch(bytes));
    launcher.fill_zero(maxima, bytes, stream);
  }
  if (spec.found_amax) clear(tensors.found_amax, stream, launcher);
  const CastStackParams params = stack_params(spec, tensors, maxima);
  if (plan.first) launcher.launch(spec, *plan.first, shape, params, stream);
  LaunchShape of_main = shape;
  of_main.waits_for_end = plan.waits_for_end;
  launcher.launch(main, spec, plan.main, of_main, params, stream);
}

}  // namespace ingot::cuda
