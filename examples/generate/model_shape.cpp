#include "model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"

namespace generate {
namespace {

using ingot::Error;
using ingot::ErrorCode;
using Json = nlohmann::json;

constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kVocabularyLimit = std::int64_t{1} << 24;  // as in ops.cuh

// Null if the field is missing or null, which mean the same in these files.
const Json* find(const Json& json, const char* name) {
  if (!json.is_object())
    throw ingot::JsonFault("has something other than an object around \"" + std::string(name) + "\"");
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

double number_or(const Json& json, const char* name, double otherwise) {
  return find(json, name) == nullptr ? otherwise : ingot::json_number(json, name);
}

std::int64_t integer_or(const Json& json, const char* name, std::int64_t otherwise) {
  return find(json, name) == nullptr ? otherwise : ingot::json_integer(json, name);
}

std::string string_or(const Json& json, const char* name, const std::string& otherwise) {
  return find(json, name) == nullptr ? otherwise : ingot::json_string(json, name);
}

// Newer files have "rope_parameters" instead of "rope_scaling" and "rope_theta".
constexpr const char* kRopeParameters = "rope_parameters";

double read_rope_theta(const Json& json, double otherwise) {
  if (const Json* const parameters = find(json, kRopeParameters)) {
    otherwise = number_or(*parameters, "rope_theta", otherwise);
  }
  return number_or(json, "rope_theta", otherwise);
}

std::optional<RopeScaling> read_rope_scaling(const std::filesystem::path& file, const Json& json) {
  const char* name = "rope_scaling";
  const Json* scaling = find(json, name);
  if (scaling == nullptr) scaling = find(json, name = kRopeParameters);
  if (scaling == nullptr) return std::nullopt;
  const std::string type =
      string_or(*scaling, "rope_type", string_or(*scaling, "type", name == kRopeParameters ? "default" : "none"));
  if (type == "default") return std::nullopt;
  if (type != "llama3") {
    throw Error(ErrorCode::invalid_argument, file.string(),
                fmt::format("has a \"{}\" of the type \"{}\", which this example does not compute; default and llama3 "
                            "are",
                            name, type));
  }
  return RopeScaling{.factor = ingot::json_number(*scaling, "factor"),
                     .low_frequency_factor = ingot::json_number(*scaling, "low_freq_factor"),
                     .high_frequency_factor = ingot::json_number(*scaling, "high_freq_factor"),
                     .original_positions = ingot::json_number(*scaling, "original_max_position_embeddings")};
}

ModelShape shape_from(const std::filesystem::path& file, const Json& json) {
  const auto require_default = [&](const char* name, const Json& expected) {
    const Json* const found = find(json, name);
    if (found == nullptr || *found == expected) return;
    throw Error(ErrorCode::invalid_argument, file.string(),
                fmt::format("has \"{}\": {}, which this example does not compute; only {} is", name,
                            ingot::json_brief(*found), expected.dump()));
  };
  require_default("model_type", "llama");
  require_default("hidden_act", "silu");
  require_default("attention_bias", false);
  require_default("mlp_bias", false);
  ModelShape shape{.layers = ingot::json_integer(json, "num_hidden_layers"),
                   .hidden = ingot::json_integer(json, "hidden_size"),
                   .intermediate = ingot::json_integer(json, "intermediate_size"),
                   .heads = ingot::json_integer(json, "num_attention_heads"),
                   .vocabulary = ingot::json_integer(json, "vocab_size")};
  shape.kv_heads = integer_or(json, "num_key_value_heads", shape.heads);
  shape.head_dims = integer_or(json, "head_dim", shape.heads > 0 ? shape.hidden / shape.heads : 0);
  shape.norm_eps = number_or(json, "rms_norm_eps", shape.norm_eps);
  shape.rope_theta = read_rope_theta(json, shape.rope_theta);
  shape.rope_scaling = read_rope_scaling(file, json);
  return shape;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets{{.name = "tiny",
                                             .shape = {.layers = 2,
                                                       .hidden = 64,
                                                       .intermediate = 160,
                                                       .heads = 4,
                                                       .kv_heads = 2,
                                                       .head_dims = 16,
                                                       .vocabulary = 320}},
                                            {.name = "llama2-7b",
                                             .shape = {.layers = 32,
                                                       .hidden = 4096,
                                                       .intermediate = 11008,
                                                       .heads = 32,
                                                       .kv_heads = 32,
                                                       .head_dims = 128,
                                                       .vocabulary = 32000}},
                                            {.name = "llama3-8b",
                                             .shape = {.layers = 32,
                                                       .hidden = 4096,
                                                       .intermediate = 14336,
                                                       .heads = 32,
                                                       .kv_heads = 8,
                                                       .head_dims = 128,
                                                       .vocabulary = 128256,
                                                       .rope_theta = 500000}}};
  return kPresets;
}

const Preset& preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found != presets().end()) return *found;
  throw Error(ErrorCode::invalid_argument, "--preset",
              fmt::format("\"{}\" is not known; expected tiny, llama2-7b or llama3-8b", name));
}

void check(const ModelShape& shape, const std::string& what) {
  const auto require = [&](bool condition, const std::string& message) {
    if (!condition) throw Error(ErrorCode::invalid_argument, what, message);
  };
  const auto size = [&](const char* name, std::int64_t value, std::int64_t most) {
    require(value >= 1 && value <= most, fmt::format("{} is {}, but must be from 1 to {}", name, value, most));
  };
  size("the number of layers", shape.layers, kMaxLayers);
  size("the hidden size", shape.hidden, kMaxSize);
  size("the intermediate size", shape.intermediate, kMaxSize);
  size("the number of heads", shape.heads, kMaxSize);
  size("the number of heads of keys and values", shape.kv_heads, kMaxSize);
  size("the vocabulary", shape.vocabulary, kVocabularyLimit);
  require(shape.hidden % 8 == 0 && shape.intermediate % 8 == 0,
          fmt::format("the hidden size {} and the intermediate size {} must be multiples of 8", shape.hidden,
                      shape.intermediate));
  require(shape.head_dims >= 16 && shape.head_dims <= 256 &&
              std::has_single_bit(static_cast<std::uint64_t>(shape.head_dims)),
          fmt::format("a head has {} dimensions, but must have 16, 32, 64, 128 or 256", shape.head_dims));
  const std::int64_t share = shape.heads / shape.kv_heads;
  require(shape.heads % shape.kv_heads == 0 && share <= 8 && std::has_single_bit(static_cast<std::uint64_t>(share)),
          fmt::format("{} heads of queries to {} of keys and values: 1, 2, 4 or 8 must share one", shape.heads,
                      shape.kv_heads));
  require(shape.norm_eps > 0 && shape.norm_eps < 1,
          fmt::format("the norms' eps is {}, but must be in (0, 1)", shape.norm_eps));
  require(shape.rope_theta > 1 && shape.rope_theta <= 1e12,
          fmt::format("rope_theta is {}, but must be above 1 and at most 1e12", shape.rope_theta));
  if (const std::optional<RopeScaling>& scaling = shape.rope_scaling) {
    require(
        scaling->factor >= 1 && scaling->low_frequency_factor > 0 &&
            scaling->high_frequency_factor > scaling->low_frequency_factor && scaling->original_positions >= 1,
        "rope_scaling must have a factor from 1 on, a high_freq_factor above its low_freq_factor, that above 0, and "
        "original_max_position_embeddings from 1 on");
  }
}

ModelShape read_config(const std::filesystem::path& file) {
  constexpr std::uint64_t kMostBytes = 16 << 20;
  constexpr int kDeepest = 64;
  const auto refuse = [&](const std::string& fault) {
    throw Error(ErrorCode::io_failed, file.string(), "is no config.json of a model of this kind: it " + fault);
  };
  const std::string text = ingot::read_file(file, kMostBytes, "a model's sizes stand there");
  if (const std::string fault = ingot::json_fault(text, kDeepest); !fault.empty()) refuse(fault);
  ModelShape shape;
  try {
    shape = shape_from(file, Json::parse(text));
  } catch (const ingot::JsonFault& fault) {
    refuse(fault.what());
  }
  check(shape, file.string());
  return shape;
}

void write_config(const std::filesystem::path& file, const ModelShape& shape) {
  nlohmann::ordered_json json{{"model_type", "llama"},
                              {"hidden_act", "silu"},
                              {"num_hidden_layers", shape.layers},
                              {"hidden_size", shape.hidden},
                              {"intermediate_size", shape.intermediate},
                              {"num_attention_heads", shape.heads},
                              {"num_key_value_heads", shape.kv_heads},
                              {"head_dim", shape.head_dims},
                              {"vocab_size", shape.vocabulary},
                              {"rms_norm_eps", shape.norm_eps},
                              {"rope_theta", shape.rope_theta},
                              {"tie_word_embeddings", false}};
  if (const std::optional<RopeScaling>& scaling = shape.rope_scaling) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_frequency_factor},
                            {"high_freq_factor", scaling->high_frequency_factor},
                            {"original_max_position_embeddings", scaling->original_positions}};
  }
  ingot::write_file(file, {json.dump(2), "\n"});
}

}  // namespace generate
