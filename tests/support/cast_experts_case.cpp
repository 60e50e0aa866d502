#include "support/cast_experts_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <variant>

#include "expert_slots.cuh"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/random.h"

namespace ingot::test {
namespace {

std::int64_t experts_of(const ExpertsCastCase& c) { return static_cast<std::int64_t>(c.ends.size()); }
std::int64_t slots_of(const ExpertsCastCase& c) { return ExpertSlots::count(c.rows, experts_of(c)); }
std::int64_t groups_of(const ExpertsCastCase& c) { return scale_count(kRowGroups, 1, c.cols); }

bool is_given(const CastSpec& spec) { return spec.source == ScaleSource::given; }

GuardedMatrix of_magnitudes(const ExpertsCastCase& c, std::int64_t rows, std::uint64_t seed) {
  GuardedMatrix made(c.spec.in, rows, c.cols, c.padding, c.offset);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const auto magnitude = static_cast<float>(1 + r % 7 + 3 * (col % 5));
      const float value = random_normal(seed, static_cast<std::uint64_t>(r * c.cols + col)) * magnitude;
      made.set_bits(r, col, encode_input(c.spec.in, value));
    }
  }
  return made;
}

// Before the cast.
CastOutputs poisoned_outputs(const ExpertsCastCase& c) {
  CastOutputs made;
  const std::int64_t slots = slots_of(c);
  if (c.spec.codes) made.emplace("codes", GuardedMatrix(c.spec.out, c.rows, c.cols, c.padding, c.offset));
  if (c.spec.result) made.emplace("result", GuardedMatrix(c.spec.in, c.rows, c.cols, c.padding, c.offset));
  if (is_given(c.spec)) {
    made.emplace("scale_inv", GuardedMatrix(Dtype::f32, 1, experts_of(c)));
    GuardedMatrix& amax = made.emplace("amax", GuardedMatrix(Dtype::f32, 1, experts_of(c))).first->second;
    for (std::int64_t e = 0; e < experts_of(c); ++e) {
      amax.set_bits(0, e, encode_input(Dtype::f32, e % 3 == 2 ? 1e4F : 0));  // of an earlier cast
    }
    if (c.spec.transposed) {
      made.emplace("transposed", GuardedMatrix(c.spec.out, c.cols, c.rows, c.padding, c.offset));
    }
    return made;
  }
  if (c.spec.codes) {
    made.emplace("scale_inv", c.by_group ? GuardedMatrix(Dtype::f32, groups_of(c), c.rows, c.padding)
                                         : GuardedMatrix(Dtype::f32, 1, c.rows * groups_of(c)));
  }
  made.emplace(c.spec.codes ? "transposed_scale_inv" : "scale_inv", GuardedMatrix(Dtype::f32, 1, slots * c.cols));
  made.emplace("transposed", GuardedMatrix(c.spec.out, c.cols, slots * ExpertSlots::kRows, c.padding, c.offset));
  return made;
}

// The slot of each row's block, and the row's place in it.
struct Place {
  std::int64_t row, slot_row;  // of all rows in slots
};
struct Places {
  std::vector<Place> rows{};
  std::vector<std::int64_t> slots{};  // that somebody has
};
Places places_of(const ExpertsCastCase& c) {
  Places made;
  std::int64_t row = 0;
  for (std::int64_t e = 0; e <= experts_of(c); ++e) {
    const std::int64_t begin = row;
    const std::int64_t end = e == experts_of(c) ? c.rows : c.ends[static_cast<std::size_t>(e)];
    std::int64_t slot = begin / 128 + e;
    if (begin == end && e != experts_of(c)) made.slots.push_back(slot);
    for (; row < end; ++row) {
      const std::int64_t within = (row - begin) % 128;
      if (within == 0) made.slots.push_back(slot + (row - begin) / 128);
      made.rows.push_back({row, made.slots.back() * 128 + within});
    }
  }
  return made;
}

void copy(const GuardedMatrix& from, std::int64_t row, std::int64_t col, GuardedMatrix& to, std::int64_t to_row,
          std::int64_t to_col) {
  to.set_bits(to_row, to_col, from.bits(row, col));
}

}  // namespace

std::string describe(const ExpertsCastCase& c) {
  std::string text =
      fmt::format("{}, {} rows, {} columns by {} experts:", print(c.spec), c.rows, c.cols, c.ends.size());
  for (std::size_t i = 0; i < std::min(c.ends.size(), std::size_t{12}); ++i) text += fmt::format(" {}", c.ends[i]);
  if (c.spec.gathered) text += fmt::format(", of {} rows", c.of);
  return text + fmt::format(", padding {}, offset {}", c.padding, c.offset) + (c.by_group ? ", by group" : "") +
         (c.with_nan ? ", with a NaN" : "");
}

