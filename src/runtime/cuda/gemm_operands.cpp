#include "ingot/runtime/cuda/gemm_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/timing.h"

#include "numerics.cuh"

namespace ingot {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr std::int64_t kSlabs = 8;
constexpr std::int64_t kRowsOfSlab = 8;
constexpr double kTolerance = 0x1p-7;

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  return static_cast<std::size_t>(rows * cols) * static_cast<std::size_t>(size_of(dtype));
}

float value_at(const std::byte* data, Dtype dtype) {
  if (dtype == Dtype::f32) {
    float value = 0;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  u16 bits = 0;
  std::memcpy(&bits, data, sizeof(bits));
  return dtype == Dtype::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

// Rows of a (the M of the product), in place.
Tensor rows_of_a(const Tensor& a, Layout layout, std::int64_t row, std::int64_t rows) {
  Tensor part = a;
  const std::int64_t offset = layout == Layout::k_major ? row * a.row_stride : row;
  part.data = static_cast<std::byte*>(a.data) + offset * size_of(a.dtype);
  (layout == Layout::k_major ? part.rows : part.cols) = rows;
  return part;
}

Tensor factors_of(const Tensor& factors, ScaleGranularity scale, std::int64_t row, std::int64_t rows, std::int64_t k) {
  if (scale == kTensorwise) return factors;
  const std::int64_t each = scale_count(scale, 1, k);
  return vector(static_cast<float*>(factors.data) + row * each, Dtype::f32, rows * each, factors.device);
}

// There are operands for a product, its factors and its bias. A spec that asks for more is not measured.
void require_operands(const GemmCall& call) {
  const GemmSpec& spec = call.spec;
  const GemmSpec product{.a = spec.a,
                         .b = spec.b,
                         .out = spec.out,
                         .layout_a = spec.layout_a,
                         .layout_b = spec.layout_b,
                         .scale_a = spec.scale_a,
                         .scale_b = spec.scale_b,
                         .bias = spec.bias,
                         .fast_accumulation = spec.fast_accumulation};
  if (without_kernel(spec) == product && !is_fp8(spec.out)) return;
  throw Error(ErrorCode::invalid_argument, print(call), "cannot be tuned: only a product with a bias can");
}

}  // namespace

GemmOperands::GemmOperands(Gpu& gpu, RandomData& random, const GemmCall& call) : gpu_(&gpu), call_(call) {
  require_operands(call_);
  const auto& [m, n, k] = call_.size;
  const int count =
      copies_for(bytes_of(m, k, call_.spec.a) + bytes_of(n, k, call_.spec.b) + bytes_of(m, n, call_.spec.out));
  for (int i = 0; i < count; ++i)
    copies_.push_back(make_gemm_data(random, call_, static_cast<std::uint64_t>(i) * 1000));
  for (std::int64_t i = 0; i < kSlabs; ++i) {
    const std::int64_t rows = std::min(kRowsOfSlab, m);
    // The first rows, the last, and odd ones between.
    const std::int64_t row = i + 1 == kSlabs ? m - rows : i == 0 ? 0 : (i * (m / kSlabs) + 3) % (m - rows + 1);
    slabs_.push_back({.row = row, .rows = rows, .expected = {}});
  }
  compute_expected();
}

// Each slab is a product of its own, of some of a's rows.
void GemmOperands::compute_expected() {
  const GemmTensors& all = copies_.back().tensors;
  GemmSpec simt = without_kernel(call_.spec);
  simt.kernel = GemmKernel::simt;
  for (Slab& slab : slabs_) {
    const OwnedTensor out(gpu_->backend(), simt.out, slab.rows, call_.size.n);
    GemmTensors part = all;
    part.a = rows_of_a(all.a, simt.layout_a, slab.row, slab.rows);
    if (is_fp8(simt.a)) {
      part.factor_a = factors_of(all.factor_a, simt.scale_a, slab.row, slab.rows, call_.size.k);
    }
    part.out = out;
    gpu_->backend().gemm(simt, part, gpu_->stream());
    slab.expected = fetch(out, 0, slab.rows);
  }
}

void GemmOperands::poison() {
  const Tensor& out = copies_.back().tensors.out;
  gpu_->fill(out.data, kPoison, bytes_of(out.rows, out.cols, out.dtype));
}

std::string GemmOperands::fault() {
  std::array<std::byte, sizeof(float)> poisoned{};
  poisoned.fill(std::byte{kPoison});
  const float unwritten = value_at(poisoned.data(), call_.spec.out);
  for (const Slab& slab : slabs_) {
    const std::vector<float> actual = fetch(copies_.back().tensors.out, slab.row, slab.rows);
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const auto expected = static_cast<double>(slab.expected[i]);
      if (actual[i] == unwritten && slab.expected[i] != unwritten) {
        const auto n = static_cast<std::size_t>(call_.size.n);
        return fmt::format("row {}, column {} was not written", slab.row + static_cast<std::int64_t>(i / n), i % n);
      }
      const double difference = static_cast<double>(actual[i]) - expected;
      error += difference * difference;
      norm += expected * expected;
    }
    const double relative = std::sqrt(error / norm);
    if (relative <= kTolerance) continue;
    return fmt::format("rows {} to {}: relative error {:.3g} against kernel simt, but at most {:.3g} is allowed",
                       slab.row, slab.row + slab.rows - 1, relative, kTolerance);
  }
  return {};
}

std::vector<float> GemmOperands::fetch(const Tensor& out, std::int64_t row, std::int64_t rows) {
  const auto element = static_cast<std::size_t>(size_of(out.dtype));
  std::vector<std::byte> bytes(bytes_of(rows, out.cols, out.dtype));
  const auto* const from = static_cast<const std::byte*>(out.data) + row * out.row_stride * size_of(out.dtype);
  gpu_->backend().copy_to_host(bytes.data(), from, bytes.size(), gpu_->stream());
  std::vector<float> values(bytes.size() / element);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(bytes.data() + i * element, out.dtype);
  return values;
}

}  // namespace ingot
