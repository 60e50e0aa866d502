#include "ingot/nn/planning/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

using Json = nlohmann::json;

// Far above all models, and small enough for every product of two of them.
constexpr std::int64_t kMostFeatures = std::int64_t{1} << 26;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;
constexpr int kDeepest = 16;

constexpr std::array<std::string_view, 4> kKinds{"llama", "mistral", "qwen2", "qwen3"};
constexpr std::array kExperts{"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"};

// transformers writes null for what a model does not set.
bool has(const Json& config, const char* name) { return config.contains(name) && !config[name].is_null(); }

ModelShape shape_of(const Json& config) {
  const std::string kind = json_string(config, "model_type");
  for (const char* const name : kExperts) {
    if (has(config, name)) {
      throw JsonFault(fmt::format("has \"{}\": {}, so the model has experts, which this estimate does not count", name,
                                  json_brief(config[name])));
    }
  }
  if (std::ranges::find(kKinds, kind) == kKinds.end()) {
    refuse_json_field("model_type", '"' + printable(kind) + '"', "llama, mistral, qwen2 or qwen3");
  }
  ModelShape model;
  model.hidden = json_integer(config, "hidden_size", 1, kMostFeatures);
  model.intermediate = json_integer(config, "intermediate_size", 1, kMostFeatures);
  model.layers = json_integer(config, "num_hidden_layers", 1, kMostLayers);
  model.heads = json_integer(config, "num_attention_heads", 1, kMostLayers);
  model.key_value_heads = model.heads;
  if (has(config, "num_key_value_heads")) {
    model.key_value_heads = json_integer(config, "num_key_value_heads", 1, kMostLayers);
  }
  if (model.heads % model.key_value_heads != 0) {
    throw JsonFault(fmt::format("has \"num_key_value_heads\": {}, which does not divide \"num_attention_heads\", {}",
                                model.key_value_heads, model.heads));
  }
  if (has(config, "head_dim")) {
    model.head_size = json_integer(config, "head_dim", 1, kMostLayers);
  } else if (model.hidden % model.heads == 0) {
    model.head_size = model.hidden / model.heads;
  } else {
    throw JsonFault(fmt::format("has \"num_attention_heads\": {}, which does not divide \"hidden_size\", {}",
                                model.heads, model.hidden));
  }
  model.vocabulary = json_integer(config, "vocab_size", 1, kMostFeatures);
  model.tied = has(config, "tie_word_embeddings") && json_boolean(config, "tie_word_embeddings");
  return model;
}

double product(std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

}  // namespace

ModelShape read_model_shape(std::string_view json, const std::string& subject) {
  try {
    if (const std::string fault = json_fault(json, kDeepest); !fault.empty()) throw JsonFault(fault);
    return shape_of(Json::parse(json));
  } catch (const JsonFault& fault) {
    throw Error(ErrorCode::invalid_argument, subject, fault.what());
  }
}

std::vector<BlockLinear> block_linears(const ModelShape& model) {
  const std::int64_t queries = model.heads * model.head_size;
  const std::int64_t keys = model.key_value_heads * model.head_size;
  std::vector<BlockLinear> linears;
  if (model.heads > 0) {
    linears = {{"q", model.hidden, queries, true},
               {"k", model.hidden, keys, true},
               {"v", model.hidden, keys, true},
               {"o", queries, model.hidden, false}};
  }
  if (model.gated) linears.push_back({"gate", model.hidden, model.intermediate, true});
  linears.push_back({"up", model.hidden, model.intermediate, true});
  linears.push_back({"down", model.intermediate, model.hidden, false});
  return linears;
}

double block_parameters(const ModelShape& model) {
  double all = (model.heads > 0 ? 2.0 : 1.0) * static_cast<double>(model.hidden);
  for (const BlockLinear& linear : block_linears(model)) all += product(linear.in_features, linear.out_features);
  return all;
}

double outer_parameters(const ModelShape& model) {
  if (model.vocabulary == 0) return 0;
  return (model.tied ? 1 : 2) * product(model.vocabulary, model.hidden) + static_cast<double>(model.hidden);
}

double parameters_of(const ModelShape& model) {
  return static_cast<double>(model.layers) * block_parameters(model) + outer_parameters(model);
}

}  // namespace ingot
