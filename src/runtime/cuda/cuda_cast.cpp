#include "ingot/codegen/generate.h"
#include "ingot/runtime/cpu/visit.h"
#include "ingot/runtime/cuda/operations.h"

#include "cast_rows.cuh"
#include "cast_tiles.cuh"

namespace ingot::cuda {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

SourceParams source_of(const Tensor& input) {
  return {
      .input = input.data, .rows = input.rows, .cols = input.cols, .input_stride = input.row_stride, .operands = {}};
}

// The factor of an extent without elements, whose amax is 0.
float factor_of_nothing(const CastSpec& spec) {
  return visit_fp8(spec.out,
                   [&]<class Out>(Type<Out>) { return factor_from_scale(scale_from_amax<Out>(0.0F, spec.pow2)); });
}

void cast_rows(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const CastRowsParams params{.source = source_of(tensors.input),
                              .codes = tensors.codes.data,
                              .factors = floats(tensors.factors),
                              .result = nullptr,
                              .codes_stride = tensors.codes.row_stride,
                              .result_stride = 0,
                              .pow2 = spec.pow2};
  launcher.launch(spec, Pass::main, CastRowsLaunch::grid(tensors.input.rows, tensors.input.cols),
                  CastRowsLaunch::threads(tensors.input.cols), params, stream);
}

// Where the first pass leaves the maxima.
struct Maxima {
  float* tensor = nullptr;  // partial ones
  i64 tensor_count = 0;
  float* rows = nullptr;
  float* columns = nullptr;

  void give(ScaleGranularity scale, CastOutput& output) const {
    output.from = scale == kTensorwise ? tensor : scale == kRowwise ? rows : columns;
    output.from_count = tensor_count;
  }
};

Maxima launch_first_pass(const CastSpec& spec, const Tensor& input, Stream& stream, Launcher& launcher) {
  const FirstPass wanted = first_pass(spec);
  const auto scratch = [&](i64 count) {
    return static_cast<float*>(stream.scratch(static_cast<std::size_t>(count) * sizeof(float)));
  };
  Maxima maxima;
  if (wanted.kind() == FirstPass::Kind::partials) {
    AmaxPartialsParams params =
        flattened(AmaxPartialsParams{input.data, input.rows, input.cols, input.row_stride, nullptr});
    maxima.tensor_count = AmaxPartialsLaunch::grid(params.rows, params.cols, size_of(spec.in));
    maxima.tensor = params.amax = scratch(maxima.tensor_count);
    launcher.launch(spec, Pass::first, maxima.tensor_count, AmaxPartialsLaunch::kThreads, params, stream);
  } else if (wanted.kind() == FirstPass::Kind::rows) {
    maxima.rows = scratch(input.rows);
    launcher.launch(spec, Pass::first, RowsLaunch::grid(input.rows, input.cols), RowsLaunch::threads(input.cols),
                    AmaxRowsParams{source_of(input), maxima.rows}, stream);
  } else if (wanted.kind() == FirstPass::Kind::tiles) {
    const i64 rows = wanted.rows ? input.rows : 0;
    const i64 columns = wanted.columns ? input.cols : 0;
    float* const memory = scratch(1 + rows + columns);
    launcher.fill_zero(memory, static_cast<std::size_t>(1 + rows + columns) * sizeof(float), stream);
    maxima = {.tensor = memory, .tensor_count = 1, .rows = memory + 1, .columns = memory + 1 + rows};
    const auto bits = [](float* values) { return reinterpret_cast<u32*>(values); };
    launcher.launch(spec, Pass::first, AmaxTilesLaunch::grid(input.rows, input.cols), AmaxTilesLaunch::kThreads,
                    AmaxTilesParams{source_of(input), bits(maxima.tensor), bits(maxima.rows), bits(maxima.columns)},
                    stream);
  }
  return maxima;
}

void cast_tiles(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const auto bits = [](const Tensor& amax) { return static_cast<u32*>(amax.data); };
  const bool two_scales = spec.transposed_scale.has_value();
  CastTilesParams params{.source = source_of(tensors.input),
                         .codes = {.codes = tensors.codes.data,
                                   .stride = tensors.codes.row_stride,
                                   .from = floats(tensors.scales),
                                   .from_count = 1,
                                   .factors = floats(tensors.factors),
                                   .amax = bits(tensors.amax)},
                         .transposed = {.codes = tensors.transposed.data,
                                        .stride = tensors.transposed.row_stride,
                                        .from = floats(two_scales ? tensors.transposed_scales : tensors.scales),
                                        .from_count = 1,
                                        .factors = floats(two_scales ? tensors.transposed_factors : tensors.factors),
                                        .amax = bits(two_scales ? tensors.transposed_amax : tensors.amax)},
                         .result = nullptr,
                         .result_stride = 0,
                         .partial_sums = nullptr,
                         .pow2 = spec.pow2};
  if (has_first_pass(spec)) {
    const Maxima maxima = launch_first_pass(spec, tensors.input, stream, launcher);
    maxima.give(spec.scale, params.codes);
    maxima.give(spec.transposed_scale.value_or(spec.scale), params.transposed);
  }
  launcher.launch(spec, Pass::main, CastTilesLaunch::grid(tensors.input.rows, tensors.input.cols),
                  CastTilesLaunch::kThreads, params, stream);
}

// Extents without elements have scales too: those of an amax of 0.
void fill_factors(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const float factor = factor_of_nothing(spec);
  for (const Tensor& factors : {tensors.factors, tensors.transposed_factors}) {
    if (!factors.empty()) launcher.fill(factors.data, factor, factors.cols, stream);
  }
}

}  // namespace

void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  if (tensors.input.empty() && spec.source == ScaleSource::dynamic) {
    return fill_factors(spec, tensors, stream, launcher);
  }
  if (cast_schedule(spec) == CastSchedule::rows) return cast_rows(spec, tensors, stream, launcher);
  cast_tiles(spec, tensors, stream, launcher);
}

}  // namespace ingot::cuda
