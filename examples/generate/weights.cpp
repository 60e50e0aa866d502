#include "weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ingot/runtime/util/error.h"

namespace generate {
namespace {

using ingot::Dtype;
using ingot::Error;
using ingot::ErrorCode;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr std::size_t kChunk = std::size_t{1} << 24;  // bytes of a file at a time

NamedTensor norm(std::string name, std::int64_t width) {
  return {.name = std::move(name), .rows = 0, .cols = width, .mean = 1, .deviation = 0.1};
}

// The deviation that makes a linear layer's outputs about as large as its inputs.
NamedTensor linear(std::string name, std::int64_t rows, std::int64_t cols, double share = 1) {
  return {.name = std::move(name),
          .rows = rows,
          .cols = cols,
          .mean = 0,
          .deviation = std::sqrt(share / static_cast<double>(cols))};
}

std::int64_t rows_of(const NamedTensor& tensor) { return std::max<std::int64_t>(1, tensor.rows); }

// Converts elements from the file's dtype to bf16.
void convert(Dtype dtype, std::span<const std::byte> from, bf16* to) {
  switch (dtype) {
    case Dtype::bf16: std::memcpy(to, from.data(), from.size()); return;
    case Dtype::f16:
      for (std::size_t i = 0; i < from.size() / 2; ++i) {
        ingot::f16 value;
        std::memcpy(&value, &from[2 * i], 2);
        to[i] = ingot::from_float<bf16>(ingot::to_float(value));
      }
      return;
    default:
      for (std::size_t i = 0; i < from.size() / 4; ++i) {
        float value = 0;
        std::memcpy(&value, &from[4 * i], 4);
        to[i] = ingot::from_float<bf16>(value);
      }
  }
}

// Depends on the name only, so that a tensor gets the same numbers in every build.
std::uint64_t seed_of(std::uint64_t seed, const std::string& name) {
  for (const char letter : name) seed = examples::hash_of(seed ^ static_cast<unsigned char>(letter));
  return seed;
}

std::string print(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

NamedTensor embedding_tensor(const ModelShape& shape) {
  return {.name = kEmbedding, .rows = shape.vocabulary, .cols = shape.hidden, .mean = 0, .deviation = 1};
}
NamedTensor head_tensor(const ModelShape& shape) { return linear(kHead, shape.vocabulary, shape.hidden); }
NamedTensor final_norm_tensor(const ModelShape& shape) { return norm("model.norm.weight", shape.hidden); }

LayerTensors layer_tensors(const ModelShape& shape, std::int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::int64_t queries = shape.query_rows();
  const std::int64_t keys = shape.kv_heads * shape.head_dims;
  // All layers together should add about as much to the residual stream as it starts with.
  const double share = 0.5 / static_cast<double>(shape.layers);
  return {.input_norm = norm(prefix + "input_layernorm.weight", shape.hidden),
          .qkv = {linear(prefix + "self_attn.q_proj.weight", queries, shape.hidden),
                  linear(prefix + "self_attn.k_proj.weight", keys, shape.hidden),
                  linear(prefix + "self_attn.v_proj.weight", keys, shape.hidden)},
          .output = linear(prefix + "self_attn.o_proj.weight", shape.hidden, queries, share),
          .mlp_norm = norm(prefix + "post_attention_layernorm.weight", shape.hidden),
          .gate_up = {linear(prefix + "mlp.gate_proj.weight", shape.intermediate, shape.hidden),
                      linear(prefix + "mlp.up_proj.weight", shape.intermediate, shape.hidden)},
          .down = linear(prefix + "mlp.down_proj.weight", shape.hidden, shape.intermediate, share)};
}

std::vector<NamedTensor> all_tensors(const ModelShape& shape) {
  std::vector<NamedTensor> all{embedding_tensor(shape)};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const LayerTensors tensors = layer_tensors(shape, layer);
    all.push_back(tensors.input_norm);
    all.insert(all.end(), tensors.qkv.begin(), tensors.qkv.end());
    all.push_back(tensors.output);
    all.push_back(tensors.mlp_norm);
    all.insert(all.end(), tensors.gate_up.begin(), tensors.gate_up.end());
    all.push_back(tensors.down);
  }
  all.push_back(final_norm_tensor(shape));
  all.push_back(head_tensor(shape));
  return all;
}

// A model whose head is its embedding stores only the embedding.
ingot::SafetensorsCheckpoint::Found WeightSource::find(const NamedTensor& tensor) const {
  const bool tied = tensor.name == kHead && !checkpoint_->has(kHead);
  const auto found = checkpoint_->at(tied ? kEmbedding : tensor.name);
  std::vector<std::int64_t> expected{tensor.cols};
  if (tensor.rows != 0) expected.insert(expected.begin(), tensor.rows);
  const auto require = [&](bool condition, const std::string& message) {
    if (!condition) {
      throw Error(ErrorCode::invalid_argument, found.file->path().string(),
                  fmt::format("tensor \"{}\" {}", found.tensor->name, message));
    }
  };
  require(found.tensor->shape == expected,
          fmt::format("has the shape {}, but the model's sizes need {}", print(found.tensor->shape), print(expected)));
  const std::optional<Dtype> dtype = found.tensor->dtype;
  require(dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32,
          fmt::format("has the dtype {}, but only BF16, F16 and F32 can be read", found.tensor->type));
  return found;
}

void WeightSource::check(const ModelShape& shape) const {
  if (!checkpoint_) return;
  for (const NamedTensor& tensor : all_tensors(shape)) static_cast<void>(find(tensor));
}

void WeightSource::read(const NamedTensor& tensor, std::byte* target) {
  const auto [file, stored] = find(tensor);
  const auto size = static_cast<std::size_t>(ingot::size_of(*stored->dtype));
  std::vector<std::byte> bytes;
  std::vector<bf16> values;
  for (std::uint64_t first = 0; first < stored->bytes; first += kChunk) {
    bytes.resize(std::min<std::uint64_t>(kChunk, stored->bytes - first));
    file->read(*stored, first, bytes);
    values.resize(bytes.size() / size);
    convert(*stored->dtype, bytes, values.data());
    machine_->device_api().copy_from_host(target + first / size * sizeof(bf16), values.data(),
                                          values.size() * sizeof(bf16), machine_->stream());
  }
}

ingot::OwnedTensor WeightSource::load(const std::vector<NamedTensor>& tensors) {
  std::int64_t rows = 0;
  for (const NamedTensor& tensor : tensors) rows += rows_of(tensor);
  ingot::OwnedTensor all(machine_->backend(), Dtype::bf16, rows, tensors.front().cols);
  auto* target = static_cast<bf16*>(all.view().data);
  for (const NamedTensor& tensor : tensors) {
    const std::int64_t count = rows_of(tensor) * tensor.cols;
    if (checkpoint_) {
      read(tensor, reinterpret_cast<std::byte*>(target));
    } else {
      ops_->run(InitNormal{.values = target,
                           .count = count,
                           .mean = static_cast<float>(tensor.mean),
                           .deviation = static_cast<float>(tensor.deviation),
                           .seed = seed_of(seed_, tensor.name)});
    }
    target += count;
  }
  return all;
}

void save_weights(const std::filesystem::path& folder, WeightSource& source, const ModelShape& shape,
                  Machine& machine) {
  std::vector<std::vector<std::byte>> contents;
  std::vector<ingot::TensorToStore> tensors;
  for (const NamedTensor& tensor : all_tensors(shape)) {
    const ingot::OwnedTensor values = source.load(tensor);
    contents.emplace_back(static_cast<std::size_t>(rows_of(tensor) * tensor.cols) * sizeof(bf16));
    machine.device_api().copy_to_host(contents.back().data(), values.view().data, contents.back().size(),
                                      machine.stream());
    machine.device_api().synchronize(machine.stream());
    std::vector<std::int64_t> sizes{tensor.cols};
    if (tensor.rows != 0) sizes.insert(sizes.begin(), tensor.rows);
    tensors.push_back({.name = tensor.name, .type = "BF16", .shape = sizes, .bytes = {}});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = contents[i];
  std::filesystem::create_directories(folder);
  ingot::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_config(folder / "config.json", shape);
}

}  // namespace generate
