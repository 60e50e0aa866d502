#include "ingot/nn/planning/step_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "ingot/nn/planning/conversion.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// A large copy, read and written: the rates of bench/results/linear_h200.json and linear_h100.json. Memory: as sold.
struct MeasuredGpu {
  std::string_view name;
  double copy_bytes_per_ms;
  double memory_bytes;
};
constexpr std::array kMeasuredGpus{MeasuredGpu{"h200", 4.264e9, 141e9}, MeasuredGpu{"h100", 3.009e9, 80e9}};

// Layers of bench/results/linear_h200.json take this many times as long as the estimates of their GEMMs, in 16 bits and
// in FP8 (1.15 to 1.36): a GPU that works for long has a lower clock.
constexpr double kLongerInLayers = 1.258;
// Fitted to steps in bf16, of one H100 and of four H200, in bench/results/several_gpus.json.
constexpr double kAttentionPerMs = 250e9;
constexpr double kSlowedByCollectives = 0.2;

// The host's part of a step of FSDP2 for each weight of a layer: the hooks of its gathers and of its reduction and its
// share of the calls of a compiled layer, then what layers in FP8 and gathers of codes add. Of
// bench/results/fsdp_two_h200.json, whose processor changed its speed by a fifth between turns.
constexpr double kHostOfWeightMs = 1.30;
constexpr double kHostOfCastsMs = 0.19;
constexpr double kHostOfCodesMs = 0.31;

// Bytes that are moved for each element, counted in the kernels of compiled layers:
constexpr double kNormBytes = 32;        // two norms with their residual sums, 8 each in forward and in backward
constexpr double kRotationBytes = 8;     // queries and keys
constexpr double kGatedBytes = 16;       // silu(gate) * up: 6 in forward, 10 in backward
constexpr double kActivationBytes = 10;  // 4 and 6
constexpr double kLossBytes = 36;        // logits: f32 of them, log-softmax and its backward, from eager
constexpr double kAdamBytes = 7;         // for each byte of a parameter: it, its gradient, two moments; three written
constexpr double kGradientBytes = 4;     // f32

constexpr std::int64_t kBlockRows = 128;

// What a recipe sends (docs/distributed.md).
struct Wire {
  std::string_view recipe;
  bool alternates = false;    // are forward's codes and backward's different ones?
  bool rows = false;          // a scale_inv for each row, which ranks gather in each step
  bool blocks = false;        // for each block
  int maxima = 0;             // reduced for each weight: none, one, or (2) one for each column
  bool of_all_parts = false;  // the maximum is that of the whole weight where tensor parallelism has split it, too
  double input_bytes = 2;     // for each element that a column-parallel layer gathers in forward
  double input_scales = 0;    // and for each token
  double grad_bytes = 2;      // for each element that a row-parallel layer gathers in backward
  int tensor_maxima = 0;      // all-reduces of one maximum, in a pair of layers that ranks divide
};
constexpr std::array kWires{
    Wire{.recipe = "high_precision"},
    Wire{.recipe = "tensorwise",
         .maxima = 1,
         .of_all_parts = true,
         .input_bytes = 1,
         .grad_bytes = 1,
         .tensor_maxima = 4},
    Wire{.recipe = "delayed", .maxima = 1, .of_all_parts = true, .input_bytes = 1, .grad_bytes = 1},
    Wire{.recipe = "rowwise", .alternates = true, .rows = true, .maxima = 2},
    Wire{.recipe = "rowwise_folded", .rows = true, .input_bytes = 1, .input_scales = 4},
    Wire{.recipe = "rowwise_with_gw_hp", .alternates = true, .rows = true, .maxima = 1},
    Wire{.recipe = "blockwise", .blocks = true}};

template <class Row>
const Row& row_named(const auto& table, std::string_view Row::*name, std::string_view wanted, const char* subject) {
  std::string names;
  for (const Row& row : table) {
    if (row.*name == wanted) return row;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.*name);
  }
  throw Error(ErrorCode::invalid_argument, subject, fmt::format("\"{}\" must be one of {}", wanted, names));
}

const Wire& wire_of(std::string_view recipe) { return row_named(kWires, &Wire::recipe, recipe, "recipe"); }

