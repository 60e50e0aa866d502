// A linear layer for inference that stores its weight in 8, 6 or 4 bits, so that each step reads fewer bytes of
// weights. Activations stay in bf16 or f16; the GEMM decodes the weight (Backend::dequant_matmul).
//
//   auto linear = WeightOnlyLinear::quantize(backend, weight, {.dtype = Dtype::e4m3fn}, stream);  // weight[N, K]
//   linear.forward(x, y, stream);  // y[M, N] = x[M, K] @ weight^T
//
// y = f(sum_k x * value + bias), with value = code * factor. Codes are decoded exactly, sums and scale_inv are in f32,
// and the result is rounded once (DequantMatmulSpec in codegen/dequant/dequant_spec.h has the formula). A NaN in a row
// of the weight makes that column of y NaN. The same call gives the same bits every time; with `batch_invariant`, a row
// of y does not depend on how many other rows there are.
//
// The layer owns its codes and scale_inv. Functions that make a layer wait for the device, so that the caller may then
// free the tensors it was made from, and so that forward() may read the codes while the previous kernel in the stream
// is still finishing. forward() allocates nothing itself, and can be captured into a CUDA graph once it has run outside
// a capture with as many tokens. Calls must come on one stream or be ordered by the caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/nn/weights/safetensors.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

struct WeightOnlyOptions {
  Dtype dtype = Dtype::e4m3fn;  // one of kWeightDtypes
  // Granularity of the f32 scale_inv: tensor, row, 1x128, 1x64, 1x32 or 128x128. quantize() makes FP8 weights with
  // them; FP6 and FP4 weights with them must come from from_codes().
  ScaleGranularity scale = kRowwise;
  // One power of two (e8m0fnu) for each 32 elements along K (OCP MX): the way to quantize to FP6 and FP4. `scale` and
  // `pow2` are then ignored.
  bool mx = false;
  bool pow2 = false;  // quantize() rounds f32 scales down to powers of two
  // packed: codes in the order in which tensor cores take them, which every fast kernel reads. packed_f16: the same
  // order, with the bits of FP8 codes placed so that decoding to f16 takes fewer instructions and decoding to bf16
  // more; for FP6 and FP4 it equals `packed`. row_major: codes in plain rows.
  WeightLayout layout = WeightLayout::packed;
  bool batch_invariant = false;
  // An expression of x = the sum plus bias, and of WeightOnlyExtras::inputs: parse_pointwise("silu(x)").
  Pointwise epilogue{};
};

// How a checkpoint's scales are to be applied. dequantize: value = code * scale (Hugging Face's weight_scale and
// weight_scale_inv); quantize: value = code / scale. (A scale of 0 is then a factor of Inf.)
enum class ScaleConvention : std::uint8_t { dequantize, quantize };

// Optional inputs of forward(). bias: [N] of the input's dtype. inputs: the epilogue's, in its order: matrices [M, N]
// and columns [N] of the input's dtype, rows [M] of f32.
struct WeightOnlyExtras {
  Tensor bias{};
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
};

// A layer's contents on the host, as files store them (weight_only.h). weight: the packed bytes
// (kPackedLayoutVersion), or for row_major the codes [N, K] in dense rows, each padded to whole bytes if codes are
// smaller than a byte. scale: the scale_inv, f32 or e8m0fnu, as DequantMatmulSpec lays them out. Files do not store
// `pow2`, `batch_invariant` and `epilogue`.
struct WeightOnlyState {
  WeightOnlyOptions options{};
  std::int64_t out_features = 0;  // N
  std::int64_t in_features = 0;   // K
  std::vector<std::byte> weight{};
  std::vector<std::byte> scale{};
};

