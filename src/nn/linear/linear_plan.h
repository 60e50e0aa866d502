// What a linear layer does, worked out once as a plain value: the specs of its casts and GEMMs, and the memory that
// they need. linear_functions.h runs it; Float8Linear owns the memory of one.
//
//   const LinearPlan plan = linear_plan({.name = "layers.0.wq", .config = rowwise(), .shape = {K, N}});
//   const LinearMemory memory = plan.memory(tokens);   // how many bytes, and where in them each tensor is
//
// A plan knows no backend and no stream and never changes, so it may be copied, and any number of threads may use one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/nn/linear/linear_memory.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// Pointwise expressions that a linear layer fuses into its GEMMs and casts.
struct LinearFusion {
  // The layer multiplies this expression's value, rounded to the layer's dtype, instead of its input: `silu(x) * up`.
  // x is the input; the other matrices and vectors are LinearForward::prologue_inputs. grad_input is then the gradient
  // of the expression's value, from which the caller computes those of x and of the other inputs.
  Pointwise prologue{};
  // The output is this expression of x = input @ weight^T + bias and of LinearForward::epilogue_inputs. backward()
  // takes the gradient of the output: the cast of grad_output differentiates the epilogue by x and also sums the
  // gradient of the bias. The caller computes the gradients of the epilogue's other inputs.
  Pointwise epilogue{};
  // Expressions in casts, and epilogues in separate passes, use the GPU's own exp, tanh ... (CastSpec::fast_math).
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

struct LinearShape {
  std::int64_t in_features = 0;   // K
  std::int64_t out_features = 0;  // N
  bool bias = false;
};

// High-precision dtypes: f32, bf16 or f16.
struct LinearDtypes {
  Dtype input = Dtype::bf16;  // of input, and the matrices and columns of the prologue
  // Default: as input. Another one is for weights that are only cast, such as f32 master weights: the output and
  // grad_input GEMMs must be in FP8.
  std::optional<Dtype> weight{};
  // Default: what the output GEMM takes (bias_dtype()). A bias of another one, such as f32 with a bf16 input, is
  // rounded to that by each forward.
  std::optional<Dtype> bias{};
  // Of output, grad_output, and the matrices and columns of the epilogue. Default: as input. Another one is for GEMMs
  // in FP8; one in high precision also gives f32. Example: f32 logits.
  std::optional<Dtype> output{};
};

// On an H200 a step of 16384 cubed (4.4e12 products) takes 8 % less time with the epilogue in a pass, one of 8192 cubed
// (5.5e11) the same (docs/notes/layers.md). Where cuBLASLt has no such GEMM, infinity is faster; the default does not
// ask it, so that the number of roundings does not depend on the GPU.
inline constexpr double kFusedProducts = 1e12;

struct LinearPlanOptions {
  std::string name = "linear";  // "layers.0.wq": in messages and for observers
  LinearConfig config{};
  LinearShape shape{};
  LinearDtypes dtypes{};
  LinearFusion fusion{};
  // false for a weight that is not trained: forward keeps nothing for its gradient.
  bool grad_weight = true;
  std::string subject{};  // what messages call the layer; default: linear "<name>"
  // true for a layer whose input was cast by another layer with the same casts (q, k and v; gate and up): forward
  // and backward are given that layer's codes (linear_input_codes()) and keep none. Without a prologue.
  bool given_input = false;
  double fused_products = kFusedProducts;  // as LinearOptions::fused_products (float8_linear.h)
};

// Which gradients a backward computes.
struct LinearGradients {
  bool input = true;
  bool weight = true;
  bool bias = true;

  // For tables of all eight.
  constexpr std::size_t index() const { return (input ? 1U : 0U) + (weight ? 2U : 0U) + (bias ? 4U : 0U); }
  static constexpr LinearGradients at(std::size_t index) {
    return {.input = (index & 1U) != 0, .weight = (index & 2U) != 0, .bias = (index & 4U) != 0};
  }
};

// A forward that keeps what backward needs, a forward that keeps nothing, or a recomputation of what backward needs
// alone. A recompute is a whole training forward where backward needs the preactivation (recomputes_output()).
enum class LinearPass : std::uint8_t { training, inference, recompute };

// One call of Backend::cast(); `any` says whether there is one.
struct LinearCast {
  bool any = false;
  Scaling scaling = Scaling::dynamic;
  CastSpec spec{};

  bool is_fixed() const { return any && scaling == Scaling::fixed; }
  // Have the codes scale_inv that the transposed codes do not share?
  bool has_own_scale_inv() const { return any && spec.codes && (!spec.transposed || spec.transposed_scale); }
};

// How the scale of each tensor is made, in whichever of its GEMMs it is cast first: forward's codes, or else
// backward's. Casts whose scales are not dynamic are equal in both. nullopt for a tensor that no GEMM reads in FP8.
struct LinearScaling {
  std::optional<Cast> input{};
  std::optional<Cast> weight{};
  std::optional<Cast> grad_output{};

