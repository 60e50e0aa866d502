// The expected outputs are computed once, for eight slabs of rows from all parts of the output: kernel simt gives the
// sums, and the epilogue is computed on the host. The same rows of each candidate's outputs are compared with them.
#include "ingot/runtime/measure/gemm_operands.h"
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/measure/timing.h"
#include "numerics.cuh"
#include "scaling.cuh"

namespace ingot {
namespace {

constexpr float kBeta = 0.5F;
constexpr float kOutputRange = 16;  // the largest |value| of an FP8 output before it saturates

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  return static_cast<std::size_t>(rows * cols) * static_cast<std::size_t>(size_of(dtype));
}

// 1 / sqrt(k), rounded to a power of two, so that FP8 codes are the same for every deviation.
float deviation_for(std::int64_t k) {
  return static_cast<float>(std::exp2(-std::round(std::log2(static_cast<double>(k)) / 2)));
}

class Maker {
 public:
  Maker(RandomData& random, std::uint64_t seed, ScaleInvOrder order)
      : random_(&random), backend_(&random.backend()), seed_(seed), order_(order) {}

  Tensor unset(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    made_.memory.emplace_back(*backend_, bytes_of(rows, cols, dtype));
    return matrix(made_.memory.back().data(), dtype, rows, cols, backend_->device());
  }

  Tensor values(Dtype dtype, std::int64_t rows, std::int64_t cols, float deviation = 1.0F) {
    const Tensor tensor = unset(dtype, rows, cols);
    random_->fill(tensor.data, bytes_of(rows, cols, dtype), dtype, ++seed_, deviation);
    return tensor;
  }

  // a or b, and its scale_inv.
  Tensor operand(Dtype dtype, Layout layout, ScaleGranularity scale, std::int64_t rows, std::int64_t k, float deviation,
                 Tensor& scale_inv) {
    if (!is_fp8(dtype)) {
      return layout == Layout::k_major ? values(dtype, rows, k, deviation) : values(dtype, k, rows, deviation);
    }
    const Buffer cast(*backend_, bytes_of(rows, k, Dtype::bf16));
    random_->fill(cast.data(), cast.bytes(), Dtype::bf16, ++seed_, deviation);
    const Tensor codes = unset(dtype, rows, k);
    const bool by_group = scale == kRowGroups && order_ == ScaleInvOrder::by_group;
    scale_inv = by_group ? unset(Dtype::f32, divided_up(k, std::int64_t{scale.cols}), rows)
                         : unset(Dtype::f32, 1, scale_count(scale, rows, k));
    backend_->cast({.in = Dtype::bf16, .out = dtype, .scale = scale},
                   {.input = matrix(cast.data(), Dtype::bf16, rows, k, backend_->device()),
                    .codes = codes,
                    .scale_inv = scale_inv},
                   random_->stream());
    backend_->device_api().synchronize(random_->stream());  // before the values are released
    return codes;
  }

  Tensor input(const PointwiseInput& of, const GemmSpec& spec, const MatmulSize& size) {
    switch (of.kind) {
      case PointwiseInput::Kind::row: return values(Dtype::f32, 1, size.m);
      case PointwiseInput::Kind::column: return values(epilogue_dtype(spec), 1, size.n);
      default: return values(epilogue_dtype(spec), size.m, size.n);
    }
  }

  Tensor single(float value) {
    const Tensor tensor = unset(Dtype::f32, 1, 1);
    backend_->device_api().copy_from_host(tensor.data, &value, sizeof(value), random_->stream());
    return tensor;
  }

  GemmData run(const GemmSpec& spec, const MatmulSize& size) {
    const auto& [m, n, k] = size;
    GemmTensors& tensors = made_.tensors;
    tensors.a = operand(spec.a, spec.layout_a, spec.scale_a, m, k, 1.0F, tensors.scale_inv_a);
    tensors.b = operand(spec.b, spec.layout_b, spec.scale_b, n, k, deviation_for(k), tensors.scale_inv_b);
    tensors.out = unset(spec.out, m, n);
    if (spec.bias) tensors.bias = values(bias_dtype(spec), 1, n);
    const GemmEpilogue& epilogue = spec.epilogue;
    if (epilogue.c) tensors.c = values(*epilogue.c, m, n);
    tensors.beta = kBeta;
    const auto inputs = epilogue.pointwise.inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) tensors.inputs[i] = input(inputs[i], spec, size);
    if (epilogue.preactivation) tensors.preactivation = unset(epilogue_dtype(spec), m, n);
    if (epilogue.amax) tensors.amax = single(0.0F);
    if (is_fp8(spec.out)) {
      tensors.scale = single(fp8_max(spec.out) / kOutputRange);
      tensors.scale_inv = unset(Dtype::f32, 1, 1);
    }
    return std::move(made_);
  }

 private:
  RandomData* random_;
  Backend* backend_;
  std::uint64_t seed_;
  ScaleInvOrder order_;
  GemmData made_;
};

}  // namespace

