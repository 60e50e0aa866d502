// Pointwise expressions that a linear layer fuses into its GEMMs and casts: a prologue on its input, an epilogue on its
// output, and the epilogue's derivative on the way back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// prologue: the layer multiplies this expression of its input ("x") and LinearForward::prologue_inputs, rounded to the
// layer's dtype, instead of the input itself: `silu(x) * up`. The caller computes the expression's own gradients:
// grad_input is the gradient of the expression's value. epilogue: output = this expression of x = input @ weight^T +
// bias and LinearForward::epilogue_inputs. backward() takes the gradient of the output; grad_output's cast
// differentiates the epilogue by x and also sums the bias' gradient. The caller computes the gradients of the
// epilogue's further inputs. fast_math: expressions in casts use the GPU's own exp, tanh ... (CastSpec::fast_math); a
// GEMM's epilogue always does.
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
  // Throws Error{invalid_spec} if an input is named grad_output, or if the gradient has more inputs than an expression
  // takes.
  explicit EpilogueGradient(const Pointwise& epilogue);

  // The gradient as an expression of x, grad_output and the epilogue's inputs; empty without an epilogue.
  const Pointwise& expression() const { return expression_; }
  // true: x is the output, from which the derivative can be computed (sigmoid, tanh, relu). false: x is the
  // preactivation, which must be kept.
  bool of_output() const { return of_output_; }
  PointwiseTensors inputs(const Tensor& grad_output, const PointwiseTensors& of_epilogue) const;

 private:
  Pointwise expression_{};
  bool of_output_ = false;
  std::vector<int> sources_{};  // for each input the epilogue's input it is, or -1 for grad_output
};

}  // namespace ingot
