#include "ingot/nn/linear/linear_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/runtime/util/error.h"

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
namespace {

// ---- casts ---------------------------------------------------------------------------------------------------------

LinearCast cast_of(const TensorCasts& casts, Dtype in) {
  if (!casts.codes && !casts.transposed) return {};
  return {.any = true,
          .scaling = casts.codes ? casts.codes->scaling : casts.transposed->scaling,
          .spec = cast_spec(casts, in)};
}

// Puts an expression in front of a cast.
LinearCast fused(LinearCast cast, const Pointwise& expression, bool fast_math) {
  if (!cast.any || !expression) return cast;
  cast.spec.pointwise = expression;
  cast.spec.fast_math = fast_math;
  return cast;
}

LinearCast folded(const std::optional<Cast>& codes, const std::optional<Cast>& transposed, const Pointwise& expression,
                  const LinearPlan& plan) {
  LinearCast cast = fused(cast_of({.codes = codes, .transposed = transposed}, *plan.dtypes.output), expression,
                          plan.fusion.fast_math);
  cast.spec.unrounded = cast.any && expression;
  return cast;
}

void plan_scaling(LinearPlan& plan) {
  const LinearConfig& config = plan.config;
  const auto first = [](const std::optional<Cast>& in_forward, const std::optional<Cast>& in_backward) {
    return in_forward ? in_forward : in_backward;
  };
  plan.scaling = {.input = first(config.output.a, config.grad_weight.b),
                  .weight = first(config.output.b, config.grad_input.b),
                  .grad_output = first(config.grad_input.a, config.grad_weight.a)};
  const auto all = plan.scaling.all();
  plan.has_constants = plan.folds() || std::ranges::any_of(all, [](const std::optional<Cast>* cast) {
                         return *cast && (*cast)->scaling == Scaling::fixed;
                       });
}

void plan_input(LinearPlan& plan, bool given) {
  const LinearConfig& config = plan.config;
  TensorCasts kept = input_casts(config);
  if (!plan.trains_weight) kept.transposed.reset();
  const auto cast = [&](const TensorCasts& casts, bool values) {
    LinearCast made = fused(cast_of(casts, plan.dtypes.input), plan.fusion.prologue, plan.fusion.fast_math);
    made.spec.result = made.any && values;
    return made;
  };
  const bool output_reads_values = plan.fusion.prologue && !is_float8(config.output);
  plan.input[static_cast<std::size_t>(LinearPass::training)] = cast(kept, plan.keeps_values() || output_reads_values);
  plan.input[static_cast<std::size_t>(LinearPass::inference)] = cast({.codes = kept.codes}, output_reads_values);
  plan.input[static_cast<std::size_t>(LinearPass::recompute)] =
      cast({.transposed = kept.transposed}, plan.keeps_values());
  if (plan.trains_weight) plan.input_again = cast(input_casts_again(config), false);
  if (given) {
    plan.given_input = plan.input_of(LinearPass::training);
    plan.input = {};
  }
  plan.prologue_values = {
      .in = plan.dtypes.input, .pointwise = plan.fusion.prologue, .fast_math = plan.fusion.fast_math};
}

void plan_weight(LinearPlan& plan) {
  plan.weight = cast_of(weight_casts(plan.config), *plan.dtypes.weight);
  plan.weight_again = cast_of(weight_casts_again(plan.config), *plan.dtypes.weight);
}

LinearGradOutputCast grad_output_cast(const LinearPlan& plan, const LinearGradients& wants) {
  const LinearConfig& config = plan.config;
  TensorCasts casts = grad_output_casts(config);
  if (!wants.input) casts.codes.reset();
  if (!wants.weight) casts.transposed.reset();
  LinearGradOutputCast made{.codes = casts.codes.has_value(), .transposed = casts.transposed.has_value()};
  made.folds =
      (made.codes && config.weight == OtherCodes::folded) || (made.transposed && config.input == OtherCodes::folded);
  const Pointwise& gradient = plan.gradient.expression();
  const bool in_high_precision = (wants.input && !made.codes) || (wants.weight && !made.transposed);
  // A cast that transposes works in tiles and sums columns at little cost; other casts would become slower.
  made.sums = wants.bias && !made.folds && (made.transposed || (gradient && made.codes && !in_high_precision));
  made.values = gradient && (in_high_precision || made.folds || (wants.bias && !made.sums));
  made.apart = made.folds || (made.codes && made.transposed && !share_scales(casts));
  if (made.folds) return made;
  made.cast = fused(cast_of(casts, *plan.dtypes.output), gradient, plan.fusion.fast_math);
  made.cast.spec.result = made.cast.any && made.values;
  return made;
}

void plan_grad_output(LinearPlan& plan) {
  for (std::size_t i = 0; i < plan.grad_output.size(); ++i) {
    plan.grad_output[i] = grad_output_cast(plan, LinearGradients::at(i));
  }
  const LinearConfig& config = plan.config;
  const Pointwise by_column =
      config.weight == OtherCodes::folded ? parse_pointwise("x * factor[col:f32]") : Pointwise{};
  const Pointwise by_row = config.input == OtherCodes::folded ? parse_pointwise("x * factor[row]") : Pointwise{};
  if (!plan.folds()) return;
  const TensorCasts casts = grad_output_casts(config);
  plan.folded_codes = folded(casts.codes, std::nullopt, by_column, plan);
  plan.folded_transposed = folded(std::nullopt, casts.transposed, by_row, plan);
}

void plan_gemms(LinearPlan& plan) {
  const Dtype dtype = plan.dtypes.input;
  const Dtype out = *plan.dtypes.output;
  plan.output_gemm[0] = output_gemm(plan.config, dtype);
  plan.output_gemm[0].out = out;
  plan.output_gemm[0].bias = plan.shape.bias;
  plan.sum_gemm = plan.output_gemm[0];
  if (is_float8(plan.config.output)) plan.output_gemm[0].epilogue.pointwise = plan.fusion.epilogue;
  plan.output_gemm[1] = plan.output_gemm[0];
  plan.output_gemm[1].epilogue.preactivation = is_float8(plan.config.output) && plan.needs_preactivation();
  plan.grad_input_gemm = grad_input_gemm(plan.config, dtype);
  plan.grad_weight_gemm = grad_weight_gemm(plan.config, dtype);
  plan.epilogue_values = {.in = out, .pointwise = plan.fusion.epilogue, .fast_math = plan.fusion.fast_math};
  plan.repeated = {.in = out, .pointwise = parse_pointwise("one[col]")};
  plan.gradient_values = {.in = out, .pointwise = plan.gradient.expression(), .fast_math = plan.fusion.fast_math};
}

// ---- checks --------------------------------------------------------------------------------------------------------

void check_size(const LinearPlan& plan, const char* what, std::int64_t size) {
  if (size >= 0) return;
  refuse_argument(fmt::format("{} {}", plan.subject, what).c_str(), fmt::format("is {}, but must be 0 or more", size));
}

void check_dtypes(const LinearPlan& plan) {
  const std::string subject = plan.subject + " dtypes";
  const auto check = [&](const char* tensor, Dtype dtype) {
    if (is_high_precision(dtype)) return;
    refuse_argument(subject.c_str(),
                    fmt::format("has {} for the {}, but it must be f32 or bf16 or f16", name(dtype), tensor));
  };
  check("input", plan.dtypes.input);
  check("weight", *plan.dtypes.weight);
  check("bias", plan.dtypes.bias.value_or(plan.dtypes.input));
  const Dtype written = *plan.dtypes.output;
  check("output", written);
  if (written != plan.dtypes.input && written != Dtype::f32 && !is_float8(plan.config.output)) {
    refuse_argument(subject.c_str(),
                    fmt::format("has {} for the input and {} for the output, but the output GEMM is in high precision, "
                                "which gives its operands' dtype or f32",
                                name(plan.dtypes.input), name(written)));
  }
  if (*plan.dtypes.weight == plan.dtypes.input) return;
  const bool output = !is_float8(plan.config.output);
  if (!output && is_float8(plan.config.grad_input)) return;
  refuse_argument(subject.c_str(),
                  fmt::format("has {} for the input and {} for the weight, but the {} GEMM is in high precision, whose "
                              "operands have one dtype: give the weight in {}, or choose a recipe that casts it for "
                              "both of its GEMMs",
                              name(plan.dtypes.input), name(*plan.dtypes.weight), output ? "output" : "grad_input",
                              name(plan.dtypes.input)));
}

void check_fused_products(const LinearPlan& plan) {
  if (plan.fused_products >= 0) return;  // infinity too, but no NaN
  refuse_argument(fmt::format("{} fused_products", plan.subject).c_str(),
                  fmt::format("is {}, but must be 0 or more", plan.fused_products));
}

void check_given_input(const LinearPlan& plan, const LinearPlanOptions& options) {
  if (!options.given_input || !options.fusion.prologue) return;
  refuse_argument(fmt::format("{} given_input", plan.subject).c_str(),
                  "is set, but there is a prologue: it belongs to the layer that casts the input");
}

std::uint64_t identity_of(const LinearPlan& plan) {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t word) { hash = mix(hash + 0x9e3779b97f4a7c15U + word); };
  for (const char c : plan.name) add(static_cast<std::uint8_t>(c));
  add(static_cast<std::uint64_t>(plan.shape.in_features));
  add(static_cast<std::uint64_t>(plan.shape.out_features));
  add(pack(*plan.dtypes.bias, *plan.dtypes.output));
  add(pack(plan.shape.bias, plan.dtypes.input, *plan.dtypes.weight, plan.config.input, plan.config.weight,
           plan.trains_weight, plan.fusion.fast_math));
  for (const LinearCast* cast :
       {plan.input.data(), &plan.given_input, &plan.input_again, &plan.weight, &plan.weight_again,
        &plan.grad_output[7].cast, &plan.folded_codes, &plan.folded_transposed}) {
    add(cast->any ? hash_value(cast->spec) : 0);
    add(pack(cast->any, cast->scaling));
  }
  for (const GemmSpec* gemm : {&plan.output_gemm[1], &plan.grad_input_gemm, &plan.grad_weight_gemm}) {
    add(hash_value(*gemm));
  }
  add(std::bit_cast<std::uint64_t>(plan.fused_products));
  add(plan.fusion.prologue.hash());
  add(plan.fusion.epilogue.hash());
  return hash;
}

}  // namespace

