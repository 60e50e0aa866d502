#include "ingot/nn/planning/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

[[noreturn]] void refuse_model(const std::string& subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

void collect(const ModuleDescription& module, const std::string& name, std::vector<LinearLayer>& layers) {
  if (module.linear()) {
    if (name.empty()) refuse_model("model description", "has a linear layer without a name");
    const LinearShape& shape = *module.linear();
    if (shape.in_features < 0 || shape.out_features < 0) {
      refuse_model(name, fmt::format("has {} to {} features, but they must be 0 or more", shape.in_features,
                                     shape.out_features));
    }
    layers.push_back({name, shape});
  }
  for (const ModuleDescription& child : module.children()) {
    if (child.name().empty()) refuse_model(name.empty() ? "model description" : name, "has a child without a name");
    collect(child, name.empty() ? child.name() : fmt::format("{}.{}", name, child.name()), layers);
  }
}

// Why this gain does not suffice; empty if it does.
std::string too_little(const LinearGain& gain, double least) {
  if (!gain.is_known()) return gain.note;
  if (gain.gain() >= least) return {};
  std::string reason = fmt::format("expected to be {:.2f} times as fast, but {:.2f} is required", gain.gain(), least);
  if (gain.basis == GainBasis::extrapolated) reason += fmt::format(" ({})", gain.note);
  return reason;
}

std::string gain_text(const std::optional<LinearGain>& gain) {
  if (!gain) return "-";
  switch (gain->basis) {
    case GainBasis::bound: return "<=1";
    case GainBasis::unknown: return "?";
    case GainBasis::extrapolated: return fmt::format("~{:.2f}", gain->gain());
    default: return fmt::format("{:.2f}", gain->gain());
  }
}

}  // namespace

std::vector<LinearLayer> linear_layers(const ModuleDescription& model) {
  std::vector<LinearLayer> layers;
  collect(model, model.name(), layers);
  std::set<std::string_view> names;
  for (const LinearLayer& layer : layers) {
    if (!names.insert(layer.name).second) refuse_model(layer.name, "is the name of two layers");
  }
  return layers;
}

LayerFilter not_named(std::string name) {
  return [name = std::move(name)](const LinearLayer& layer) {
    return layer.name != name && !layer.name.ends_with("." + name);
  };
}

LayerFilter at_least(std::int64_t features) {
  return [features](const LinearLayer& layer) {
    return std::min(layer.shape.in_features, layer.shape.out_features) >= features;
  };
}

std::vector<LayerDecision> convert(const ModuleDescription& model, const LinearConfig& config,
                                   const ConversionOptions& options) {
  validate(config);
  if (options.tokens < 0)
    refuse_model("conversion tokens", fmt::format("is {}, but must be 0 or more", options.tokens));
  if (!std::isfinite(options.least_gain)) {
    refuse_model("conversion least_gain", fmt::format("is {}, but must be a number", options.least_gain));
  }
  std::vector<LayerDecision> decisions;
  for (LinearLayer& layer : linear_layers(model)) {
    LayerDecision decision{.layer = std::move(layer), .config = config};
    const LinearShape& shape = decision.layer.shape;
    if (options.tokens > 0) {
      decision.gain = expected_gain(config, {options.tokens, shape.in_features, shape.out_features}, options.gpu);
    }
    if (options.filter && !options.filter(decision.layer)) {
      decision.reason = "the filter leaves it out";
    } else if (decision.gain) {
      decision.reason = too_little(*decision.gain, options.least_gain);
    }
    if (!decision.reason.empty()) decision.config = high_precision();
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

std::string print(std::span<const LayerDecision> decisions) {
  std::size_t width = 5;
  for (const LayerDecision& d : decisions) width = std::max(width, d.layer.name.size());
  std::string text = fmt::format("{:<{}}  {:>8} -> {:<8} {:>5}  {}\n", "layer", width, "in", "out", "gain", "");
  for (const LayerDecision& d : decisions) {
    text += fmt::format("{:<{}}  {:>8} -> {:<8} {:>5}  {}\n", d.layer.name, width, d.layer.shape.in_features,
                        d.layer.shape.out_features, gain_text(d.gain),
                        d.reason.empty() ? print(d.config) : "high precision: " + d.reason);
  }
  return text;
}

}  // namespace ingot
