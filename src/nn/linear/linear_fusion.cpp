#include "ingot/nn/linear/linear_fusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr const char* kGradient = "grad_output";

struct OfOutput {
  std::string_view epilogue;
  std::string_view gradient;  // in terms of x = the output
};
constexpr OfOutput kOfOutput[] = {
    {"sigmoid(x)", "grad_output * (x * (1 - x))"},
    {"tanh(x)", "grad_output * (1 - x^2)"},
    {"relu(x)", "grad_output * step(x)"},
};

}  // namespace

EpilogueGradient::EpilogueGradient(const Pointwise& epilogue) {
  if (!epilogue) return;
  const auto own = epilogue.inputs();
  if (std::ranges::find(own, kGradient, &PointwiseInput::name) != own.end()) {
    throw Error(ErrorCode::invalid_spec, "linear fusion",
                fmt::format("the epilogue {} has an input named {}, a name that backward uses: choose another",
                            print(epilogue), kGradient));
  }
  const auto known = std::ranges::find_if(
      kOfOutput, [&](const OfOutput& entry) { return parse_pointwise(entry.epilogue) == epilogue; });
  of_output_ = known != std::end(kOfOutput);
  expression_ = of_output_ ? parse_pointwise(known->gradient) : backward(epilogue, "x", kGradient);
  for (const PointwiseInput& input : expression_.inputs()) {
    const auto at = std::ranges::find(own, input.name, &PointwiseInput::name);
    sources_.push_back(at == own.end() ? -1 : static_cast<int>(at - own.begin()));
  }
}

PointwiseTensors EpilogueGradient::inputs(const Tensor& grad_output, const PointwiseTensors& of_epilogue) const {
  PointwiseTensors tensors{};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    tensors[i] = sources_[i] < 0 ? grad_output : of_epilogue[static_cast<std::size_t>(sources_[i])];
  }
  return tensors;
}

}  // namespace ingot