ExpertsCastInputs::ExpertsCastInputs(const ExpertsCastCase& c)
    : input(of_magnitudes(c, c.spec.gathered ? c.of : c.rows, 11)),
      up(of_magnitudes(c, c.rows, 12)),
      router(Dtype::f32, 1, c.rows),
      scales(Dtype::f32, 1, experts_of(c)) {
  if (c.with_nan) input.set_bits(0, 0, encode_input(c.spec.in, std::numeric_limits<float>::quiet_NaN()));
  for (std::int64_t e = 0; e < experts_of(c); ++e) {
    scales.set_bits(0, e, encode_input(Dtype::f32, 3.0F + static_cast<float>(e % 17)));
  }
  for (std::int64_t r = 0; r < c.rows; ++r) {
    router.set_bits(0, r, encode_input(Dtype::f32, random_normal(13, static_cast<std::uint64_t>(r))));
    if (!c.spec.gathered) continue;
    index.push_back(
        static_cast<std::int32_t>(random_bits(5, static_cast<std::uint64_t>(r)) % static_cast<std::uint64_t>(c.of)));
  }
}

PlacedExpertsCast::PlacedExpertsCast(const ExpertsCastCase& c, const ExpertsCastInputs& inputs, Backend& backend,
                                     Stream& stream)
    : backend_(&backend), tensors_{.input = place("input", inputs.input, false, stream), .scale_inv = {}} {
  const auto int32 = [&](const std::string& name, const std::vector<std::int32_t>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    GuardedMatrix made(Dtype::f32, 1, count, 0, 1);
    for (std::int64_t i = 0; i < count; ++i) {
      made.set_bits(0, i, static_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]));
    }
    return static_cast<const std::int32_t*>(place(name, made, false, stream).data);
  };
  tensors_.ends = {.data = int32("ends", c.ends), .experts = experts_of(c), .device = backend.device()};
  if (c.spec.gathered) {
    tensors_.row_index = {.data = int32("row_index", inputs.index), .rows = c.rows, .device = backend.device()};
  }
  if (c.spec.pointwise) {
    tensors_.inputs = {place("up", inputs.up, false, stream), place("router", inputs.router, false, stream)};
  }
  if (is_given(c.spec)) tensors_.scales = place("scales", inputs.scales, false, stream);
  for (const auto& [name, start] : poisoned_outputs(c)) {
    Tensor& tensor = name == "codes"        ? tensors_.codes
                     : name == "transposed" ? tensors_.transposed
                     : name == "result"     ? tensors_.result
                     : name == "amax"       ? tensors_.amax
                     : name == "scale_inv"  ? tensors_.scale_inv
                                            : tensors_.transposed_scale_inv;
    tensor = place(name, start, true, stream);
  }
}

Tensor PlacedExpertsCast::place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream) {
  Buffer& buffer = memory_[name] = Buffer(*backend_, start.bytes().size());
  backend_->device_api().copy_from_host(buffer.data(), start.bytes().data(), start.bytes().size(), stream);
  if (output) starts_.emplace(name, start);
  return start.view(buffer.data(), backend_->device());
}

void PlacedExpertsCast::set_ends(const Ends& ends, Stream& stream) {
  backend_->device_api().copy_from_host(const_cast<std::int32_t*>(tensors_.ends.data), ends.data(),
                                        ends.size() * sizeof(std::int32_t), stream);
}

void PlacedExpertsCast::reset(Stream& stream) {
  for (const auto& [name, start] : starts_) {
    backend_->device_api().copy_from_host(memory_.at(name).data(), start.bytes().data(), start.bytes().size(), stream);
  }
}

CastOutputs PlacedExpertsCast::outputs(Stream& stream) const {
  CastOutputs found = starts_;
  for (auto& [name, matrix] : found) {
    backend_->device_api().copy_to_host(matrix.bytes().data(), memory_.at(name).data(), matrix.bytes().size(), stream);
  }
  return found;
}

