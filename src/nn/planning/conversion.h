// convert() decides which linear layers of a model run in FP8, and gives the reason where one does not. It works on a
// description of the model's modules, before any layer exists.
//
//   const ModuleDescription model("", {{"layers", {block("0"), block("1")}}, {"output", LinearShape{4096, 128256}}});
//   const ConversionOptions options{.filter = not_named("output"), .tokens = 8192, .gpu = gain_gpu(gpu_named("h200"))};
//   for (const LayerDecision& d : convert(model, rowwise(), options))
//     layers.emplace_back(backend, d.layer.shape, d.config, LinearOptions{.name = d.layer.name, ...});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/planning/linear_gain.h"

namespace ingot {

// A module, known by its name within its parent ("wq", "0"): either a linear layer or a module with children.
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

// The name is the full path from the root: "layers.0.attention.wq".
struct LinearLayer {
  std::string name;
  LinearShape shape;
};

// Lists the linear layers in the order of the description. Only the root may lack a name. Throws
// Error{invalid_argument} for any other module without a name, for two layers of the same name, and for negative sizes.
INGOT_API std::vector<LinearLayer> linear_layers(const ModuleDescription& model);

// Returns true if the layer may be converted.
using LayerFilter = std::function<bool(const LinearLayer& layer)>;
// Excludes layers whose name is `name` or ends in "." + `name`.
INGOT_API LayerFilter not_named(std::string name);
// Excludes layers with fewer than this many features on either side.
INGOT_API LayerFilter at_least(std::int64_t features);

struct ConversionOptions {
  LayerFilter filter{};  // default: every layer may be converted
  // If `tokens` (per step) is not 0, a layer stays in high precision unless expected_gain() says that FP8 makes it at
  // least `least_gain` times as fast on this GPU. An extrapolated gain counts, and LayerDecision::gain tells it apart;
  // without a number (an unmeasured GPU) the layer stays in high precision. Give GainGpu::rates there, or no tokens.
  std::int64_t tokens = 0;
  double least_gain = 1.05;
  GainGpu gpu{};
};

struct LayerDecision {
  LinearLayer layer;
  LinearConfig config{};  // the requested config, or high_precision()
  std::string reason{};   // why the layer is not converted; empty if it is
  std::optional<LinearGain> gain{};
};

// Decides for every linear layer of the model, in the order of linear_layers(). Throws what validate(config) and
// linear_layers() throw, and Error{invalid_argument} for negative tokens and for a least_gain that is no number; with
// tokens, also what expected_gain() throws.
INGOT_API std::vector<LayerDecision> convert(const ModuleDescription& model, const LinearConfig& config,
                                             const ConversionOptions& options = {});

// One line per layer: name, size, config or reason, expected gain. "~1.6" is extrapolated, "<=1" a bound, "?" unknown.
INGOT_API std::string print(std::span<const LayerDecision> decisions);

}  // namespace ingot
