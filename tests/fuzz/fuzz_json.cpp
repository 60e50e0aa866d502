// JSON that users keep next to their models: states of delayed scaling, files of layers for `ingot warm`, and configs
// for `ingot plan`.
#include <cmath>
#include <optional>
#include <string>

#include "fuzz/input_file.h"
#include "fuzz/targets.h"
#include "ingot/nn/planning/step_estimate.h"
#include "ingot/nn/recipe/delayed_scaling_state.h"
#include "ingot/runtime/util/text.h"
#include "warm/warm_layers.h"

namespace ingot::fuzz {

bool delayed_scaling(std::string_view input) {
  std::optional<DelayedScalingState> state;
  if (!accepts([&] { state = parse_delayed_scaling_state(input); })) return false;
  for (const DelayedScalingState::Slot& slot : state->slots) {
    require(slot.history.size() == static_cast<std::size_t>(state->history_length), "a history of another length");
  }
  const std::string text = print(*state);
  require(print(parse_delayed_scaling_state(text)) == text, "a state that does not come back");
  return true;
}

bool sealed_delayed_scaling(std::string_view object) {
  return !object.empty() && delayed_scaling(with_checksum(std::string(object)));
}

bool warm_layers(std::string_view input) {
  const InputFile file(input);
  std::optional<tools::ModelLayers> layers;
  if (!accepts([&] { layers = tools::read_layers(file.path()); })) return false;
  for (const TrainedLayer& layer : layers->training) {
    require(layer.in_features > 0 && layer.out_features > 0, "a layer without features");
  }
  for (const DecodedLayer& layer : layers->decoding) {
    require(layer.in_features > 0 && layer.out_features > 0, "a layer without features");
  }
  return true;
}

bool model_shape(std::string_view input) {
  std::optional<ModelShape> model;
  if (!accepts([&] { model = read_model_shape(input, "config.json"); })) return false;
  const StepEstimate step = step_estimate({.model = *model, .mesh = {.shards = 64}, .recipe = "rowwise"});
  require(std::isfinite(step.step_ms()) && std::isfinite(step.memory_bytes), "a step without an end");
  return true;
}

}  // namespace ingot::fuzz