namespace {

// Each expert's rows, copied, by a plain cast with its scale.
CastOutputs expected_of_given(const ExpertsCastCase& c, const ExpertsCastInputs& inputs) {
  CastOutputs expected = poisoned_outputs(c);
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream(*cpu);
  CastSpec spec = c.spec;
  spec.experts = spec.gathered = false;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < experts_of(c); ++e) {
    const std::int64_t rows = c.ends[static_cast<std::size_t>(e)] - begin;
    GuardedMatrix input(c.spec.in, rows, c.cols), up(c.spec.in, rows, c.cols), router(Dtype::f32, 1, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t from = c.spec.gathered ? inputs.index[static_cast<std::size_t>(begin + r)] : begin + r;
      copy(inputs.router, 0, begin + r, router, 0, r);
      for (std::int64_t col = 0; col < c.cols; ++col) {
        copy(inputs.input, from, col, input, r, col);
        copy(inputs.up, begin + r, col, up, r, col);
      }
    }
    GuardedMatrix codes(c.spec.out, rows, c.cols), transposed(c.spec.out, c.cols, rows);
    GuardedMatrix result(c.spec.in, rows, c.cols), scale(Dtype::f32, 1, 1), scale_inv(Dtype::f32, 1, 1);
    GuardedMatrix amax(Dtype::f32, 1, 1);
    copy(inputs.scales, 0, e, scale, 0, 0);
    copy(expected.at("amax"), 0, e, amax, 0, 0);
    const auto view = [&](GuardedMatrix& matrix, bool asked) {
      return asked ? matrix.view(matrix.bytes().data(), cpu->device()) : Tensor{};
    };
    CastTensors tensors{.input = view(input, true),
                        .codes = view(codes, spec.codes),
                        .transposed = view(transposed, spec.transposed),
                        .scale_inv = view(scale_inv, true),
                        .scales = view(scale, true),
                        .amax = view(amax, true),
                        .result = view(result, spec.result)};
    if (spec.pointwise) tensors.inputs = {view(up, true), view(router, true)};
    cpu->cast(spec, tensors, stream);
    copy(scale_inv, 0, 0, expected.at("scale_inv"), 0, e);
    copy(amax, 0, 0, expected.at("amax"), 0, e);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t col = 0; col < c.cols; ++col) {
        if (spec.codes) copy(codes, r, col, expected.at("codes"), begin + r, col);
        if (spec.transposed) copy(transposed, col, r, expected.at("transposed"), col, begin + r);
        if (spec.result) copy(result, r, col, expected.at("result"), begin + r, col);
      }
    }
    begin += rows;
  }
  return expected;
}

}  // namespace

CastOutputs expected_of_experts(const ExpertsCastCase& c, const ExpertsCastInputs& inputs) {
  if (is_given(c.spec)) return expected_of_given(c, inputs);
  const Places places = places_of(c);
  const std::int64_t slots = slots_of(c);
  const std::int64_t rows = slots * 128;
  GuardedMatrix input(c.spec.in, rows, c.cols), up(c.spec.in, rows, c.cols), router(Dtype::f32, 1, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    router.set_bits(0, r, 0);
    for (std::int64_t col = 0; col < c.cols; ++col) input.set_bits(r, col, 0), up.set_bits(r, col, 0);
  }
  for (const auto [row, slot_row] : places.rows) {
    copy(inputs.router, 0, row, router, 0, slot_row);
    const std::int64_t from = c.spec.gathered ? inputs.index[static_cast<std::size_t>(row)] : row;
    for (std::int64_t col = 0; col < c.cols; ++col) {
      copy(inputs.input, from, col, input, slot_row, col);
      copy(inputs.up, row, col, up, slot_row, col);
    }
  }
  GuardedMatrix codes(c.spec.out, rows, c.cols), transposed(c.spec.out, c.cols, rows), result(c.spec.in, rows, c.cols);
  GuardedMatrix scale_inv(Dtype::f32, 1, rows * groups_of(c)), of_transposed(Dtype::f32, 1, slots * c.cols);
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream(*cpu);
  CastSpec spec = c.spec;
  spec.experts = spec.gathered = false;
  const auto view = [&](GuardedMatrix& matrix, bool asked) {
    return asked ? matrix.view(matrix.bytes().data(), cpu->device()) : Tensor{};
  };
  CastTensors tensors{.input = view(input, true),
                      .codes = view(codes, spec.codes),
                      .transposed = view(transposed, true),
                      .scale_inv = spec.codes ? view(scale_inv, true) : view(of_transposed, true),
                      .transposed_scale_inv = view(of_transposed, spec.codes),
                      .result = view(result, spec.result)};
  if (spec.pointwise) tensors.inputs = {view(up, true), view(router, true)};
  cpu->cast(spec, tensors, stream);

  CastOutputs expected = poisoned_outputs(c);
  for (const auto [row, slot_row] : places.rows) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      if (spec.codes) copy(codes, slot_row, col, expected.at("codes"), row, col);
      if (spec.result) copy(result, slot_row, col, expected.at("result"), row, col);
    }
    for (std::int64_t group = 0; group < groups_of(c) && spec.codes; ++group) {
      const std::int64_t at = slot_row * groups_of(c) + group;
      GuardedMatrix& to = expected.at("scale_inv");
      c.by_group ? copy(scale_inv, 0, at, to, group, row) : copy(scale_inv, 0, at, to, 0, row * groups_of(c) + group);
    }
  }
  std::vector<bool> is_row(static_cast<std::size_t>(rows));
  for (const Place& place : places.rows) is_row[static_cast<std::size_t>(place.slot_row)] = true;
  for (const std::int64_t slot : places.slots) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      GuardedMatrix& to = expected.at(spec.codes ? "transposed_scale_inv" : "scale_inv");
      copy(of_transposed, 0, slot * c.cols + col, to, 0, slot * c.cols + col);
      for (std::int64_t r = slot * 128; r < (slot + 1) * 128; ++r) {
        // Zeros also where a NaN in the block has made all of its codes NaN.
        const std::uint32_t bits = is_row[static_cast<std::size_t>(r)] ? transposed.bits(col, r) : 0;
        expected.at("transposed").set_bits(col, r, bits);
      }
    }
  }
  return expected;
}

