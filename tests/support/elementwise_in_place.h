// Runs expressions whose outputs are matrices that they read, and pairs of expressions one by one.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/backend.h"
#include "support/compare.h"
#include "support/run_case.h"

namespace ingot::test {

// The matrices that the expressions read, by their names in the backend's argument struct.
inline std::vector<std::string> matrices_of(const ElementwiseSpec& spec) {
  std::vector<std::string> names;
  if (uses_x(spec)) names.emplace_back("input");
  const ElementwiseInputs inputs(spec);
  for (std::size_t i = 0; i < inputs.all().size(); ++i) {
    if (inputs.all()[i]->kind == PointwiseInput::Kind::matrix) names.push_back(pointwise_input_name(i));
  }
  return names;
}

// Which matrix each output is written over, by their names; an output that is not named has its own memory.
using WrittenOver = std::map<std::string, std::string>;

// Each output over each matrix, and both over two different ones.
inline std::vector<WrittenOver> choices_in_place(const ElementwiseSpec& spec) {
  std::vector<WrittenOver> choices;
  for (const std::string& one : matrices_of(spec)) {
    choices.push_back({{"output", one}});
    if (!spec.second) continue;
    choices.push_back({{"second", one}});
    for (const std::string& other : matrices_of(spec)) {
      if (other != one) choices.push_back({{"output", one}, {"second", other}});
    }
  }
  return choices;
}

// Rows that are read 8 elements at a time, rows that are not, both in one call, and the ends of tiles.
inline std::vector<Case> in_place_cases(const ElementwiseSpec& spec) {
  std::vector<Case> made;
  for (const Shape shape : {Shape{1, 1}, Shape{70, 264}, Shape{37, 131}, Shape{9, 2080}}) {
    made.push_back({.spec = spec, .shape = shape});
  }
  made.push_back({.spec = spec, .shape = {70, 256}, .placement = {3, 1}});
  made.push_back({.spec = spec, .shape = {33, 77}, .placement = {11, 0}});
  return made;
}

// Runs the case and returns its outputs with the bytes around them. `times`: how many calls, one after the other.
inline Matrices run_in_place(const Case& c, const SharedMatrices& inputs, const WrittenOver& over, Backend& backend,
                             Stream& stream, int times = 1) {
  Matrices outputs = poisoned_outputs(c);
  for (const auto& [output, matrix] : over) outputs.at(output) = *inputs.at(matrix);
  std::map<std::string, Buffer> memory;
  std::map<std::string, Tensor> tensors;
  const auto place = [&](const std::string& name, const GuardedMatrix& matrix) {
    const std::vector<std::byte>& bytes = matrix.bytes();
    Buffer& buffer = memory.try_emplace(name, backend, bytes.size()).first->second;
    backend.device_api().copy_from_host(buffer.data(), bytes.data(), bytes.size(), stream);
    tensors[name] = matrix.view(buffer.data(), backend.device());
  };
  const auto place_of = [&](const std::string& output) { return over.contains(output) ? over.at(output) : output; };
  for (const auto& [name, matrix] : inputs) place(name, *matrix);
  for (const auto& [name, matrix] : outputs) {
    if (!over.contains(name)) place(name, matrix);
  }
  ElementwiseTensors all{.input = tensors["input"],
                         .output = tensors[place_of("output")],
                         .second = tensors[place_of("second")],
                         .amax = tensors["amax"],
                         .sums = tensors["sums"],
                         .row_amax = tensors["row_amax"],
                         .column_amax = tensors["column_amax"]};
  for (std::size_t i = 0; i < all.inputs.size(); ++i) all.inputs[i] = tensors[pointwise_input_name(i)];
  for (int i = 0; i < times; ++i) backend.elementwise(std::get<ElementwiseSpec>(c.spec), all, stream);
  for (auto& [name, matrix] : outputs) {
    backend.device_api().copy_to_host(matrix.bytes().data(), memory.at(place_of(name)).data(), matrix.bytes().size(),
                                      stream);
  }
  return outputs;
}

// Where a call in place has other outputs than one with its own memory, or wrote outside them; empty if nowhere.
inline std::string fault_in_place(const Case& c, const SharedMatrices& inputs, const WrittenOver& over,
                                  const Matrices& expected, Backend& backend, Stream& stream) {
  const Matrices found = run_in_place(c, inputs, over, backend, stream);
  std::string fault = damage(found);
  for (const auto& [name, matrix] : found) fault += bit_difference(name, expected.at(name), matrix);
  return fault;
}

// A pass that computes one of the expressions of a spec. inputs: what that expression reads, in its order. output: the
// output of the whole spec that holds the same values.
struct SinglePass {
  ElementwiseSpec spec;
  SharedMatrices inputs;
  const char* output;
};

inline std::vector<SinglePass> single_passes(const ElementwiseSpec& spec, const SharedMatrices& inputs) {
  const ElementwiseInputs all(spec);
  std::vector<SinglePass> passes;
  const auto add = [&](const Pointwise& expression, const char* output) {
    SinglePass pass{.spec = spec, .inputs = {{"input", inputs.at("input")}}, .output = output};
    pass.spec.pointwise = expression;
    pass.spec.second = {};
    pass.spec.row_sum = {};
    pass.spec.amax = false;
    pass.spec.maxima = false;
    for (std::size_t i = 0; i < expression.inputs().size(); ++i) {
      pass.inputs[pointwise_input_name(i)] = inputs.at(pointwise_input_name(all.index_of(expression.inputs()[i].name)));
    }
    passes.push_back(std::move(pass));
  };
  add(spec.pointwise, "output");
  if (spec.second) add(spec.second, "second");
  return passes;
}

// Where the outputs differ from those of each expression as a pass of its own; empty if they do not.
inline std::string difference_from_single_passes(const Case& c, const SharedMatrices& inputs, const Matrices& outputs,
                                                 Backend& backend, Stream& stream) {
  for (const SinglePass& pass : single_passes(std::get<ElementwiseSpec>(c.spec), inputs)) {
    const Case single{.spec = pass.spec, .shape = c.shape, .input = c.input, .placement = c.placement};
    const std::string fault =
        bit_difference(pass.output, run(single, pass.inputs, backend, stream).at("output"), outputs.at(pass.output));
    if (!fault.empty()) return fault;
  }
  return {};
}

// Where a row's sum is farther from float64's than f32 explains, or is not NaN where that is; empty if nowhere, or if
// the spec has no row_sum.
inline std::string sums_fault(const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
  const auto& spec = std::get<ElementwiseSpec>(c.spec);
  if (!spec.row_sum) return {};
  const ElementwiseInputs all(spec);
  for (std::int64_t r = 0; r < c.shape.rows; ++r) {
    double sum = 0, size = 0;
    for (std::int64_t col = 0; col < c.shape.cols; ++col) {
      std::vector<double> values;
      for (const PointwiseInput& input : spec.row_sum.inputs()) {
        const bool of_row = input.kind == PointwiseInput::Kind::row;
        const bool matrix = input.kind == PointwiseInput::Kind::matrix;
        values.push_back(
            inputs.at(pointwise_input_name(all.index_of(input.name)))->value(matrix ? r : 0, of_row ? r : col));
      }
      const double value = evaluate(spec.row_sum, inputs.at("input")->value(r, col), values);
      sum += value;
      size += std::abs(value);
    }
    const double found = outputs.at("sums").value(0, r);
    const double allowed = size * (std::ldexp(1.0, -14) + static_cast<double>(c.shape.cols) * std::ldexp(1.0, -24));
    const bool good = std::isfinite(sum) ? std::abs(found - sum) <= allowed + std::ldexp(1.0, -140)
                                         : std::isnan(sum) == std::isnan(found) && !std::isfinite(found);
    if (!good) return fmt::format("the sum of row {} is {}, not {}", r, found, sum);
  }
  return {};
}

// Where a spec's amax is not what a separate pass over its outputs finds; empty if it is, or if the spec has none.
inline std::string amax_fault(const Case& c, const Matrices& outputs, Backend& backend, Stream& stream) {
  const auto& spec = std::get<ElementwiseSpec>(c.spec);
  if (!spec.amax) return {};
  std::uint32_t expected = 0;
  for (const char* const name : {"output", "second"}) {
    if (!outputs.contains(name)) continue;
    const Matrices found = run({.spec = AmaxSpec{.in = spec.in}, .shape = c.shape, .placement = c.placement},
                               {{"input", std::make_shared<const GuardedMatrix>(outputs.at(name))}}, backend, stream);
    expected = std::max(expected, found.at("amax").bits(0, 0));  // of a NaN it is the largest
  }
  const std::uint32_t amax = outputs.at("amax").bits(0, 0);
  return amax == expected ? "" : fmt::format("amax has the bits {:#x}, not {:#x}", amax, expected);
}

// The same of a spec's maxima of rows and of columns.
inline std::string maxima_fault(const Case& c, const Matrices& outputs, Backend& backend, Stream& stream) {
  const auto& spec = std::get<ElementwiseSpec>(c.spec);
  if (!spec.maxima) return {};
  const auto of = [&](const char* output, ScaleGranularity scale) {
    const Case search{.spec = AmaxSpec{.in = spec.in, .scale = scale}, .shape = c.shape, .placement = c.placement};
    return run(search, {{"input", std::make_shared<const GuardedMatrix>(outputs.at(output))}}, backend, stream)
        .at("amax");
  };
  const std::int64_t outputs_count = spec.second ? 2 : 1;
  std::vector<std::uint32_t> rows(static_cast<std::size_t>(c.shape.rows));
  for (std::int64_t i = 0; i < outputs_count; ++i) {
    const char* const output = i == 0 ? "output" : "second";
    const GuardedMatrix of_rows = of(output, kRowwise);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r] = std::max(rows[r], of_rows.bits(0, static_cast<std::int64_t>(r)));
    }
    const GuardedMatrix of_columns = of(output, kColumnwise);
    for (std::int64_t col = 0; col < c.shape.cols; ++col) {
      const std::uint32_t found = outputs.at("column_amax").bits(0, i * c.shape.cols + col);
      if (found == of_columns.bits(0, col)) continue;
      return fmt::format("column_amax of column {} of {} has the bits {:#x}, not {:#x}", col, output, found,
                         of_columns.bits(0, col));
    }
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::uint32_t found = outputs.at("row_amax").bits(0, static_cast<std::int64_t>(r));
    if (found != rows[r]) return fmt::format("row_amax of row {} has the bits {:#x}, not {:#x}", r, found, rows[r]);
  }
  return {};
}

// Of values of all kinds, and of matrices without elements.
inline std::vector<Case> maxima_cases(const ElementwiseSpec& spec) {
  std::vector<Case> made = in_place_cases(spec);
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::subnormal}) {
    made.push_back({.spec = spec, .shape = {37, 264}, .input = input});
  }
  for (const Shape shape : {Shape{531, 677}, Shape{0, 8}, Shape{8, 0}}) made.push_back({.spec = spec, .shape = shape});
  return made;
}

// Where the maxima are wrong, or other outputs are not those of a call without maxima; empty if nowhere.
inline std::string maxima_case_fault(const Case& c, const SharedMatrices& inputs, Backend& backend, Stream& stream) {
  const Matrices outputs = run(c, inputs, backend, stream);
  std::string fault = damage(outputs) + maxima_fault(c, outputs, backend, stream);
  Case plain = c;
  std::get<ElementwiseSpec>(plain.spec).maxima = false;
  for (const auto& [name, matrix] : run(plain, inputs, backend, stream)) {
    fault += bit_difference(name, matrix, outputs.at(name));
  }
  return fault;
}

}  // namespace ingot::test