class INGOT_API WeightOnlyLinear {
 public:
  // A layer cannot be made during a graph capture: Error{invalid_argument} if the stream is capturing.
  //
  // quantize() makes a layer from values: weight [N, K] of f32, bf16 or f16, on the device. Codes and scale_inv are
  // those of Backend::cast(), or with `mx` of Backend::quantize_mx(). Throws Error{invalid_spec} for options that
  // contradict each other, Error{invalid_argument} for another dtype, and what those calls throw.
  static WeightOnlyLinear quantize(Backend& backend, const Tensor& weight, const WeightOnlyOptions& options,
                                   Stream& stream);
  // Makes a layer from codes [N, K] of options.dtype, row-major with any row stride, and scales on the same device, of
  // f32, bf16, f16 or e8m0fnu (with `mx` only e8m0fnu). The scales' shape is [1] or [1, 1] for tensor; [N] or [N, 1]
  // for row; [N, ceil(K / g)] for 1xg; [ceil(N / 128), ceil(K / 128)] for 128x128; or a dense vector with as many
  // elements. K need not be a multiple of the group size: the last group is then short. FP6 and FP4 codes are packed
  // without gaps, lowest bits first; runtime/util/packed_codes.h makes such rows. Throws as quantize() does.
  static WeightOnlyLinear from_codes(Backend& backend, const Tensor& codes, const Tensor& scales,
                                     ScaleConvention convention, const WeightOnlyOptions& options, Stream& stream);
  // Restores what state() returned, bit for bit. Throws Error{invalid_argument} if the bytes do not match the sizes, or
  // if packed bytes have a NaN or padding that pack_weight() would not make. It cannot always detect that codes are of
  // another dtype or packed layout than the state says; use with_layout() to change the layout.
  static WeightOnlyLinear from_state(Backend& backend, const WeightOnlyState& state, Stream& stream);
  // Copies the layer's contents to the host. Waits for the device.
  WeightOnlyState state(Stream& stream) const;
  // Makes a layer with the same codes and scale_inv in another layout. Throws as quantize() does.
  WeightOnlyLinear with_layout(WeightLayout layout, Stream& stream) const;

  // y[M, N] = f(x[M, K] @ weight^T + bias): x of bf16 or f16, y of x's dtype or f32, any M >= 0. y must not overlap any
  // other tensor. Throws Error{invalid_argument}, and what Backend::dequant_matmul() throws.
  void forward(const Tensor& x, const Tensor& y, Stream& stream, const WeightOnlyExtras& extras = {}) const;

  // If `mx` is set, `scale` is 1x32.
  const WeightOnlyOptions& options() const { return options_; }
  std::int64_t in_features() const { return in_features_; }    // K
  std::int64_t out_features() const { return out_features_; }  // N
  // Device memory of codes and scale_inv: what a forward() of few tokens reads.
  std::size_t weight_bytes() const;
  // The codes and scale_inv as DequantMatmulTensors takes them.
  const Tensor& weight() const { return weight_.view(); }
  const Tensor& scale_inv() const { return scale_inv_.view(); }

 private:
  WeightOnlyLinear(Backend& backend, const WeightOnlyOptions& options, std::int64_t out_features,
                   std::int64_t in_features);

  void make_codes(const Tensor& weight, Stream& stream);
  void set_codes(const Tensor& codes, Stream& stream);
  void take_codes(OwnedTensor codes, Stream& stream);
  void pack(const Tensor& codes, Stream& stream);
  void copy_codes(const Tensor& codes, Stream& stream);
  void upload_scale_inv(const std::vector<std::byte>& bytes, Stream& stream);

  Backend* backend_;
  WeightOnlyOptions options_;
  std::int64_t out_features_;
  std::int64_t in_features_;
  OwnedTensor weight_;
  OwnedTensor scale_inv_;
  // One spec for each case: x of bf16 or f16, y of x's dtype or f32, without or with a bias. Made with the layer, so
  // that a call makes none.
  std::array<DequantMatmulSpec, 8> specs_;
};

// ---- Layers in safetensors files ------------------------------------------------------------------------------------
//
// A file may hold other tensors too. The layer's name, such as "layers.0.wq." (any text, also empty), is the prefix of
// all its names:
//
//   weight         packed: U8 [packed_weight_bytes()]. row_major: the dtype's own type, such as F8_E4M3 [N, K]; dtypes
//                  smaller than a byte: U8 [N, bytes of a row]
//   weight_scale   the scale_inv, value = code * factor: F32 [1], [N, 1], [N, ceil(K / g)] or [ceil(N / 128),
//                  ceil(K / 128)]; for mx F8_E8M0 [N, ceil(K / 32)]
//   __metadata__   ingot.layout: "packed", "packed_f16" or "row_major"; ingot.layout_version (packed layouts only):
//                  kPackedLayoutVersion; ingot.dtype: "e4m3fn" ...; ingot.n, ingot.k; ingot.scale: "tensor", "row",
//                  "1x128" ... or "mx"; and, once per file, "format": "pt"
//
// So other programs can read FP8 weights in row_major layout as codes and scales.
//
// Writes a file of these layers, keyed by name. Throws as write_safetensors() does, and Error{invalid_argument} for a
// state whose bytes do not match its sizes.
INGOT_API void save_weight_only(const std::filesystem::path& file,
                                const std::map<std::string, WeightOnlyState>& layers);

// Loads the layer of that name. batch_invariant and epilogue are not stored: set them before from_state(). Throws
// Error{not_found} if the file has no such tensors; Error{invalid_argument} for packed weights of another version, and
// for metadata that is missing, malformed or contradicts the tensors; Error{io_failed}.
INGOT_API WeightOnlyState load_weight_only(const SafetensorsFile& file, const std::string& name = {});

}  // namespace ingot
