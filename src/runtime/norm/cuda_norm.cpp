// Norms on a GPU: the launches of norm and norm_backward.
#include "ingot/codegen/norm/norm_columns.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/norm/norm_operations.h"
#include "ingot/runtime/util/error.h"

#include "cast/column_sum.cuh"
#include "norm/norm_backward_launch.cuh"
#include "norm/norm_backward_wide.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_rows_full.cuh"
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

// The dynamic shared memory of a block of norm_rows_wide.
u32 wide_bytes(const NormSpec& spec, i64 cols, const Launcher& launcher) {
  const u32 rows = NormRowsWideSlots::rows(spec.affine, spec.kind == NormKind::layer, launcher.target().major);
  return NormRowsWideSlots::bytes(NormRowsWideLaunch::vec8s(cols), rows);
}

// Can a kernel that is compiled for numbers of columns take the rows? There may be two blocks for each.
bool can_run_named(const NormTensors& tensors, const Launcher& launcher) {
  return launcher.overlapping() && tensors.input.rows <= NormRowsLaunch::kMaxBlocks / NormRowsWideLaunch::kBlocks &&
         in_vectors(tensors);
}

[[noreturn]] void refuse_cols(const NormSpec& spec) {
  throw Error(ErrorCode::invalid_argument, print_spec(spec),
              "cols names a kernel for GPUs of compute capability 9.0 and newer, and for fewer than 2^30 rows that can "
              "be read and written 8 elements at a time: leave it out");
}

// For how many rows a thread of norm_rows has slots in shared memory.
u32 slot_rows(const NormSpec& spec, i64 cols, bool vectors) {
  const bool slots = NormRowsLaunch::has_slots(cols, static_cast<u32>(size_of(spec.in)), spec.out.has_value(),
                                               spec.result, spec.kind == NormKind::layer);
  return vectors && slots ? 1 : 0;
}

// The spec of the kernel that runs. It is one for a number of columns if the spec names it (`cols`): the caller's, or
// this function's. Nothing may be loaded during a capture, and all kernels give the same bits.
NormSpec kernel_spec(const NormSpec& spec, const NormTensors& tensors, const Stream& stream, const Launcher& launcher) {
  if (tensors.input.rows == 0) {  // norm_rows writes the factor
    NormSpec plain = spec;
    plain.cols = 0;
    return plain;
  }
  const NormSpec named = named_norm(spec, tensors.input.cols);
  if (named.cols == spec.cols || !can_run_named(tensors, launcher)) return spec;
  // If neither is loaded, the error names this one.
  const bool other = !launcher.may_launch(named, Pass::main, stream) && launcher.may_launch(spec, Pass::main, stream);
  return other ? spec : named;
}

bool in_vectors(const NormBackwardTensors& tensors) {
  if (tensors.input.cols % kVec8 != 0) return false;
  for (const Tensor& tensor : {tensors.input, tensors.grad_output, tensors.grad_input, tensors.gamma}) {
    if (!rows_in_vectors(tensor)) return false;
  }
  return true;
}

// How many of the rows a block of norm_backward holds in shared memory, if they do not fit its registers.
u32 slot_rows(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, bool vectors,
              const Launcher& launcher) {
  if (!vectors) return 0;
  return NormBackwardLaunch::slot_rows(tensors.input.cols, spec.affine, spec.kind == NormKind::layer,
                                       static_cast<u32>(size_of(spec.in)), launcher.block_shared_bytes());
}

// Does a cluster share the rows of a chunk? Blocks that hold whole rows wait for no others. But with gamma
// there are only as many as chunks, and with fewer rows than that, or than multiprocessors, some of the GPU is idle.
bool runs_wide(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, u32 slot_rows, const Stream& stream,
               const Launcher& launcher) {
  const i64 cols = tensors.input.cols;
  if (cols < NormBackwardWideLaunch::kMinCols || cols > NormBackwardWideLaunch::kMaxCols) return false;
  if (!launcher.overlapping() || !in_vectors(tensors)) return false;
  if (!launcher.has_room(NormBackwardWideLaunch::kBlocks, stream)) return false;
  const bool enough = tensors.input.rows >= (spec.affine ? NormBackwardLaunch::kMaxChunks : launcher.multiprocessors());
  if (slot_rows != 0 && enough && launcher.may_launch(spec, Pass::main, stream)) return false;
  return launcher.may_launch(spec, Pass::wide, stream);
}

