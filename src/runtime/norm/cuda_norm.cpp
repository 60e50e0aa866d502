// Norms on a GPU: the launches of norm and norm_backward.
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/stream.h"

#include "cast/column_sum.cuh"
#include "norm/norm_backward.cuh"
#include "norm/norm_backward_wide.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_rows_staged.cuh"
#include "norm/norm_rows_wide.cuh"

namespace ingot::cuda {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

// A missing matrix or vector is aligned.
bool rows_in_vectors(const Tensor& tensor, u32 bytes = 16) {
  return rows_aligned<u8>(tensor.data, tensor.rows <= 1 ? 0 : tensor.row_stride * size_of(tensor.dtype), bytes);
}
bool in_vectors(const NormTensors& tensors) {
  return tensors.input.cols % kVec8 == 0 && rows_in_vectors(tensors.input) && rows_in_vectors(tensors.gamma) &&
         rows_in_vectors(tensors.beta) && rows_in_vectors(tensors.result) && rows_in_vectors(tensors.codes, kVec8);
}

// For how many rows a thread of norm_rows has slots in shared memory.
u32 slot_rows(const NormSpec& spec, const NormTensors& tensors, const Launcher& launcher) {
  if (!in_vectors(tensors)) return 0;
  const i64 cols = tensors.input.cols;
  const u32 bytes = static_cast<u32>(size_of(spec.in));
  if (NormRowsLaunch::has_slots(cols, bytes, spec.out.has_value(), spec.result, spec.kind == NormKind::layer)) return 1;
  // Fewer rows than multiprocessors are faster in clusters.
  const bool enough = !launcher.overlapping() || tensors.input.rows >= launcher.multiprocessors();
  const bool staged = enough && spec.result && bytes == 2 &&
                      NormRowsStagedLaunch::holds(cols, spec.affine, launcher.block_shared_bytes());
  return staged ? NormRowsStagedLaunch::kRows : 0;
}

// Does a cluster share each row? That is faster where norm_rows would read the rows up to four times. Nothing may be
// loaded during a capture, and either kernel gives the same bits.
bool runs_wide(const NormSpec& spec, const NormTensors& tensors, u32 slot_rows, const Stream& stream,
               const Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.cols < NormRowsWideLaunch::kMinCols || input.cols > NormRowsWideLaunch::kMaxCols) return false;
  if (!launcher.overlapping() || input.rows == 0 || input.rows > NormRowsLaunch::kMaxBlocks / kMaxClusterBlocks) {
    return false;
  }
  if (!in_vectors(tensors)) return false;
  // During a capture, only what is loaded already runs: perhaps the kernel that fewer rows took.
  if (slot_rows != 0 && launcher.may_launch(spec, Pass::main, stream)) return false;
  return launcher.may_launch(spec, Pass::wide, stream);
}

bool in_vectors(const NormBackwardTensors& tensors) {
  if (tensors.input.cols % kVec8 != 0) return false;
  for (const Tensor& tensor : {tensors.input, tensors.grad_output, tensors.grad_input, tensors.gamma}) {
    if (!rows_in_vectors(tensor)) return false;
  }
  return true;
}

// How many of the rows a block of norm_backward holds in shared memory, if they do not fit its registers.
u32 slot_rows(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, const Launcher& launcher) {
  if (!in_vectors(tensors)) return 0;
  return NormBackwardLaunch::slot_rows(tensors.input.cols, spec.affine, spec.kind == NormKind::layer,
                                       static_cast<u32>(size_of(spec.in)), launcher.block_shared_bytes());
}

// Does a cluster share the rows of a chunk? Likewise. Blocks that hold whole rows wait for no others. But with gamma
// there are only as many as chunks, and with fewer rows than that, or than multiprocessors, some of the GPU is idle.
bool runs_wide(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, u32 slot_rows, const Stream& stream,
               const Launcher& launcher) {
  const i64 cols = tensors.input.cols;
  if (cols < NormBackwardWideLaunch::kMinCols || cols > NormBackwardWideLaunch::kMaxCols) return false;
  if (!launcher.overlapping() || !in_vectors(tensors)) return false;
  const i64 enough = spec.affine ? NormBackwardLaunch::kMaxChunks : launcher.multiprocessors();
  if (slot_rows != 0 && tensors.input.rows >= enough && launcher.may_launch(spec, Pass::main, stream)) return false;
  return launcher.may_launch(spec, Pass::wide, stream);
}

// The launch of norm_rows. With slots, as many blocks as the GPU runs at once share the rows.
LaunchShape shape_of_rows(const NormRowsParams& params, const Launcher& launcher) {
  const i64 cols = params.cols;
  if (params.slot_rows == NormRowsStagedLaunch::kRows) {
    const i64 at_once =
        i64{launcher.multiprocessors()} * NormRowsStagedLaunch::blocks(cols, launcher.block_shared_bytes());
    return {.grid_x = static_cast<u32>(max_of(i64{1}, min_of(params.rows, at_once))),
            .block = NormRowsStagedLaunch::kThreads,
            .shared_bytes = NormRowsStagedLaunch::shared_bytes(cols)};
  }
  const bool slots = params.slot_rows != 0;
  return {.grid_x = static_cast<u32>(NormRowsLaunch::grid(params.rows, cols, slots, launcher.multiprocessors())),
          .block = NormRowsLaunch::threads(cols),
          .shared_bytes = slots ? NormRowsLaunch::slot_bytes(cols) : 0};
}

