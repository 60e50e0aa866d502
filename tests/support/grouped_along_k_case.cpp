#include "support/grouped_along_k_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "expert_slots.cuh"
#include "ingot/codegen/kernel_spec.h"
#include "support/placed_matrix.h"
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

bool in_slots(const AlongKCase& c) { return has_group_scale_inv(c.spec.gemm); }
std::int64_t experts_of(const AlongKCase& c) { return static_cast<std::int64_t>(c.ends.size()); }
std::int64_t operand_columns(const AlongKCase& c) {
  return in_slots(c) ? ExpertSlots::kRows * ExpertSlots::count(c.k, experts_of(c)) : c.k;
}

struct Columns {
  std::int64_t begin, end;
};
// Of the operands.
Columns columns_of(const AlongKCase& c, std::size_t expert) {
  const Columns own{expert == 0 ? 0 : c.ends[expert - 1], c.ends[expert]};
  if (!in_slots(c)) return own;
  const std::int64_t first = ExpertSlots::first(own.begin, static_cast<std::int64_t>(expert)) * ExpertSlots::kRows;
  return {first, first + own.end - own.begin};
}
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

AlongKSums added_up(const AlongKCase& c, const std::vector<double>& a, const std::vector<double>& b, ThreadPool& pool) {
  const std::int64_t rows = experts_of(c) * c.m;
  const std::int64_t all = operand_columns(c);
  AlongKSums made;
  made.sums.resize(static_cast<std::size_t>(rows * c.n));
  made.magnitudes.resize(made.sums.size());
  pool.parallel_for(rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Columns columns = columns_of(c, static_cast<std::size_t>(row / c.m));
      const double* const x = a.data() + row % c.m * all;
      for (std::int64_t n = 0; n < c.n; ++n) {
        const double* const y = b.data() + n * all;
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t k = columns.begin; k < columns.end; ++k) {
          sum += x[k] * y[k];
          magnitude += std::fabs(x[k] * y[k]);
        }
        made.sums[static_cast<std::size_t>(row * c.n + n)] = sum;
        made.magnitudes[static_cast<std::size_t>(row * c.n + n)] = magnitude;
      }
    }
  });
  return made;
}

float scale_inv_value(const AlongKCase& c, std::uint64_t seed, std::uint64_t at) {
  if (c.exact) return random_bits(seed, at) % 2 == 0 ? 0.5F : 2.0F;
  return static_cast<float>(0.25 + random_unit(seed, at));
}

// NaN where no expert has a slot; zeros in slots beyond their expert's columns.
void clear_between_experts(const AlongKCase& c, GuardedMatrix& operand) {
  std::int64_t from = 0;
  for (std::size_t e = 0; e < c.ends.size(); ++e) {
    const Columns own = columns_of(c, e);
    const std::int64_t first = own.begin;
    const std::int64_t end = first + ExpertSlots::of_rows(own.end - own.begin) * ExpertSlots::kRows;
    set_nans(operand, {from, first});
    for (std::int64_t r = 0; r < operand.rows(); ++r) {
      for (std::int64_t k = own.end; k < end; ++k) operand.set_bits(r, k, 0);
    }
    from = end;
  }
  set_nans(operand, {from, operand.cols()});
}

// Of slots, by group or row by row; NaN where no expert has one.
GuardedMatrix scale_inv_of_slots(const AlongKCase& c, std::int64_t rows, std::uint64_t seed) {
  const std::int64_t slots = operand_columns(c) / ExpertSlots::kRows;
  GuardedMatrix made = c.one_scale_inv ? GuardedMatrix(Dtype::f32, 1, rows * slots)
                                       : GuardedMatrix(Dtype::f32, slots, rows, c.in_padding);
  std::vector<bool> used(static_cast<std::size_t>(slots));
  for (std::size_t e = 0; e < c.ends.size(); ++e) {
    const Columns own = columns_of(c, e);
    const auto first = static_cast<std::size_t>(own.begin / ExpertSlots::kRows);
    const auto count = static_cast<std::size_t>(ExpertSlots::of_rows(own.end - own.begin));
    for (std::size_t slot = first; slot < first + count; ++slot) used[slot] = true;
  }
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool is_used = used[static_cast<std::size_t>(slot)];
      const float value = is_used ? scale_inv_value(c, seed, static_cast<std::uint64_t>(r * slots + slot))
                                  : std::numeric_limits<float>::quiet_NaN();
      const std::uint32_t bits = encode_input(Dtype::f32, value);
      made.rows() == slots && !c.one_scale_inv ? made.set_bits(slot, r, bits)
                                               : made.set_bits(0, r * slots + slot, bits);
    }
  }
  return made;
}

