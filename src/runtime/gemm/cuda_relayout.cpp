// relayout on a GPU, and with it the staging of operands that gemm_sm90 cannot read as they are stored.
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_shape.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "gemm/relayout.cuh"

namespace ingot::cuda {
namespace {

constexpr i64 kRowBytes = 64;  // staged rows start at multiples of this: TMA requires 16, and is slower below 64

Tensor staged_codes(void* data, const Tensor& codes, i64 rows, i64 k) {
  Tensor staged = matrix(data, codes.dtype, rows, k, codes.device);
  staged.row_stride = ceil_div(k, kRowBytes) * kRowBytes;
  return staged;
}

std::size_t bytes_of(i64 rows, i64 k) { return static_cast<std::size_t>(rows * ceil_div(k, kRowBytes) * kRowBytes); }

}  // namespace

void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, const Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.rows == 0 || input.cols == 0) return;
  const RelayoutParams params{.in = static_cast<const u8*>(input.data),
                              .rows = input.rows,
                              .cols = input.cols,
                              .in_stride = input.row_stride,
                              .out = static_cast<u8*>(tensors.output.data),
                              .out_stride = tensors.output.row_stride};
  launcher.launch(spec, Pass::main, CastTilesLaunch::grid(input.rows, input.cols), CastTilesLaunch::kThreads, params,
                  stream);
}

std::size_t staged_bytes(const GemmSpec& spec, const MatmulSize& size) {
  return (spec.staged_a ? bytes_of(size.m, size.k) : 0) + (spec.staged_b ? bytes_of(size.n, size.k) : 0);
}

GemmTensors stage(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* memory,
                  const Stream& stream, Launcher& launcher) {
  GemmTensors staged = tensors;
  const auto bring = [&](Tensor& codes, Layout layout, i64 rows, std::size_t offset) {
    const Tensor target = staged_codes(static_cast<std::byte*>(memory) + offset, codes, rows, size.k);
    relayout({.transposed = layout == Layout::mn_major}, {.input = codes, .output = target}, stream, launcher);
    codes = target;
  };
  if (spec.staged_a) bring(staged.a, spec.layout_a, size.m, 0);
  if (spec.staged_b) bring(staged.b, spec.layout_b, size.n, spec.staged_a ? bytes_of(size.m, size.k) : 0);
  return staged;
}

}  // namespace ingot::cuda
