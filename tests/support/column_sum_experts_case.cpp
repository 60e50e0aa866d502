#include "support/column_sum_experts_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ingot/codegen/kernel_spec.h"
#include "support/random.h"

namespace ingot::test {
namespace {

std::int64_t experts_of(const Ends& ends) { return static_cast<std::int64_t>(ends.size()); }

GuardedMatrix random_matrix(const ExpertsSumCase& c) {
  GuardedMatrix made(c.spec.in, c.of == 0 ? c.rows : c.of, c.cols, c.padding, c.offset);
  for (std::int64_t r = 0; r < made.rows(); ++r) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const float value = random_normal(21, static_cast<std::uint64_t>(r * c.cols + col));
      made.set_bits(r, col, encode_input(c.spec.in, value * static_cast<float>(1 + r % 5)));
    }
  }
  return made;
}

std::vector<std::int32_t> random_rows(const ExpertsSumCase& c) {
  std::vector<std::int32_t> made(static_cast<std::size_t>(c.of == 0 ? 0 : c.rows));
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = static_cast<std::int32_t>(random_bits(22, i) % static_cast<std::uint64_t>(c.of));
  }
  return made;
}

Buffer uploaded(Backend& backend, const void* data, std::size_t bytes, Stream& stream) {
  Buffer made(backend, bytes);
  if (bytes != 0) backend.device_api().copy_from_host(made.data(), data, bytes, stream);
  return made;
}

std::size_t bytes_of(const std::vector<std::int32_t>& values) { return values.size() * sizeof(std::int32_t); }

}  // namespace

std::string describe(const ExpertsSumCase& c) {
  return fmt::format("{}, {} rows, {} columns by {} experts, of {} rows, padding {}, offset {}", print(c.spec), c.rows,
                     c.cols, c.ends.size(), c.of, c.padding, c.offset);
}

std::vector<ExpertsSumCase> experts_sum_cases() {
  std::vector<ExpertsSumCase> made;
  const Ends mixed{0, 5, 6, 6, 134, 263, 390, 390};
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kHighPrecisionDtypes) {
      const ColumnSumSpec spec{.in = in, .out = out, .experts = true};
      made.push_back({.spec = spec, .ends = mixed, .rows = 401, .cols = 1032, .padding = 8});
      made.push_back({.spec = spec, .ends = mixed, .rows = 390, .cols = 51, .of = 40, .padding = 3, .offset = 1});
    }
    const ColumnSumSpec spec{.in = in, .out = in, .experts = true};
    made.push_back({.spec = spec, .ends = zipf_ends(900, 200), .rows = 900, .cols = 8, .of = 3});
    made.push_back({.spec = spec, .ends = {700, 700}, .rows = 700, .cols = 130});
    made.push_back({.spec = spec, .ends = {0, 0}, .rows = 3, .cols = 8});
    made.push_back({.spec = spec, .ends = {0, 0, 0}, .rows = 0, .cols = 9});
  }
  return made;
}

PlacedExpertsSum::PlacedExpertsSum(const ExpertsSumCase& c, Backend& backend, Stream& stream)
    : backend_(&backend),
      spec_(c.spec),
      ends_(c.ends),
      input_(random_matrix(c)),
      sum_(c.spec.out, experts_of(c.ends), c.cols),
      index_(random_rows(c)),
      input_memory_(uploaded(backend, input_.bytes().data(), input_.bytes().size(), stream)),
      sum_memory_(uploaded(backend, sum_.bytes().data(), sum_.bytes().size(), stream)),
      ends_memory_(uploaded(backend, ends_.data(), bytes_of(ends_), stream)),
      index_memory_(uploaded(backend, index_.data(), bytes_of(index_), stream)),
      tensors_{.input = input_.view(input_memory_.data(), backend.device()),
               .sum = sum_.view(sum_memory_.data(), backend.device()),
               .ends = {.data = static_cast<const std::int32_t*>(ends_memory_.data()),
                        .experts = experts_of(ends_),
                        .device = backend.device()}} {
  if (index_.empty()) return;
  tensors_.row_index = {
      .data = static_cast<const std::int32_t*>(index_memory_.data()), .rows = c.rows, .device = backend.device()};
}

void PlacedExpertsSum::set_ends(const Ends& ends, Stream& stream) {
  ends_ = ends;
  backend_->device_api().copy_from_host(ends_memory_.data(), ends_.data(), bytes_of(ends_), stream);
}

GuardedMatrix PlacedExpertsSum::sum(Stream& stream) const {
  GuardedMatrix made = sum_;
  backend_->device_api().copy_to_host(made.bytes().data(), sum_memory_.data(), made.bytes().size(), stream);
  return made;
}

GuardedMatrix PlacedExpertsSum::expected() const {
  GuardedMatrix made = sum_;
  for (std::int64_t e = 0; e < experts_of(ends_); ++e) {
    const std::int64_t end = ends_[static_cast<std::size_t>(e)];
    for (std::int64_t col = 0; col < input_.cols(); ++col) {
      volatile float total = 0;
      for (std::int64_t first = begin_of(e); first < end; first += 128) {
        volatile float sum = 0;
        for (std::int64_t r = first; r < std::min(first + 128, end); ++r) {
          sum = sum + static_cast<float>(input_.value(input_row(r), col));
        }
        total = total + sum;
      }
      made.set_bits(e, col, encode_input(spec_.out, total));
    }
  }
  return made;
}

double PlacedExpertsSum::worst_error(const GuardedMatrix& sum) const {
  double worst = 0;
  for (std::int64_t e = 0; e < experts_of(ends_); ++e) {
    const std::int64_t end = ends_[static_cast<std::size_t>(e)];
    for (std::int64_t col = 0; col < input_.cols(); ++col) {
      double expected = 0;
      double magnitude = 0;
      for (std::int64_t r = begin_of(e); r < end; ++r) {
        expected += input_.value(input_row(r), col);
        magnitude += std::fabs(input_.value(input_row(r), col));
      }
      const double rounding = spec_.out == Dtype::f32 ? 0x1p-24 : spec_.out == Dtype::f16 ? 0x1p-11 : 0x1p-8;
      // An f16 below 2^-14 has 24 bits after the point.
      const double allowed = 160 * 0x1p-24 * magnitude + rounding * std::fabs(expected) + 0x1p-25;
      worst = std::max(worst, std::fabs(sum.value(e, col) - expected) / allowed);
    }
  }
  return worst;
}

}  // namespace ingot::test
