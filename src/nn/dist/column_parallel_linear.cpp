// A rank has rows of the weight: its part of the output is whole, and grad_input is a sum over the ranks.
#include <fmt/format.h>

#include <utility>

#include "ingot/nn/dist/gathered_codes.h"
#include "ingot/nn/dist/parallel_layer.h"
#include "ingot/nn/dist/parallel_linear.h"
#include "ingot/nn/linear/linear_checks.h"

namespace ingot {
namespace {

constexpr const char* kColumn = "ColumnParallelLinear";

LinearShape column_part(const ParallelLinearOptions& options, int ranks) {
  const auto [in, out, bias] = options.shape;
  if (out % ranks == 0) return {.in_features = in, .out_features = out / ranks, .bias = bias};
  refuse_argument(fmt::format("{} \"{}\"", kColumn, options.name).c_str(),
                  fmt::format("has {} out_features, which {} ranks do not divide", out, ranks));
}

std::size_t bytes_of(Dtype dtype, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols * size_of(dtype));
}

// How a forward is given the tokens of all ranks.
struct ColumnInput {
  LinearPass pass;
  bool reads_again;  // backward reads the values
  Gather how;

  ColumnInput(const ParallelLayer& layer, bool keeps)
      : pass(keeps ? LinearPass::training : LinearPass::inference),
        reads_again(keeps && layer.plan().grad_weight_reads_input()),
        how(layer.gather_of(gathers_input_codes(layer.plan(), pass))) {}
};

ParallelScratch scratch_of_forward(const LinearPlan& plan, std::int64_t tokens, const ColumnInput& input) {
  const LinearForwardScratch linear = plan.forward_scratch(tokens, input.pass);
  ParallelScratch scratch;
  MemoryPlaces places;
  places.region(linear.bytes);
  const bool kept = input.how == Gather::values && input.reads_again;  // elsewhere
  ParallelLayer::place(scratch, places, kept ? Gather::none : input.how, plan.input_of(input.pass), plan.dtypes.input,
                       linear.input_codes, tokens, plan.shape.in_features);
  scratch.bytes = places.bytes();
  return scratch;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(Backend& backend, Comm& comm, ParallelLinearOptions options) {
  const LinearShape part = column_part(options, comm.size());
  const DividedTensors divided{.input = options.sequence_parallel, .weight = true, .grad_output = true};
  layer_ = std::make_unique<ParallelLayer>(backend, comm, std::move(options), kColumn, part, divided);
}

ColumnParallelLinear::~ColumnParallelLinear() = default;
ColumnParallelLinear::ColumnParallelLinear(ColumnParallelLinear&&) noexcept = default;
ColumnParallelLinear& ColumnParallelLinear::operator=(ColumnParallelLinear&&) noexcept = default;
void ColumnParallelLinear::weight_changed() { layer_->weight_changed(); }
SharedLayer ColumnParallelLinear::shared() const { return layer_->shared(); }

void ColumnParallelLinear::forward(const LinearForward& t, Stream& stream) {
  ParallelLayer& layer = *layer_;
  const LinearPlan& plan = layer.plan();
  LayerCall call = layer.begin(stream);
  const Device device = layer.backend().device();
  const bool keeps = t.keep_for_backward;
  const ColumnInput input(layer, keeps);
  const std::int64_t in = plan.shape.in_features;
  const std::int64_t tokens = layer.divides_tokens() ? t.input.rows * layer.comm().size() : t.input.rows;
  if (layer.divides_tokens()) layer.check_exchanged("input", t.input, plan.dtypes.input, t.input.rows, in);

  const ParallelScratch places = scratch_of_forward(plan, tokens, input);
  LinearForwardTensors all{.input = t.input,
                           .weight = t.weight,
                           .bias = t.bias,
                           .output = t.output,
                           .prologue_inputs = t.prologue_inputs,
                           .epilogue_inputs = t.epilogue_inputs,
                           .scratch = layer.scratch(call, places.bytes),
                           .input_is_cast = input.how == Gather::codes};
  const bool keeps_values = input.how == Gather::values && input.reads_again;
  if (keeps) layer.renew_kept(tokens, keeps_values ? bytes_of(plan.dtypes.input, tokens, in) : 0, stream);
  const Tensor gathered = places.gathered.in(all.scratch, device);
  if (input.how != Gather::none) {
    void* const values = keeps_values ? layer.kept().more.data : gathered.data;
    all.input = matrix(input.how == Gather::values ? values : nullptr, plan.dtypes.input, tokens, in, device);
  }
  check_forward_tensors(plan, layer.backend(), all, stream, true);

  all.scales.input = layer.scale(LinearTensor::input, t.input, stream);
  if (input.how == Gather::codes) {
    const MemoryRegion saved = keeps ? layer.kept().saved.memory : MemoryRegion{};
    layer.gather_codes(plan.input_of(input.pass), all.scales.input, t.input,
                       linear_input_codes(plan, tokens, saved, all.scratch, device), gathered, stream);
  } else if (input.how == Gather::values) {
    layer.gather_values(t.input, all.input, stream);
  }
  layer.run_forward(all, keeps, stream);
}

void ColumnParallelLinear::backward(const LinearBackward& t, Stream& stream) {
  ParallelLayer& layer = *layer_;
  const LinearPlan& plan = layer.plan();
  LayerCall call = layer.begin(stream);
  const std::int64_t tokens = layer.kept().saved.tokens;
  const std::int64_t in = plan.shape.in_features;
  const LinearGradients wants = wanted_gradients(t);
  const bool apart = wants.input && layer.divides_tokens();

  ParallelScratch places;
  MemoryPlaces scratch;
  scratch.region(plan.backward_scratch(tokens, wants).bytes);
  if (apart) scratch.values(places.partial, t.grad_input.dtype, tokens, in);
  LinearBackwardTensors all{.grad_output = t.grad_output,
                            .grad_input = t.grad_input,
                            .grad_weight = t.grad_weight,
                            .grad_bias = t.grad_bias,
                            .accumulate = t.accumulate,
                            .scratch = layer.scratch(call, scratch.bytes())};
  if (apart) all.grad_input = places.partial.in(all.scratch, layer.backend().device());
  layer.check_backward(all, stream);
  if (wants.input) {
    layer.check_exchanged("grad_input", t.grad_input, t.grad_input.dtype, layer.tokens_of_a_rank(tokens), in);
  }
  all.scales.grad_output = layer.scale(LinearTensor::grad_output, t.grad_output, stream);
  layer.run_backward(all, stream);
  if (apart) {
    layer.comm().reduce_scatter(all.grad_input, t.grad_input, stream);
  } else if (wants.input) {
    layer.comm().all_reduce_sum(t.grad_input, stream);
  }
}

}  // namespace ingot