std::int64_t part_of(std::int64_t count, std::int64_t ranks) { return (count + ranks - 1) / ranks; }
double number(std::int64_t value) { return static_cast<double>(value); }

// Of the rows that a rank has, in f32: what it gives to the gather of all scale_inv.
double scale_inv_bytes(const Wire& wire, std::int64_t rows, std::int64_t columns) {
  if (wire.rows) return 4 * number(rows);
  return wire.blocks ? 4 * number(part_of(rows, kBlockRows)) * number(part_of(columns, kBlockRows)) : 0;
}

bool cuts_blocks(const Wire& wire, std::int64_t rows, std::int64_t ranks) {
  return wire.blocks && (rows % ranks != 0 || rows / ranks % kBlockRows != 0);
}

// ---- the estimate, part by part -------------------------------------------------------------------------------------

class Estimator {
 public:
  explicit Estimator(const StepRequest& request)
      : of_(request),
        model_(request.model),
        wire_(wire_of(request.recipe)),
        config_(recipe(request.recipe)),
        copy_per_ms_(row_named(kMeasuredGpus, &MeasuredGpu::name, request.gpu, "gpu").copy_bytes_per_ms),
        tensor_(request.mesh.tensor),
        shards_(request.mesh.shards) {}

  StepEstimate estimate() {
    for (const BlockLinear& linear : block_linears(model_)) add_linear(linear);
    add_rest_of_layer();
    add_outer();
    add_collectives();
    add_scales();
    add_tensor_collectives();
    step_.memory_bytes = memory();
    step_.gpu_bytes = row_named(kMeasuredGpus, &MeasuredGpu::name, of_.gpu, "gpu").memory_bytes;
    step_.binds = binds();
    return std::move(step_);
  }

 private:
  // Time and bytes of a layer, or of what is outside of all layers: the embedding, the last norm and the head.
  struct Unit {
    double gemms_ms = 0;
    double casts_ms = 0;
    double attention_ms = 0;
    double other_ms = 0;
    double gathered = 0;    // bytes that each rank gives to a gather
    double parameters = 0;  // of each rank's shard
    double all_ms() const { return gemms_ms + casts_ms + attention_ms + other_ms; }
  };

  double moved_ms(double bytes) const { return bytes / copy_per_ms_; }
  double tokens() const { return number(of_.tokens); }
  bool is_float8() const { return of_.recipe != "high_precision"; }

  // The reason why FSDP2 gathers a weight of this many rows in 16 bits. It is empty where FSDP2 gathers codes.
  std::string why_16_bits(std::int64_t rows) const {
    if (cuts_blocks(wire_, rows, shards_)) {
      return fmt::format("{} rows over {} ranks are no multiple of {}", rows, shards_, kBlockRows);
    }
    return {};
  }

  void add_linear(const BlockLinear& linear) {
    const std::int64_t rows = linear.splits_rows ? linear.out_features / tensor_ : linear.out_features;
    const std::int64_t columns = linear.splits_rows ? linear.in_features : linear.in_features / tensor_;
    const double elements = number(rows) * number(columns);
    // Casts are slower where a copy is.
    const double casts_per_us = kMeasuredGpus.front().copy_bytes_per_ms / copy_per_ms_ / 1e3;
    const LinearGain gain = expected_gain(config_, {of_.tokens, columns, rows}, gain_gpu(gpu_named(of_.gpu)));
    layer_.gemms_ms += kLongerInLayers * (gain.us - gain.casts_us) / 1e3;
    layer_.casts_ms += (gain.casts_us - gain.weight_casts_us) * casts_per_us;

    bool float8 = of_.float8_gather && is_float8() && shards_ > 1;
    const std::string why = float8 ? why_16_bits(rows) : "";
    if (!why.empty()) {
      float8 = false;
      std::string& names = in_16_bits_[why];
      names += fmt::format("{}{}", names.empty() ? "" : ", ", linear.name);
    }
    // Of codes that are gathered, each rank casts its part for each gather, and backward transposes them all. Other
    // weights are cast in forward and again in backward, which reads 2 bytes and writes 1.
    if (is_float8()) {
      const double parts = float8 ? number(shards_) : 1;
      const double again = float8 && !wire_.alternates ? (of_.parameter_bytes + 1) * elements / parts : 0;
      layer_.casts_ms += gain.weight_casts_us * casts_per_us / parts + moved_ms((float8 ? 2 : 3) * elements + again);
    }
    if (shards_ > 1) {
      const double weight = kHostOfWeightMs + (is_float8() ? kHostOfCastsMs : 0) + (float8 ? kHostOfCodesMs : 0);
      step_.host_ms += number(model_.layers) * weight;
    }
    if (float8) {
      maxima_ += wire_.maxima == 2 ? number(columns) : wire_.maxima;
      scale_inv_bytes_ += scale_inv_bytes(wire_, part_of(rows, shards_), columns);
    }
    layer_.gathered += gathered_bytes(of_.recipe, rows, columns, shards_, float8);
    layer_.parameters += number(part_of(rows, shards_)) * number(columns);
  }