// As many clusters as the GPU runs at once share the rows.
void launch_wide(const NormSpec& spec, const NormRowsParams& params, const Stream& stream, Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, Pass::wide, stream);
  const u32 rows = NormRowsWideSlots::rows(spec.affine, spec.kind == NormKind::layer, launcher.target().major);
  const u32 bytes = static_cast<u32>(size_of(spec.in));
  LaunchShape shape{.block = NormRowsWideLaunch::kThreads,
                    .cluster = NormRowsWideLaunch::blocks(params.cols),
                    .shared_bytes = NormRowsWideSlots::launch_bytes(params.cols, rows, bytes)};
  shape.grid_x = static_cast<u32>(min_of(params.rows, i64{kernel.clusters_at_once(shape)})) * shape.cluster;
  launcher.launch(kernel, spec, Pass::wide, shape, params, stream);
}

// A cluster takes each chunk; without sums over rows, as many clusters as the GPU runs at once share the rows.
void launch_wide(const NormBackwardSpec& spec, const NormBackwardParams& params, i64 chunks, const Stream& stream,
                 Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, Pass::wide, stream);
  LaunchShape shape{.block = NormBackwardWideLaunch::threads(params.cols),
                    .cluster = NormBackwardWideLaunch::blocks(params.cols),
                    .shared_bytes = NormBackwardWideLaunch::shared_bytes(spec.kind == NormKind::layer)};
  const i64 clusters = spec.affine ? chunks : min_of(params.rows, i64{kernel.clusters_at_once(shape)});
  shape.grid_x = static_cast<u32>(clusters) * shape.cluster;
  launcher.launch(kernel, spec, Pass::wide, shape, params, stream);
}

}  // namespace

void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  // Without rows there is nothing to write except the factor of a given scale.
  if (input.rows == 0 && spec.source == ScaleSource::dynamic) return;
  const NormRowsParams params{.input = input.data,
                              .rows = input.rows,
                              .cols = input.cols,
                              .input_stride = input.row_stride,
                              .gamma = tensors.gamma.data,
                              .beta = tensors.beta.data,
                              .eps = tensors.eps,
                              .inverse_cols = inverse_cols(input.cols),
                              .mean = floats(tensors.mean),
                              .rstd = floats(tensors.rstd),
                              .result = tensors.result.data,
                              .result_stride = tensors.result.row_stride,
                              .codes = tensors.codes.data,
                              .codes_stride = tensors.codes.row_stride,
                              .factors = floats(tensors.factors),
                              .scale = floats(tensors.scale),
                              .amax = static_cast<u32*>(tensors.amax.data),
                              .threads_log2 = NormRowsLaunch::threads_log2(input.cols),
                              .slot_rows = slot_rows(spec, tensors, launcher),
                              .pow2 = spec.pow2};
  if (runs_wide(spec, tensors, params.slot_rows, stream, launcher)) {
    return launch_wide(spec, params, stream, launcher);
  }
  launcher.launch(spec, Pass::main, shape_of_rows(params, launcher), params, stream);
}

void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream,
                   Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 cols = input.cols;
  if (cols == 0) return;
  if (input.rows == 0) {
    for (const Tensor& sums : {tensors.grad_gamma, tensors.grad_beta}) {
      if (!sums.empty()) launcher.fill_zero(sums.data, static_cast<std::size_t>(cols * size_of(spec.sums)), stream);
    }
    return;
  }
  const i64 chunks = NormBackwardLaunch::chunks(input.rows, cols);
  const i64 sums = !spec.affine ? 0 : spec.kind == NormKind::layer ? 2 * cols : cols;
  auto* const partials =
      sums == 0 ? nullptr
                : static_cast<float*>(stream.scratch(static_cast<std::size_t>(chunks * sums) * sizeof(float)));
  const NormBackwardParams params{.grad_output = tensors.grad_output.data,
                                  .input = input.data,
                                  .gamma = tensors.gamma.data,
                                  .mean = floats(tensors.mean),
                                  .rstd = floats(tensors.rstd),
                                  .grad_input = tensors.grad_input.data,
                                  .partials = partials,
                                  .rows = input.rows,
                                  .cols = cols,
                                  .grad_output_stride = tensors.grad_output.row_stride,
                                  .input_stride = input.row_stride,
                                  .grad_input_stride = tensors.grad_input.row_stride,
                                  .inverse_cols = inverse_cols(cols),
                                  .slot_rows = slot_rows(spec, tensors, launcher)};
  if (runs_wide(spec, tensors, params.slot_rows, stream, launcher)) {
    launch_wide(spec, params, chunks, stream, launcher);
  } else {
    const u32 shared_bytes = NormBackwardLaunch::shared_bytes(cols, spec.affine, spec.kind == NormKind::layer,
                                                              static_cast<u32>(size_of(spec.in)), params.slot_rows);
    launcher.launch(spec, Pass::main,
                    {.grid_x = static_cast<u32>(NormBackwardLaunch::grid(input.rows, cols, spec.affine)),
                     .block = NormBackwardLaunch::threads(cols, spec.affine),
                     .shared_bytes = shared_bytes},
                    params, stream);
  }
  if (!spec.affine) return;
  const ColumnSumFinishParams finish{.partials = partials,
                                     .chunks = chunks,
                                     .cols = sums,
                                     .sum = tensors.grad_gamma.data,
                                     .sum_cols = cols,
                                     .other_sum = tensors.grad_beta.data};
  launcher.launch(spec, Pass::finish, ColumnSumFinishLaunch::grid(sums), ColumnSumFinishLaunch::kThreads, finish,
                  stream);
}

}  // namespace ingot::cuda
