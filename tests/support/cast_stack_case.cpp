#include "support/cast_stack_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/random.h"

namespace ingot::test {
namespace {

ScaleGranularity own_scale(const CastSpec& spec) { return spec.transposed_scale.value_or(spec.scale); }

GuardedMatrix floats(std::int64_t count, float (*value)(std::int64_t)) {
  GuardedMatrix made(Dtype::f32, 1, count);
  for (std::int64_t i = 0; i < count; ++i) made.set_bits(0, i, encode_input(Dtype::f32, value(i)));
  return made;
}

// Rows `index * rows` and on.
Tensor rows_of(Tensor stack, std::int64_t index, std::int64_t rows) {
  if (stack.data == nullptr) return stack;
  stack.data = static_cast<std::byte*>(stack.data) + index * rows * stack.row_stride * size_of(stack.dtype);
  stack.rows = rows;
  return stack;
}

GuardedMatrix rounded_values(const StackCase& c, const GuardedMatrix& input) {
  if (!c.spec.rounded) return input;
  GuardedMatrix values(*c.spec.rounded, input.rows(), input.cols());
  for (std::int64_t r = 0; r < input.rows(); ++r) {
    for (std::int64_t col = 0; col < input.cols(); ++col) {
      values.set_bits(r, col, encode_input(values.dtype(), static_cast<float>(input.value(r, col))));
    }
  }
  return values;
}

// The largest |value| of each matrix, or of each of its columns.
GuardedMatrix maxima_of(const StackCase& c, const GuardedMatrix& values, ScaleGranularity scale) {
  const std::int64_t count = scale_count(scale, c.rows, c.cols);
  std::vector<double> maxima(static_cast<std::size_t>(c.matrices * count), 0.0);
  for (std::int64_t r = 0; r < values.rows(); ++r) {
    for (std::int64_t col = 0; col < values.cols(); ++col) {
      const std::int64_t index = r / c.rows * count + (scale == kColumnwise ? col : 0);
      double& maximum = maxima[static_cast<std::size_t>(index)];
      maximum = std::max(maximum, std::abs(values.value(r, col)));
    }
  }
  GuardedMatrix made(Dtype::f32, 1, c.matrices * count);
  for (std::int64_t i = 0; i < made.cols(); ++i) {
    made.set_bits(0, i, encode_input(Dtype::f32, static_cast<float>(maxima[static_cast<std::size_t>(i)])));
  }
  return made;
}

Tensor floats_of(const Tensor& stack, std::int64_t index, std::int64_t count) {
  if (stack.data == nullptr) return stack;
  return vector(static_cast<float*>(stack.data) + index * count, Dtype::f32, count, stack.device);
}

}  // namespace

std::string describe(const StackCase& c) {
  return fmt::format("{}, {} of {} x {}, padding {}, offset {}{}", print(c.spec), c.matrices, c.rows, c.cols, c.padding,
                     c.offset, c.known ? ", known maxima" : "");
}

PlacedStack::PlacedStack(const StackCase& c, const GuardedMatrix& input, Backend& backend, Stream& stream)
    : backend_(&backend),
      tensors_{.input = place("input", input, false, stream), .matrices = c.matrices, .scale_inv = {}} {
  const CastSpec& spec = c.spec;
  const std::int64_t count = c.matrices * scale_count(spec.scale, c.rows, c.cols);
  const std::int64_t own = c.matrices * scale_count(own_scale(spec), c.rows, c.cols);
  const auto output = [&](const char* name, const GuardedMatrix& start) { return place(name, start, true, stream); };
  const auto given = [&](const char* name, std::int64_t n) {
    return place(name, floats(n, [](std::int64_t i) { return 0.5F + static_cast<float>(i % 3); }), false, stream);
  };
  const auto amax = [&](const char* name, std::int64_t n) {
    return output(name, floats(n, [](std::int64_t i) { return i % 2 == 0 ? 0.0F : 1e6F; }));
  };
  if (spec.codes) tensors_.codes = output("codes", {spec.out, c.matrices * c.rows, c.cols, c.padding, c.offset});
  if (spec.transposed) {
    tensors_.transposed = output("transposed", {spec.out, c.matrices * c.cols, c.rows, c.padding, c.offset});
  }
  tensors_.scale_inv = output("scale_inv", {Dtype::f32, 1, count});
  if (spec.transposed_scale) tensors_.transposed_scale_inv = output("transposed_scale_inv", {Dtype::f32, 1, own});
  if (spec.found_amax) {
    const std::int64_t found = c.matrices * scale_count(*spec.found_amax, c.rows, c.cols);
    tensors_.found_amax = output("found_amax", {Dtype::f32, 1, found});
  }
  if (c.known) {
    tensors_.known_amax = place("known_amax", maxima_of(c, rounded_values(c, input), spec.scale), false, stream);
  }
  if (spec.source != ScaleSource::given) return;
  tensors_.scales = given("scales", count);
  tensors_.amax = amax("amax", count);
  if (!spec.transposed_scale) return;
  tensors_.transposed_scales = given("transposed_scales", own);
  tensors_.transposed_amax = amax("transposed_amax", own);
}

Tensor PlacedStack::place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream) {
  Buffer& buffer = memory_[name] = Buffer(*backend_, start.bytes().size());
  backend_->device_api().copy_from_host(buffer.data(), start.bytes().data(), start.bytes().size(), stream);
  if (output) starts_.emplace(name, start);
  return start.view(buffer.data(), backend_->device());
}

