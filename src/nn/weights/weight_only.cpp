#include "ingot/nn/weights/weight_only.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/weights/stored_weights.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divided_up(a, b) * b; }

// With this stride, rows start at multiples of 16 bytes for 8-, 6- and 4-bit codes.
constexpr std::int64_t row_stride_of_codes(std::int64_t in_features) { return round_up(in_features, 64); }

// Views the same bytes as one-byte codes, which Backend::relayout() copies unchanged.
Tensor as_bytes(const Tensor& codes) {
  Tensor bytes = codes;
  bytes.dtype = Dtype::e4m3fn;
  bytes.cols = row_bytes(codes.dtype, codes.cols);
  bytes.row_stride = std::max(row_bytes(codes.dtype, codes.row_stride), bytes.cols);
  return bytes;
}

struct ScaleShape {
  std::int64_t rows, cols;
};

ScaleShape scale_shape(ScaleGranularity scale, std::int64_t n, std::int64_t k) {
  return {scale.rows == 0 ? 1 : divided_up(n, scale.rows), scale.cols == 0 ? 1 : divided_up(k, scale.cols)};
}

// Copies a tensor to the host as dense rows of its dtype.
std::vector<std::byte> dense_bytes(const Tensor& scales, DeviceApi& device_api, Stream& stream) {
  const auto element = static_cast<std::size_t>(size_of(scales.dtype));
  const auto row = static_cast<std::size_t>(scales.cols) * element;
  const auto pitch = static_cast<std::size_t>(scales.row_stride) * element;
  std::vector<std::byte> all(byte_span(scales, "WeightOnlyLinear scales"));
  device_api.copy_to_host(all.data(), scales.data, all.size(), stream);
  device_api.synchronize(stream);
  if (row == pitch || row == 0) return all;
  for (std::int64_t r = 1; r < scales.rows; ++r) {
    const auto to = all.begin() + r * static_cast<std::ptrdiff_t>(row);
    std::copy_n(all.begin() + r * static_cast<std::ptrdiff_t>(pitch), row, to);
  }
  all.resize(static_cast<std::size_t>(scales.rows) * row);
  return all;
}

// Converts scales to f32 scale_inv, as bytes.
std::vector<std::byte> scale_inv_of(const std::vector<std::byte>& scales, Dtype dtype, ScaleConvention convention) {
  std::vector<float> scale_inv = scale_values(dtype, scales);
  if (convention == ScaleConvention::quantize) {
    for (float& factor : scale_inv) factor = 1.0F / factor;
  }
  const auto bytes = std::as_bytes(std::span(scale_inv));
  return {bytes.begin(), bytes.end()};
}

// Division by a power of two is exact: negate the exponent. The largest scale becomes 2^-127, code 0.
void turn_mx_scales(std::vector<std::byte>& scales, ScaleConvention convention) {
  if (convention == ScaleConvention::dequantize) return;
  for (std::byte& scale : scales) {
    const int code = std::to_integer<int>(scale);
    if (code != 255) scale = static_cast<std::byte>(254 - code);
  }
}

// Making a layer allocates memory and waits for the device, which a capture does not permit.
void refuse_capture(const DeviceApi& device_api, const Stream& stream) {
  if (!device_api.capturing(stream)) return;
  throw Error(ErrorCode::invalid_argument, "stream",
              "is capturing a graph; make the layer before the capture, and capture only its forward()");
}

// quantize() takes a cast for the granularities that casts have. The others are groups in a row, which it casts as
// rows.
static_assert(std::ranges::all_of(kDequantGranularities,
                                  [](ScaleGranularity scale) {
                                    return among(kCastGranularities, scale) || (scale.rows == 1 && scale.cols > 1);
                                  }),
              "WeightOnlyLinear::quantize() has no way to make scale_inv of one of kDequantGranularities");

WeightOnlyOptions with_mx_scale(WeightOnlyOptions options) {
  if (options.mx) options.scale = kRowGroups32;
  return options;
}

}  // namespace

// ---- making a layer -----------------------------------------------------------------------------------------------

WeightOnlyLinear::WeightOnlyLinear(Backend& backend, const WeightOnlyOptions& options, std::int64_t out_features,
                                   std::int64_t in_features)
    : backend_(&backend),
      options_(with_mx_scale(options)),
      out_features_(out_features),
      in_features_(in_features),
      specs_{} {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const Dtype x = i / 4 != 0 ? Dtype::f16 : Dtype::bf16;
    specs_[i] = {.x = x,
                 .weight = options_.dtype,
                 .out = i / 2 % 2 != 0 ? Dtype::f32 : x,
                 .scale = options_.scale,
                 .scale_inv = options_.mx ? Dtype::e8m0fnu : Dtype::f32,
                 .layout = layout_of_bits(options_.dtype, options_.layout),
                 .bias = i % 2 != 0,
                 .pointwise = options_.epilogue,
                 .batch_invariant = options_.batch_invariant};
    validate(specs_[i]);
  }
}

