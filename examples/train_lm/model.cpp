#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace train_lm {
namespace {

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

// The options of a block's layer that is followed by an expression.
ingot::LinearOptions layer_options(ingot::LinearOptions options, const char* layer, const char* epilogue) {
  options.name += layer;
  options.fusion.epilogue = ingot::parse_pointwise(epilogue);
  return options;
}

Dtype weight_dtype(const ingot::LinearOptions& options) { return options.weight_dtype.value_or(Dtype::bf16); }

// What there is of the weight of a block's layer.
template <class Layer>
training::ParameterParts parts_of(Layer& layer, const ingot::LinearOptions& options, const DataParallel* ranks) {
  if (ranks != nullptr) return ranks->parts(layer.linear_of(weight_dtype(options)));
  return {.working = weight_dtype(options) == Dtype::bf16};
}

training::ParameterParts parts_of(std::int64_t rows, const DataParallel* ranks) {
  return ranks == nullptr ? training::ParameterParts{} : ranks->parts(rows);
}

ingot::NormLinearShape normed(std::int64_t in, std::int64_t out) {
  return {.linear = {.in_features = in, .out_features = out}, .affine = false};
}

}  // namespace

// ---- Layers ---------------------------------------------------------------------------------------------------------

Model::Block::Block(ingot::Backend& backend, const ModelShape& shape, std::int64_t batch,
                    const ingot::LinearConfig& config, const ingot::LinearOptions& options, const DataParallel* ranks)
    : first(backend, normed(shape.width(), shape.hidden), config, layer_options(options, ".first", "silu(x)")),
      second(backend, {.in_features = shape.hidden, .out_features = shape.width()}, config,
             layer_options(options, ".second", "x + residual")),
      first_weight(backend, shape.hidden, shape.width(), parts_of(first, options, ranks)),
      second_weight(backend, shape.width(), shape.hidden, parts_of(second, options, ranks)),
      hidden(backend, Dtype::bf16, batch, shape.hidden),
      x(backend, Dtype::bf16, batch, shape.width()) {}

Model::Model(ingot::Backend& backend, ingot::Stream& stream, OpRunners& ops, const ModelShape& shape,
             std::int64_t batch, const ingot::LinearConfig& config, std::uint64_t seed, WeightCodes codes,
             DataParallel* ranks)
    : stream_(&stream),
      ops_(&ops),
      shape_(shape),
      batch_(batch),
      codes_(codes),
      ranks_(ranks),
      casts_(backend),
      delayed_(backend),
      embedding_(backend, kBytes, shape.embedding, parts_of(kBytes, ranks)),
      head_(backend, normed(shape.width(), kBytes), ingot::high_precision(),
            {.name = "head", .workspace = &workspace_}),
      head_weight_(backend, kBytes, shape.width(), parts_of(kBytes, ranks)),
      loss_(backend, batch),
      x_(backend, Dtype::bf16, batch, shape.width()),
      logits_(backend, Dtype::bf16, batch, kBytes),
      grad_logits_(backend, Dtype::bf16, batch, kBytes),
      targets_(backend, static_cast<std::size_t>(batch) * sizeof(u32)),
      grad_x_(backend, Dtype::bf16, batch, shape.width()),
      grad_branch_(backend, Dtype::bf16, batch, shape.width()),
      grad_hidden_(backend, Dtype::bf16, batch, shape.hidden),
      embedding_parts_(embedding_parts(batch)),
      embedding_tables_(backend, Dtype::f32, embedding_parts_, kBytes * shape.embedding) {
  std::optional<Dtype> dtype;
  if (codes == WeightCodes::masters && ingot::is_float8(config.output)) dtype = Dtype::f32;
  for (std::int64_t i = 0; i < shape.blocks; ++i) {
    const ingot::LinearOptions options{
        .name = fmt::format("blocks.{}", i), .weight_dtype = dtype, .delayed = &delayed_, .workspace = &workspace_};
    blocks_.push_back(std::make_unique<Block>(backend, shape, batch, config, options, ranks));
  }
  init(seed);
}

void Model::init(std::uint64_t seed) {
  const auto width = static_cast<double>(shape_.width());
  const auto hidden = static_cast<double>(shape_.hidden);
  // Each block adds to the residual: all together add about as much as it starts with, however many they are (GPT-2's
  // 1 / sqrt(layers on the residual)).
  const double branch = 1.0 / std::sqrt(2.0 * static_cast<double>(shape_.blocks));
  std::uint64_t numbers = hash_of(seed);
  const auto init_one = [&](const std::string& name, Parameter& parameter, double deviation,
                            const std::optional<ingot::OwnedLinear>& layer = {}) {
    ++numbers;
    if (ranks_ == nullptr) return parameter.init(ops_->training, *stream_, deviation, numbers);
    ranks_->add(name, parameter, deviation, numbers, layer);
  };
  init_one("embedding", embedding_, 1.0);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = *blocks_[i];
    init_one(fmt::format("blocks.{}.first", i), block.first_weight, 1.0 / std::sqrt(width),
             block.first.linear_of(block.first_weight.weight().dtype));
    init_one(fmt::format("blocks.{}.second", i), block.second_weight, branch / std::sqrt(hidden),
             block.second.linear_of(block.second_weight.weight().dtype));
  }
  init_one("head", head_weight_, 0.1 / std::sqrt(width));
  if (ranks_ != nullptr) ranks_->start();
  if (codes_ == WeightCodes::each) return;
  const auto cast = [&](auto& layer, const Parameter& weight) {
    if (weight.parts.values || weight.parts.working) casts_.add(layer, weight.weight(), *stream_);
  };
  for (const auto& block : blocks_) {
    cast(block->first, block->first_weight);
    cast(block->second, block->second_weight);
  }
  casts_.run(*stream_);
}

