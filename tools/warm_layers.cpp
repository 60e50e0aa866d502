#include "warm_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "ingot/nn/known_models.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"

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
                            NamedKind{"gated_mlp", TrainedLayerKind::gated_mlp}};

// One layer of the file, for messages that name the field.
class Fields {
 public:
  Fields(const std::filesystem::path& file, const char* list, std::size_t index, const Json& json)
      : file_(file), place_(fmt::format("{}[{}]", list, index)), json_(json) {
    if (!json.is_object()) refuse("", "is not an object");
  }

  std::string text(const char* field, const std::string& otherwise) const {
    const auto found = json_.find(field);
    if (found == json_.end()) return otherwise;
    if (!found->is_string()) refuse(field, "is not a string");
    return found->get<std::string>();
  }
  std::int64_t features(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) refuse(field, "is missing");
    const bool is_integer =
        found->is_number_integer() && !(found->is_number_unsigned() && found->get<std::uint64_t>() > kMaxFeatures);
    if (!is_integer || found->get<std::int64_t>() < 1 || found->get<std::int64_t>() > kMaxFeatures) {
      refuse(field, fmt::format("must be a number from 1 to {}", kMaxFeatures));
    }
    return found->get<std::int64_t>();
  }
  bool flag(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) return false;
    if (!found->is_boolean()) refuse(field, "must be true or false");
    return found->get<bool>();
  }
  TrainedLayerKind kind() const {
    const std::string name = text("kind", "linear");
    const auto found = std::ranges::find(kKinds, name, &NamedKind::name);
    if (found == kKinds.end()) refuse("kind", "must be linear, rms_norm_linear, layer_norm_linear or gated_mlp");
    return found->kind;
  }

 private:
  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw Error(ErrorCode::invalid_argument, file_.string(),
                fmt::format("{}{}{} {}", place_, field.empty() ? "" : ".", field, why));
  }

  const std::filesystem::path& file_;
  std::string place_;
  const Json& json_;
};

Json parse_json(const std::filesystem::path& file) {
  constexpr int kDeepest = 3;  // the object, its lists, their layers
  const std::string text = read_file(file, kMaxBytes, "docs/warm.md describes a file of layers");
  const std::string fault = json_fault(text, kDeepest);
  if (!fault.empty()) throw Error(ErrorCode::invalid_argument, file.string(), fault);
  return Json::parse(text);
}

template <class Read>
void read_list(const Json& json, const std::filesystem::path& file, const char* list, const Read& read) {
  const auto found = json.find(list);
  if (found == json.end()) return;
  if (!found->is_array()) {
    throw Error(ErrorCode::invalid_argument, file.string(), fmt::format("\"{}\" is not a list of layers", list));
  }
  for (std::size_t i = 0; i < found->size(); ++i) read(Fields(file, list, i, (*found)[i]));
}

}  // namespace

ModelLayers known_model_layers(const std::string& name) {
  const auto models = known_models();
  const auto found = std::ranges::find(models, name, &KnownModel::name);
  if (found == models.end()) {
    std::string names;
    for (const KnownModel& model : models) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
    throw Error(ErrorCode::invalid_argument, "--set", fmt::format("\"{}\" must be one of {}", name, names));
  }
  return {.training = training_layers(*found), .decoding = decoding_layers(*found)};
}

ModelLayers read_layers(const std::filesystem::path& file) {
  const Json json = parse_json(file);
  ModelLayers layers;
  if (!json.is_object() || (!json.contains("training") && !json.contains("decoding"))) {
    throw Error(ErrorCode::invalid_argument, file.string(), "has neither \"training\" nor \"decoding\" layers");
  }
  read_list(json, file, "training", [&](const Fields& layer) {
    layers.training.push_back({.name = layer.text("name", ""),
                               .kind = layer.kind(),
                               .in_features = layer.features("in_features"),
                               .out_features = layer.features("out_features"),
                               .bias = layer.flag("bias")});
  });
  read_list(json, file, "decoding", [&](const Fields& layer) {
    layers.decoding.push_back({.name = layer.text("name", ""),
                               .in_features = layer.features("in_features"),
                               .out_features = layer.features("out_features"),
                               .f32_output = layer.flag("f32_output"),
                               .bias = layer.flag("bias")});
  });
  if (!json.contains("decoding")) {
    for (const TrainedLayer& layer : layers.training) {
      if (layer.kind != TrainedLayerKind::linear) continue;
      layers.decoding.push_back({.name = layer.name,
                                 .in_features = layer.in_features,
                                 .out_features = layer.out_features,
                                 .bias = layer.bias});
    }
  }
  return layers;
}

void add(ModelLayers& all, ModelLayers more) {
  std::ranges::move(more.training, std::back_inserter(all.training));
  std::ranges::move(more.decoding, std::back_inserter(all.decoding));
}

}  // namespace ingot::tools