void PlacedStack::reset(Stream& stream) {
  for (const auto& [name, start] : starts_) {
    backend_->device_api().copy_from_host(memory_.at(name).data(), start.bytes().data(), start.bytes().size(), stream);
  }
}

std::map<std::string, GuardedMatrix> PlacedStack::outputs(Stream& stream) const {
  std::map<std::string, GuardedMatrix> found = starts_;
  for (auto& [name, matrix] : found) {
    backend_->device_api().copy_to_host(matrix.bytes().data(), memory_.at(name).data(), matrix.bytes().size(), stream);
  }
  return found;
}

GuardedMatrix stack_input(const StackCase& c) {
  GuardedMatrix made(c.spec.in, c.matrices * c.rows, c.cols, c.padding, c.offset);
  for (std::int64_t r = 0; r < made.rows(); ++r) {
    const auto magnitude = static_cast<float>(1 + r / c.rows % 5);
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const float value = random_normal(7, static_cast<std::uint64_t>(r * c.cols + col)) * magnitude;
      made.set_bits(r, col, encode_input(c.spec.in, value));
    }
  }
  return made;
}

std::map<std::string, GuardedMatrix> cast_one_by_one(const StackCase& c, const GuardedMatrix& input) {
  StackCase rounded = c;
  rounded.spec.in = c.spec.rounded.value_or(c.spec.in);
  rounded.spec.rounded.reset();
  const GuardedMatrix values = rounded_values(c, input);
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream(*cpu);
  const PlacedStack placed(rounded, values, *cpu, stream);
  const CastTensors& all = placed.tensors();
  CastSpec alone = rounded.spec;
  alone.stacked = false;
  alone.found_amax.reset();
  const std::int64_t count = scale_count(alone.scale, c.rows, c.cols);
  const std::int64_t own = scale_count(own_scale(alone), c.rows, c.cols);
  for (std::int64_t i = 0; i < c.matrices; ++i) {
    cpu->cast(alone,
              {.input = rows_of(all.input, i, c.rows),
               .codes = rows_of(all.codes, i, c.rows),
               .transposed = rows_of(all.transposed, i, c.cols),
               .scale_inv = floats_of(all.scale_inv, i, count),
               .transposed_scale_inv = floats_of(all.transposed_scale_inv, i, own),
               .scales = floats_of(all.scales, i, count),
               .amax = floats_of(all.amax, i, count),
               .transposed_scales = floats_of(all.transposed_scales, i, own),
               .transposed_amax = floats_of(all.transposed_amax, i, own)},
              stream);
  }
  std::map<std::string, GuardedMatrix> outputs = placed.outputs(stream);
  if (c.spec.found_amax) outputs.at("found_amax") = maxima_of(c, values, *c.spec.found_amax);
  return outputs;
}

