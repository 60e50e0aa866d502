// What a linear layer computes on the way into its GEMM and on the way out, fused into the casts and the GEMM.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// prologue: the layer multiplies this expression of its input ("x") and of LinearForward::prologue_inputs, rounded to
// the layer's dtype, in place of the input: `silu(x) * up`. Its own gradients are the caller's: grad_input is that of
// the expression's value. epilogue: output = this expression of x = input @ weight^T + bias, and of
// LinearForward::epilogue_inputs. backward() takes the gradient of the output and differentiates the epilogue by x
// within grad_output's cast, which also sums the bias' gradient. The gradients of the further inputs are the caller's.
// fast_math: the expressions in casts use the GPU's own exp, tanh ... (CastSpec::fast_math); a GEMM's epilogue always
// does.
struct LinearFusion {
  Pointwise prologue{};
  Pointwise epilogue{};
  bool fast_math = false;
};

using PointwiseTensors = std::array<Tensor, kMaxPointwiseInputs>;

// How a gradient flows back through an epilogue.
class EpilogueGradient {
 public:
  EpilogueGradient() = default;
  // Throws Error{invalid_spec} for an input named grad_output, and where there are more inputs than an expression
  // takes.
  explicit EpilogueGradient(const Pointwise& epilogue);

  // Of x, of grad_output and of the epilogue's inputs; empty without an epilogue.
  const Pointwise& expression() const { return expression_; }
  // x is the output, as it is enough (sigmoid, tanh, relu), else the preactivation, which has to be kept.
  bool of_output() const { return of_output_; }
  PointwiseTensors inputs(const Tensor& grad_output, const PointwiseTensors& of_epilogue) const;

 private:
  Pointwise expression_{};
  bool of_output_ = false;
  std::vector<int> sources_{};  // of each input: which of the epilogue's, or -1: grad_output
};

}  // namespace ingot