LinearPlan linear_plan(const LinearPlanOptions& options) {
  LinearPlan plan{.name = options.name,
                  .subject = options.subject.empty() ? fmt::format("linear \"{}\"", options.name) : options.subject,
                  .config = options.config,
                  .shape = options.shape,
                  .dtypes = {options.dtypes.input, options.dtypes.weight.value_or(options.dtypes.input),
                             options.dtypes.bias, options.dtypes.output.value_or(options.dtypes.input)},
                  .fusion = options.fusion,
                  .trains_weight = options.grad_weight,
                  .fused_products = options.fused_products,
                  .gradient = EpilogueGradient(options.fusion.epilogue)};
  validate(plan.config);
  check_size(plan, "in_features", plan.shape.in_features);
  check_size(plan, "out_features", plan.shape.out_features);
  check_dtypes(plan);
  check_fused_products(plan);
  check_given_input(plan, options);
  plan_scaling(plan);
  plan_input(plan, options.given_input);
  plan_weight(plan);
  plan_grad_output(plan);
  plan_gemms(plan);
  if (!plan.dtypes.bias) plan.dtypes.bias = bias_dtype(plan.output_gemm[0]);
  plan.identity = identity_of(plan);
  return plan;
}

bool LinearPlan::runs_epilogue_apart(std::int64_t tokens) const {
  if (fusion.epilogue.empty()) return false;
  if (output_reads_weight()) return true;
  return has_group_scale_inv(sum_gemm) &&
         products_of({.m = tokens, .n = shape.out_features, .k = shape.in_features}) > fused_products;
}

