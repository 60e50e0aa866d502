#include "ingot/runtime/cpu/visit.h"
#include "ingot/runtime/cuda/operations.h"

#include "cast.cuh"

namespace ingot::cuda {
namespace {

// The factor of an extent without elements, whose amax is 0.
float factor_of_nothing(const CastSpec& spec) {
  return visit_fp8(spec.out, [&]<class Out>(Type<Out>) {
    return factor_from_scale(spec.pow2 ? scale_from_amax<Out, true>(0.0F) : scale_from_amax<Out, false>(0.0F));
  });
}

// Enqueues the pass that leaves the maxima in the stream's scratch; fills params.amax and amax_count.
void launch_first_pass(const CastSpec& spec, const Tensor& input, CastTilesParams& params, Stream& stream,
                       Launcher& launcher) {
  const i64 bytes = size_of(spec.in);
  AmaxParams first{input.data, input.rows, input.cols, input.row_stride, nullptr};
  i64 grid = RowsLaunch::grid(input.rows, input.cols, bytes);
  u32 threads = RowsLaunch::threads(input.cols, bytes);
  params.amax_count = input.rows;
  if (spec.scale == kTensorwise) {
    first = flattened(first);
    grid = AmaxPartialsLaunch::grid(first.rows, first.cols, bytes);
    threads = AmaxPartialsLaunch::kThreads;
    params.amax_count = grid;
  }
  first.amax = static_cast<float*>(stream.scratch(static_cast<std::size_t>(params.amax_count) * sizeof(float)));
  params.amax = first.amax;
  launcher.launch(spec, Pass::first, grid, threads, first, stream);
}

}  // namespace

void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  auto* const factors = static_cast<float*>(tensors.factors.data);
  const i64 count = scale_count(spec.scale, input.rows, input.cols);
  if (count == 0) return;
  if (input.empty()) return launcher.fill(factors, factor_of_nothing(spec), count, stream);

  if (!has_first_pass(spec)) {
    const i64 bytes = size_of(spec.in);
    const CastRowsParams params{.input = input.data,
                                .codes = tensors.codes.data,
                                .factors = factors,
                                .rows = input.rows,
                                .cols = input.cols,
                                .input_stride = input.row_stride,
                                .codes_stride = tensors.codes.row_stride};
    launcher.launch(spec, Pass::main, CastRowsLaunch::grid(input.rows, input.cols, bytes),
                    CastRowsLaunch::threads(input.cols, bytes), params, stream);
    return;
  }
  CastTilesParams params{.input = input.data,
                         .amax = nullptr,
                         .amax_count = 0,
                         .codes = tensors.codes.data,
                         .transposed = tensors.transposed.data,
                         .factors = factors,
                         .rows = input.rows,
                         .cols = input.cols,
                         .input_stride = input.row_stride,
                         .codes_stride = tensors.codes.row_stride,
                         .transposed_stride = tensors.transposed.row_stride};
  launch_first_pass(spec, input, params, stream, launcher);
  launcher.launch(spec, Pass::main, CastTilesLaunch::grid(input.rows, input.cols), CastTilesLaunch::kThreads, params,
                  stream);
}

}  // namespace ingot::cuda
