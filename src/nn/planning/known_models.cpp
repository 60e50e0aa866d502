#include "ingot/nn/planning/known_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ingot/runtime/util/error.h"

namespace ingot {

std::span<const KnownModel> known_models() {
  static constexpr std::array kModels{
      KnownModel{"llama2-7b", 4096, 4096, 11008, 32000}, KnownModel{"llama2-70b", 8192, 1024, 28672, 32000},
      KnownModel{"llama3-8b", 4096, 1024, 14336, 128256}, KnownModel{"llama3-70b", 8192, 1024, 28672, 128256}};
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

std::vector<ModelLayer> layers_of(const KnownModel& model) {
  return {{"qkv", model.hidden, model.hidden + 2 * model.key_value},
          {"attention_out", model.hidden, model.hidden},
          {"gate_up", model.hidden, 2 * model.intermediate},
          {"down", model.intermediate, model.hidden},
          {"lm_head", model.hidden, model.vocabulary}};
}

}  // namespace ingot
