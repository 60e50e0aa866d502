#include "warm/warm_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

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
                            NamedKind{"rms_norm_gated_mlp", TrainedLayerKind::rms_norm_gated_mlp}};

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
                    "linear, rms_norm_linear, layer_norm_linear, gated_mlp, layer_norm_mlp or rms_norm_gated_mlp");
}

// A misspelt name would be ignored without a word.
void check_names(const Json& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return;  // reading its fields refuses it
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw JsonFault(fmt::format("has the unknown name \"{}\"; expected {}", printable(name), fmt::join(known, ", ")));
  }
}

TrainedLayer trained_layer(const Json& layer) {
  check_names(layer, {"name", "kind", "in_features", "out_features", "bias"});
  return {.name = text_or(layer, "name", ""),
          .kind = kind_of(layer),
          .in_features = features(layer, "in_features"),
          .out_features = features(layer, "out_features"),
          .bias = flag(layer, "bias")};
}

DecodedLayer decoded_layer(const Json& layer) {
  check_names(layer, {"name", "in_features", "out_features", "f32_output", "bias"});
  return {.name = text_or(layer, "name", ""),
          .in_features = features(layer, "in_features"),
          .out_features = features(layer, "out_features"),
          .f32_output = flag(layer, "f32_output"),
          .bias = flag(layer, "bias")};
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
    if (layer.kind != TrainedLayerKind::linear) continue;
    layers.decoding.push_back(
        {.name = layer.name, .in_features = layer.in_features, .out_features = layer.out_features, .bias = layer.bias});
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
