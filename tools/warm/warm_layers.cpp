#include "warm/warm_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/nn/planning/known_models.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/text.h"

namespace ingot::tools {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxFeatures = std::int64_t{1} << 30;
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

struct NamedKind {
  std::string_view name;
  TrainedLayerKind kind;
};
constexpr std::array kKinds{NamedKind{"linear", TrainedLayerKind::linear},
                            NamedKind{"rms_norm_linear", TrainedLayerKind::rms_norm_linear},
                            NamedKind{"layer_norm_linear", TrainedLayerKind::layer_norm_linear},
                            NamedKind{"gated_mlp", TrainedLayerKind::gated_mlp},
                            NamedKind{"layer_norm_mlp", TrainedLayerKind::layer_norm_mlp},
                            NamedKind{"rms_norm_gated_mlp", TrainedLayerKind::rms_norm_gated_mlp},
                            NamedKind{"experts", TrainedLayerKind::experts}};

std::string text_or(const Json& layer, const char* field, const char* otherwise) {
  return layer.contains(field) ? json_string(layer, field) : otherwise;
}
bool flag(const Json& layer, const char* field) { return layer.contains(field) && json_boolean(layer, field); }
std::int64_t features(const Json& layer, const char* field) { return json_integer(layer, field, 1, kMaxFeatures); }

TrainedLayerKind kind_of(const Json& layer) {
  const std::string name = text_or(layer, "kind", "linear");
  const auto* const found = std::ranges::find(kKinds, name, &NamedKind::name);
  if (found != kKinds.end()) return found->kind;
  refuse_json_field("kind", layer["kind"].dump(),
                    "linear, rms_norm_linear, layer_norm_linear, gated_mlp, layer_norm_mlp, rms_norm_gated_mlp or "
                    "experts");
}

bool decodes_experts(const Json& layer) {
  const std::string name = text_or(layer, "kind", "linear");
  if (name == "linear" || name == "experts") return name == "experts";
  refuse_json_field("kind", layer["kind"].dump(), "linear or experts");
}

// A misspelt name would be ignored without a word.
void check_names(const Json& object, const std::vector<std::string_view>& known) {
  if (!object.is_object()) return;  // reading its fields refuses it
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw JsonFault(fmt::format("has the unknown name \"{}\"; expected {}", printable(name), fmt::join(known, ", ")));
  }
}

const std::vector<std::string_view> kNamesOfExperts{"name", "kind",    "in_features", "out_features",
                                                    "bias", "experts", "chosen"};

// Grouped GEMMs load rows of 16 bytes.
std::int64_t features_of_experts(const Json& layer, const char* field) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t count = features(layer, field);
  if (count % kMultiple == 0) return count;
  refuse_json_field(field, layer[field].dump(), fmt::format("a multiple of {}, as experts need", kMultiple));
}

// Of both kinds of layers.
template <class Layer>
Layer read_experts(const Json& layer) {
  check_names(layer, kNamesOfExperts);
  Layer experts;
  experts.name = text_or(layer, "name", "");
  experts.in_features = features_of_experts(layer, "in_features");
  experts.out_features = features_of_experts(layer, "out_features");
  experts.bias = flag(layer, "bias");
  experts.experts = json_integer(layer, "experts", 1, kMostExperts);
  experts.chosen = json_integer(layer, "chosen", 1, experts.experts);
  return experts;
}

TrainedLayer trained_layer(const Json& layer) {
  const TrainedLayerKind kind = kind_of(layer);
  if (kind == TrainedLayerKind::experts) {
    TrainedLayer experts = read_experts<TrainedLayer>(layer);
    experts.kind = kind;
    return experts;
  }
  check_names(layer, {"name", "kind", "in_features", "out_features", "bias"});
  return {.name = text_or(layer, "name", ""),
          .kind = kind,
          .in_features = features(layer, "in_features"),
          .out_features = features(layer, "out_features"),
          .bias = flag(layer, "bias")};
}

DecodedLayer decoded_layer(const Json& layer) {
  if (decodes_experts(layer)) return read_experts<DecodedLayer>(layer);
  check_names(layer, {"name", "kind", "in_features", "out_features", "f32_output", "bias"});
  return {.name = text_or(layer, "name", ""),
          .in_features = features(layer, "in_features"),
          .out_features = features(layer, "out_features"),
          .f32_output = flag(layer, "f32_output"),
          .bias = flag(layer, "bias")};
}

// Of a linear layer or experts that train.
DecodedLayer decoding(const TrainedLayer& layer) {
  return {.name = layer.name,
          .in_features = layer.in_features,
          .out_features = layer.out_features,
          .bias = layer.bias,
          .experts = layer.experts,
          .chosen = layer.chosen};
}

// Messages name the layer by its place: "training[2] lacks ...".
template <class Layer>
std::vector<Layer> read_list(const Json& json, const char* list, Layer (*read)(const Json&)) {
  std::vector<Layer> layers;
  if (!json.contains(list)) return layers;
  for (const Json& each : json_array(json, list)) {
    try {
      layers.push_back(read(each));
    } catch (const JsonFault& fault) {
      throw JsonFault(fmt::format("{}[{}] {}", list, layers.size(), fault.what()));
    }
  }
  return layers;
}

ModelLayers read_lists(const Json& json) {
  if (!json.is_object()) throw JsonFault("is not a JSON object");
  if (!json.contains("training") && !json.contains("decoding")) {
    throw JsonFault(R"(has neither "training" nor "decoding" layers)");
  }
  check_names(json, {"training", "decoding"});
  ModelLayers layers{.training = read_list(json, "training", trained_layer),
                     .decoding = read_list(json, "decoding", decoded_layer)};
  if (json.contains("decoding")) return layers;
  for (const TrainedLayer& layer : layers.training) {
    const bool decodes = layer.kind == TrainedLayerKind::linear || layer.kind == TrainedLayerKind::experts;
    if (decodes) layers.decoding.push_back(decoding(layer));
  }
  return layers;
}

}  // namespace

ModelLayers known_model_layers(const std::string& name) {
  const KnownModel& model = known_model(name, "--set");
  return {.training = training_layers(model), .decoding = decoding_layers(model)};
}

ModelLayers read_layers(const std::filesystem::path& file) {
  constexpr int kDeepest = 3;  // the object, its lists, their layers
  const std::string text = read_file(file, kMaxBytes, "docs/warm.md describes a file of layers");
  try {
    if (const std::string fault = json_fault(text, kDeepest); !fault.empty()) throw JsonFault(fault);
    return read_lists(Json::parse(text));
  } catch (const JsonFault& fault) {
    throw Error(ErrorCode::invalid_argument, file.string(), fault.what());
  }
}

void add(ModelLayers& all, ModelLayers more) {
  std::ranges::move(more.training, std::back_inserter(all.training));
  std::ranges::move(more.decoding, std::back_inserter(all.decoding));
}

}  // namespace ingot::tools
