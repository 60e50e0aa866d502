#include "support/dequant_experts_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "ingot/codegen/kernel_spec.h"

namespace ingot::test {

DequantMatmulSpec spec_of_experts() {
  DequantMatmulSpec spec;
  spec.experts = true;
  return spec;
}

std::string describe(const DequantExpertsCase& c) {
  std::string text = fmt::format("{} {}x{}x{} by {} experts:", print(KernelSpec(c.spec)), c.m, c.n, c.k, c.ends.size());
  for (std::size_t i = 0; i < std::min(c.ends.size(), std::size_t{12}); ++i) text += fmt::format(" {}", c.ends[i]);
  if (c.capacity) text += fmt::format(", with room for {} each", *c.capacity);
  return text;
}

std::int64_t DequantExpertsData::first_row(std::size_t expert) const {
  if (case_.capacity) return static_cast<std::int64_t>(expert) * *case_.capacity;
  return expert == 0 ? 0 : case_.ends[expert - 1];
}

std::int64_t DequantExpertsData::rows(std::size_t expert) const {
  return case_.ends[expert] - (case_.capacity ? 0 : first_row(expert));
}

DequantExpertsData::DequantExpertsData(const DequantExpertsCase& c)
    : case_(c), x_(c.spec.x, c.m, c.k, c.placement.x_padding, c.placement.x_offset) {
  DequantMatmulSpec of_one = c.spec;
  of_one.experts = false;
  for (std::int64_t r = 0; r < c.m; ++r) {
    for (std::int64_t col = 0; col < c.k; ++col) {
      x_.set_bits(r, col, encode_input(c.spec.x, std::numeric_limits<float>::quiet_NaN()));
    }
  }
  for (std::size_t e = 0; e < c.ends.size(); ++e) {
    experts_.emplace_back(
        DequantCase{.spec = of_one, .m = rows(e), .n = c.n, .k = c.k, .seed = 100 * (e + 1), .faulty = c.faulty});
    expected_.push_back(experts_[e].expected());
    for (std::int64_t r = 0; r < rows(e); ++r) {
      for (std::int64_t col = 0; col < c.k; ++col) x_.set_bits(first_row(e) + r, col, experts_[e].x.bits(r, col));
    }
  }
}

GuardedMatrix DequantExpertsData::joined(GuardedMatrix DequantData::*part) const {
  const GuardedMatrix& first = experts_.front().*part;
  GuardedMatrix all(first.dtype(), 1, first.cols() * static_cast<std::int64_t>(experts_.size()));
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    for (std::int64_t i = 0; i < first.cols(); ++i) {
      all.set_bits(0, static_cast<std::int64_t>(e) * first.cols() + i, (experts_[e].*part).bits(0, i));
    }
  }
  return all;
}

WeightCodes DequantExpertsData::codes() const {
  WeightCodes all{
      .dtype = case_.spec.weight, .n = case_.n * static_cast<std::int64_t>(experts_.size()), .k = case_.k, .codes = {}};
  for (const DequantData& each : experts_) {
    all.codes.insert(all.codes.end(), each.weight.codes.begin(), each.weight.codes.end());
  }
  return all;
}

std::string DequantExpertsData::fault_of(const GuardedMatrix& out) const {
  if (std::string found = out.damage(); !found.empty()) return found;
  std::vector<bool> has_expert(static_cast<std::size_t>(case_.m));
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    if (std::string fault = fault_of_rows(experts_[e], out, first_row(e), expected_[e]); !fault.empty()) {
      return fmt::format("expert {}: {}", e, fault);
    }
    std::fill_n(has_expert.begin() + first_row(e), rows(e), true);
  }
  for (std::int64_t m = 0; m < case_.m; ++m) {
    if (has_expert[static_cast<std::size_t>(m)]) continue;
    const std::byte* const row = out.element(m, 0);
    const bool untouched =
        std::all_of(row, row + out.row_bytes(), [](std::byte byte) { return byte == GuardedMatrix::kPoison; });
    if (!untouched) return fmt::format("row {} was written, but no expert has it", m);
  }
  return {};
}

PlacedDequantExperts::PlacedDequantExperts(const DequantExpertsData& data, Backend& backend, Stream& stream)
    : spec_(data.of().spec),
      backend_(&backend),
      out_({data.of().spec.out, data.of().m, data.of().n, data.of().placement.out_padding,
            data.of().placement.out_offset},
           backend),
      ends_(backend, data.of().ends.size() * sizeof(std::int32_t)) {
  tensors_.x = place(data.x(), memory_, backend, stream);
  tensors_.scale_inv = place(data.joined(&DequantData::scale_inv), memory_, backend, stream);
  if (spec_.bias) tensors_.bias = place(data.joined(&DequantData::bias), memory_, backend, stream);
  place_weights(data, stream);
  tensors_.ends = {.data = static_cast<const std::int32_t*>(ends_.data()),
                   .experts = static_cast<std::int64_t>(data.of().ends.size()),
                   .device = backend.device(),
                   .capacity = data.of().capacity};
  set_ends(data.of().ends, stream);
  poison(stream);
  tensors_.out = out_.view();
}

void PlacedDequantExperts::place_weights(const DequantExpertsData& data, Stream& stream) {
  const DequantExpertsCase& c = data.of();
  const auto& [padding, offset] = std::pair(c.placement.weight_padding, c.placement.weight_offset);
  const WeightCodes codes = data.codes();
  const GuardedMatrix rows = codes.rows(padding, offset);
  place(rows, memory_, *backend_, stream);
  const Tensor all = codes.view(rows, memory_.back().data(), backend_->device(), padding);
  tensors_.weight = all;
  if (!is_packed(c.spec.layout)) return;
  const std::int64_t bytes = packed_weight_bytes(c.spec.weight, c.n, c.k);
  const auto experts = static_cast<std::int64_t>(c.ends.size());
  Buffer packed(*backend_, static_cast<std::size_t>(experts * bytes));
  for (std::int64_t e = 0; e < experts; ++e) {
    Tensor of_one = all;
    of_one.rows = c.n;
    of_one.data = static_cast<std::byte*>(all.data) + e * c.n * all.row_stride * bits_of(c.spec.weight) / 8;
    const Tensor target =
        vector(static_cast<std::byte*>(packed.data()) + e * bytes, Dtype::u8, bytes, backend_->device());
    backend_->pack_weight({.weight = c.spec.weight, .layout = c.spec.layout}, {.codes = of_one, .packed = target},
                          stream);
  }
  tensors_.weight = vector(packed.data(), Dtype::u8, experts * bytes, backend_->device());
  memory_.push_back(std::move(packed));
}

void PlacedDequantExperts::set_ends(const Ends& ends, Stream& stream) {
  backend_->device_api().copy_from_host(ends_.data(), ends.data(), ends.size() * sizeof(std::int32_t), stream);
}

}  // namespace ingot::test