// The values of an operand in slots.
std::vector<double> scaled_values(const AlongKCase& c, const GuardedMatrix& operand, const GuardedMatrix& scale_inv) {
  std::vector<double> values = values_of(operand);
  const std::int64_t slots = operand.cols() / ExpertSlots::kRows;
  for (std::int64_t r = 0; r < operand.rows(); ++r) {
    for (std::int64_t k = 0; k < operand.cols(); ++k) {
      const std::int64_t slot = k / ExpertSlots::kRows;
      values[static_cast<std::size_t>(r * operand.cols() + k)] *=
          c.one_scale_inv ? scale_inv.value(0, r * slots + slot) : scale_inv.value(slot, r);
    }
  }
  return values;
}

// Of each expert, one or one for each of its rows; or those for all.
GuardedMatrix scale_inv_of(const AlongKCase& c, ScaleGranularity scale, std::int64_t rows, std::uint64_t seed) {
  const std::int64_t of_expert = scale == kRowwise ? rows : 1;
  const bool one = c.one_scale_inv;
  GuardedMatrix made(Dtype::f32, 1, (one ? 1 : experts_of(c)) * of_expert);
  for (std::int64_t i = 0; i < made.cols(); ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const float value = scale_inv_value(c, seed, at);
    const bool unused = !one && is_empty(c, i / of_expert);
    set_f32(made, i, unused ? std::numeric_limits<float>::quiet_NaN() : value);
  }
  return made;
}

}  // namespace

std::shared_ptr<const AlongKOperands> AlongKMaker::operands(const AlongKCase& c) {
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", in_slots(c), name(c.spec.gemm.a), name(c.spec.gemm.b), c.m, c.n, c.k,
                  c.exact, c.in_padding, c.of_nans ? static_cast<std::int64_t>(*c.of_nans) : -1);
  for (const std::int32_t end : c.ends) key += fmt::format(" {}", end);
  auto& kept = kept_[key];
  if (kept == nullptr) {
    auto made = std::make_shared<AlongKOperands>(
        AlongKOperands{.a = GuardedMatrix(c.spec.gemm.a, c.m, operand_columns(c), c.in_padding),
                       .b = GuardedMatrix(c.spec.gemm.b, c.n, operand_columns(c), c.in_padding)});
    const Input input = c.exact ? Input::integers : Input::normal;
    fill(made->a, input, 1, pool_);
    fill(made->b, input, 2, pool_);
    for (GuardedMatrix* const operand : {&made->a, &made->b}) {
      in_slots(c) ? clear_between_experts(c, *operand) : set_nans(*operand, {c.ends.back(), c.k});
      if (c.of_nans) set_nans(*operand, columns_of(c, *c.of_nans));
    }
    if (!in_slots(c)) made->sums = added_up(c, values_of(made->a), values_of(made->b), pool_);
    kept = std::move(made);
  }
  return kept;
}

AlongKData::AlongKData(const AlongKCase& c, AlongKMaker& maker) : case_(c), operands_(maker.operands(c)) {
  const GemmSpec& gemm = c.spec.gemm;
  if (in_slots(c)) {
    scale_inv_a_ = scale_inv_of_slots(c, c.m, 3);
    scale_inv_b_ = scale_inv_of_slots(c, c.n, 4);
    of_slots_ = added_up(c, scaled_values(c, a(), scale_inv_a_), scaled_values(c, b(), scale_inv_b_), maker.pool());
  } else if (is_fp8(gemm.a)) {
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
  const AlongKSums& all = in_slots(case_) ? of_slots_ : operands_->sums;
  if (is_fp8(gemm.a) && !in_slots(case_) && !is_empty(case_, expert)) {
    factor = scale_inv(scale_inv_a_, gemm.scale_a, row) * scale_inv(scale_inv_b_, gemm.scale_b, expert * case_.n + n);
  }
  const double added = gemm.epilogue.c && case_.beta != 0 ? case_.beta * c_.value(row, n) : 0;
  const double value = all.sums[at] * factor + added;
  // The tensor cores keep fewer bits of a sum of FP8 products than f32 has.
  const double magnitude = all.magnitudes[at] * factor + std::fabs(added);
  const double tensor_cores = is_fp8(gemm.a) ? 0x1p-10 * all.magnitudes[at] * factor : 0.0;
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
  tensors_.a = place(data.a(), memory_, backend, stream);
  tensors_.b = place(data.b(), memory_, backend, stream);
  if (is_fp8(spec_.gemm.a)) {
    tensors_.scale_inv_a = place(data.scale_inv_a(), memory_, backend, stream);
    tensors_.scale_inv_b = place(data.scale_inv_b(), memory_, backend, stream);
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
  if (adds) tensors_.c = data.of().in_place ? tensors_.out : place(data.c(), memory_, backend, stream);
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

}  // namespace ingot::test
