#include "ingot/nn/linear_gain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr double kCastStartUs = 2.0;      // start-up time of each kernel of a cast
constexpr double kBytesPerUs = 3.4e6;     // memory throughput of a cast on an H200
constexpr double kMultiprocessors = 132;  // of an H200

double product_us(const GemmCall& call, int multiprocessors) {
  const MatmulSize& size = call.size;
  if (size.m == 0 || size.n == 0) return 0;
  // 16-bit operands have twice the bytes and half the rate of FP8: the time of an FP8 GEMM with twice the K.
  if (!is_fp8(call.spec.a)) {
    return estimate_cublaslt({.fast_accumulation = true}, {size.m, size.n, 2 * size.k}, multiprocessors);
  }
  const double ours =
      estimate_gemm(call.spec, size, choose_sm90_tiling(call.spec, size, multiprocessors), multiprocessors);
  return has_group_factors(call.spec) ? ours : std::min(ours, estimate_cublaslt(call.spec, size, multiprocessors));
}

double cast_us(const TensorCasts& casts, std::int64_t rows, std::int64_t cols, int multiprocessors) {
  if (!casts.codes && !casts.transposed) return 0;
  const CastSpec spec = cast_spec(casts, Dtype::bf16);
  const bool maxima_first = spec.source == ScaleSource::dynamic &&
                            (spec.scale == kTensorwise || spec.scale == kColumnwise ||
                             spec.transposed_scale == kTensorwise || spec.transposed_scale == kColumnwise);
  const double bytes = (maxima_first ? 4 : 2) + (spec.codes ? 1 : 0) + (spec.transposed ? 1 : 0);
  const double rate = kBytesPerUs * std::min(1.0, multiprocessors / kMultiprocessors);
  return (maxima_first ? 2 : 1) * kCastStartUs + bytes * static_cast<double>(rows) * static_cast<double>(cols) / rate;
}

double products_us(const LinearConfig& config, const LinearSize& size, int multiprocessors) {
  double us = 0;
  for (const LinearGemm& gemm : linear_gemms(config, size, Dtype::bf16)) us += product_us(gemm.call, multiprocessors);
  return us;
}

}  // namespace

LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, int multiprocessors) {
  const auto& [tokens, in, out] = size;
  constexpr std::int64_t kLargest = std::int64_t{1} << 48;  // as of a tensor
  if (std::min({tokens, in, out}) < 0 || std::max({tokens, in, out}) > kLargest) {
    throw Error(ErrorCode::invalid_argument, "expected_gain",
                fmt::format("the layer has {} tokens, {} inputs and {} outputs; each must be from 0 to {} (2^48)",
                            tokens, in, out, kLargest));
  }
  const bool folds = config.input == OtherCodes::folded || config.weight == OtherCodes::folded;
  const TensorCasts grad_output = grad_output_casts(config);
  LinearGain gain{.high_precision_us = products_us({}, size, multiprocessors),
                  .us = products_us(config, size, multiprocessors)};
  for (const TensorCasts& casts : {input_casts(config), input_casts_again(config)}) {
    gain.us += cast_us(casts, tokens, in, multiprocessors);
  }
  for (const TensorCasts& casts : {weight_casts(config), weight_casts_again(config)}) {
    gain.us += cast_us(casts, out, in, multiprocessors);
  }
  if (folds) {
    gain.us += cast_us({.codes = grad_output.codes}, tokens, out, multiprocessors) +
               cast_us({.transposed = grad_output.transposed}, tokens, out, multiprocessors);
  } else {
    gain.us += cast_us(grad_output, tokens, out, multiprocessors);
  }
  return gain;
}

}  // namespace ingot
