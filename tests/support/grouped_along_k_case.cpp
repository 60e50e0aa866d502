#include "support/grouped_along_k_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "ingot/codegen/kernel_spec.h"
#include "support/random.h"
#include "support/reference.h"

namespace ingot::test {

std::string describe(const AlongKCase& c) {
  std::string text = fmt::format("{} {}x{}x{} by {} experts:", print(c.spec), c.m, c.n, c.k, c.ends.size());
  for (std::size_t i = 0; i < std::min(c.ends.size(), std::size_t{12}); ++i) text += fmt::format(" {}", c.ends[i]);
  if (c.of_nans) text += fmt::format(", NaN of expert {}", *c.of_nans);
  if (c.spec.gemm.epilogue.c) text += fmt::format(", beta {}{}", c.beta, c.in_place ? " in place" : "");
  return text + (c.exact ? ", exact" : "") + (c.one_scale_inv ? ", one scale_inv" : "");
}

namespace {

struct Columns {
  std::int64_t begin, end;
};
Columns columns_of(const AlongKCase& c, std::size_t expert) {
  return {expert == 0 ? 0 : c.ends[expert - 1], c.ends[expert]};
}
std::int64_t experts_of(const AlongKCase& c) { return static_cast<std::int64_t>(c.ends.size()); }
bool is_empty(const AlongKCase& c, std::int64_t expert) {
  const Columns columns = columns_of(c, static_cast<std::size_t>(expert));
  return columns.begin == columns.end;
}

// Every second NaN is an Inf, where the format has one: both operands' meet in a product.
void set_nans(GuardedMatrix& matrix, const Columns& columns) {
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t k = columns.begin; k < columns.end; ++k) {
      const bool infinite = matrix.dtype() != Dtype::e4m3fn && (r + k) % 2 == 0;
      const float value = infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      matrix.set_bits(r, k, encode_input(matrix.dtype(), value));
    }
  }
}

void add_up(const AlongKCase& c, AlongKOperands& operands, ThreadPool& pool) {
  const std::vector<double> a = values_of(operands.a);
  const std::vector<double> b = values_of(operands.b);
  const std::int64_t rows = experts_of(c) * c.m;
  operands.sums.resize(static_cast<std::size_t>(rows * c.n));
  operands.magnitudes.resize(operands.sums.size());
  pool.parallel_for(rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Columns columns = columns_of(c, static_cast<std::size_t>(row / c.m));
      const double* const x = a.data() + row % c.m * c.k;
      for (std::int64_t n = 0; n < c.n; ++n) {
        const double* const y = b.data() + n * c.k;
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t k = columns.begin; k < columns.end; ++k) {
          sum += x[k] * y[k];
          magnitude += std::fabs(x[k] * y[k]);
        }
        operands.sums[static_cast<std::size_t>(row * c.n + n)] = sum;
        operands.magnitudes[static_cast<std::size_t>(row * c.n + n)] = magnitude;
      }
    }
  });
}

// Of each expert, one or one for each of its rows; or those for all.
GuardedMatrix scale_inv_of(const AlongKCase& c, ScaleGranularity scale, std::int64_t rows, std::uint64_t seed) {
  const std::int64_t of_expert = scale == kRowwise ? rows : 1;
  const bool one = c.one_scale_inv;
  GuardedMatrix made(Dtype::f32, 1, (one ? 1 : experts_of(c)) * of_expert);
  for (std::int64_t i = 0; i < made.cols(); ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const float value =
        c.exact ? (random_bits(seed, at) % 2 == 0 ? 0.5F : 2.0F) : static_cast<float>(0.25 + random_unit(seed, at));
    const bool unused = !one && is_empty(c, i / of_expert);
    set_f32(made, i, unused ? std::numeric_limits<float>::quiet_NaN() : value);
  }
  return made;
}

}  // namespace

std::shared_ptr<const AlongKOperands> AlongKMaker::operands(const AlongKCase& c) {
  std::string key = fmt::format("{} {} {} {} {} {} {} {}", name(c.spec.gemm.a), name(c.spec.gemm.b), c.m, c.n, c.k,
                                c.exact, c.in_padding, c.of_nans ? static_cast<std::int64_t>(*c.of_nans) : -1);
  for (const std::int32_t end : c.ends) key += fmt::format(" {}", end);
  auto& kept = kept_[key];
  if (kept == nullptr) {
    auto made =
        std::make_shared<AlongKOperands>(AlongKOperands{.a = GuardedMatrix(c.spec.gemm.a, c.m, c.k, c.in_padding),
                                                        .b = GuardedMatrix(c.spec.gemm.b, c.n, c.k, c.in_padding)});
    const Input input = c.exact ? Input::integers : Input::normal;
    fill(made->a, input, 1, pool_);
    fill(made->b, input, 2, pool_);
    for (GuardedMatrix* const operand : {&made->a, &made->b}) {
      set_nans(*operand, {c.ends.back(), c.k});
      if (c.of_nans) set_nans(*operand, columns_of(c, *c.of_nans));
    }
    add_up(c, *made, pool_);
    kept = std::move(made);
  }
  return kept;
}