WeightOnlyLinear WeightOnlyLinear::quantize(Backend& backend, const Tensor& weight, const WeightOnlyOptions& options,
                                            Stream& stream) {
  refuse_capture(backend, stream);
  if (!is_high_precision(weight.dtype)) {
    refuse("WeightOnlyLinear weight", weight, "it must be of f32, bf16 or f16; codes go to from_codes()");
  }
  check_matrix("WeightOnlyLinear weight", weight, weight.dtype, backend.device());
  if (is_sub_byte(options.dtype) && !options.mx) {
    throw Error(ErrorCode::invalid_spec, "WeightOnlyOptions",
                fmt::format("quantize() makes {} only with MX scales: set mx, or give codes to from_codes()",
                            name(options.dtype)));
  }
  WeightOnlyLinear layer(backend, options, weight.rows, weight.cols);
  layer.make_codes(weight, stream);
  return layer;
}

void WeightOnlyLinear::make_codes(const Tensor& weight, Stream& stream) {
  const Dtype dtype = options_.dtype;
  const std::int64_t n = out_features_;
  const std::int64_t k = in_features_;
  scale_inv_ = {*backend_, options_.mx ? Dtype::e8m0fnu : Dtype::f32, 1, scale_count(options_.scale, n, k)};
  OwnedTensor codes;
  codes.resize(*backend_, dtype, n, k, stream, row_stride_of_codes(k));
  if (options_.mx) {
    const Tensor scales = matrix(scale_inv_.view().data, Dtype::e8m0fnu, n, divided_up(k, 32), backend_->device());
    backend_->quantize_mx({.in = weight.dtype, .out = dtype}, {.input = weight, .codes = codes, .scales = scales},
                          stream);
    return take_codes(std::move(codes), stream);
  }
  CastSpec cast{.in = weight.dtype, .out = dtype, .scale = options_.scale, .pow2 = options_.pow2};
  const int group = options_.scale.cols;
  if (among(kCastGranularities, options_.scale)) {
    backend_->cast(cast, {.input = weight, .codes = codes, .scale_inv = scale_inv_}, stream);
    return take_codes(std::move(codes), stream);
  }

  // A cast has no shorter groups than 128. They are the rows of the same memory viewed as [N * K / group, group]. If K
  // or the row stride does not permit this view, a copy with K padded by zeros is cast; zeros do not raise a maximum.
  const std::int64_t padded = round_up(k, group);
  const std::int64_t rows = n * (padded / group);
  OwnedTensor copy;
  Tensor values = weight;
  if (padded != k || (n > 1 && weight.row_stride != k)) {
    copy.resize(*backend_, weight.dtype, n, padded, stream);
    backend_->device_api().fill_zero(copy.view().data, byte_span(copy, "WeightOnlyLinear weight"), stream);
    values = copy;
    values.cols = k;
    backend_->elementwise({.in = weight.dtype, .pointwise = parse_pointwise("x")}, {.input = weight, .output = values},
                          stream);
  }
  cast.scale = kRowwise;
  codes.resize(*backend_, dtype, n, k, stream, padded);
  backend_->cast(cast,
                 {.input = matrix(values.data, weight.dtype, rows, group, backend_->device()),
                  .codes = matrix(codes.view().data, dtype, rows, group, backend_->device()),
                  .scale_inv = scale_inv_},
                 stream);
  take_codes(std::move(codes), stream);
}

WeightOnlyLinear WeightOnlyLinear::from_codes(Backend& backend, const Tensor& codes, const Tensor& scales,
                                              ScaleConvention convention, const WeightOnlyOptions& options,
                                              Stream& stream) {
  refuse_capture(backend, stream);
  constexpr const char* kCodes = "WeightOnlyLinear codes";
  constexpr const char* kScales = "WeightOnlyLinear scales";
  if (codes.dtype != options.dtype) {
    const char* const what = codes.dtype == Dtype::u8 ? "if the bytes are such codes, give the tensor this dtype"
                                                      : "set dtype to what the codes are";
    refuse(kCodes, codes, fmt::format("the options say {}: {}", name(options.dtype), what));
  }
  check_matrix(kCodes, codes, codes.dtype, backend.device());
  WeightOnlyLinear layer(backend, options, codes.rows, codes.cols);

  if (options.mx ? scales.dtype != Dtype::e8m0fnu
                 : scales.dtype != Dtype::e8m0fnu && !is_high_precision(scales.dtype)) {
    refuse(kScales, scales,
           !options.mx ? "they must be of f32, bf16, f16 or e8m0fnu"
           : scales.dtype == Dtype::u8
               ? "mx scales are e8m0fnu: give a checkpoint's bytes this dtype"
               : "mx scales are e8m0fnu; for scales of another dtype use scale=1x32 without mx");
  }
  const ScaleGranularity granularity = layer.options_.scale;
  const ScaleShape shape = scale_shape(granularity, codes.rows, codes.cols);
  const bool is_matrix = scales.rows == shape.rows && scales.cols == shape.cols;
  if (!is_matrix && !(scales.rows == 1 && scales.cols == shape.rows * shape.cols)) {
    refuse(kScales, scales,
           fmt::format("a weight [{}, {}] has {} of them with {}: [{}, {}]", codes.rows, codes.cols,
                       shape.rows * shape.cols, options.mx ? "mx" : "scale " + print(granularity), shape.rows,
                       shape.cols));
  }
  check_matrix(kScales, scales, scales.dtype, backend.device());

  std::vector<std::byte> scale_inv = dense_bytes(scales, backend, stream);
  if (options.mx) {
    turn_mx_scales(scale_inv, convention);
  } else {
    scale_inv = scale_inv_of(scale_inv, scales.dtype, convention);
  }
  layer.upload_scale_inv(scale_inv, stream);

  layer.set_codes(codes, stream);
  return layer;
}

