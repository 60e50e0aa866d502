#include "ingot/nn/planning/known_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ingot/runtime/util/error.h"

namespace ingot {

std::span<const KnownModel> known_models() {
  static constexpr std::array kModels{
      KnownModel{"llama2-7b", 4096, 4096, 4096, 11008, 32000},
      KnownModel{"llama2-70b", 8192, 8192, 1024, 28672, 32000},
      KnownModel{"llama3-8b", 4096, 4096, 1024, 14336, 128256},
      KnownModel{"llama3-70b", 8192, 8192, 1024, 28672, 128256},
      KnownModel{.name = "mixtral-8x7b",
                 .hidden = 4096,
                 .query = 4096,
                 .key_value = 1024,
                 .vocabulary = 32000,
                 .experts = {.count = 8, .chosen = 2, .intermediate = 14336}},
      KnownModel{.name = "qwen3-30b-a3b",
                 .hidden = 2048,
                 .query = 4096,
                 .key_value = 512,
                 .vocabulary = 151936,
                 .experts = {.count = 128, .chosen = 8, .intermediate = 768}},
      KnownModel{.name = "qwen3-235b-a22b",
                 .hidden = 4096,
                 .query = 8192,
                 .key_value = 512,
                 .vocabulary = 151936,
                 .experts = {.count = 128, .chosen = 8, .intermediate = 1536}},
      KnownModel{.name = "deepseek-v3",
                 .hidden = 7168,
                 .intermediate = 18432,
                 .vocabulary = 129280,
                 .experts = {.count = 256, .chosen = 8, .intermediate = 2048, .shared = 2048},
                 .latent = {.query_rank = 1536,
                            .key_value_rank = 512,
                            .heads = 128,
                            .query_size = 128,
                            .position_size = 64,
                            .value_size = 128}},
      KnownModel{.name = "gpt-oss-20b",
                 .hidden = 2880,
                 .query = 4096,
                 .key_value = 512,
                 .vocabulary = 201088,
                 .attention_bias = true,
                 .experts = {.count = 32, .chosen = 4, .intermediate = 2880, .bias = true, .mxfp4 = true}},
      KnownModel{.name = "gpt-oss-120b",
                 .hidden = 2880,
                 .query = 4096,
                 .key_value = 512,
                 .vocabulary = 201088,
                 .attention_bias = true,
                 .experts = {.count = 128, .chosen = 4, .intermediate = 2880, .bias = true, .mxfp4 = true}}};
  return kModels;
}

const KnownModel& known_model(std::string_view name, const std::string& subject) {
  const std::span<const KnownModel> models = known_models();
  const auto found = std::ranges::find(models, name, &KnownModel::name);
  if (found != models.end()) return *found;
  std::string names;
  for (const KnownModel& model : models) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  throw Error(ErrorCode::invalid_argument, subject, fmt::format("\"{}\" must be one of {}", name, names));
}

namespace {

std::vector<ModelLayer> attention_of(const KnownModel& model) {
  const LatentAttention& latent = model.latent;
  if (latent.query_rank == 0) {
    return {{"qkv", model.hidden, model.query + 2 * model.key_value, model.attention_bias},
            {"attention_out", model.query, model.hidden, model.attention_bias}};
  }
  return {{"q_a", model.hidden, latent.query_rank},
          {"q_b", latent.query_rank, latent.heads * (latent.query_size + latent.position_size)},
          {"kv_a", model.hidden, latent.key_value_rank + latent.position_size},
          {"kv_b", latent.key_value_rank, latent.heads * (latent.query_size + latent.value_size)},
          {"attention_out", latent.heads * latent.value_size, model.hidden}};
}

}  // namespace

std::vector<ModelLayer> layers_of(const KnownModel& model) {
  std::vector<ModelLayer> layers = attention_of(model);
  const auto add_mlp = [&](const std::string& prefix, std::int64_t intermediate) {
    if (intermediate == 0) return;
    layers.push_back({prefix + "gate_up", model.hidden, 2 * intermediate});
    layers.push_back({prefix + "down", intermediate, model.hidden});
  };
  add_mlp("", model.intermediate);
  add_mlp("shared_", model.experts.shared);
  layers.push_back({"lm_head", model.hidden, model.vocabulary});
  return layers;
}

}  // namespace ingot
