#include "model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace train_lm {
namespace {

ingot::LinearOptions named(ingot::LinearOptions options, const char* layer) {
  options.name += layer;
  return options;
}

using ingot::Dtype;
using ingot::OwnedTensor;

template <class T>
T* data_of(const OwnedTensor& tensor) {
  return static_cast<T*>(tensor.view().data);
}
bf16* halves(const OwnedTensor& tensor) { return data_of<bf16>(tensor); }
float* floats(const OwnedTensor& tensor) { return data_of<float>(tensor); }

constexpr std::int64_t kBytes = 256;
// The embedding gradient is summed in this many parts, enough to fill a GPU.
std::int64_t embedding_parts(std::int64_t batch) { return std::min<std::int64_t>(1024, (batch + 7) / 8); }

}  // namespace

Parameter::Parameter(ingot::Backend& backend, std::int64_t rows, std::int64_t cols)
    : values(backend, Dtype::f32, rows, cols),
      first_moment(backend, Dtype::f32, rows, cols),
      second_moment(backend, Dtype::f32, rows, cols),
      working(backend, Dtype::bf16, rows, cols),
      grad(backend, Dtype::bf16, rows, cols),
      count(rows * cols) {}

// ---- Layers ------------------------------------------------------------------------------------------------------

Model::Linear::Linear(ingot::Backend& backend, ingot::LinearShape shape, const ingot::LinearConfig& config,
                      ingot::LinearOptions options)
    : layer(backend, shape, config, std::move(options)),
      weight(backend, shape.out_features, shape.in_features),
      bias(backend, 1, shape.out_features) {}

void Model::Linear::forward(const ingot::Tensor& input, const ingot::Tensor& output, ingot::Stream& stream) {
  layer.forward({.input = input, .weight = weight.working, .bias = bias.working, .output = output}, stream);
}

void Model::Linear::backward(const ingot::Tensor& grad_output, const ingot::Tensor& grad_input, ingot::Stream& stream) {
  layer.backward(
      {.grad_output = grad_output, .grad_input = grad_input, .grad_weight = weight.grad, .grad_bias = bias.grad},
      stream);
}

Model::Block::Block(ingot::Backend& backend, const ModelShape& shape, std::int64_t batch,
                    const ingot::LinearConfig& config, const ingot::LinearOptions& options)
    : first(backend, {.in_features = shape.width(), .out_features = shape.hidden, .bias = true}, config,
            named(options, ".first")),
      second(backend, {.in_features = shape.hidden, .out_features = shape.width(), .bias = true}, config,
             named(options, ".second")),
      normed{OwnedTensor(backend, Dtype::bf16, batch, shape.width()), OwnedTensor(backend, Dtype::f32, 1, batch)},
      hidden(backend, Dtype::bf16, batch, shape.hidden),
      activated(backend, Dtype::bf16, batch, shape.hidden) {}

// ---- Construction ------------------------------------------------------------------------------------------------

Model::Model(ingot::Context& context, ingot::Stream& stream, OpRunner& ops, const ModelShape& shape, std::int64_t batch,
             const ingot::LinearConfig& config, std::uint64_t seed)
    : stream_(&stream),
      ops_(&ops),
      shape_(shape),
      batch_(batch),
      delayed_(context.backend()),
      embedding_(context.backend(), kBytes, shape.embedding),
      head_(context.backend(), {.in_features = shape.width(), .out_features = kBytes, .bias = true},
            ingot::high_precision(), {.name = "head", .workspace = &workspace_}),
      x_(context.backend(), Dtype::bf16, batch, shape.width()),
      delta_(context.backend(), Dtype::bf16, batch, shape.width()),
      last_normed_{OwnedTensor(context.backend(), Dtype::bf16, batch, shape.width()),
                   OwnedTensor(context.backend(), Dtype::f32, 1, batch)},
      logits_(context.backend(), Dtype::bf16, batch, kBytes),
      grad_logits_(context.backend(), Dtype::bf16, batch, kBytes),
      row_losses_(context.backend(), Dtype::f32, 1, batch),
      grad_x_(context.backend(), Dtype::bf16, batch, shape.width()),
      grad_normed_(context.backend(), Dtype::bf16, batch, shape.width()),
      grad_activated_(context.backend(), Dtype::bf16, batch, shape.hidden),
      embedding_parts_(embedding_parts(batch)),
      embedding_tables_(context.backend(), Dtype::f32, embedding_parts_, kBytes * shape.embedding) {
  for (std::int64_t i = 0; i < shape.blocks; ++i) {
    const ingot::LinearOptions options{
        .name = fmt::format("blocks.{}", i), .delayed = &delayed_, .workspace = &workspace_};
    blocks_.push_back(std::make_unique<Block>(context.backend(), shape, batch, config, options));
  }
  const auto width = static_cast<double>(shape.width());
  const auto hidden = static_cast<double>(shape.hidden);
  std::uint64_t stream_of_numbers = hash_of(seed);
  init(embedding_, 1.0, ++stream_of_numbers);
  for (const auto& block : blocks_) {
    init(block->first.weight, 1.0 / std::sqrt(width), ++stream_of_numbers);
    init(block->first.bias, 0.0, 0);
    // Each block adds to the residual: all together should add about as much as it starts with.
    init(block->second.weight, 1.0 / std::sqrt(hidden * 2.0 * static_cast<double>(shape.blocks)), ++stream_of_numbers);
    init(block->second.bias, 0.0, 0);
  }
  init(head_.weight, 0.1 / std::sqrt(width), ++stream_of_numbers);
  init(head_.bias, 0.0, 0);
}

