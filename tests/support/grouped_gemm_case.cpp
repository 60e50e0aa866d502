#include "support/grouped_gemm_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "ingot/codegen/kernel_spec.h"
#include "support/random.h"
#include "support/reference.h"

namespace ingot::test {

Ends ends_of(const std::vector<std::int32_t>& rows) {
  Ends ends(rows.size());
  std::partial_sum(rows.begin(), rows.end(), ends.begin());
  return ends;
}

Ends balanced_ends(std::int64_t rows, std::int64_t experts) {
  Ends ends;
  for (std::int64_t e = 1; e <= experts; ++e) {
    const std::int64_t end = e == experts ? rows : std::min(rows, e * ((rows + experts - 1) / experts));
    ends.push_back(static_cast<std::int32_t>(end));
  }
  return ends;
}

Ends zipf_ends(std::int64_t rows, std::int64_t experts) {
  double all = 0;
  for (std::int64_t e = 1; e <= experts; ++e) all += 1.0 / static_cast<double>(e);
  Ends ends;
  double before = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t rank = (e * 7 + 3) % experts + 1;  // not in order; of multiples of 7 experts, some ranks twice
    before += 1.0 / static_cast<double>(rank);
    const double end = std::min(1.0, before / all) * static_cast<double>(rows);
    ends.push_back(e == experts - 1 ? static_cast<std::int32_t>(rows) : static_cast<std::int32_t>(end));
  }
  return ends;
}

Ends one_hot_ends(std::int64_t rows, std::int64_t experts, std::int64_t hot) {
  std::vector<std::int32_t> each(static_cast<std::size_t>(experts), 1);
  each[static_cast<std::size_t>(hot)] = static_cast<std::int32_t>(rows - experts + 1);
  return ends_of(each);
}

std::vector<double> values_of(const GuardedMatrix& matrix) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.cols(); ++c) values.push_back(matrix.value(r, c));
  }
  return values;
}

std::string describe(const GroupedCase& c) {
  std::string text = fmt::format("{} {}x{}x{} by {} experts:", print(c.spec), c.m, c.n, c.k, c.ends.size());
  for (std::size_t i = 0; i < std::min(c.ends.size(), std::size_t{12}); ++i) text += fmt::format(" {}", c.ends[i]);
  if (c.capacity) text += fmt::format(", with room for {} each", *c.capacity);
  return text + (c.exact ? ", exact" : "") + (c.by_group ? ", by group" : "") + (c.of_each ? ", of each expert" : "") +
         (c.each_a ? ", a's of each expert" : "");
}

namespace {

GuardedMatrix scale_inv_of(std::int64_t count, bool exact, std::uint64_t seed) {
  GuardedMatrix made(Dtype::f32, 1, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    set_f32(made, i,
            exact ? (random_bits(seed, at) % 2 == 0 ? 0.5F : 2.0F) : static_cast<float>(0.25 + random_unit(seed, at)));
  }
  return made;
}

struct Rows {
  std::int64_t begin, end;
};
Rows rows_of(const GroupedCase& c, std::size_t expert) {
  const std::int64_t end = c.ends[expert];
  if (!c.capacity) return {expert == 0 ? 0 : c.ends[expert - 1], end};
  const std::int64_t begin = static_cast<std::int64_t>(expert) * *c.capacity;
  return {begin, begin + end};
}

// The expert of each row, and one more than there are of rows that no expert has.
std::vector<std::int64_t> experts_of_rows(const GroupedCase& c) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(c.m), static_cast<std::int64_t>(c.ends.size()));
  for (std::size_t e = 0; e < c.ends.size(); ++e) {
    const Rows rows = rows_of(c, e);
    std::fill(experts.begin() + rows.begin, experts.begin() + rows.end, static_cast<std::int64_t>(e));
  }
  return experts;
}

std::int64_t groups_of(const GroupedCase& c) { return (c.k + 127) / 128; }
// Rows of scale_inv of groups: a's, and all experts' of b.
std::int64_t scale_rows_b(const GroupedCase& c) {
  const std::int64_t rows = c.spec.gemm.scale_b.rows;
  return static_cast<std::int64_t>(c.ends.size()) * ((c.n + rows - 1) / rows);
}

// Multiplies values by the scale_inv of their groups: row `r` of `values` has those of row `scale_row(r)`.
template <class ScaleRow>
void apply_groups(std::vector<double>& values, const GuardedMatrix& scale_inv, std::int64_t k, std::int64_t groups,
                  const ScaleRow& scale_row) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    values[i] *= scale_inv.value(0, scale_row(at / k) * groups + at % k / 128);
  }
}

