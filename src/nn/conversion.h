// Which linear layers of a model are computed in FP8, and why the others are not: from a description of the model's
// modules, before anything is made.
//
//   const ModuleDescription model{.children = {{.name = "layers", .children = {...}}, {.name = "output", .linear = ...}}};
//   for (const LayerDecision& d : convert(model, rowwise(), {.filter = not_named("output"), .tokens = 8192}))
//     layers.emplace_back(backend, d.layer.shape, d.config, LinearOptions{.name = d.layer.name, ...});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/float8_linear.h"
#include "ingot/nn/linear_gain.h"

namespace ingot {

// A module, by its name within its parent ("wq", "0"), with those in it. A linear layer has none.
struct ModuleDescription {
  std::string name{};
  std::optional<LinearShape> linear{};
  std::vector<ModuleDescription> children{};
};

// Its name from the root on: "layers.0.attention.wq".
struct LinearLayer {
  std::string name;
  LinearShape shape;
};

// In the order of the description. Throws Error{invalid_argument} for a linear layer with children, for one without a
// name, for two of one name, and for negative sizes.
std::vector<LinearLayer> linear_layers(const ModuleDescription& model);

// true: this layer may be converted.
using LayerFilter = std::function<bool(const LinearLayer& layer)>;
// None whose name is this one or ends in "." and this one.
LayerFilter not_named(std::string name);
// None with fewer features on either side.
LayerFilter at_least(std::int64_t features);

struct ConversionOptions {
  LayerFilter filter{};  // default: all
  // With a number of tokens in a step, a layer that is not expected to be this much faster than in high precision
  // (expected_gain()) is left alone. For the GPU with this many multiprocessors.
  std::int64_t tokens = 0;
  double least_gain = 1.05;
  int multiprocessors = 132;
};

struct LayerDecision {
  LinearLayer layer;
  LinearConfig config{};  // the one asked for, or high_precision()
  std::string reason{};   // why it is not the one asked for; empty if it is
  std::optional<LinearGain> gain{};
};

// Throws what validate(config) and linear_layers() throw, and Error{invalid_argument} for options that cannot be.
std::vector<LayerDecision> convert(const ModuleDescription& model, const LinearConfig& config,
                                   const ConversionOptions& options = {});

// A line for each layer: name, size, config or reason, expected gain.
std::string print(std::span<const LayerDecision> decisions);

}  // namespace ingot