  void add_rest_of_layer() {
    const double width = number(model_.heads * model_.head_size) / number(tensor_);
    const double keys = number(model_.key_value_heads * model_.head_size) / number(tensor_);
    layer_.attention_ms = 7 * tokens() * number(of_.attended()) * width / kAttentionPerMs;
    const double activation = model_.gated ? kGatedBytes : kActivationBytes;
    layer_.other_ms +=
        moved_ms(tokens() / number(tensor_) *
                     (norms() / 2 * kNormBytes * number(model_.hidden) + activation * number(model_.intermediate)) +
                 tokens() * kRotationBytes * (width + keys));
    add_norms(layer_, norms());
    add_copies(layer_, 2);
  }

  void add_outer() {
    if (model_.vocabulary > 0) {
      const std::int64_t rows = part_of(model_.vocabulary, tensor_);
      const LinearGain head = expected_gain({}, {of_.tokens, model_.hidden, rows}, gain_gpu(gpu_named(of_.gpu)));
      outer_.gemms_ms = kLongerInLayers * head.high_precision_us / 1e3;
      outer_.other_ms += moved_ms(kLossBytes * tokens() * number(rows));
      outer_.parameters = (model_.tied ? 1 : 2) * number(part_of(rows, shards_)) * number(model_.hidden);
      outer_.gathered = 2 * outer_.parameters;
      add_norms(outer_, 1);
      add_copies(outer_, 1);
    }
    const auto layers = number(model_.layers);
    step_.gemms_ms = layers * layer_.gemms_ms + outer_.gemms_ms;
    step_.casts_ms = layers * layer_.casts_ms;
    step_.attention_ms = layers * layer_.attention_ms;
    step_.other_ms = layers * layer_.other_ms + outer_.other_ms;
    if (of_.optimizer) step_.other_ms += moved_ms(kAdamBytes * of_.parameter_bytes * parameters());
    for (const auto& [why, names] : in_16_bits_) {
      step_.note += fmt::format("{}{}, because {}", step_.note.empty() ? "gathered in 16 bits: " : "; ", names, why);
    }
  }

  void add_norms(Unit& unit, double norms) const {
    const double elements = norms * number(part_of(model_.hidden, shards_));
    unit.parameters += elements;
    unit.gathered += 2 * elements;
  }

  // A gather reads the parameters, writes what it sends, and copies what it got to where layers read it; gradients are
  // copied from 16 bits into f32 that are sent.
  void add_copies(Unit& unit, double gathers) const {
    if (shards_ == 1) return;
    const double read = number(of_.parameter_bytes) * unit.parameters;
    unit.other_ms += moved_ms(gathers * (read + unit.gathered + 2 * unit.gathered * number(shards_)) +
                              (2 + kGradientBytes) * unit.parameters * number(shards_));
  }

  double norms() const { return model_.heads > 0 ? 2 : 1; }
  double parameters() const { return number(model_.layers) * layer_.parameters + outer_.parameters; }

