// Runs an expression whose output is one of the matrices that it reads.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/backend.h"
#include "support/run_case.h"

namespace ingot::test {

// The expression's matrices, by their names in the backend's argument struct.
inline std::vector<std::string> matrices_of(const ElementwiseSpec& spec) {
  std::vector<std::string> names;
  if (spec.pointwise.uses_x()) names.emplace_back("input");
  const auto inputs = spec.pointwise.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind == PointwiseInput::Kind::matrix) names.push_back(pointwise_input_name(i));
  }
  return names;
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

// Runs the case with `over` as input and output, and returns that matrix with the bytes around it. `times`: how many
// calls, one after the other.
inline GuardedMatrix run_in_place(const Case& c, const SharedMatrices& inputs, const std::string& over,
                                  Backend& backend, Stream& stream, int times = 1) {
  const auto& spec = std::get<ElementwiseSpec>(c.spec);
  std::vector<Buffer> memory;
  const auto place = [&](const std::string& name) -> Tensor {
    const auto found = inputs.find(name);
    if (found == inputs.end()) return {};
    const std::vector<std::byte>& bytes = found->second->bytes();
    memory.emplace_back(backend, bytes.size());
    backend.device_api().copy_from_host(memory.back().data(), bytes.data(), bytes.size(), stream);
    return found->second->view(memory.back().data(), backend.device());
  };
  ElementwiseTensors tensors{.input = place("input"), .output = {}};
  const auto buffer_of = [&](const Tensor& tensor, const GuardedMatrix& matrix) {
    return static_cast<std::byte*>(tensor.data) - (matrix.element(0, 0) - matrix.bytes().data());
  };
  if (over == "input") tensors.output = tensors.input;
  for (std::size_t i = 0; i < tensors.inputs.size(); ++i) {
    tensors.inputs[i] = place(pointwise_input_name(i));
    if (over == pointwise_input_name(i)) tensors.output = tensors.inputs[i];
  }
  for (int i = 0; i < times; ++i) backend.elementwise(spec, tensors, stream);
  GuardedMatrix result = *inputs.at(over);
  backend.device_api().copy_to_host(result.bytes().data(), buffer_of(tensors.output, result), result.bytes().size(),
                                    stream);
  return result;
}

}  // namespace ingot::test