std::string experts_difference(const CastOutputs& expected, const CastOutputs& actual) {
  for (const auto& [name, matrix] : actual) {
    std::string found = bit_difference(name, expected.at(name), matrix);
    if (found.empty()) found = matrix.damage();
    if (!found.empty()) return name + ": " + found;
  }
  return {};
}

std::vector<CastSpec> experts_cast_specs() {
  std::vector<CastSpec> specs;
  for (const char* const line :
       {"bf16->e4m3fn scale=1x128+128x1 out=codes,transposed", "bf16->e5m2 scale=128x1 out=transposed pow2",
        "f32->e4m3fn scale=1x128+128x1 out=codes,transposed gathered",
        "f16->e4m3fn scale=128x1 out=transposed gathered",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed",
        "f16->e4m3fn of=\"silu(x) * up * router[row]\" scale=1x128+128x1 out=codes,transposed,result",
        "bf16->e4m3fn scale=tensor out=codes,transposed given", "f16->e5m2 scale=tensor out=transposed given",
        "f32->e4m3fn scale=tensor out=codes,transposed given gathered",
        "bf16->e5m2 scale=tensor out=codes given gathered",
        "bf16->e4m3fn of=\"silu(x) * up * router[row]\" scale=tensor out=codes,transposed given",
        "f16->e4m3fn of=\"silu(x) * up * router[row]\" scale=tensor out=codes,result given"}) {
    specs.push_back(std::get<CastSpec>(parse(fmt::format("cast {} experts", line))));
  }
  return specs;
}

std::vector<ExpertsCastCase> experts_cast_cases() {
  std::vector<ExpertsCastCase> cases;
  const std::vector<ExpertsCastCase> shapes{
      {.ends = {0, 5, 6, 6, 134, 263, 263}, .rows = 300, .cols = 136, .of = 40},
      {.ends = {127, 255, 256}, .rows = 256, .cols = 51, .of = 130, .padding = 3, .offset = 1, .by_group = true},
      {.ends = {1}, .rows = 1, .cols = 1, .of = 1},
      {.ends = one_hot_ends(290, 9, 4), .rows = 290, .cols = 16, .of = 33, .padding = 16, .with_nan = true},
      {.ends = {0, 0}, .rows = 70, .cols = 128, .of = 5, .by_group = true},
      {.ends = balanced_ends(40, 40), .rows = 41, .cols = 8, .of = 5},
      {.ends = zipf_ends(700, 300), .rows = 700, .cols = 8, .of = 64},
      {.ends = {0, 0, 0}, .rows = 0, .cols = 64, .of = 7},
      {.ends = {3, 9}, .rows = 9, .cols = 0, .of = 7}};
  for (const CastSpec& spec : experts_cast_specs()) {
    for (const ExpertsCastCase& shape : shapes) {
      ExpertsCastCase made = shape;
      made.spec = spec;
      cases.push_back(made);
    }
  }
  return cases;
}

}  // namespace ingot::test
