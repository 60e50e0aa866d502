#include "gemm_buffers.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/measure/timing.h"

#include "numerics.cuh"

namespace ingot::bench {
namespace {

constexpr double kTolerance = 0x1p-8;    // targets for bf16 output
constexpr double kFastTolerance = 5e-3;  // for accumulation in the tensor cores, with K up to 16384
constexpr unsigned char kOutputPoison = 0xa5;
constexpr std::int64_t kCheckedRows = 48;
constexpr std::int64_t kSamplesOfRow = 4;

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  return static_cast<std::size_t>(rows * cols) * static_cast<std::size_t>(size_of(dtype));
}

double decode_code(Dtype dtype, std::byte code) {
  const u8 bits = static_cast<u8>(code);
  return static_cast<double>(dtype == Dtype::e5m2 ? decode(e5m2{bits}) : decode(e4m3fn{bits}));
}

std::vector<std::byte> fetch(MeasuredGpu& gpu, const void* from, std::size_t bytes) {
  std::vector<std::byte> fetched(bytes);
  gpu.device_api().copy_to_host(fetched.data(), from, bytes, gpu.stream());
  return fetched;
}

// Column c of an operand across K, all of which is fetched the first time.
std::vector<double> bf16_column(MeasuredGpu& gpu, const Tensor& tensor, std::int64_t c, std::vector<std::byte>& all) {
  if (all.empty()) all = fetch(gpu, tensor.data, bytes_of(tensor.rows, tensor.row_stride, tensor.dtype));
  std::vector<double> values(static_cast<std::size_t>(tensor.rows));
  for (std::size_t i = 0; i < values.size(); ++i) {
    u16 bits = 0;
    std::memcpy(&bits, all.data() + 2 * (static_cast<std::int64_t>(i) * tensor.row_stride + c), sizeof(bits));
    values[i] = static_cast<double>(to_float(bf16{bits}));
  }
  return values;
}

std::vector<double> bf16_values(MeasuredGpu& gpu, const Tensor& tensor, std::int64_t r) {
  const auto bytes = fetch(gpu, static_cast<const std::byte*>(tensor.data) + r * tensor.row_stride * 2,
                           bytes_of(1, tensor.cols, tensor.dtype));
  std::vector<double> values(static_cast<std::size_t>(tensor.cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    u16 bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    values[i] = static_cast<double>(to_float(bf16{bits}));
  }
  return values;
}

// Dequantizes row r of an operand: codes times scale_inv.
std::vector<double> values_of(MeasuredGpu& gpu, const Tensor& codes, const Tensor& scale_inv, ScaleGranularity scale,
                              std::int64_t r) {
  if (codes.dtype == Dtype::bf16) return bf16_values(gpu, codes, r);
  const auto cols = static_cast<std::size_t>(codes.cols);
  const auto row = fetch(gpu, static_cast<const std::byte*>(codes.data) + r * codes.row_stride, cols);
  const std::int64_t extent = scale.cols == 0 ? codes.cols : scale.cols;
  const std::int64_t across = (codes.cols + extent - 1) / extent;
  const std::int64_t first = scale.rows == 0 ? 0 : r / scale.rows;
  const ScaleInvStrides strides = scale_inv_strides(scale_inv, scale, codes.cols);
  const auto* const from = static_cast<const float*>(scale_inv.data) + first * strides.row;
  std::vector<float> of_row(static_cast<std::size_t>(across));
  if (strides.group > 1) {  // far apart
    for (std::int64_t g = 0; g < across; ++g) {
      std::memcpy(&of_row[static_cast<std::size_t>(g)], fetch(gpu, from + g * strides.group, sizeof(float)).data(),
                  sizeof(float));
    }
  } else {
    std::memcpy(of_row.data(), fetch(gpu, from, of_row.size() * sizeof(float)).data(), of_row.size() * sizeof(float));
  }
  std::vector<double> values(cols);
  for (std::size_t i = 0; i < cols; ++i) {
    values[i] = decode_code(codes.dtype, row[i]) * static_cast<double>(of_row[i / static_cast<std::size_t>(extent)]);
  }
  return values;
}

double element(MeasuredGpu& gpu, const Tensor& tensor, std::int64_t r, std::int64_t c) {
  const auto* const at =
      static_cast<const std::byte*>(tensor.data) + (r * tensor.row_stride + c) * size_of(tensor.dtype);
  u16 bits = 0;
  std::memcpy(&bits, fetch(gpu, at, sizeof(bits)).data(), sizeof(bits));
  return static_cast<double>(to_float(bf16{bits}));
}

// Applies what follows the sum x of element (r, c): bias, beta * C and the epilogue's expression.
double finished(MeasuredGpu& gpu, const GemmSpec& spec, const GemmTensors& t, std::int64_t r, std::int64_t c,
                double x) {
  if (spec.bias) x += element(gpu, t.bias, 0, c);
  if (spec.epilogue.c) x += static_cast<double>(t.beta) * element(gpu, t.c, r, c);
  std::vector<double> inputs;
  for (std::size_t i = 0; i < spec.epilogue.pointwise.inputs().size(); ++i) {
    inputs.push_back(element(gpu, t.inputs[i], r, c));
  }
  return evaluate(spec.epilogue.pointwise, x, inputs);
}

}  // namespace

GemmBuffers::GemmBuffers(RandomData& random, const GemmCase& gemm_case) : case_(gemm_case) {
  const MatmulSize& s = case_.size;
  const std::size_t bytes =
      bytes_of(s.m, s.k, case_.spec.a) + bytes_of(s.n, s.k, case_.spec.b) + bytes_of(s.m, s.n, case_.spec.out);
  const int count = copies_for(bytes);
  for (int i = 0; i < count; ++i) {
    copies_.push_back(make_gemm_data(random, {case_.spec, case_.size}, static_cast<std::uint64_t>(i) * 1000,
                                     case_.cublaslts_order ? ScaleInvOrder::by_group : ScaleInvOrder::by_row));
  }
}

void GemmBuffers::poison(MeasuredGpu& gpu) const {
  const Tensor& out = copies_.back().tensors.out;
  gpu.check(gpu.api().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(out.data), kOutputPoison,
                                      bytes_of(out.rows, out.cols, out.dtype), gpu.stream().handle()),
            "cuMemsetD8Async");
}