void Model::init(Parameter& parameter, double deviation, std::uint64_t seed) {
  const auto bytes = static_cast<std::size_t>(parameter.count) * sizeof(float);
  ingot::Backend& backend = stream_->backend();
  backend.fill_zero(parameter.first_moment.view().data, bytes, *stream_);
  backend.fill_zero(parameter.second_moment.view().data, bytes, *stream_);
  ops_->run(InitNormal{.values = floats(parameter.values),
                       .working = halves(parameter.working),
                       .count = parameter.count,
                       .deviation = static_cast<float>(deviation),
                       .seed = seed});
}

std::vector<Parameter*> Model::parameters() {
  std::vector<Parameter*> all{&embedding_};
  for (const auto& block : blocks_) {
    for (Linear* linear : {&block->first, &block->second}) {
      all.push_back(&linear->weight);
      all.push_back(&linear->bias);
    }
  }
  all.push_back(&head_.weight);
  all.push_back(&head_.bias);
  return all;
}

void Model::values_changed() {
  for (const Parameter* parameter : parameters()) {
    ops_->run(ToWorking{
        .values = floats(parameter->values), .working = halves(parameter->working), .count = parameter->count});
  }
  for (const auto& block : blocks_) {
    block->first.layer.weight_changed();
    block->second.layer.weight_changed();
  }
}

// ---- One step ----------------------------------------------------------------------------------------------------

void Model::add_norm(const OwnedTensor* delta, Normed& out) {
  ops_->run(AddNorm{.x = halves(x_),
                    .delta = delta != nullptr ? halves(*delta) : nullptr,
                    .normed = halves(out.values),
                    .inverse_rms = floats(out.inverse_rms),
                    .count = batch_,
                    .width = shape_.width()});
}

void Model::norm_backward(const Normed& normed, bool accumulate) {
  ops_->run(NormBackward{.normed = halves(normed.values),
                         .inverse_rms = floats(normed.inverse_rms),
                         .grad_normed = halves(grad_normed_),
                         .grad_x = halves(grad_x_),
                         .count = batch_,
                         .width = shape_.width(),
                         .accumulate = accumulate});
}

void Model::forward(const Batch& batch, float* loss) { run_forward(batch, loss, false); }

void Model::run_forward(const Batch& batch, float* loss, bool with_grad) {
  ops_->run(Embed{.batch = batch, .table = halves(embedding_.working), .dims = shape_.embedding, .x = halves(x_)});
  const OwnedTensor* delta = nullptr;
  for (const auto& block : blocks_) {
    add_norm(delta, block->normed);
    block->first.forward(block->normed.values, block->hidden, *stream_);
    ops_->run(Silu{.x = halves(block->hidden), .y = halves(block->activated), .count = batch_ * shape_.hidden});
    block->second.forward(block->activated, delta_, *stream_);
    delta = &delta_;
  }
  add_norm(delta, last_normed_);
  head_.forward(last_normed_.values, logits_, *stream_);
  ops_->run(CrossEntropy{.batch = batch,
                         .logits = halves(logits_),
                         .grad = with_grad ? halves(grad_logits_) : nullptr,
                         .loss = floats(row_losses_)});
  ops_->run(Mean{.values = floats(row_losses_), .count = batch_, .mean = loss});
}

void Model::forward_backward(const Batch& batch, float* loss) {
  run_forward(batch, loss, true);

  head_.backward(grad_logits_, grad_normed_, *stream_);
  norm_backward(last_normed_, false);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    // The block's output was added to x, so its gradient is x's; what comes back through the block is added to it.
    (*block)->second.backward(grad_x_, grad_activated_, *stream_);
    ops_->run(
        SiluBackward{.x = halves((*block)->hidden), .grad = halves(grad_activated_), .count = batch_ * shape_.hidden});
    (*block)->first.backward(grad_activated_, grad_normed_, *stream_);
    norm_backward((*block)->normed, true);
  }
  const std::int64_t table = kBytes * shape_.embedding;
  ops_->run(EmbedBackward{.batch = batch,
                          .grad_x = halves(grad_x_),
                          .dims = shape_.embedding,
                          .parts = embedding_parts_,
                          .tables = floats(embedding_tables_)});
  ops_->run(SumTables{
      .tables = floats(embedding_tables_), .parts = embedding_parts_, .count = table, .sum = halves(embedding_.grad)});
}

void Model::update(const OptimizerStep& step) {
  constexpr double kBeta1 = 0.9;
  constexpr double kBeta2 = 0.95;
  const auto number = static_cast<double>(step.number);
  for (const Parameter* parameter : parameters()) {
    const bool is_matrix = parameter->values.view().rows > 1;
    ops_->run(AdamW{.values = floats(parameter->values),
                    .first_moment = floats(parameter->first_moment),
                    .second_moment = floats(parameter->second_moment),
                    .grad = halves(parameter->grad),
                    .working = halves(parameter->working),
                    .count = parameter->count,
                    .learning_rate = static_cast<float>(step.learning_rate),
                    .beta1 = static_cast<float>(kBeta1),
                    .beta2 = static_cast<float>(kBeta2),
                    .epsilon = 1e-8F,
                    .weight_decay = is_matrix ? static_cast<float>(step.weight_decay) : 0.0F,
                    .correction1 = static_cast<float>(1.0 / (1.0 - std::pow(kBeta1, number))),
                    .correction2 = static_cast<float>(1.0 / (1.0 - std::pow(kBeta2, number)))});
  }
  for (const auto& block : blocks_) {
    block->first.layer.weight_changed();
    block->second.layer.weight_changed();
  }
  delayed_.sync_amax_history(*stream_);
}

}  // namespace train_lm
