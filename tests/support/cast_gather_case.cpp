#include "support/cast_gather_case.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <variant>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/random.h"

namespace ingot::test {
namespace {

ScaleGranularity transposed_scale_of(const CastSpec& spec) { return spec.transposed_scale.value_or(spec.scale); }

void copy_row(const GuardedMatrix& from, std::int64_t row, GuardedMatrix& to, std::int64_t at) {
  if (from.cols() != 0) std::memcpy(to.element(at, 0), from.element(row, 0), from.row_bytes());
}

// The outputs before the cast.
GatherOutputs empty_outputs(const GatherCase& c) {
  GatherOutputs made;
  const CastSpec& spec = c.spec;
  if (spec.codes) made.emplace("codes", GuardedMatrix(spec.out, c.rows, c.cols, c.padding, c.offset));
  if (spec.transposed) made.emplace("transposed", GuardedMatrix(spec.out, c.cols, c.rows, c.padding, c.offset));
  made.emplace("scale_inv", GuardedMatrix(Dtype::f32, 1, scale_count(spec.scale, c.rows, c.cols)));
  if (spec.transposed_scale) {
    made.emplace("transposed_scale_inv",
                 GuardedMatrix(Dtype::f32, 1, scale_count(transposed_scale_of(spec), c.rows, c.cols)));
  }
  return made;
}

}  // namespace

std::string describe(const GatherCase& c) {
  return fmt::format("{}, {} of {} rows, {} columns, padding {}, offset {}", print(c.spec), c.rows, c.of, c.cols,
                     c.padding, c.offset);
}

GuardedMatrix gather_input(const GatherCase& c) {
  GuardedMatrix made(c.spec.in, c.of, c.cols, c.padding, c.offset);
  for (std::int64_t r = 0; r < c.of; ++r) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const auto magnitude = static_cast<float>(1 + r % 7 + 3 * (col % 5));
      const float value = random_normal(11, static_cast<std::uint64_t>(r * c.cols + col)) * magnitude;
      made.set_bits(r, col, encode_input(c.spec.in, value));
    }
  }
  return made;
}

std::vector<std::int32_t> gather_index(const GatherCase& c) {
  std::vector<std::int32_t> index;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const bool each_once = r % 2 == 0 && r / 2 < c.of;  // backwards
    const std::int64_t row = each_once ? c.of - 1 - r / 2
                                       : static_cast<std::int64_t>(random_bits(5, static_cast<std::uint64_t>(r)) %
                                                                   static_cast<std::uint64_t>(c.of));
    index.push_back(static_cast<std::int32_t>(row));
  }
  return index;
}

PlacedGather::PlacedGather(const GatherCase& c, const GuardedMatrix& input, const std::vector<std::int32_t>& index,
                           Backend& backend, Stream& stream)
    : backend_(&backend), tensors_{.input = place("input", input, false, stream), .scale_inv = {}} {
  // Not at a multiple of 16 bytes: an index is of any part of a larger one.
  GuardedMatrix rows(Dtype::f32, 1, c.rows, 0, 1);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    rows.set_bits(0, r, static_cast<std::uint32_t>(index[static_cast<std::size_t>(r)]));
  }
  const Tensor placed = place("row_index", rows, false, stream);
  tensors_.row_index = {
      .data = static_cast<const std::int32_t*>(placed.data), .rows = c.rows, .device = backend.device()};
  for (const auto& [name, start] : empty_outputs(c)) {
    Tensor& tensor = name == "codes"        ? tensors_.codes
                     : name == "transposed" ? tensors_.transposed
                     : name == "scale_inv"  ? tensors_.scale_inv
                                            : tensors_.transposed_scale_inv;
    tensor = place(name, start, true, stream);
  }
}

Tensor PlacedGather::place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream) {
  Buffer& buffer = memory_[name] = Buffer(*backend_, start.bytes().size());
  backend_->device_api().copy_from_host(buffer.data(), start.bytes().data(), start.bytes().size(), stream);
  if (output) starts_.emplace(name, start);
  return start.view(buffer.data(), backend_->device());
}

void PlacedGather::reset(Stream& stream) {
  for (const auto& [name, start] : starts_) {
    backend_->device_api().copy_from_host(memory_.at(name).data(), start.bytes().data(), start.bytes().size(), stream);
  }
}