std::string GemmBuffers::fault(MeasuredGpu& gpu) const {
  const GemmTensors& t = copies_.back().tensors;
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < kCheckedRows; ++i) {
    const std::int64_t r = i == 0 ? t.out.rows - 1 : (i * 7919 + 13) % t.out.rows;
    const auto* const row = static_cast<const std::byte*>(t.out.data) + r * t.out.row_stride * size_of(t.out.dtype);
    const std::vector<std::byte> out = fetch(gpu, row, bytes_of(1, t.out.cols, t.out.dtype));
    const auto bits = [&](std::int64_t c) {
      u16 word = 0;
      std::memcpy(&word, out.data() + 2 * c, sizeof(word));
      return word;
    };
    // Two poisoned neighbours, because an expression may have the poison itself as a value: silu(-35) is about
    // -2.9e-16.
    for (std::int64_t c = 1; c < t.out.cols; ++c) {
      if (bits(c - 1) == 0xa5a5 && bits(c) == 0xa5a5) return fmt::format("row {}, column {} was not written", r, c);
    }
    const std::vector<double> a = case_.spec.layout_a == Layout::mn_major
                                      ? bf16_column(gpu, t.a, r, across_a_)
                                      : values_of(gpu, t.a, t.scale_inv_a, case_.spec.scale_a, r);
    for (std::int64_t j = 0; j < kSamplesOfRow; ++j) {
      const std::int64_t c = (i * 104729 + 7 + j * t.out.cols / kSamplesOfRow) % t.out.cols;
      const std::vector<double> b = case_.spec.layout_b == Layout::mn_major
                                        ? bf16_column(gpu, t.b, c, across_b_)
                                        : values_of(gpu, t.b, t.scale_inv_b, case_.spec.scale_b, c);
      double expected = 0;
      for (std::size_t k = 0; k < a.size(); ++k) expected += a[k] * b[k];
      expected = finished(gpu, case_.spec, t, r, c, expected);
      const auto actual = static_cast<double>(to_float(bf16{bits(c)}));
      error += (actual - expected) * (actual - expected);
      norm += expected * expected;
    }
  }
  const double relative = std::sqrt(error / norm);
  const double allowed = case_.spec.fast_accumulation ? kFastTolerance : kTolerance;
  if (relative <= allowed) return {};
  return fmt::format("relative error {:.3g} of {} samples, but at most {:.3g} is allowed", relative,
                     kCheckedRows * kSamplesOfRow, allowed);
}

}  // namespace ingot::bench
