// A linear layer whose weight alone is in 8, 6 or 4 bits: for inference, where what a step reads of weights is what it
// costs. Activations stay in bf16 or f16; the weight is decoded within the product (Backend::dequant_matmul).
//
//   auto linear = WeightOnlyLinear::quantize(backend, weight, {.dtype = Dtype::e4m3fn}, stream);  // weight[N, K]
//   linear.forward(x, y, stream);  // y[M, N] = x[M, K] @ weight^T
//
// y = f(sum_k x * value + bias), value = code * factor. Codes are decoded exactly, sums and factors are in f32, and the
// result is rounded once (DequantMatmulSpec in codegen/dequant/dequant_spec.h has the formula). A NaN in a row of the
// weight makes that column of y NaN. The same call gives the same bits every time; with `batch_invariant` a row of y
// does not depend on how many other rows there are.
//
// The layer owns its codes and factors. What makes one waits for the device: what it was made from may go then, and
// forward() may read the codes while the kernel ahead of it in the stream ends. forward() allocates nothing of its own
// and can be captured into a CUDA graph once it has run outside of a capture with as many tokens. Calls are for one
// stream, or ordered by the caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

struct WeightOnlyOptions {
  Dtype dtype = Dtype::e4m3fn;  // kWeightDtypes
  // Of the f32 factors: tensor, row, 1x128, 1x64, 1x32 or 128x128. quantize() makes FP8 with them; FP6 and FP4 with
  // them come from from_codes().
  ScaleGranularity scale = kRowwise;
  // A power of two for each 32 of K (OCP MX; e8m0fnu): the way to make FP6 and FP4. `scale` and `pow2` then do not
  // apply.
  bool mx = false;
  bool pow2 = false;  // of quantize(): f32 scales rounded down to powers of two
  // packed: in the order in which tensor cores take codes, which is what every fast kernel reads. packed_f16: the same,
  // for layers whose x is f16: FP8 then takes fewer instructions (with x of bf16 more; FP6 and FP4 are the same in
  // both). row_major: as they are.
  WeightLayout layout = WeightLayout::packed;
  bool batch_invariant = false;
  // Of x = the sum and the bias, and of WeightOnlyExtras::inputs: parse_pointwise("silu(x)").
  Pointwise epilogue{};
};

// How a checkpoint's scales are meant. dequantize: value = code * scale (Hugging Face's weight_scale and
// weight_scale_inv); quantize: value = code / scale. (A scale of 0 is then a factor of Inf.)
enum class ScaleConvention : std::uint8_t { dequantize, quantize };

// What forward() adds to the product. bias: [N] of the input's dtype. inputs: those of the epilogue, in its order:
// matrices [M, N] and columns [N] of the input's dtype, rows [M] of f32.
struct WeightOnlyExtras {
  Tensor bias{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
};

// A layer's numbers on the host: what files hold (nn/weight_only_state.h). weight: the packed bytes
// (kPackedLayoutVersion), or, row by row, codes [N, K] in dense rows, those of less than a byte padded to whole bytes.
// scale: the factors, f32 or e8m0fnu, as DequantMatmulSpec has them. `pow2`, `batch_invariant` and `epilogue` are no
// part of a file.
struct WeightOnlyState {
  WeightOnlyOptions options{};
  std::int64_t out_features = 0;  // N
  std::int64_t in_features = 0;   // K
  std::vector<std::byte> weight{};
  std::vector<std::byte> scale{};
};

class WeightOnlyLinear {
 public:
  // A layer is made outside of a graph's capture: Error{invalid_argument} on a stream that is capturing.
  //
  // From values, weight[N, K] of f32, bf16 or f16, on the device: as Backend::cast() makes codes and factors, or with
  // `mx` Backend::quantize_mx(). Throws Error{invalid_spec} for options that do not go together,
  // Error{invalid_argument} for another dtype, and what those calls throw.
  static WeightOnlyLinear quantize(Backend& backend, const Tensor& weight, const WeightOnlyOptions& options,
                                   Stream& stream);
  // From codes[N, K] of options.dtype, row-major, any row stride, and scales on the same device: of f32, bf16, f16 or
  // e8m0fnu, and with `mx` of e8m0fnu. Their shape is [1] or [1, 1] for tensor; [N] or [N, 1] for row; [N, ceil(K / g)]
  // for 1xg; [ceil(N / 128), ceil(K / 128)] for 128x128. Each may also be one dense vector of that many. K need not be
  // a multiple of a group: the last one is short. FP6 and FP4 codes lie side by side without gaps, the lowest bits
  // first: runtime/util/packed_codes.h makes such rows. Errors as of quantize().
  static WeightOnlyLinear from_codes(Backend& backend, const Tensor& codes, const Tensor& scales,
                                     ScaleConvention convention, const WeightOnlyOptions& options, Stream& stream);
  // What state() gave, bit for bit. Throws Error{invalid_argument} where the bytes are not those of the sizes, or
  // packed ones have a NaN or padding that pack_weight() does not make. Codes taken for those of another dtype or
  // packed layout may pass: with_layout() is the way to another one.
  static WeightOnlyLinear from_state(Backend& backend, const WeightOnlyState& state, Stream& stream);
  // Waits for the device.
  WeightOnlyState state(Stream& stream) const;
  // A layer of the same codes and factors in another layout. Errors as of quantize().
  WeightOnlyLinear with_layout(WeightLayout layout, Stream& stream) const;

  // y[M, N] = f(x[M, K] @ weight^T + bias): x of bf16 or f16, y of x's dtype or f32, any M >= 0. y overlaps none of the
  // others. Throws Error{invalid_argument}, and from below.
  void forward(const Tensor& x, const Tensor& y, Stream& stream, const WeightOnlyExtras& extras = {}) const;

  // Where `mx` is set, `scale` is 1x32.
  const WeightOnlyOptions& options() const { return options_; }
  std::int64_t in_features() const { return in_features_; }    // K
  std::int64_t out_features() const { return out_features_; }  // N
  // Device memory of codes and factors, which is what a forward() of few tokens reads.
  std::size_t weight_bytes() const;
  // As DequantMatmulTensors takes them.
  const Tensor& weight() const { return weight_.view(); }
  const Tensor& factors() const { return factors_.view(); }

 private:
  WeightOnlyLinear(Backend& backend, const WeightOnlyOptions& options, std::int64_t out_features,
                   std::int64_t in_features);

  void make_codes(const Tensor& weight, Stream& stream);
  void set_codes(const Tensor& codes, Stream& stream);
  void take_codes(OwnedTensor codes, Stream& stream);
  void pack(const Tensor& codes, Stream& stream);
  void copy_codes(const Tensor& codes, Stream& stream);
  void upload_factors(const std::vector<std::byte>& bytes, Stream& stream);

  Backend* backend_;
  WeightOnlyOptions options_;
  std::int64_t out_features_;
  std::int64_t in_features_;
  OwnedTensor weight_;
  OwnedTensor factors_;
  // For x of bf16 and of f16, y of x's dtype and of f32, without and with a bias: made once, so that a call makes none.
  std::array<DequantMatmulSpec, 8> specs_;
};

}  // namespace ingot