  std::array<const std::optional<Cast>*, 3> all() const { return {&input, &weight, &grad_output}; }
};

// How grad_output is cast for the gradients that are wanted.
struct LinearGradOutputCast {
  bool codes = false;       // for grad_input
  bool transposed = false;  // for grad_weight
  bool folds = false;       // scale_inv are multiplied in: separate casts follow, folded_codes and folded_transposed
  bool sums = false;        // the cast sums the bias' gradient
  bool values = false;      // the epilogue's gradient is also written in high precision
  bool apart = false;       // the transposed codes have their own scale_inv
  LinearCast cast{};        // of both, with the epilogue's gradient in front; none where `folds`
};

struct INGOT_API LinearPlan {
  std::string name{};
  std::string subject{};
  LinearConfig config{};
  LinearShape shape{};
  LinearDtypes dtypes{};  // all are set
  LinearFusion fusion{};
  bool trains_weight = true;
  double fused_products = 0;
  // Equal for equal plans, and almost surely different for different ones; not kept on disk.
  std::uint64_t identity = 0;

  LinearScaling scaling{};
  // Has it fixed scales, or a factor of 1 for folded scale_inv? linear_constants() writes them.
  bool has_constants = false;

  // ---- the specs of its calls ----
  std::array<LinearCast, 3> input{};  // by LinearPass
  LinearCast given_input{};           // how the given input was cast; then there is none by LinearPass
  LinearCast input_again{};           // within backward, as OtherCodes::again says
  LinearCast weight{};
  LinearCast weight_again{};
  std::array<LinearGradOutputCast, 8> grad_output{};  // by LinearGradients::index()
  LinearCast folded_codes{};
  LinearCast folded_transposed{};
  ElementwiseSpec prologue_values{};  // without an expression if there is none
  ElementwiseSpec epilogue_values{};
  ElementwiseSpec gradient_values{};
  ElementwiseSpec repeated{};  // one row for all
  EpilogueGradient gradient{};
  std::array<GemmSpec, 2> output_gemm{};  // [1]: also writes the preactivation
  GemmSpec sum_gemm{};                    // where the epilogue is a separate pass
  GemmSpec grad_input_gemm{};
  GemmSpec grad_weight_gemm{};  // into the input's dtype, without accumulation

  const LinearCast& input_of(LinearPass pass) const { return input[static_cast<std::size_t>(pass)]; }
  const LinearGradOutputCast& grad_output_of(const LinearGradients& wants) const { return grad_output[wants.index()]; }
  // Does the cast of grad_output look for its largest |value| alone? Then whoever computes grad_output may find it too
  // (LinearBackwardTensors::grad_output_amax).
  bool takes_grad_output_amax(const LinearGradients& wants) const;

  // ---- which tensors its calls read ----
  // The high-precision weight, in forward or in backward; otherwise its codes suffice there.
  bool output_reads_weight() const { return !is_float8(config.output); }
  bool grad_input_reads_weight() const { return !is_float8(config.grad_input) || config.weight == OtherCodes::again; }
  // The caller's input again, for grad_weight. With a prologue a GEMM in high precision reads its kept values.
  bool grad_weight_reads_input() const {
    return config.input == OtherCodes::again || (!is_float8(config.grad_weight) && !fusion.prologue);
  }
  bool keeps_values() const { return trains_weight && fusion.prologue && !is_float8(config.grad_weight); }
  bool needs_preactivation() const;
  bool recomputes_output() const { return needs_preactivation(); }
  // What a call of this pass does.
  LinearPass effective(LinearPass pass) const {
    return pass == LinearPass::recompute && recomputes_output() ? LinearPass::training : pass;
  }
  // How many of the weight's elements, as seen on [N, K], share a scale in the codes that grad_input's GEMM reads.
  ScaleGranularity weight_scale_of_grad_input() const {
    return weight_again.any ? weight_again.spec.scale : weight.spec.transposed_scale.value_or(weight.spec.scale);
  }
  bool rounds_bias() const { return shape.bias && *dtypes.bias != bias_dtype(output_gemm[0]); }
  // Is there an epilogue, and is it a separate pass over the sum, which is rounded to the output's dtype before? Then
  // cuBLASLt, which knows no such epilogues, may multiply. In high precision that is faster than a GEMM with the
  // epilogue; with scale_inv of groups only for huge matmuls (docs/notes/layers.md).
  bool runs_epilogue_apart(std::int64_t tokens) const;
  bool folds() const { return config.input == OtherCodes::folded || config.weight == OtherCodes::folded; }

  // ---- memory ----
  // Throw Error{invalid_argument} for a negative number of tokens and one whose tensors no memory can hold. `observed`:
  // for runs whose observer wants values. They compute a few integers: cheap enough for every call.
  LinearWeightMemory weight_memory() const;
  LinearSavedMemory saved_memory(std::int64_t tokens) const;
  // Does saved memory of an empty input take no bytes? Then a null region does not say that nothing is kept.
  bool saves_no_bytes(std::int64_t tokens) const {
    return (tokens == 0 || shape.in_features == 0) && saved_memory(tokens).bytes == 0;
  }
  LinearForwardScratch forward_scratch(std::int64_t tokens, LinearPass pass = LinearPass::training,
                                       bool observed = false) const;
  // `expands`: for a grad_output that is given as one element.
  LinearBackwardScratch backward_scratch(std::int64_t tokens, const LinearGradients& wants = {}, bool observed = false,
                                         bool expands = false) const;
  // All four, for a training step with all gradients.
  LinearMemory memory(std::int64_t tokens) const;
};

// Throws Error{invalid_spec} for an invalid config or fusion, and Error{invalid_argument} for negative sizes and dtypes
// that do not fit the config.
INGOT_API LinearPlan linear_plan(const LinearPlanOptions& options);

}  // namespace ingot