WeightOnlyLinear WeightOnlyLinear::with_layout(WeightLayout layout, Stream& stream) const {
  refuse_capture(*backend_, stream);
  WeightOnlyOptions options = options_;
  options.layout = layout;
  WeightOnlyLinear made(*backend_, options, out_features_, in_features_);
  made.upload_scale_inv(dense_bytes(scale_inv_, *backend_, stream), stream);
  if (is_packed(options_.layout)) {
    OwnedTensor codes;
    codes.resize(*backend_, options_.dtype, out_features_, in_features_, stream, row_stride_of_codes(in_features_));
    backend_->pack_weight({.weight = options_.dtype, .layout = options_.layout, .unpack = true},
                          {.codes = codes, .packed = weight_}, stream);
    made.take_codes(std::move(codes), stream);
  } else {
    made.set_codes(weight_, stream);
  }
  return made;
}

void WeightOnlyLinear::upload_scale_inv(const std::vector<std::byte>& bytes, Stream& stream) {
  scale_inv_ = {*backend_, options_.mx ? Dtype::e8m0fnu : Dtype::f32, 1,
                scale_count(options_.scale, out_features_, in_features_)};
  backend_->device_api().copy_from_host(scale_inv_.view().data, bytes.data(), bytes.size(), stream);
}

// Packs or copies codes that the caller owns.
void WeightOnlyLinear::set_codes(const Tensor& codes, Stream& stream) {
  if (is_packed(options_.layout)) {
    pack(codes, stream);
  } else {
    copy_codes(codes, stream);
  }
  backend_->device_api().synchronize(stream);
}

// Packs codes that the layer owns, or keeps them.
void WeightOnlyLinear::take_codes(OwnedTensor codes, Stream& stream) {
  if (is_packed(options_.layout)) {
    pack(codes, stream);
  } else {
    weight_ = std::move(codes);
  }
  backend_->device_api().synchronize(stream);  // `codes` is freed on return if it was packed
}

void WeightOnlyLinear::pack(const Tensor& codes, Stream& stream) {
  weight_ = {*backend_, Dtype::u8, 1, packed_weight_bytes(options_.dtype, out_features_, in_features_)};
  backend_->pack_weight({.weight = options_.dtype, .layout = options_.layout}, {.codes = codes, .packed = weight_},
                        stream);
}

void WeightOnlyLinear::copy_codes(const Tensor& codes, Stream& stream) {
  weight_.resize(*backend_, options_.dtype, out_features_, in_features_, stream, row_stride_of_codes(in_features_));
  backend_->relayout({}, {.input = as_bytes(codes), .output = as_bytes(weight_)}, stream);
}

// ---- forward ------------------------------------------------------------------------------------------------------

void WeightOnlyLinear::forward(const Tensor& x, const Tensor& y, Stream& stream, const WeightOnlyExtras& extras) const {
  if (x.dtype != Dtype::bf16 && x.dtype != Dtype::f16) {
    refuse("WeightOnlyLinear x", x, "it must be of bf16 or f16: cast it first");
  }
  if (x.cols != in_features_) {
    refuse("WeightOnlyLinear x", x, fmt::format("it must have {} = in_features", count_of(in_features_, "column")));
  }
  if (y.dtype != x.dtype && y.dtype != Dtype::f32) {
    refuse("WeightOnlyLinear y", y, fmt::format("it must be of x's dtype, {}, or f32", name(x.dtype)));
  }
  if (y.rows != x.rows || y.cols != out_features_) {
    refuse("WeightOnlyLinear y", y, fmt::format("it must be [{}, {}]: x's rows, out_features", x.rows, out_features_));
  }
  const bool has_bias = is_given(extras.bias);
  const std::size_t spec = (x.dtype == Dtype::f16 ? 4U : 0U) + (y.dtype != x.dtype ? 2U : 0U) + (has_bias ? 1U : 0U);
  backend_->dequant_matmul(specs_[spec],
                           {.x = x,
                            .weight = weight_,
                            .scale_inv = scale_inv_,
                            .bias = extras.bias,
                            .inputs = extras.inputs,
                            .out = y,
                            .constant_weight = true},  // the functions that make a layer have waited for it
                           stream);
}