bool LinearPlan::needs_preactivation() const {
  const Pointwise& expression = gradient.expression();
  return expression && expression.uses_x() && !gradient.of_output();
}

// ---- memory --------------------------------------------------------------------------------------------------------

namespace {

// The scales of the transposed codes, as seen on the tensor.
ScaleGranularity scale_of_transposed(const CastSpec& spec) { return spec.transposed_scale.value_or(spec.scale); }

void check_tokens(const LinearPlan& plan, std::int64_t tokens) {
  const auto [in, out, bias] = plan.shape;
  // Rows of codes are padded by less than 64 bytes, and no part has more than 4 bytes per element.
  const double elements = (static_cast<double>(tokens) + 64) * (static_cast<double>(std::max(in, out)) + 64);
  if (tokens >= 0 && elements < 0x1p56) return;
  refuse_argument(fmt::format("{} tokens", plan.subject).c_str(),
                  tokens < 0 ? fmt::format("is {}, but must be 0 or more", tokens)
                             : fmt::format("is {}, whose tensors no memory can hold", tokens));
}

}  // namespace

LinearWeightMemory LinearPlan::weight_memory() const {
  if (!weight.any) return {};
  MemoryPlaces places;
  LinearWeightMemory memory = place_weights(places, weight.spec, shape.out_features, shape.in_features);
  if (weight.is_fixed()) places.floats(memory.amax, 1);
  // Codes of a layer without features take some too: that there is memory says that there are codes.
  memory.bytes = std::max(places.bytes(), kLinearAlignment);
  return memory;
}