std::string stack_difference(const std::map<std::string, GuardedMatrix>& expected,
                             const std::map<std::string, GuardedMatrix>& actual) {
  for (const auto& [name, matrix] : actual) {
    std::string found = bit_difference(name, expected.at(name), matrix);
    if (found.empty()) found = matrix.damage();
    if (!found.empty()) return name + ": " + found;
  }
  return {};
}

std::vector<CastSpec> stacked_specs() {
  std::vector<CastSpec> specs;
  for (const char* const line : {"bf16->e4m3fn scale=tensor out=codes,transposed",
                                 "bf16->e4m3fn scale=row+col out=codes,transposed",
                                 "bf16->e4m3fn scale=128x128 out=codes,transposed",
                                 "bf16->e4m3fn scale=row out=codes",
                                 "f32->e5m2 scale=128x128 out=codes,transposed pow2",
                                 "f16->e4m3fnuz scale=1x128 out=codes",
                                 "f32->e4m3fn scale=row out=codes,transposed pow2",
                                 "bf16->e5m2fnuz scale=col out=transposed",
                                 "f16->e5m2 scale=tensor out=codes",
                                 "f32->e4m3fn scale=1x128+tensor out=codes,transposed",
                                 "bf16->e4m3fn scale=1x128+128x1 out=codes,transposed",
                                 "f32->e4m3fn scale=row out=codes rounded=bf16",
                                 "f32->e5m2 scale=tensor+128x1 out=codes,transposed rounded=f16",
                                 "bf16->e4m3fn scale=tensor out=codes,transposed given",
                                 "bf16->e4m3fn scale=row+col out=codes,transposed given",
                                 "f32->e4m3fn scale=128x128 out=codes given rounded=bf16",
                                 "bf16->e4m3fn scale=row out=codes,amax:col",
                                 "f32->e4m3fn scale=row out=codes,amax:col pow2",
                                 "f32->e5m2 scale=row out=codes,amax:col rounded=f16",
                                 "bf16->e4m3fn scale=tensor out=codes,amax:tensor"}) {
    specs.push_back(std::get<CastSpec>(parse(fmt::format("cast {} stacked", line))));
  }
  return specs;
}

std::vector<CastSpec> stacked_specs_with_known_maxima() {
  std::vector<CastSpec> specs;
  for (const char* const line :
       {"bf16->e4m3fn scale=col out=transposed", "f32->e5m2 scale=col out=codes,transposed pow2 rounded=bf16",
        "bf16->e4m3fn scale=tensor out=transposed", "f16->e4m3fn scale=tensor out=codes,transposed"}) {
    specs.push_back(std::get<CastSpec>(parse(fmt::format("cast {} stacked", line))));
  }
  return specs;
}

std::vector<StackCase> stack_cases() {
  std::vector<StackCase> cases;
  const auto add = [&](const CastSpec& spec, bool known) {
    for (const StackCase& shape : {StackCase{.matrices = 2, .rows = 130, .cols = 136},
                                   {.matrices = 4, .rows = 77, .cols = 51, .padding = 3, .offset = 1},
                                   {.matrices = 2, .rows = 1, .cols = 1},
                                   {.matrices = 1, .rows = 16, .cols = 300, .padding = 4},
                                   {.matrices = 7, .rows = 32, .cols = 16, .padding = 16},
                                   {.matrices = 5, .rows = 33, .cols = 0},
                                   {.matrices = 5, .rows = 0, .cols = 128},
                                   {.matrices = 0, .rows = 0, .cols = 64}}) {
      StackCase made = shape;
      made.spec = spec;
      made.known = known;
      cases.push_back(made);
    }
  };
  for (const CastSpec& spec : stacked_specs()) add(spec, false);
  for (const CastSpec& spec : stacked_specs_with_known_maxima()) add(spec, true);
  return cases;
}

}  // namespace ingot::test
