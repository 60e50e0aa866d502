// Which linear layers of a model are computed in FP8, and why the others are not: from a description of the model's
// modules, before anything is made.
//
//   const ModuleDescription model("", {{"layers", {block("0"), block("1")}}, {"output", LinearShape{4096, 128256}}});
//   for (const LayerDecision& d : convert(model, rowwise(), {.filter = not_named("output"), .tokens = 8192}))
//     layers.emplace_back(backend, d.layer.shape, d.config, LinearOptions{.name = d.layer.name, ...});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/float8_linear.h"
#include "ingot/nn/linear_gain.h"

namespace ingot {

// A module, by its name within its parent ("wq", "0"): a linear layer, or one that has others in it.
class ModuleDescription {
 public:
  ModuleDescription(std::string name, LinearShape linear) : name_(std::move(name)), linear_(linear) {}
  ModuleDescription(std::string name, std::vector<ModuleDescription> children)
      : name_(std::move(name)), children_(std::move(children)) {}

  const std::string& name() const { return name_; }
  const std::optional<LinearShape>& linear() const { return linear_; }
  const std::vector<ModuleDescription>& children() const { return children_; }

 private:
  std::string name_;
  std::optional<LinearShape> linear_;
  std::vector<ModuleDescription> children_;
};

// Its name from the root on: "layers.0.attention.wq".
struct LinearLayer {
  std::string name;
  LinearShape shape;
};

// In the order of the description. The root may be without a name. Throws Error{invalid_argument} for others without
// one, for two layers of one name, and for negative sizes.
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