GemmData make_gemm_data(RandomData& random, const GemmCall& call, std::uint64_t seed, ScaleInvOrder order) {
  return Maker(random, seed, order).run(call.spec, call.size);
}

namespace {

constexpr std::int64_t kSlabs = 8;
constexpr std::int64_t kRowsOfSlab = 8;
constexpr double kGemmTolerance = 0x1p-7;

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.rows * tensor.cols) * static_cast<std::size_t>(size_of(tensor.dtype));
}

// NaN in every dtype.
unsigned char poison_of(Dtype dtype) { return is_fp8(dtype) && !is_ocp(dtype) ? 0x80 : 0xff; }

// A view of some rows of a matrix.
Tensor rows_of(const Tensor& all, Layout layout, std::int64_t row, std::int64_t rows) {
  Tensor part = all;
  const std::int64_t offset = layout == Layout::k_major ? row * all.row_stride : row;
  part.data = static_cast<std::byte*>(all.data) + offset * size_of(all.dtype);
  (layout == Layout::k_major ? part.rows : part.cols) = rows;
  return part;
}

Tensor scale_inv_of(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t row, std::int64_t rows,
                    std::int64_t k) {
  if (scale == kTensorwise) return scale_inv;
  if (scale_inv.rows > 1) {  // by group
    Tensor part = scale_inv;
    part.data = static_cast<float*>(scale_inv.data) + row;
    part.cols = rows;
    return part;
  }
  const std::int64_t each = scale_count(scale, 1, k);
  return vector(static_cast<float*>(scale_inv.data) + row * each, Dtype::f32, rows * each, scale_inv.device);
}

bool equal_or_nan(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

GemmOperands::GemmOperands(RandomData& random, Fill fill, const GemmCall& call)
    : backend_(&random.backend()), stream_(&random.stream()), fill_(std::move(fill)), call_(call) {
  copies_.push_back(make_gemm_data(random, call_, 0));
  std::size_t bytes = 0;
  for (const Buffer& buffer : copies_.front().memory) bytes += buffer.bytes();
  for (int i = 1; i < copies_for(bytes); ++i) {
    copies_.push_back(make_gemm_data(random, call_, static_cast<std::uint64_t>(i) * 1000));
  }
  out_ = {.dtype = call_.spec.out};
  if (is_fp8(out_.dtype)) out_.scale = fetch_single(copies_.back().tensors.scale);
  preactivation_ = {.dtype = epilogue_dtype(call_.spec)};
  const std::int64_t m = call_.size.m;
  for (std::int64_t i = 0; i < kSlabs; ++i) {
    const std::int64_t rows = std::min(kRowsOfSlab, m);
    // The first rows, the last, and odd ones between.
    const std::int64_t row = i + 1 == kSlabs ? m - rows : i == 0 ? 0 : (i * (m / kSlabs) + 3) % (m - rows + 1);
    slabs_.push_back({.row = row, .rows = rows});
  }
  compute_expected();
}

void GemmOperands::compute_expected() {
  for (Slab& slab : slabs_) {
    const std::vector<float> x = sums(slab);
    const float size = root_mean_square(x);
    slab.out = values(slab, x, size);
    if (call_.spec.epilogue.preactivation) slab.preactivation = right_values({}, x, {}, size, preactivation_);
  }
}

// scale_inv * sum + bias + beta * c for some of a's rows, by a separate GEMM.
std::vector<float> GemmOperands::sums(const Slab& slab) {
  const GemmTensors& all = copies_.back().tensors;
  GemmSpec simt = without_kernel(call_.spec);
  simt.kernel = GemmKernel::simt;
  simt.out = epilogue_dtype(call_.spec);
  simt.epilogue = {.c = call_.spec.epilogue.c};
  const OwnedTensor x(*backend_, simt.out, slab.rows, call_.size.n);
  GemmTensors part{.a = rows_of(all.a, simt.layout_a, slab.row, slab.rows),
                   .b = all.b,
                   .scale_inv_b = all.scale_inv_b,
                   .bias = all.bias,
                   .out = x,
                   .beta = all.beta};
  if (is_fp8(simt.a)) part.scale_inv_a = scale_inv_of(all.scale_inv_a, simt.scale_a, slab.row, slab.rows, call_.size.k);
  if (simt.epilogue.c) part.c = rows_of(all.c, Layout::k_major, slab.row, slab.rows);
  backend_->gemm(simt, part, *stream_);
  return fetch(x, 0, slab.rows);
}

// The expression of them.
std::vector<RightValue> GemmOperands::values(const Slab& slab, std::span<const float> x, float size) {
  const auto n = static_cast<std::size_t>(call_.size.n);
  const auto kinds = call_.spec.epilogue.pointwise.inputs();
  std::vector<std::vector<float>> read;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Tensor& input = copies_.back().tensors.inputs[i];
    const bool matrix = kinds[i].kind == PointwiseInput::Kind::matrix;
    read.push_back(matrix ? fetch(input, slab.row, slab.rows) : fetch(input, 0, 1));
  }
  std::vector<RightValue> right;
  for (std::size_t r = 0; r < static_cast<std::size_t>(slab.rows); ++r) {
    std::vector<PointwiseValues> inputs;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const bool same_for_all = kinds[i].kind == PointwiseInput::Kind::row;
      const std::size_t first = same_for_all                                    ? static_cast<std::size_t>(slab.row) + r
                                : kinds[i].kind == PointwiseInput::Kind::matrix ? r * n
                                                                                : 0;
      inputs.push_back({.values = read[i].data() + first, .same = same_for_all});
    }
    std::ranges::copy(right_values(call_.spec.epilogue.pointwise, x.subspan(r * n, n), inputs, size, out_),
                      std::back_inserter(right));
  }
  return right;
}