GatherOutputs PlacedGather::outputs(Stream& stream) const {
  GatherOutputs found = starts_;
  for (auto& [name, matrix] : found) {
    backend_->device_api().copy_to_host(matrix.bytes().data(), memory_.at(name).data(), matrix.bytes().size(), stream);
  }
  return found;
}

GatherOutputs cast_of_copies(const GatherCase& c, const GuardedMatrix& input, const std::vector<std::int32_t>& index) {
  CastSpec spec = c.spec;
  spec.gathered = false;
  // Groups and blocks of the copies end before those of the input begin.
  const std::int64_t before = (c.rows + 127) / 128 * 128;
  const GatherCase both{.spec = spec, .of = 0, .rows = before + c.of, .cols = c.cols};
  GuardedMatrix values(spec.in, both.rows, c.cols);
  for (std::int64_t r = 0; r < before; ++r) {
    for (std::int64_t col = 0; col < c.cols; ++col) values.set_bits(r, col, 0);
  }
  for (std::int64_t r = 0; r < c.rows; ++r) copy_row(input, index[static_cast<std::size_t>(r)], values, r);
  for (std::int64_t r = 0; r < c.of; ++r) copy_row(input, r, values, before + r);

  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream(*cpu);
  GatherOutputs all = empty_outputs(both);
  const auto view = [&](const char* name) {
    const auto found = all.find(name);
    return found == all.end() ? Tensor{} : found->second.view(found->second.bytes().data(), cpu->device());
  };
  cpu->cast(spec,
            {.input = values.view(values.bytes().data(), cpu->device()),
             .codes = view("codes"),
             .transposed = view("transposed"),
             .scale_inv = view("scale_inv"),
             .transposed_scale_inv = view("transposed_scale_inv")},
            stream);
  // The rows and columns of the copies, and their scales, come first.
  GatherOutputs expected = empty_outputs(c);
  for (auto& [name, matrix] : expected) {
    for (std::int64_t r = 0; r < matrix.rows(); ++r) {
      for (std::int64_t col = 0; col < matrix.cols(); ++col) matrix.set_bits(r, col, all.at(name).bits(r, col));
    }
  }
  return expected;
}

std::string gather_difference(const GatherOutputs& expected, const GatherOutputs& actual) {
  for (const auto& [name, matrix] : actual) {
    std::string found = bit_difference(name, expected.at(name), matrix);
    if (found.empty()) found = matrix.damage();
    if (!found.empty()) return name + ": " + found;
  }
  return {};
}

std::vector<CastSpec> gathered_specs() {
  std::vector<CastSpec> specs;
  for (const char* const line :
       {"bf16->e4m3fn scale=tensor out=codes,transposed", "bf16->e4m3fn scale=row+col out=codes,transposed",
        "bf16->e4m3fn scale=row out=codes", "f16->e5m2 scale=row out=codes,transposed pow2",
        "f32->e4m3fn scale=row+tensor out=codes,transposed", "f32->e5m2 scale=tensor out=codes",
        "bf16->e5m2fnuz scale=col out=transposed", "f16->e4m3fnuz scale=1x128 out=codes",
        "bf16->e4m3fn scale=1x128+128x1 out=codes,transposed", "f32->e4m3fn scale=128x128 out=codes,transposed pow2",
        "f16->e4m3fn scale=tensor+col out=codes,transposed"}) {
    specs.push_back(std::get<CastSpec>(parse(fmt::format("cast {} gathered", line))));
  }
  return specs;
}

std::vector<GatherCase> gather_cases() {
  std::vector<GatherCase> cases;
  for (const CastSpec& spec : gathered_specs()) {
    for (const GatherCase& shape : {GatherCase{.of = 40, .rows = 300, .cols = 136},
                                    {.of = 130, .rows = 77, .cols = 51, .padding = 3, .offset = 1},
                                    {.of = 1, .rows = 129, .cols = 1},
                                    {.of = 33, .rows = 1, .cols = 300, .padding = 4},
                                    {.of = 16, .rows = 160, .cols = 16, .padding = 16},
                                    {.of = 5, .rows = 33, .cols = 0},
                                    {.of = 70, .rows = 0, .cols = 128},
                                    {.of = 0, .rows = 0, .cols = 64}}) {
      GatherCase made = shape;
      made.spec = spec;
      cases.push_back(made);
    }
  }
  return cases;
}

}  // namespace ingot::test