  void add_collectives() {
    const RankGroup shards = shard_group(of_.mesh);
    const RankGroup replicas = replica_group(of_.mesh);
    const auto n = number(shards_);
    const auto layers = number(model_.layers);
    const auto gather = [&](const Unit& unit) { return gather_ms(shards, of_.links, n * unit.gathered); };
    const auto reduce = [&](const Unit& unit) {
      return gather_ms(shards, of_.links, n * kGradientBytes * unit.parameters) +
             all_reduce_ms(replicas, of_.links, kGradientBytes * unit.parameters);
    };
    const double outer_gather = outer_.parameters > 0 ? gather(outer_) : 0;
    const double outer_reduce = outer_.parameters > 0 ? reduce(outer_) : 0;
    const double g = gather(layer_);
    const double r = reduce(layer_);
    const auto beyond = [](double busy, double computes) { return std::max(0.0, busy - computes); };
    const double forward = layer_.all_ms() / 3;
    const double backward = layer_.all_ms() - forward;
    step_.weights_ms = 2 * layers * g + outer_gather;
    step_.gradients_ms = layers * r + outer_reduce;
    // The first layer of forward has none in front of it; the last one's gather in backward runs during the head's.
    step_.exposed_ms = outer_gather + g + (layers - 1) * beyond(g, forward) + beyond(g, outer_.all_ms() * 2 / 3);
    if (layers > 1) {
      step_.exposed_ms += beyond(g, backward) + (layers - 2) * beyond(g + r, backward) + beyond(r, backward);
    }
    step_.exposed_ms += r + outer_reduce;
    step_.hidden_ms = std::max(0.0, step_.weights_ms + step_.gradients_ms - step_.exposed_ms);
    step_.slowed_ms = kSlowedByCollectives * step_.hidden_ms;
    const auto copies = number(of_.mesh.replicas);
    step_.sent.weights = (n - 1) * (2 * layers * layer_.gathered + outer_.gathered);
    step_.sent.gradients = kGradientBytes * parameters() * ((n - 1) + 2 * (copies - 1) / copies);
  }

  // Of codes that are gathered, after the optimizer: one all-reduce of maxima over each group, and one gather.
  void add_scales() {
    const RankGroup shards = shard_group(of_.mesh);
    const auto layers = number(model_.layers);
    const auto add = [&](double ms) {
      step_.weights_ms += ms;
      step_.exposed_ms += ms;
    };
    const auto reduce = [&](const RankGroup& group) {
      const double bytes = 4 * layers * maxima_;
      step_.sent.maxima += 2 * (number(group.ranks) - 1) / number(group.ranks) * bytes;
      add(all_reduce_ms(group, of_.links, bytes));
    };
    if (maxima_ > 0) {
      reduce(shards);
      if (wire_.of_all_parts && tensor_ > 1) reduce(tensor_group(of_.mesh));
    }
    if (scale_inv_bytes_ > 0) {
      const double bytes = layers * scale_inv_bytes_;
      step_.sent.weights += (number(shards_) - 1) * bytes;
      add(gather_ms(shards, of_.links, number(shards_) * bytes));
    }
  }

  // A pair of layers, the first divided by its rows and the second by its columns, gathers the input and scatters the
  // sums of the output, and in backward gathers grad_output and scatters the sums of grad_input.
  void add_tensor_collectives() {
    const RankGroup group = tensor_group(of_.mesh);
    if (group.ranks == 1) return;
    const double share = (number(tensor_) - 1) / number(tensor_);
    const double values = tokens() * number(model_.hidden);
    const auto add = [&](double times, double bytes) {
      step_.tensor_ms += times * gather_ms(group, of_.links, bytes);
      step_.sent.tensor += times * share * bytes;
    };
    const double pairs = number(model_.layers) * norms();
    add(pairs, wire_.input_bytes * values + wire_.input_scales * tokens());
    add(pairs, wire_.grad_bytes * values);
    add(2 * pairs, 2 * values);
    if (model_.vocabulary > 0) add(4, 2 * values);  // the embedding and the head
    step_.tensor_ms += pairs * wire_.tensor_maxima * all_reduce_ms(group, of_.links, 4);
    step_.sent.maxima += pairs * wire_.tensor_maxima * 2 * share * 4;
  }

  // What backward keeps of a layer: the residual stream before each norm, the inputs of all linear layers (16-bit ones
  // are shared, codes are not), queries, keys, values, attention's output, gate and up.
  double kept() const {
    const bool codes = is_float8() && of_.recipe != "rowwise_with_gw_hp";
    const double t = number(tensor_);
    const double width = number(model_.heads * model_.head_size) / t;
    const double keys = number(model_.key_value_heads * model_.head_size) / t;
    const double inputs = codes ? (model_.gated ? 2 : 1) + (model_.heads > 0 ? 3 : 0) : 2 * norms();
    const double hidden = number(model_.intermediate) / t;
    return tokens() * (number(model_.hidden) * (2 * norms() / t + inputs) + 4 * (width + keys) + (codes ? width : 0) +
                       hidden * ((codes ? 1 : 2) + (model_.gated ? 4 : 2)));
  }

