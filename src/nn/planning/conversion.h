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
#include "ingot/codegen/types/target.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/recipe/linear_gemms.h"

namespace ingot {

// Estimates how much faster FP8 makes a linear layer, before anything runs: the time of its three GEMMs and its casts
// against the time of the same GEMMs in 16 bits. Only what was measured is promised: LinearGain::basis says what an
// estimate rests on, and where nothing was measured there is none.

struct TuningMachine;

// What you measured on a GPU, for example with `ingot bench gemm` and `ingot bench cast`. Those that are 0 were not
// measured. Rates of large GEMMs: small ones are taken to reach them too, after the start of a kernel.
struct GainRates {
  double float8_tflops = 0;         // FP8 GEMMs with one factor for each operand
  double float8_rows_tflops = 0;    // with a factor for each row
  double float8_groups_tflops = 0;  // with scale_inv of groups and blocks
  double high_precision_tflops = 0;
  double memory_gb_per_s = 0;  // read and written, by a large cast
};

// The GPU that a layer is to run on.
struct GainGpu {
  std::string device{};  // as the driver names it: "NVIDIA H200"
  Target target{};
  int multiprocessors = 0;
  std::optional<GainRates> rates{};  // default: what is known of this GPU
};

INGOT_API GainGpu gain_gpu(const Gpu& gpu);
// The GPU at hand: gain_gpu(context.tuning_machine()). Throws Error{invalid_argument} without a GPU.
INGOT_API GainGpu gain_gpu(const TuningMachine& machine);

// What an estimate rests on.
enum class GainBasis : std::uint8_t {
  measured,      // such layers were measured on this GPU
  given,         // GainGpu::rates
  extrapolated,  // from an H200 to another GPU of its architecture, or to sizes and formats that were not measured
  bound,         // every FP8 GEMM would run as gemm_mma, which is no faster than 16 bits: the gain is 1 at most
  unknown,       // nothing was measured
};
// "measured", "given" ...
INGOT_API const char* name(GainBasis basis);

struct LinearGain {
  double high_precision_us = 0;  // the three GEMMs of one step; 0 for a bound and where nothing is known
  double us = 0;                 // the GEMMs and casts of one step with the config; the weight is cast in every step
  double casts_us = 0;           // of these, all casts
  double weight_casts_us = 0;    // and those of the weight
  GainBasis basis = GainBasis::unknown;
  std::string note{};  // why it is not measured: "tokens of 100 are outside the measured 256 to 16384"

  // Is it a number? 1 stands for one that is not.
  bool is_known() const { return us > 0; }
  double gain() const { return us > 0 ? high_precision_us / us : 1; }
};

// For one layer by itself, in bf16 or f16. Measured: an H200 (bench/results/linear_h200.json), 256 to 16384 tokens and
// inputs, 256 to 28672 outputs; from 2048 on the estimate of each recipe is within 10 % of what was measured there, and
// smaller layers gain nothing. Throws what validate(config) throws, and Error{invalid_argument} for sizes and GPUs that
// cannot be.
INGOT_API LinearGain expected_gain(const LinearConfig& config, const LinearSize& size, const GainGpu& gpu);

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