// The launch of norm_rows. With slots, as many blocks as the GPU runs at once share the rows.
LaunchShape shape_of_rows(const NormRowsParams& params, const Launcher& launcher) {
  const i64 cols = params.cols;
  const bool slots = params.slot_rows != 0;
  return {.grid_x = static_cast<u32>(NormRowsLaunch::grid(params.rows, cols, slots, launcher.multiprocessors())),
          .block = NormRowsLaunch::threads(cols),
          .shared_bytes = slots ? NormRowsLaunch::slot_bytes(cols) : 0};
}

// As many blocks as the GPU runs at once share the rows.
void launch_full(const NormSpec& spec, const NormRowsParams& params, const Stream& stream, Launcher& launcher) {
  const i64 grid = NormRowsFullLaunch::grid(params.rows, params.cols, launcher.multiprocessors());
  launcher.launch(spec, Pass::main,
                  {.grid_x = static_cast<u32>(grid),
                   .block = NormRowsLaunch::threads(params.cols),
                   .shared_bytes = NormRowsLaunch::slot_bytes(params.cols)},
                  params, stream);
}

// As many pairs as the GPU runs at once share the rows.
void launch_wide(const NormSpec& spec, const NormRowsParams& params, const Stream& stream, Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, Pass::main, stream);
  LaunchShape shape{.block = NormRowsWideLaunch::kThreads,
                    .cluster = NormRowsWideLaunch::kBlocks,
                    .shared_bytes = wide_bytes(spec, params.cols, launcher)};
  shape.grid_x = static_cast<u32>(min_of(params.rows, i64{kernel.clusters_at_once(shape)})) * shape.cluster;
  launcher.launch(kernel, spec, Pass::main, shape, params, stream);
}

// A cluster takes each chunk; without sums over rows, as many clusters as the GPU runs at once share the rows.
void launch_wide(const NormBackwardSpec& spec, const NormBackwardParams& params, i64 chunks, const Stream& stream,
                 Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, Pass::wide, stream);
  LaunchShape shape{.block = NormBackwardWideLaunch::threads(params.cols),
                    .cluster = NormBackwardWideLaunch::kBlocks,
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
  if (spec.cols != 0 && !can_run_named(tensors, launcher)) refuse_cols(spec);
  const bool vectors = in_vectors(tensors);
  const u32 slots = slot_rows(spec, input.cols, vectors);
  const u32 bytes = static_cast<u32>(size_of(spec.in));
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
                              .factors = floats(tensors.scale_inv),
                              .scale = floats(tensors.scale),
                              .amax = static_cast<u32*>(tensors.amax.data),
                              .threads_log2 = NormRowsLaunch::threads_log2(input.cols),
                              .slot_rows = slots,
                              .pow2 = spec.pow2,
                              .one_turn = NormRowsLaunch::one_turn(input.cols, bytes, vectors, slots)};
  const NormSpec kernel = kernel_spec(spec, tensors, stream, launcher);
  if (kernel.cols != 0) {
    if (names_norm_rows_full(kernel.cols)) return launch_full(kernel, params, stream, launcher);
    return launch_wide(kernel, params, stream, launcher);
  }
  launcher.launch(kernel, Pass::main, shape_of_rows(params, launcher), params, stream);
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
  const u32 bytes = static_cast<u32>(size_of(spec.in));
  const bool vectors = in_vectors(tensors);
  const NormBackwardDivision division = NormBackwardLaunch::division(input.rows, cols, spec.affine);
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
                                  .division = division,
                                  .one_row = NormBackwardLaunch::one_row(division, cols, spec.affine, bytes, vectors),
                                  .slot_rows = slot_rows(spec, tensors, vectors, launcher)};
  if (runs_wide(spec, tensors, params.slot_rows, stream, launcher)) {
    launch_wide(spec, params, chunks, stream, launcher);
  } else {
    const u32 shared_bytes =
        NormBackwardLaunch::shared_bytes(cols, spec.affine, spec.kind == NormKind::layer, bytes, params.slot_rows);
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