  double memory() const {
    const auto n = number(shards_);
    const double logits = 10 * tokens() * number(part_of(model_.vocabulary, tensor_));
    const double gathered = shards_ > 1 ? n * (outer_.gathered + 2 * layer_.gathered) : 0;
    const double reduced = shards_ > 1 ? 6 * n * layer_.parameters : 0;  // in 16 bits and f32
    const double states = 3 * of_.parameter_bytes * parameters();
    const double gradients = of_.parameter_bytes * parameters();
    return states + gathered + std::max(number(model_.layers) * kept() + logits, gradients + reduced);
  }

  std::string binds() const {
    if (step_.waits_for_host()) return "the host";
    const auto where = [](const RankGroup& group) { return group.crosses() ? "between nodes" : "within a node"; };
    const RankGroup replicas = replica_group(of_.mesh);
    const std::array parts{
        std::pair{step_.gemms_ms, std::string("GEMMs")},
        std::pair{step_.casts_ms, std::string("casts")},
        std::pair{step_.attention_ms, std::string("attention")},
        std::pair{step_.other_ms, std::string("norms, activations, loss, optimizer")},
        std::pair{step_.exposed_ms + step_.slowed_ms,
                  fmt::format("FSDP's collectives {}", where(replicas.ranks > 1 ? replicas : shard_group(of_.mesh)))},
        std::pair{step_.tensor_ms, fmt::format("tensor parallelism's collectives {}", where(tensor_group(of_.mesh)))}};
    return std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; })->second;
  }

  const StepRequest& of_;
  const ModelShape& model_;
  const Wire& wire_;
  LinearConfig config_;
  double copy_per_ms_;
  std::int64_t tensor_;
  std::int64_t shards_;
  Unit layer_;
  Unit outer_;
  double maxima_ = 0;  // of a layer
  double scale_inv_bytes_ = 0;
  std::map<std::string, std::string> in_16_bits_;  // why: the names of the weights
  StepEstimate step_;
};

[[noreturn]] void refuse_step(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

void check(const StepRequest& request) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check_mesh(request.mesh, request.links);
  for (const auto& [name, value] : {std::pair{"tokens", request.tokens}, {"sequence", request.sequence}}) {
    if (value >= 1 && value <= kMost) continue;
    refuse_step(name, fmt::format("is {}, but must be a whole number from 1 to {}", value, kMost));
  }
  if (request.parameter_bytes != 2 && request.parameter_bytes != 4) {
    refuse_step("parameter_bytes", fmt::format("is {}, but must be 2 or 4", request.parameter_bytes));
  }
  const ModelShape& model = request.model;
  if (model.layers < 1) refuse_step("model layers", fmt::format("is {}, but must be 1 or more", model.layers));
  for (const auto& [name, value] : {std::pair{"num_attention_heads", model.heads},
                                    {"num_key_value_heads", model.key_value_heads},
                                    {"intermediate_size", model.intermediate},
                                    {"the tokens", request.tokens}}) {
    if (value % request.mesh.tensor == 0) continue;
    refuse_step("mesh tp", fmt::format("is {}, which does not divide {}, {}", request.mesh.tensor, name, value));
  }
}

}  // namespace

double gathered_bytes(std::string_view recipe, std::int64_t rows, std::int64_t columns, std::int64_t ranks,
                      bool float8) {
  const Wire& wire = wire_of(recipe);
  if (ranks < 1) refuse_step("ranks", fmt::format("is {}, but must be 1 or more", ranks));
  const std::int64_t own = part_of(rows, ranks);
  const double elements = number(own) * number(columns);
  if (!float8 || recipe == "high_precision" || cuts_blocks(wire, rows, ranks)) return 2 * elements;
  return elements;
}

StepEstimate step_estimate(const StepRequest& request) {
  check(request);
  return Estimator(request).estimate();
}

}  // namespace ingot
