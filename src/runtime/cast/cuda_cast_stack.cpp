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
    CastTilesParams params = tiles_params(spec, stacked_matrix(spec, tensors, index));
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

void cast_stack(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  if (tensors.matrices == 0) return;
  const i64 tiles = CastTilesLaunch::grid(stacked_rows(tensors), tensors.input.cols);
  const LaunchShape shape{.grid_x = Launcher::checked_grid(tensors.matrices * tiles),
                          .block = CastTilesLaunch::kThreads};
  const CastPlan plan = cast_plan(spec, call_of(spec, stacked_matrix(spec, tensors, 0)), cast_device(launcher),
                                  CastStreamOf(spec, stream, launcher));
  const Kernel& main = launcher.kernel(spec, plan.main, stream);  // before anything is enqueued
  float* maxima = nullptr;
  if (plan.first) {
    const auto bytes = static_cast<std::size_t>(stacked_maxima(spec, tensors)) * sizeof(float);
    maxima = static_cast<float*>(stream.scratch(bytes));
    launcher.fill_zero(maxima, bytes, stream);
  }
  const CastStackParams params = stack_params(spec, tensors, maxima);
  if (plan.first) launcher.launch(spec, *plan.first, shape, params, stream);
  launcher.launch(main, spec, plan.main, shape, params, stream);
}

}  // namespace ingot::cuda
