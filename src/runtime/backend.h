// The operations of the library, once for each kind of device. Both implementations give the same bits for everything
// but a GEMM, whose order of summation is the hardware's.
//
// Every call checks its arguments, in the same way in both, enqueues on the stream and returns; the CPU one has
// finished when it returns. Inputs must stay alive until the stream has passed the call. Outputs may not overlap
// inputs, but for those that are said to. Errors: Error{invalid_spec, invalid_argument} before anything is enqueued;
// Error{cuda_failed, compile_failed, not_found, out_of_memory} from below.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/tensor.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class LaunchHook;  // runtime/jit/launch_hook.h
class Stream;

// input[rows, cols] of spec.in; amax: f32[scale_count].
struct AmaxTensors {
  Tensor input;
  Tensor amax;
};

// input[rows, cols] of spec.in; codes[rows, cols] and transposed[cols, rows] of spec.out, where the spec asks for them
// (a default Tensor otherwise); factors: f32[scale_count], of the codes, or of both. Codes may have any row stride.
// With a transposed_scale: transposed_factors, f32, those of the transposed codes. With given scales: scales (f32,
// read) and amax (f32, raised to the largest |x| of each extent where it is smaller: clear it before the first cast),
// both as many as the factors; and likewise transposed_scales and transposed_amax. With a pointwise expression:
// inputs[i] is that of spec.pointwise.inputs()[i]: a matrix of spec.in of the input's shape, a vector of spec.in [1,
// cols], for [col:f32] one of f32, or, for [row], a vector of f32 [1, rows]; where the expression does not use x,
// `input` gives the shape alone and its data may be null. result[rows, cols] of spec.in and sum[1, cols] of *spec.sum,
// where the spec asks for them.
struct CastTensors {
  Tensor input;
  Tensor codes{};
  Tensor transposed{};
  Tensor factors;
  Tensor transposed_factors{};
  Tensor scales{};
  Tensor amax{};
  Tensor transposed_scales{};
  Tensor transposed_amax{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor result{};
  Tensor sum{};
};

// Casts of any number of matrices that run together, again and again: all weights of a model after each optimizer step.
// What Backend::cast() does for each, in one launch, or in a fill and two launches where dynamic scales are of whole
// tensors, rows or columns. Made once, by
// Backend::make_cast_list(); the tensors stay where they are as long as it is used, and the backend outlives it.
class CastList {
 public:
  virtual ~CastList() = default;
  CastList(const CastList&) = delete;
  CastList& operator=(const CastList&) = delete;

  // Enqueues all of them. One list may not run on two streams at once. Errors as of Backend::cast().
  virtual void run(Stream& stream) = 0;

