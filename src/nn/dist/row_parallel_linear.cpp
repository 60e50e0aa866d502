// A rank has columns of the weight: the output is a sum over the ranks, and its part of grad_input is whole.
#include <fmt/format.h>

#include <utility>

#include "ingot/nn/dist/gathered_codes.h"
#include "ingot/nn/dist/parallel_layer.h"
#include "ingot/nn/dist/parallel_linear.h"
#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_checks.h"

namespace ingot {
namespace {

constexpr const char* kRow = "RowParallelLinear";

// The bias is added to the sum over the ranks.
LinearShape row_part(const ParallelLinearOptions& options, int ranks) {
  const auto [in, out, bias] = options.shape;
  if (in % ranks == 0) return {.in_features = in / ranks, .out_features = out};
  refuse_argument(fmt::format("{} \"{}\"", kRow, options.name).c_str(),
                  fmt::format("has {} in_features, which {} ranks do not divide", in, ranks));
}

void check_bias(const ParallelLayer& layer, const char* name, const Tensor& bias, bool is_output) {
  if (!is_given(bias) && !(is_output && layer.shape().bias)) return;
  if (!layer.shape().bias) layer.refuse(name, "is given, but the layer was made without a bias: set it in the shape");
  const Dtype dtype = is_output ? *layer.plan().dtypes.output : bias.dtype;
  LinearChecker(layer.plan(), layer.backend())
      .all({name, &bias}, dtype, ", the output's dtype", 1, layer.shape().out_features, "a vector of out_features");
}

void add_bias(const ParallelLayer& layer, const Tensor& bias, const Tensor& output, Stream& stream) {
  if (!layer.shape().bias) return;
  layer.backend().elementwise({.in = output.dtype, .pointwise = parse_pointwise("x + bias[col]")},
                              {.input = output, .inputs = {bias}, .output = output}, stream);
}

// Of all ranks' tokens, in f32 before it is rounded.
void sum_bias_gradient(const ParallelLayer& layer, const LinearBackward& t, const Tensor& sum, Stream& stream) {
  Backend& backend = layer.backend();
  const Dtype from = t.grad_output.dtype;
  const Dtype to = t.grad_bias.dtype;
  if (!is_given(sum))
    return backend.column_sum({.in = from, .out = to}, {.input = t.grad_output, .sum = t.grad_bias}, stream);
  backend.column_sum({.in = from, .out = Dtype::f32}, {.input = t.grad_output, .sum = sum}, stream);
  layer.comm().all_reduce_sum(sum, stream);
  backend.column_sum({.in = Dtype::f32, .out = to}, {.input = sum, .sum = t.grad_bias}, stream);
}

}  // namespace

RowParallelLinear::RowParallelLinear(Backend& backend, Comm& comm, ParallelLinearOptions options) {
  const LinearShape part = row_part(options, comm.size());
  const DividedTensors divided{.input = true, .weight = true, .grad_output = options.sequence_parallel};
  layer_ = std::make_unique<ParallelLayer>(backend, comm, std::move(options), kRow, part, divided);
}

RowParallelLinear::~RowParallelLinear() = default;
RowParallelLinear::RowParallelLinear(RowParallelLinear&&) noexcept = default;
RowParallelLinear& RowParallelLinear::operator=(RowParallelLinear&&) noexcept = default;
void RowParallelLinear::weight_changed() { layer_->weight_changed(); }
SharedLayer RowParallelLinear::shared() const { return layer_->shared(); }

void RowParallelLinear::forward(const LinearForward& t, Stream& stream) {
  ParallelLayer& layer = *layer_;
  const LinearPlan& plan = layer.plan();
  LayerCall call = layer.begin(stream);
  const bool keeps = t.keep_for_backward;
  const std::int64_t tokens = t.input.rows;
  const std::int64_t out = plan.shape.out_features;
  const bool apart = layer.divides_tokens();

  ParallelScratch places;
  MemoryPlaces scratch;
  scratch.region(plan.forward_scratch(tokens, keeps ? LinearPass::training : LinearPass::inference).bytes);
  if (apart) scratch.values(places.partial, *plan.dtypes.output, tokens, out);
  LinearForwardTensors all{.input = t.input,
                           .weight = t.weight,
                           .output = t.output,
                           .prologue_inputs = t.prologue_inputs,
                           .epilogue_inputs = t.epilogue_inputs,
                           .scratch = layer.scratch(call, scratch.bytes())};
  if (apart) all.output = places.partial.in(all.scratch, layer.backend().device());
  check_forward_tensors(plan, layer.backend(), all, stream, true);
  layer.check_exchanged("output", t.output, *plan.dtypes.output, layer.tokens_of_a_rank(tokens), out);
  check_bias(layer, "bias", t.bias, true);

  if (keeps) layer.renew_kept(tokens, 0, stream);
  all.scales.input = layer.scale(LinearTensor::input, t.input, stream);
  layer.run_forward(all, keeps, stream);
  if (apart) {
    layer.comm().reduce_scatter(all.output, t.output, stream);
  } else {
    layer.comm().all_reduce_sum(t.output, stream);
  }
  add_bias(layer, t.bias, t.output, stream);
}

void RowParallelLinear::backward(const LinearBackward& t, Stream& stream) {
  ParallelLayer& layer = *layer_;
  const LinearPlan& plan = layer.plan();
  LayerCall call = layer.begin(stream);
  const Device device = layer.backend().device();
  const Dtype dtype = *plan.dtypes.output;
  const std::int64_t tokens = layer.kept().saved.tokens;
  const std::int64_t out = plan.shape.out_features;
  LinearGradients wants = wanted_gradients(t);
  wants.bias = false;
  const LinearGradOutputCast& order = plan.grad_output_of(wants);
  const Gather how = layer.gather_of(gathers_grad_output_codes(plan, wants));

  const LinearBackwardScratch linear = plan.backward_scratch(tokens, wants);
  ParallelScratch places;
  MemoryPlaces scratch;
  scratch.region(linear.bytes);
  ParallelLayer::place(places, scratch, how, order.cast, dtype, linear.codes, tokens, out);
  if (is_given(t.grad_bias) && layer.divides_tokens()) scratch.floats(places.sum, out);
  LinearBackwardTensors all{.grad_output = t.grad_output,
                            .grad_input = t.grad_input,
                            .grad_weight = t.grad_weight,
                            .accumulate = t.accumulate,
                            .scratch = layer.scratch(call, scratch.bytes()),
                            .grad_output_is_cast = how == Gather::codes};
  const Tensor gathered = places.gathered.in(all.scratch, device);
  if (how == Gather::codes) all.grad_output = matrix(nullptr, dtype, tokens, out, device);
  if (how == Gather::values) all.grad_output = gathered;
  layer.check_backward(all, stream);
  layer.check_exchanged("grad_output", t.grad_output, dtype, layer.tokens_of_a_rank(tokens), out);
  check_bias(layer, "grad_bias", t.grad_bias, false);

  all.scales.grad_output = layer.scale(LinearTensor::grad_output, t.grad_output, stream);
  if (how == Gather::codes) {
    layer.gather_codes(order.cast, all.scales.grad_output, t.grad_output,
                       linear_grad_output_codes(plan, tokens, wants, all.scratch, device), gathered, stream);
  } else if (how == Gather::values) {
    layer.gather_values(t.grad_output, gathered, stream);
  }
  layer.run_backward(all, stream);
  if (is_given(t.grad_bias)) sum_bias_gradient(layer, t, places.sum.in(all.scratch, device), stream);
}

}  // namespace ingot
