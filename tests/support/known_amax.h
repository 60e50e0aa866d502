// Casts whose amax is known already (CastTensors::known_amax), for the CPU and for GPUs.
#pragma once

#include <array>
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

inline std::vector<CastSpec> casts_that_take_an_amax() {
  constexpr std::array kLines{
      "cast bf16->e5m2 scale=tensor out=codes,transposed",
      "cast bf16->e4m3fn scale=tensor out=codes pow2",
      "cast f32->e4m3fn scale=tensor out=transposed",
      "cast f16->e5m2 scale=tensor out=codes,transposed,sum:f32",
      "cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed,result",
      "cast f16->e4m3fn of=x*a[col] scale=tensor out=codes,result,sum:bf16",
      "cast bf16->e5m2 scale=row+col out=codes,transposed",
      "cast f32->e4m3fn scale=row+col out=codes,transposed pow2",
      "cast f16->e5m2 of=grad*sigmoid(x) scale=row+col out=codes,transposed,result,sum:f32",
  };
  std::vector<CastSpec> specs;
  for (const char* const line : kLines) specs.push_back(std::get<CastSpec>(parse(line)));
  return specs;
}

// Aligned or not; small enough for one launch, and not.
inline std::vector<Case> known_amax_cases(const CastSpec& spec) {
  std::vector<Case> made;
  for (const Shape shape : {Shape{1, 1}, Shape{37, 131}, Shape{256, 512}, Shape{0, 5}, Shape{5, 0}}) {
    made.push_back({.spec = spec, .shape = shape});
  }
  made.push_back({.spec = spec, .shape = {70, 256}, .placement = {3, 1}});
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::subnormal}) {
    made.push_back({.spec = spec, .shape = {300, 264}, .input = input});
  }
  return made;
}

inline std::shared_ptr<const GuardedMatrix> one_float(std::uint32_t bits) {
  GuardedMatrix one(Dtype::f32, 1, 1);
  one.set_bits(0, 0, bits);
  return std::make_shared<const GuardedMatrix>(std::move(one));
}

// Runs the cast with the amax that a pass over its values finds, and says where it differs from one that looks for it.
inline std::string known_amax_fault(const Case& c, SharedMatrices inputs, Backend& backend, Stream& stream) {
  const auto& spec = std::get<CastSpec>(c.spec);
  const Matrices expected = run(c, inputs, backend, stream);
  const auto values =
      spec.pointwise ? std::make_shared<const GuardedMatrix>(expected.at("result")) : inputs.at("input");
  const auto find = [&](ScaleGranularity scale) {
    const Case search{.spec = AmaxSpec{.in = spec.in, .scale = scale}, .shape = c.shape, .placement = c.placement};
    return std::make_shared<const GuardedMatrix>(run(search, {{"input", values}}, backend, stream).at("amax"));
  };
  inputs["known_amax"] = find(spec.scale);
  if (spec.transposed_scale) inputs["known_transposed_amax"] = find(*spec.transposed_scale);
  const Matrices outputs = run(c, inputs, backend, stream);
  std::string fault = damage(outputs);
  for (const auto& [name, matrix] : outputs) {
    if (fault.empty()) fault = bit_difference(name, expected.at(name), matrix);
  }
  return fault;
}

}  // namespace ingot::test