std::size_t WeightOnlyLinear::weight_bytes() const {
  const std::int64_t codes =
      is_packed(options_.layout) ? weight_.view().cols : out_features_ * row_bytes(options_.dtype, in_features_);
  return static_cast<std::size_t>(codes) + byte_span(scale_inv_, "WeightOnlyLinear scale_inv");
}

// ---- state --------------------------------------------------------------------------------------------------------

namespace {

std::size_t stored_bytes(const WeightOnlyOptions& options, std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(is_packed(options.layout) ? packed_weight_bytes(options.dtype, n, k)
                                                            : n * row_bytes(options.dtype, k));
}

}  // namespace

WeightOnlyState WeightOnlyLinear::state(Stream& stream) const {
  WeightOnlyState state{.options = options_, .out_features = out_features_, .in_features = in_features_};
  state.scale = dense_bytes(scale_inv_, *backend_, stream);
  // Codes with a row stride are copied as bytes with a row stride.
  const Tensor bytes = is_packed(options_.layout) ? weight_.view() : as_bytes(weight_);
  state.weight = dense_bytes(bytes, *backend_, stream);
  return state;
}

WeightOnlyLinear WeightOnlyLinear::from_state(Backend& backend, const WeightOnlyState& state, Stream& stream) {
  refuse_capture(backend, stream);
  const auto refuse_state = [](const char* what, std::size_t found, std::size_t expected, const std::string& because) {
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("has {}, but {} has {}: the state is not one that state() returned",
                            count_of(found, "byte"), because, expected));
  };
  const std::int64_t n = state.out_features;
  const std::int64_t k = state.in_features;
  if (const std::string fault = weight_size_fault(n, k); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, "WeightOnlyState", fault);
  }
  WeightOnlyLinear layer(backend, state.options, n, k);
  const WeightOnlyOptions& options = layer.options_;
  const std::string of = fmt::format("a {} weight {}[{}, {}]", name(options.layout), name(options.dtype), n, k);
  const std::size_t weight_bytes = stored_bytes(options, n, k);
  const auto scale_inv_bytes = static_cast<std::size_t>(scale_count(options.scale, n, k) * (options.mx ? 1 : 4));
  if (state.weight.size() != weight_bytes) {
    refuse_state("WeightOnlyState weight", state.weight.size(), weight_bytes, of);
  }
  if (state.scale.size() != scale_inv_bytes) {
    refuse_state("WeightOnlyState scale", state.scale.size(), scale_inv_bytes,
                 fmt::format("{} with scale {}", of, options.mx ? "mx" : print(options.scale)));
  }
  if (is_packed(options.layout)) {
    if (const std::string fault = packed_weight_fault(
            {.dtype = options.dtype, .layout = options.layout, .n = n, .k = k, .bytes = state.weight});
        !fault.empty()) {
      throw Error(
          ErrorCode::invalid_argument, "WeightOnlyState weight",
          fmt::format("{}: it is damaged, or was packed as another dtype or layout than the state says; pack the "
                      "weight again, from its values or its codes",
                      fault));
    }
  }
  layer.upload_scale_inv(state.scale, stream);
  if (is_packed(options.layout)) {
    layer.weight_ = {backend, Dtype::u8, 1, static_cast<std::int64_t>(weight_bytes)};
    backend.device_api().copy_from_host(layer.weight_.view().data, state.weight.data(), weight_bytes, stream);
    backend.device_api().synchronize(stream);
    return layer;
  }
  layer.weight_.resize(backend, options.dtype, n, k, stream, row_stride_of_codes(k));
  const Tensor bytes = as_bytes(layer.weight_);
  std::vector<std::byte> rows(byte_span(bytes, "WeightOnlyState weight"));
  for (std::int64_t r = 0; r < n && k != 0; ++r) {
    std::memcpy(&rows[static_cast<std::size_t>(r * bytes.row_stride)],
                &state.weight[static_cast<std::size_t>(r * bytes.cols)], static_cast<std::size_t>(bytes.cols));
  }
  backend.device_api().copy_from_host(bytes.data, rows.data(), rows.size(), stream);
  backend.device_api().synchronize(stream);
  return layer;
}

}  // namespace ingot