 protected:
  CastList() = default;
};

// a, b as GemmSpec's layouts say; factor_a, factor_b: f32 vectors of scale_count elements where the operand is FP8, of
// groups row by row, as casts of the operand write them. Factors of groups may also be a matrix, of any row stride,
// with a row for each group of K: f32[ceil(K / 128), rows of the operand], or with 128x128 blocks [ceil(K / 128),
// ceil(rows / 128)]. That is how a cast of the operand's transpose writes them (128x1 groups, 128x128 blocks), so that
// its transposed codes and their factors, as such a matrix, are an operand as they are.
// bias: [N] where the spec has one; out[M, N]. Of an epilogue (GemmEpilogue): c[M, N], which may be `out` itself, with
// the same row stride, and may not overlap it otherwise, and beta: where that is 0, c is not read, so that it may hold
// anything, NaN too; inputs[i], which is that of pointwise.inputs()[i]: a matrix [M, N] or a vector [1, N] of
// epilogue_dtype(), or, for [row], f32[1, M]; preactivation[M, N]; amax (f32[1], raised to the largest value: clear it
// before the first call). Of an FP8 output: scale (f32[1], read) and factor (f32[1], written: 1 / scale).
struct GemmTensors {
  Tensor a;
  Tensor b;
  Tensor factor_a{};
  Tensor factor_b{};
  Tensor bias{};
  Tensor out;
  Tensor c{};
  float beta = 1.0F;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor preactivation{};
  Tensor amax{};
  Tensor scale{};
  Tensor factor{};
};

// input[rows, cols] of spec.in; sum[cols] of spec.out.
struct ColumnSumTensors {
  Tensor input;
  Tensor sum;
};

// input[rows, cols], gamma[cols] (affine), beta[cols] (affine LayerNorm) and result[rows, cols] of spec.in;
// codes[rows, cols] of spec.out; mean[rows] (LayerNorm) and rstd[rows], f32; each where the spec has it. factors, f32:
// one to a row, or a single one where the scale is given; then also scale (f32[1], read) and amax (f32[1], raised to
// the largest |value|: clear it before the first call). eps >= 0.
struct NormTensors {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor codes{};
  Tensor factors{};
  Tensor scale{};
  Tensor amax{};
  Tensor result{};
  Tensor mean{};
  Tensor rstd{};
  float eps = 1e-5F;
};

// grad_output, input and grad_input [rows, cols] and gamma[cols] (affine) of spec.in; mean[rows] (LayerNorm) and
// rstd[rows], f32, as the forward pass wrote them; grad_gamma[cols] (affine) and grad_beta[cols] (affine LayerNorm) of
// spec.sums.
struct NormBackwardTensors {
  Tensor grad_output;
  Tensor input;
  Tensor gamma{};
  Tensor mean{};
  Tensor rstd;
  Tensor grad_input;
  Tensor grad_gamma{};
  Tensor grad_beta{};
};

// Codes of any FP8 dtype: input[rows, cols] to output[rows, cols], or [cols, rows] where spec.transposed. For operands
// that lie otherwise than a tensor-core GEMM reads them; gemm() does it itself where that is faster.
struct RelayoutTensors {
  Tensor input;
  Tensor output;
};

// Slots of delayed scaling, all f32: history[n, length], with any row stride and length >= 1 (or n = 0); amax, scale,
// limits and pow2 are vectors of n. amax, history and scale are read and written; limits (FP8_MAX of each slot's dtype:
// fp8_max()) and pow2 (not 0 where the scale is rounded down to a power of two) are read. Views of some of the slots
// do.
struct AmaxHistoryTensors {
  Tensor amax;
  Tensor history;
  Tensor scale;
  Tensor limits;
  Tensor pow2;
};

// input[rows, cols] and output[rows, cols] of spec.in; inputs as of a cast's expression (CastTensors), input too: where
// the expression does not use x, it gives the shape alone. The output may be `input` or a matrix of the expression
// itself, with the same address and row stride, and may not overlap any of them otherwise.
struct ElementwiseTensors {
  Tensor input;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor output;
};

// input[rows, cols] of spec.in; codes[rows, cols], or [cols, rows] where spec.transposed, of *spec.out, and factors,
// f32[scale_count(spec.scale, rows, cols)], where the spec has an `out`: what a cast of the input wrote. stats:
// f32[kCastStatsWords] at a multiple of 8 bytes, which holds the bytes of a CastStats (cast_stats.h).
struct CastStatsTensors {
  Tensor input;
  Tensor codes{};
  Tensor factors{};
  Tensor stats;
};

// input[rows, cols] of spec.in; codes[rows, cols] of spec.out, packed rows where that is of less than a byte; scales:
// e8m0fnu[rows, ceil(cols / 32)], contiguous rows of any stride.
struct MxQuantizeTensors {
  Tensor input;
  Tensor codes;
  Tensor scales;
};

// input[rows, cols] and output[rows, cols] of spec.in; the output may be the input itself, with the same row stride.
struct FloatQuantizeTensors {
  Tensor input;
  Tensor output;
};

// codes[N, K] of spec.weight, row-major, any row stride (of less than a byte: a multiple of packed_unit()); packed: a
// vector of u8, of packed_weight_bytes(spec.weight, N, K), at a multiple of 16 bytes. Which
// of them is written, the spec says.
struct PackWeightTensors {
  Tensor codes;
  Tensor packed;
};

// x[M, K] of spec.x; weight: codes[N, K] of spec.weight, or, packed, the vector that pack_weight() has written (u8);
// factors of spec.factors, a vector of scale_count(spec.scale, N, K); bias[N] of spec.x, where the spec has one;
// inputs[i] of the epilogue: [M, N] or [1, N] of spec.x, or, for [row], f32[1, M]; out[M, N] of spec.out.
//
// constant_weight: whatever wrote the weight and the factors had ended before this call was made (synchronize()), and
// nothing writes them before it has ended. A GPU may then read them while the kernel ahead in the stream ends.
// WeightOnlyLinear's calls have it.
struct DequantMatmulTensors {
  Tensor x;
  Tensor weight;
  Tensor factors;
  Tensor bias{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor out;
  bool constant_weight = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Device device() const = 0;

  virtual void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream) = 0;
  virtual void cast(const CastSpec& spec, const CastTensors& tensors, Stream& stream) = 0;
  // The spec's `list` need not be set. No output may overlap anything else of the list. Allocates, and uploads on the
  // stream. Throws Error{invalid_spec, invalid_argument, out_of_memory}.
  virtual std::unique_ptr<CastList> make_cast_list(const CastSpec& spec, std::span<const CastTensors> tensors,
                                                   Stream& stream) = 0;
  virtual void gemm(const GemmSpec& spec, const GemmTensors& tensors, Stream& stream) = 0;
  virtual void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream) = 0;
  virtual void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, Stream& stream) = 0;
  virtual void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Stream& stream) = 0;
  virtual void cast_stats(const CastStatsSpec& spec, const CastStatsTensors& tensors, Stream& stream) = 0;
  virtual void norm(const NormSpec& spec, const NormTensors& tensors, Stream& stream) = 0;
  virtual void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Stream& stream) = 0;
  virtual void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, Stream& stream) = 0;
  virtual void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream) = 0;
  virtual void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream) = 0;
  virtual void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream) = 0;

  // Memory. allocate() aligns to 256 bytes and throws Error{out_of_memory}; 0 bytes gives null. release() waits for the
  // device where that is needed and never throws.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // Ordered on the stream; the host side may be read or reused when the call returns.
  virtual void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) = 0;
  virtual void fill_zero(void* device_data, std::size_t bytes, Stream& stream) = 0;
  virtual void synchronize(Stream& stream) = 0;
  // True while the stream records a CUDA graph.
  virtual bool capturing(const Stream& stream) const = 0;

  // A stream of the device's own, for Stream's default; the CPU has none and gives null.
  virtual CUstream_st* create_stream() = 0;
  virtual void destroy_stream(CUstream_st* stream) noexcept = 0;

  // What Stream::wait_for() uses: `stream` goes on after what `other` has been given so far. A fence is for one thread
  // at a time, and may be used again at once. The CPU has none and gives null.
  virtual void* create_fence() = 0;
  virtual void destroy_fence(void* fence) noexcept = 0;
  virtual void wait(const Stream& stream, const Stream& other, void* fence) = 0;

  // Points in a stream's work, for who measures it: CUDA's events, or times of the CPU. microseconds_between() waits
  // for both, and both have been recorded. Errors: Error{cuda_failed}.
  virtual void* create_mark() = 0;
  virtual void destroy_mark(void* mark) noexcept = 0;
  virtual void record_mark(void* mark, const Stream& stream) = 0;
  virtual double microseconds_between(void* begin, void* end) = 0;
  // Who is told of every launch from now on, and outlives that; null: nobody. Not while another thread launches.
  virtual void set_launch_hook(LaunchHook* hook) = 0;

  // Kernels launched so far by this backend, cuBLASLt's calls included. The CPU's is 0.
  virtual std::int64_t launches() const = 0;

 protected:
  Backend() = default;
};

}  // namespace ingot
