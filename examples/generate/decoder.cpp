#include "decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "ingot/runtime/util/error.h"

namespace generate {
namespace {

using ingot::Dtype;
using ingot::OwnedTensor;

template <class T>
T* data_of(const OwnedTensor& tensor) {
  return static_cast<T*>(tensor.view().data);
}
bf16* halves(const OwnedTensor& tensor) { return data_of<bf16>(tensor); }

template <class T>
ingot::Buffer buffer_of(Machine& machine, std::int64_t count) {
  ingot::Buffer buffer(machine.backend(), static_cast<std::size_t>(count) * sizeof(T));
  machine.device_api().fill_zero(buffer.data(), buffer.bytes(), machine.stream());
  return buffer;
}

OwnedTensor zeros(Machine& machine, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  OwnedTensor tensor(machine.backend(), dtype, rows, cols);
  machine.device_api().fill_zero(tensor.view().data, static_cast<std::size_t>(rows * cols * size_of(dtype)),
                                 machine.stream());
  return tensor;
}

// The angle by which each position turns a pair of a head's elements: theta^(-2 pair / dims), stretched where the model
// asks for it.
double frequency_of(const ModelShape& shape, std::int64_t pair) {
  const double frequency =
      std::pow(shape.rope_theta, -2 * static_cast<double>(pair) / static_cast<double>(shape.head_dims));
  if (!shape.rope_scaling) return frequency;
  const RopeScaling& scaling = *shape.rope_scaling;
  const double turns = scaling.original_positions * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor), 0.0,
      1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

template <class Function>
OwnedTensor angles(Machine& machine, const ModelShape& shape, std::int64_t capacity, Function function) {
  const std::int64_t pairs = shape.head_dims / 2;
  std::vector<double> frequencies;
  for (std::int64_t pair = 0; pair < pairs; ++pair) frequencies.push_back(frequency_of(shape, pair));
  std::vector<float> values;
  for (std::int64_t position = 0; position < capacity; ++position) {
    for (const double frequency : frequencies) {
      values.push_back(static_cast<float>(function(static_cast<double>(position) * frequency)));
    }
  }
  OwnedTensor tensor(machine.backend(), Dtype::f32, capacity, pairs);
  machine.device_api().copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(float),
                                      machine.stream());
  return tensor;
}

// How many blocks share a head's positions: several where there are too few heads to fill a GPU.
std::int64_t splits_for(std::int64_t heads, std::int64_t capacity) {
  constexpr std::int64_t kBlocks = 256;
  constexpr std::int64_t kMost = 16;
  const std::int64_t wanted = std::clamp(kBlocks / heads, std::int64_t{1}, kMost);
  return std::min(wanted, ingot::ceil_div<std::int64_t>(capacity, kPositionsOfASplit));
}

}  // namespace

// ---- Layers ------------------------------------------------------------------------------------------------------

Linear::Linear(Machine& machine, OwnedTensor weight, const std::optional<ingot::WeightOnlyOptions>& options)
    : backend_(&machine.backend()) {
  if (options) {
    quantised_.emplace(ingot::WeightOnlyLinear::quantize(*backend_, weight, *options, machine.stream()));
  } else {
    weight_ = std::move(weight);
  }
}

void Linear::forward(const ingot::Tensor& x, const ingot::Tensor& y, ingot::Stream& stream) const {
  if (quantised_) return quantised_->forward(x, y, stream);
  backend_->gemm({.a = Dtype::bf16, .b = Dtype::bf16, .out = y.dtype}, {.a = x, .b = weight_, .out = y}, stream);
}

std::int64_t Linear::weight_bytes() const {
  if (quantised_) return static_cast<std::int64_t>(quantised_->weight_bytes());
  const ingot::Tensor& weight = weight_.view();
  return weight.rows * weight.cols * size_of(weight.dtype);
}

SharedWeights::SharedWeights(WeightSource& source, const ModelShape& shape)
    : embedding(source.load(embedding_tensor(shape))), final_norm(source.load(final_norm_tensor(shape))) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const LayerTensors tensors = layer_tensors(shape, layer);
    input_norms.push_back(source.load(tensors.input_norm));
    mlp_norms.push_back(source.load(tensors.mlp_norm));
  }
}

// ---- Construction ------------------------------------------------------------------------------------------------