void add_up(const GroupedCase& c, GroupedOperands& operands, ThreadPool& pool) {
  std::vector<double> a = values_of(operands.a);
  std::vector<double> b = values_of(operands.b);
  if (has_group_scale_inv(c.spec.gemm)) {
    const std::int64_t rows = c.spec.gemm.scale_b.rows;
    const std::int64_t of_expert = (c.n + rows - 1) / rows;
    apply_groups(a, operands.scale_inv_a, c.k, groups_of(c), [](std::int64_t r) { return r; });
    apply_groups(b, operands.scale_inv_b, c.k, groups_of(c),
                 [&](std::int64_t r) { return r / c.n * of_expert + r % c.n / rows; });
  }
  const std::vector<std::int64_t> experts = experts_of_rows(c);
  operands.sums.resize(static_cast<std::size_t>(c.m * c.n));
  operands.magnitudes.resize(operands.sums.size());
  pool.parallel_for(c.m, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t expert = experts[static_cast<std::size_t>(m)];
      if (expert == static_cast<std::int64_t>(c.ends.size())) continue;
      for (std::int64_t n = 0; n < c.n; ++n) {
        const double* const x = a.data() + m * c.k;
        const double* const y = b.data() + (expert * c.n + n) * c.k;
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t k = 0; k < c.k; ++k) {
          sum += x[k] * y[k];
          magnitude += std::fabs(x[k] * y[k]);
        }
        operands.sums[static_cast<std::size_t>(m * c.n + n)] = sum;
        operands.magnitudes[static_cast<std::size_t>(m * c.n + n)] = magnitude;
      }
    }
  });
}

}  // namespace

std::shared_ptr<const GroupedOperands> GroupedMaker::operands(const GroupedCase& c) {
  std::string key = fmt::format("{} {} {} {} {} {} {} {}", name(c.spec.gemm.a), name(c.spec.gemm.b), c.m, c.n, c.k,
                                c.exact, c.in_padding, c.capacity.value_or(-1));
  for (const std::int32_t end : c.ends) key += fmt::format(" {}", end);
  const bool groups = has_group_scale_inv(c.spec.gemm);
  if (groups) key += " " + print(c.spec.gemm.scale_b);
  auto& kept = kept_[key];
  if (kept == nullptr) {
    const auto experts = static_cast<std::int64_t>(c.ends.size());
    auto made = std::make_shared<GroupedOperands>(
        GroupedOperands{.a = GuardedMatrix(c.spec.gemm.a, c.m, c.k, c.in_padding),
                        .b = GuardedMatrix(c.spec.gemm.b, experts * c.n, c.k, c.in_padding)});
    const Input input = c.exact ? Input::integers : Input::normal;
    fill(made->a, input, 1, pool_);
    fill(made->b, input, 2, pool_);
    if (groups) {
      made->scale_inv_a = scale_inv_of(c.m * groups_of(c), c.exact, 3);
      made->scale_inv_b = scale_inv_of(scale_rows_b(c) * groups_of(c), c.exact, 4);
    }
    add_up(c, *made, pool_);
    kept = std::move(made);
  }
  return kept;
}

namespace {

// From one expert's blocks after another's, row by row, to a row for each group of each expert, with padding.
GuardedMatrix by_group_of_each(const GuardedMatrix& scale_inv, std::int64_t experts, std::int64_t groups) {
  const std::int64_t blocks = scale_inv.cols() / std::max<std::int64_t>(experts * groups, 1);
  GuardedMatrix made(Dtype::f32, experts * groups, blocks, blocks % 4 == 0 ? 4 : 3);  // as by_group() has it
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::int64_t group = 0; group < groups; ++group) {
        made.set_bits(e * groups + group, block, scale_inv.bits(0, (e * blocks + block) * groups + group));
      }
    }
  }
  return made;
}

// Small integers if the case is exact.
GuardedMatrix bias_of(const GroupedCase& c) {
  GuardedMatrix made(bias_dtype(c.spec.gemm), 1, static_cast<std::int64_t>(c.ends.size()) * c.n);
  for (std::int64_t i = 0; i < made.cols(); ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const float value = c.exact ? static_cast<float>(random_bits(7, at) % 32) : random_normal(7, at);
    made.set_bits(0, i, encode_input(made.dtype(), value));
  }
  return made;
}

}  // namespace

GroupedData::GroupedData(const GroupedCase& c, GroupedMaker& maker) : case_(c), operands_(maker.operands(c)) {
  const GemmSpec& gemm = c.spec.gemm;
  if (gemm.bias) bias_ = bias_of(c);
  if (!is_fp8(gemm.a)) return;
  if (has_group_scale_inv(gemm)) {
    const auto placed = [&](const GuardedMatrix& scale_inv, ScaleGranularity scale, std::int64_t rows) {
      return c.by_group ? by_group(scale_inv, scale, rows * scale.rows, c.k) : scale_inv;
    };
    scale_inv_a_ = placed(operands_->scale_inv_a, gemm.scale_a, c.m);
    scale_inv_b_ =
        c.of_each ? by_group_of_each(operands_->scale_inv_b, static_cast<std::int64_t>(c.ends.size()), groups_of(c))
                  : placed(operands_->scale_inv_b, gemm.scale_b, scale_rows_b(c));
    return;
  }
  const auto experts = static_cast<std::int64_t>(c.ends.size());
  scale_inv_a_ = scale_inv_of(gemm.scale_a == kRowwise ? c.m : c.each_a ? experts : 1, c.exact, 3);
  scale_inv_b_ = scale_inv_of(gemm.scale_b == kRowwise ? experts * c.n : experts, c.exact, 4);
}