void GemmOperands::poison() {
  const GemmTensors& tensors = copies_.back().tensors;
  for (const Tensor& output : {tensors.out, tensors.preactivation, tensors.scale_inv}) {
    if (output.data != nullptr) fill_(output.data, poison_of(output.dtype), bytes_of(output));
  }
  if (tensors.amax.data != nullptr) fill_(tensors.amax.data, 0, bytes_of(tensors.amax));
}

std::string GemmOperands::fault() {
  const GemmTensors& tensors = copies_.back().tensors;
  for (const Slab& slab : slabs_) {
    std::string found = fault_of("", tensors.out, out_, slab, slab.out);
    if (found.empty() && !slab.preactivation.empty()) {
      found = fault_of("preactivation, ", tensors.preactivation, preactivation_, slab, slab.preactivation);
    }
    if (!found.empty()) return found;
  }
  if (tensors.amax.data != nullptr) {
    if (std::string found = fault_of_amax(tensors); !found.empty()) return found;
  }
  if (!is_fp8(call_.spec.out)) return {};
  const float factor = fetch_single(tensors.scale_inv);
  if (factor == factor_from_scale(out_.scale)) return {};
  return fmt::format("factor is {}, but 1 / scale is {}", factor, factor_from_scale(out_.scale));
}

std::string GemmOperands::fault_of(const char* what, const Tensor& output, const OutputFormat& format, const Slab& slab,
                                   std::span<const RightValue> expected) {
  std::vector<float> actual = fetch(output, slab.row, slab.rows);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (is_fp8(output.dtype)) actual[i] /= format.scale;
    if (std::isnan(actual[i]) && !std::isnan(expected[i].value) && !std::isinf(expected[i].scale)) {
      const auto n = static_cast<std::size_t>(call_.size.n);
      return fmt::format("{}row {}, column {} was not written, or is NaN", what,
                         slab.row + static_cast<std::int64_t>(i / n), i % n);
    }
  }
  const double error = output_error(actual, expected, format);
  if (error <= kGemmTolerance) return {};
  return fmt::format("{}rows {} to {}: relative error {:.3g} against kernel simt, but at most {:.3g} is allowed", what,
                     slab.row, slab.row + slab.rows - 1, error, kGemmTolerance);
}

// For a high-precision output it is the amax of the values as stored; an FP8 output has its largest code where the amax
// is.
std::string GemmOperands::fault_of_amax(const GemmTensors& tensors) {
  const float amax = fetch_single(tensors.amax);
  if (is_fp8(call_.spec.out)) {
    const float largest = largest_code(tensors.out);
    if (equal_or_nan(stored_value(amax, out_), largest / out_.scale)) return {};
    return fmt::format("amax is {}, but the largest code stands for {}", amax, largest / out_.scale);
  }
  const OwnedTensor expected(*backend_, Dtype::f32, 1, 1);
  backend_->amax({.in = call_.spec.out}, {.input = tensors.out, .amax = expected}, *stream_);
  const float largest = fetch_single(expected);
  return equal_or_nan(amax, largest) ? "" : fmt::format("amax is {}, but that of the output is {}", amax, largest);
}

float GemmOperands::largest_code(const Tensor& codes) {
  constexpr std::int64_t kElementsAtATime = 1 << 24;
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(1, kElementsAtATime / codes.cols);
  float largest = 0;
  for (std::int64_t row = 0; row < codes.rows; row += rows_at_a_time) {
    for (const float value : fetch(codes, row, std::min(rows_at_a_time, codes.rows - row))) {
      if (std::isnan(value)) return value;
      largest = std::max(largest, std::fabs(value));
    }
  }
  return largest;
}

// Rows of a matrix without padding, decoded.
std::vector<float> GemmOperands::fetch(const Tensor& tensor, std::int64_t row, std::int64_t rows) {
  return visit_dtype(tensor.dtype, [&]<class T>(Type<T>) {
    std::vector<T> elements(static_cast<std::size_t>(rows * tensor.cols));
    const T* const from = static_cast<const T*>(tensor.data) + row * tensor.cols;
    backend_->device_api().copy_to_host(elements.data(), from, elements.size() * sizeof(T), *stream_);
    std::vector<float> values(elements.size());
    std::ranges::transform(elements, values.begin(), [](T element) { return to_float(element); });
    return values;
  });
}

}  // namespace ingot