Decoder::Decoder(Machine& machine, OpRunner& ops, const ModelShape& shape, const SharedWeights& shared,
                 WeightSource& source, const DecoderOptions& options)
    : machine_(&machine),
      ops_(&ops),
      shape_(shape),
      shared_(&shared),
      head_(machine, source.load(head_tensor(shape)), options.bf16_head ? std::nullopt : options.weights),
      splits_(splits_for(options.batch * shape.kv_heads, options.capacity)),
      state_(buffer_of<i32>(machine, 2)),
      tokens_(buffer_of<i32>(machine, options.batch * options.capacity)),
      chosen_(buffer_of<i32>(machine, options.batch * options.capacity)),
      partials_(buffer_of<float>(machine, options.batch * splits_ * shape.heads * (shape.head_dims + 2))),
      counters_(buffer_of<u32>(machine, options.batch * shape.kv_heads)),
      largest_(buffer_of<float>(machine, options.batch * kArgmaxParts)),
      where_(buffer_of<i32>(machine, options.batch * kArgmaxParts)),
      cosines_(angles(machine, shape, options.capacity, [](double angle) { return std::cos(angle); })),
      sines_(angles(machine, shape, options.capacity, [](double angle) { return std::sin(angle); })),
      sequences_{.state = static_cast<i32*>(state_.data()),
                 .tokens = static_cast<i32*>(tokens_.data()),
                 .chosen = static_cast<i32*>(chosen_.data()),
                 .count = options.batch,
                 .capacity = options.capacity},
      x_(zeros(machine, Dtype::bf16, options.batch, shape.hidden)),
      normed_(zeros(machine, Dtype::bf16, options.batch, shape.hidden)),
      delta_(zeros(machine, Dtype::bf16, options.batch, shape.hidden)),
      qkv_(zeros(machine, Dtype::bf16, options.batch, shape.qkv_rows())),
      attended_(zeros(machine, Dtype::bf16, options.batch, shape.query_rows())),
      gate_up_(zeros(machine, Dtype::bf16, options.batch, 2 * shape.intermediate)),
      activated_(zeros(machine, Dtype::bf16, options.batch, shape.intermediate)),
      logits_(zeros(machine, Dtype::f32, options.batch, shape.vocabulary)) {
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const LayerTensors tensors = layer_tensors(shape, i);
    const std::int64_t cache_rows = options.batch * shape.kv_heads * options.capacity;
    layers_.push_back({.qkv = Linear(machine, source.load(tensors.qkv), options.weights),
                       .output = Linear(machine, source.load(tensors.output), options.weights),
                       .gate_up = Linear(machine, source.load(tensors.gate_up), options.weights),
                       .down = Linear(machine, source.load(tensors.down), options.weights),
                       .keys = zeros(machine, Dtype::bf16, cache_rows, shape.head_dims),
                       .values = zeros(machine, Dtype::bf16, cache_rows, shape.head_dims)});
  }
}

std::int64_t Decoder::weight_bytes() const {
  std::int64_t bytes = head_.weight_bytes();
  for (const Layer& layer : layers_) {
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      bytes += linear->weight_bytes();
  }
  return bytes;
}

// ---- Sequences ---------------------------------------------------------------------------------------------------

void check_tokens(const std::string& subject, const std::vector<std::int32_t>& tokens, std::int64_t vocabulary) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocabulary) continue;
    throw ingot::Error(ingot::ErrorCode::invalid_argument, subject,
                       fmt::format("has the token {}, but the model's vocabulary is 0 to {}", token, vocabulary - 1));
  }
}