AlongKData::AlongKData(const AlongKCase& c, AlongKMaker& maker) : case_(c), operands_(maker.operands(c)) {
  const GemmSpec& gemm = c.spec.gemm;
  if (is_fp8(gemm.a)) {
    scale_inv_a_ = scale_inv_of(c, gemm.scale_a, c.m, 3);
    scale_inv_b_ = scale_inv_of(c, gemm.scale_b, c.n, 4);
  }
  if (!gemm.epilogue.c) return;
  c_ = GuardedMatrix(*gemm.epilogue.c, experts_of(c) * c.m, c.n, c.out_padding);
  for (std::int64_t r = 0; r < c_.rows(); ++r) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      const auto at = static_cast<std::uint64_t>(r * c.n + n);
      const float value = c.exact ? static_cast<float>(random_bits(5, at) % 64) : random_normal(5, at);
      c_.set_bits(r, n, encode_input(c_.dtype(), value));
    }
  }
}

std::string AlongKData::fault_at(const GuardedMatrix& out, std::int64_t row, std::int64_t n) const {
  const GemmSpec& gemm = case_.spec.gemm;
  const std::int64_t expert = row / case_.m;
  const auto at = static_cast<std::size_t>(row * case_.n + n);
  const auto scale_inv = [&](const GuardedMatrix& all, ScaleGranularity scale, std::int64_t of_row) {
    if (scale == kTensorwise) return all.value(0, case_.one_scale_inv ? 0 : expert);
    return all.value(0, case_.one_scale_inv ? of_row % all.cols() : of_row);
  };
  double factor = 1;
  if (is_fp8(gemm.a) && !is_empty(case_, expert)) {
    factor = scale_inv(scale_inv_a_, gemm.scale_a, row) * scale_inv(scale_inv_b_, gemm.scale_b, expert * case_.n + n);
  }
  const double added = gemm.epilogue.c && case_.beta != 0 ? case_.beta * c_.value(row, n) : 0;
  const double value = operands_->sums[at] * factor + added;
  // The tensor cores keep fewer bits of a sum of FP8 products than f32 has.
  const double magnitude = operands_->magnitudes[at] * factor + std::fabs(added);
  const double tensor_cores = is_fp8(gemm.a) ? 0x1p-10 * operands_->magnitudes[at] * factor : 0.0;
  const double rounded = decode_reference(gemm.out, encode_input(gemm.out, static_cast<float>(value)));
  const double given = out.value(row, n);
  if (std::isnan(value) && std::isnan(given)) return {};
  const bool right = case_.exact || is_empty(case_, expert)
                         ? given == rounded
                         : std::fabs(given - value) <= sum_bound(gemm.out, case_.k, value, magnitude) + tensor_cores;
  if (right) return {};
  const Columns columns = columns_of(case_, static_cast<std::size_t>(expert));
  return fmt::format("expert {} (whose columns are {} to {}), row {}, column {}: expected {}, got {}", expert,
                     columns.begin, columns.end, row % case_.m, n, case_.exact ? rounded : value, show(out, row, n));
}

std::string AlongKData::fault_of(const GuardedMatrix& out) const {
  std::string fault = out.damage();
  for (std::int64_t row = 0; row < out.rows() && fault.empty(); ++row) {
    for (std::int64_t n = 0; n < case_.n && fault.empty(); ++n) fault = fault_at(out, row, n);
  }
  return fault;
}

PlacedAlongK::PlacedAlongK(const AlongKData& data, Backend& backend, Stream& stream)
    : spec_(data.of().spec),
      backend_(&backend),
      out_(data.of().spec.gemm.out, experts_of(data.of()) * data.of().m, data.of().n, data.of().out_padding),
      out_memory_(backend, out_.bytes().size()),
      ends_(backend, data.of().ends.size() * sizeof(std::int32_t)) {
  tensors_.a = place(data.a(), stream);
  tensors_.b = place(data.b(), stream);
  if (is_fp8(spec_.gemm.a)) {
    tensors_.scale_inv_a = place(data.scale_inv_a(), stream);
    tensors_.scale_inv_b = place(data.scale_inv_b(), stream);
  }
  tensors_.ends = {.data = static_cast<const std::int32_t*>(ends_.data()),
                   .experts = experts_of(data.of()),
                   .device = backend.device()};
  tensors_.beta = data.of().beta;
  const bool adds = spec_.gemm.epilogue.c.has_value();
  if (adds && data.of().in_place) out_ = data.c();
  set_ends(data.of().ends, stream);
  reset(stream);
  tensors_.out = out_.view(out_memory_.data(), backend.device());
  if (adds) tensors_.c = data.of().in_place ? tensors_.out : place(data.c(), stream);
}

void PlacedAlongK::reset(Stream& stream) {
  backend_->device_api().copy_from_host(out_memory_.data(), out_.bytes().data(), out_.bytes().size(), stream);
}

void PlacedAlongK::set_ends(const Ends& ends, Stream& stream) {
  backend_->device_api().copy_from_host(ends_.data(), ends.data(), ends.size() * sizeof(std::int32_t), stream);
}

GuardedMatrix PlacedAlongK::out(Stream& stream) {
  GuardedMatrix fetched = out_;
  backend_->device_api().copy_to_host(fetched.bytes().data(), out_memory_.data(), fetched.bytes().size(), stream);
  return fetched;
}

Tensor PlacedAlongK::place(const GuardedMatrix& matrix, Stream& stream) {
  Buffer buffer(*backend_, matrix.bytes().size());
  backend_->device_api().copy_from_host(buffer.data(), matrix.bytes().data(), matrix.bytes().size(), stream);
  memory_.push_back(std::move(buffer));
  return matrix.view(memory_.back().data(), backend_->device());
}

}  // namespace ingot::test
