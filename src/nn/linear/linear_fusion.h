// Pointwise expressions that a linear layer fuses into its GEMMs and casts: a prologue on its input, an epilogue on its
// output, and the epilogue's derivative on the way back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

struct LinearFusion {
  // The layer multiplies this expression's value, rounded to the layer's dtype, instead of its input: `silu(x) * up`.
  // x is the input; the other matrices and vectors are LinearForward::prologue_inputs. grad_input is then the gradient
  // of the expression's value, from which the caller computes those of x and of the other inputs.
  Pointwise prologue{};
  // The output is this expression of x = input @ weight^T + bias and of LinearForward::epilogue_inputs. backward()
  // takes the gradient of the output: the cast of grad_output differentiates the epilogue by x and also sums the
  // gradient of the bias. The caller computes the gradients of the epilogue's other inputs.
  Pointwise epilogue{};
  // Expressions in casts, and epilogues in passes of their own, use the GPU's own exp, tanh ... (CastSpec::fast_math).
  // An epilogue in an FP8 GEMM always does.
  bool fast_math = false;
};

using PointwiseTensors = std::array<Tensor, kMaxPointwiseInputs>;

// How a gradient flows back through an epilogue.
class INGOT_API EpilogueGradient {
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
  std::vector<int> sources_{};  // which input of the epilogue each input is; -1: grad_output
};

}  // namespace ingot