void Decoder::start(const std::vector<std::vector<std::int32_t>>& tokens) {
  const auto refuse = [](const std::string& message) {
    throw ingot::Error(ingot::ErrorCode::invalid_argument, "prompt", message);
  };
  if (static_cast<std::int64_t>(tokens.size()) != sequences_.count) {
    refuse(fmt::format("has a batch of {}, but the decoder was made for {}", tokens.size(), sequences_.count));
  }
  const std::size_t given = tokens.front().size();
  if (given == 0 || static_cast<std::int64_t>(given) > sequences_.capacity) {
    refuse(fmt::format("has {} tokens, but must have from 1 to {}", given, sequences_.capacity));
  }
  std::vector<i32> all(static_cast<std::size_t>(sequences_.count * sequences_.capacity));
  auto line = all.begin();
  for (const std::vector<std::int32_t>& sequence : tokens) {
    if (sequence.size() != given) refuse("has sequences of different lengths, but all are decoded in step");
    check_tokens("prompt", sequence, shape_.vocabulary);
    std::ranges::copy(sequence, line);
    line += sequences_.capacity;
  }
  const std::vector<i32> state{0, static_cast<i32>(given)};
  ingot::Backend& backend = machine_->backend();
  backend.device_api().copy_from_host(tokens_.data(), all.data(), all.size() * sizeof(i32), machine_->stream());
  backend.device_api().copy_from_host(state_.data(), state.data(), state.size() * sizeof(i32), machine_->stream());
}

std::vector<std::vector<std::int32_t>> Decoder::tokens(std::int64_t count) {
  std::vector<i32> all(static_cast<std::size_t>(sequences_.count * sequences_.capacity));
  machine_->device_api().copy_to_host(all.data(), tokens_.data(), all.size() * sizeof(i32), machine_->stream());
  machine_->device_api().synchronize(machine_->stream());
  std::vector<std::vector<std::int32_t>> result;
  for (std::int64_t i = 0; i < sequences_.count; ++i) {
    const auto begin = all.begin() + i * sequences_.capacity;
    result.emplace_back(begin, begin + count);
  }
  return result;
}

// ---- One token ---------------------------------------------------------------------------------------------------

void Decoder::enqueue() {
  ingot::Stream& stream = machine_->stream();
  ops_->run(
      Embed{.sequences = sequences_, .table = halves(shared_->embedding), .width = shape_.hidden, .x = halves(x_)});
  const OwnedTensor* delta = nullptr;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    add_norm(delta, shared_->input_norms[i]);
    layer.qkv.forward(normed_, qkv_, stream);
    attend(layer);
    layer.output.forward(attended_, delta_, stream);
    add_norm(&delta_, shared_->mlp_norms[i]);
    layer.gate_up.forward(normed_, gate_up_, stream);
    ops_->run(GatedSilu{.gate_up = halves(gate_up_),
                        .out = halves(activated_),
                        .count = sequences_.count,
                        .width = shape_.intermediate});
    layer.down.forward(activated_, delta_, stream);
    delta = &delta_;
  }
  add_norm(delta, shared_->final_norm);
  head_.forward(normed_, logits_, stream);
  ops_->run(PartialArgmax{.logits = data_of<float>(logits_),
                          .count = sequences_.count,
                          .classes = shape_.vocabulary,
                          .largest = static_cast<float*>(largest_.data()),
                          .where = static_cast<i32*>(where_.data())});
  ops_->run(ChooseTokens{.sequences = sequences_,
                         .largest = static_cast<const float*>(largest_.data()),
                         .where = static_cast<const i32*>(where_.data())});
}

void Decoder::add_norm(const OwnedTensor* delta, const OwnedTensor& gamma) {
  ops_->run(AddNorm{.x = halves(x_),
                    .delta = delta != nullptr ? halves(*delta) : nullptr,
                    .gamma = halves(gamma),
                    .normed = halves(normed_),
                    .count = sequences_.count,
                    .width = shape_.hidden,
                    .eps = static_cast<float>(shape_.norm_eps)});
}

void Decoder::attend(const Layer& layer) {
  switch (shape_.heads / shape_.kv_heads) {
    case 1: return attend_with<1>(layer);
    case 2: return attend_with<2>(layer);
    case 4: return attend_with<4>(layer);
    default: return attend_with<8>(layer);
  }
}

template <ingot::i64 kQueries>
void Decoder::attend_with(const Layer& layer) {
  ops_->run(DecodeAttention<kQueries>{.sequences = sequences_,
                                      .qkv = halves(qkv_),
                                      .keys = halves(layer.keys),
                                      .values = halves(layer.values),
                                      .cosines = data_of<float>(cosines_),
                                      .sines = data_of<float>(sines_),
                                      .out = halves(attended_),
                                      .partials = static_cast<float*>(partials_.data()),
                                      .counters = static_cast<u32*>(counters_.data()),
                                      .kv_heads = shape_.kv_heads,
                                      .dims = shape_.head_dims,
                                      .splits = splits_});
}

}  // namespace generate