LinearSavedMemory LinearPlan::saved_memory(std::int64_t tokens) const {
  check_tokens(*this, tokens);
  LinearSavedMemory memory;
  MemoryPlaces places;
  const auto [in, out, bias] = shape;
  const LinearCast& cast = input_of(LinearPass::training);
  if (cast.any && cast.spec.transposed) {
    places.codes(memory.input_transposed, cast.spec.out, in, tokens);
    places.floats(memory.input_scale_inv, scale_count(scale_of_transposed(cast.spec), tokens, in));
  }
  if (keeps_values()) places.values(memory.input_values, dtypes.input, tokens, in);
  if (needs_preactivation()) places.values(memory.preactivation, *dtypes.output, tokens, out);
  memory.bytes = places.bytes();
  return memory;
}

LinearForwardScratch LinearPlan::forward_scratch(std::int64_t tokens, LinearPass pass, bool observed) const {
  check_tokens(*this, tokens);
  LinearForwardScratch scratch;
  MemoryPlaces places;
  const std::int64_t in = shape.in_features;
  const LinearCast& cast = input_of(pass);
  if (cast.any && cast.spec.codes) places.codes(scratch.input_codes, cast.spec.out, tokens, in);
  if (cast.has_own_scale_inv()) {
    places.floats(scratch.input_scale_inv, scale_count(cast.spec.scale, tokens, in));
  }
  const bool kept = pass != LinearPass::inference && keeps_values();
  const bool read = pass != LinearPass::recompute && fusion.prologue && output_reads_weight();
  if (read && !kept) places.values(scratch.input_values, dtypes.input, tokens, in);
  if (observed && cast.any && cast.spec.pointwise && !cast.spec.result) {
    places.values(scratch.observed, dtypes.input, tokens, in);
  }
  if (cast.is_fixed()) places.floats(scratch.amax, 1);
  if (pass != LinearPass::recompute && rounds_bias()) {
    places.values(scratch.bias, bias_dtype(output_gemm[0]), 1, shape.out_features);
  }
  scratch.bytes = places.bytes();
  return scratch;
}

bool LinearPlan::takes_grad_output_amax(const LinearGradients& wants) const {
  const auto& [any, how, spec] = grad_output_of(wants).cast;
  return any && how == Scaling::dynamic && spec.scale == kTensorwise && !spec.transposed_scale && !spec.pointwise;
}

LinearBackwardScratch LinearPlan::backward_scratch(std::int64_t tokens, const LinearGradients& wants, bool observed,
                                                   bool expands) const {
  check_tokens(*this, tokens);
  LinearBackwardScratch scratch;
  MemoryPlaces places;
  const auto [in, out, bias] = shape;
  const LinearGradOutputCast& order = grad_output_of(wants);
  const LinearCast& codes = order.folds ? folded_codes : order.cast;
  const LinearCast& transposed = order.folds ? folded_transposed : order.cast;
  if (order.codes) places.codes(scratch.codes, codes.spec.out, tokens, out);
  if (order.transposed) places.codes(scratch.transposed, transposed.spec.out, out, tokens);
  if (order.codes || (order.transposed && !order.apart)) {
    places.floats(scratch.scale_inv, scale_count(codes.spec.scale, tokens, out));
  }
  if (order.transposed && order.apart) {
    places.floats(scratch.transposed_scale_inv, scale_count(scale_of_transposed(transposed.spec), tokens, out));
  }
  if (order.values) places.values(scratch.values, *dtypes.output, tokens, out);
  if (wants.weight && input_again.any) {
    places.codes(scratch.input_transposed, input_again.spec.out, in, tokens);
    places.floats(scratch.input_scale_inv, scale_count(input_again.spec.scale, tokens, in));
  }
  if (wants.input && weight_again.any) {
    places.codes(scratch.weight_transposed, weight_again.spec.out, in, out);
    places.floats(scratch.weight_scale_inv, scale_count(weight_again.spec.scale, out, in));
  }
  if (observed && (order.folds || (order.cast.any && order.cast.spec.pointwise && !order.cast.spec.result))) {
    places.values(scratch.observed, *dtypes.output, tokens, out);
  }
  if (observed && wants.weight && input_again.any && input_again.spec.pointwise) {
    places.values(scratch.observed_input, dtypes.input, tokens, in);
  }
  const bool again = (wants.weight && input_again.is_fixed()) || (wants.input && weight_again.is_fixed());
  if (again || order.cast.is_fixed()) places.floats(scratch.amaxes, 3);
  if (expands) {  // after the others, whose places are then the same
    places.values(scratch.expanded, *dtypes.output, tokens, out);
    places.values(scratch.expanded_row, *dtypes.output, 1, out);
  }
  scratch.bytes = places.bytes();
  return scratch;
}

LinearMemory LinearPlan::memory(std::int64_t tokens) const {
  return {.weight = weight_memory(),
          .saved = saved_memory(tokens),
          .forward = forward_scratch(tokens),
          .backward = backward_scratch(tokens, {.bias = shape.bias})};
}

}  // namespace ingot