std::string GroupedData::fault_of_rows(const GuardedMatrix& out, std::int64_t begin, std::int64_t end,
                                       std::int64_t expert) const {
  const GemmSpec& gemm = case_.spec.gemm;
  for (std::int64_t m = begin; m < end; ++m) {
    for (std::int64_t n = 0; n < case_.n; ++n) {
      const auto at = static_cast<std::size_t>(m * case_.n + n);
      double factor = 1;
      if (is_fp8(gemm.a) && !has_group_scale_inv(gemm)) {
        factor = scale_inv_a_.value(0, gemm.scale_a == kRowwise ? m
                                       : case_.each_a           ? expert
                                                                : 0) *
                 scale_inv_b_.value(0, gemm.scale_b == kRowwise ? expert * case_.n + n : expert);
      }
      const double bias = gemm.bias ? bias_.value(0, expert * case_.n + n) : 0;
      const double value = operands_->sums[at] * factor + bias;
      // The tensor cores keep fewer bits of a sum of FP8 products than f32 has.
      const double magnitude = operands_->magnitudes[at] * factor + std::fabs(bias);
      const double tensor_cores = is_fp8(gemm.a) ? 0x1p-10 * operands_->magnitudes[at] * factor : 0.0;
      const double rounded = decode_reference(gemm.out, encode_input(gemm.out, static_cast<float>(value)));
      const double given = out.value(m, n);
      const bool right =
          case_.exact ? given == rounded
                      : std::fabs(given - value) <= sum_bound(gemm.out, case_.k, value, magnitude) + tensor_cores;
      if (right) continue;
      return fmt::format("row {} (expert {}, whose rows are {} to {}), column {}: expected {}, got {}", m, expert,
                         begin, end, n, case_.exact ? rounded : value, show(out, m, n));
    }
  }
  return {};
}

std::string GroupedData::fault_of(const GuardedMatrix& out) const {
  std::string fault = out.damage();
  for (std::size_t e = 0; e < case_.ends.size() && fault.empty(); ++e) {
    const Rows rows = rows_of(case_, e);
    fault = fault_of_rows(out, rows.begin, rows.end, static_cast<std::int64_t>(e));
  }
  const std::vector<std::int64_t> experts = experts_of_rows(case_);
  for (std::int64_t m = 0; m < case_.m && fault.empty(); ++m) {
    if (experts[static_cast<std::size_t>(m)] != static_cast<std::int64_t>(case_.ends.size())) continue;
    const std::byte* const row = out.element(m, 0);
    const bool untouched =
        std::all_of(row, row + out.row_bytes(), [](std::byte byte) { return byte == GuardedMatrix::kPoison; });
    if (!untouched) fault = fmt::format("row {} was written, but no expert has it", m);
  }
  return fault;
}

PlacedGrouped::PlacedGrouped(const GroupedData& data, Backend& backend, Stream& stream)
    : spec_(data.of().spec),
      backend_(&backend),
      out_({data.of().spec.gemm.out, data.of().m, data.of().n, data.of().out_padding}, backend),
      ends_(backend, data.of().ends.size() * sizeof(std::int32_t)) {
  tensors_.a = place(data.a(), memory_, backend, stream);
  tensors_.b = place(data.b(), memory_, backend, stream);
  if (is_fp8(spec_.gemm.a)) {
    tensors_.scale_inv_a = place(data.scale_inv_a(), memory_, backend, stream);
    tensors_.scale_inv_b = place(data.scale_inv_b(), memory_, backend, stream);
  }
  if (spec_.gemm.bias) tensors_.bias = place(data.bias(), memory_, backend, stream);
  tensors_.ends = {.data = static_cast<const std::int32_t*>(ends_.data()),
                   .experts = static_cast<std::int64_t>(data.of().ends.size()),
                   .device = backend.device(),
                   .capacity = data.of().capacity};
  set_ends(data.of().ends, stream);
  poison(stream);
  tensors_.out = out_.view();
}

void PlacedGrouped::set_ends(const Ends& ends, Stream& stream) {
  backend_->device_api().copy_from_host(ends_.data(), ends.data(), ends.size() * sizeof(std::int32_t), stream);
}

}  // namespace ingot::test