std::vector<Parameter*> Model::parameters() {
  std::vector<Parameter*> all{&embedding_};
  for (const auto& block : blocks_) {
    all.push_back(&block->first_weight);
    all.push_back(&block->second_weight);
  }
  all.push_back(&head_weight_);
  return all;
}

void Model::weights_changed() {
  if (codes_ != WeightCodes::each) return;
  for (const auto& block : blocks_) {
    block->first.weight_changed();
    block->second.weight_changed();
  }
  head_.weight_changed();
}

void Model::values_changed() {
  for (const Parameter* parameter : parameters()) parameter->values_changed(ops_->training);
  weights_changed();
  casts_.run(*stream_);
}

// ---- One step -------------------------------------------------------------------------------------------------------

void Model::forward(const Batch& batch, const LossPlace& loss) { run_forward(batch, loss, false); }

void Model::run_forward(const Batch& batch, const LossPlace& loss, bool with_grad) {
  ops_->model.run(Targets{.batch = batch, .targets = static_cast<u32*>(targets_.data())});
  ops_->model.run(
      Embed{.batch = batch, .table = halves(embedding_.working), .dims = shape_.embedding, .x = halves(x_)});
  const OwnedTensor* x = &x_;
  for (const auto& block : blocks_) {
    block->first.forward({.input = *x, .weight = block->first_weight.weight(), .output = block->hidden}, *stream_);
    block->second.forward({.input = block->hidden,
                           .weight = block->second_weight.weight(),
                           .output = block->x,
                           .epilogue_inputs = {x->view()}},
                          *stream_);
    x = &block->x;
  }
  head_.forward({.input = *x, .weight = head_weight_.weight(), .output = logits_}, *stream_);
  loss_.run(ops_->training, {.logits = logits_,
                             .targets = static_cast<const u32*>(targets_.data()),
                             .grad = with_grad ? grad_logits_.view() : ingot::Tensor{},
                             .batch = batch.total,
                             .sums = loss.sums,
                             .now = loss.now,
                             .accumulate = loss.accumulate});
}

void Model::forward_backward(const Batch& batch, const LossPlace& loss) {
  run_forward(batch, loss, true);
  run_backward(batch, loss.accumulate);
}

void Model::run_backward(const Batch& batch, bool accumulate) {
  head_.backward({.grad_output = grad_logits_,
                  .grad_input = grad_x_,
                  .grad_weight = head_weight_.gradient(),
                  .accumulate = accumulate},
                 *stream_);
  for (auto at = blocks_.rbegin(); at != blocks_.rend(); ++at) {
    // The block's output is x plus its branch, so its gradient is x's; what comes back through the branch is added.
    Block& block = **at;
    block.second.backward({.grad_output = grad_x_,
                           .grad_input = grad_hidden_,
                           .grad_weight = block.second_weight.gradient(),
                           .accumulate = accumulate},
                          *stream_);
    block.first.backward({.grad_output = grad_hidden_,
                          .grad_input = grad_branch_,
                          .grad_weight = block.first_weight.gradient(),
                          .accumulate = accumulate},
                         *stream_);
    ops_->model.run(AddTo{.values = halves(grad_branch_), .sum = halves(grad_x_), .count = batch_ * shape_.width()});
  }
  embed_backward(batch, accumulate);
}

void Model::embed_backward(const Batch& batch, bool accumulate) {
  ops_->model.run(EmbedBackward{.batch = batch,
                                .grad_x = halves(grad_x_),
                                .dims = shape_.embedding,
                                .parts = embedding_parts_,
                                .tables = floats(embedding_tables_)});
  ops_->model.run(SumTables{.tables = floats(embedding_tables_),
                            .parts = embedding_parts_,
                            .count = kBytes * shape_.embedding,
                            .accumulate = accumulate,
                            .sum = floats(embedding_.grad)});
}

void Model::step_done() {
  weights_changed();
  if (ranks_ != nullptr) ranks_->reduce_maxima(delayed_);
  delayed_.sync_amax_history(*stream_);
  if (ranks_ != nullptr) ranks_->gather();
  casts_.run(*stream_);
}

}  // namespace train_lm
