#include "tune/tune_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/nn/planning/known_models.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/util/error.h"

namespace ingot::tools {
namespace {

[[noreturn]] void refuse(const char* option, std::string_view value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, option, fmt::format("\"{}\" must be {}", value, allowed));
}

constexpr std::int64_t kMostOfASize = (std::int64_t{1} << 31) - 1;

LinearSize parse_mnk(const std::string& text) {
  std::array<std::int64_t, 3> sizes{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [stop, error] = std::from_chars(at, end, sizes[i]);
    const bool divided = i + 1 < sizes.size() ? stop != end && *stop == ',' : stop == end;
    if (error != std::errc{} || !divided || sizes[i] <= 0 || sizes[i] > kMostOfASize) {
      refuse("--mnk", text, "three sizes from 1 to 2147483647, such as 16384,8192,7168");
    }
    at = stop == end ? end : stop + 1;
  }
  return {.tokens = sizes[0], .in_features = sizes[2], .out_features = sizes[1]};
}

constexpr const char* kTokens = "a whole number from 1 to 2147483647";
constexpr const char* kBaseline = "in 16 bits";

// The same matmul in bf16, or in f16 if the activations are f16.
MatmulCall in_16_bits(const MatmulCall& call) {
  const bool bias = std::visit([](const auto& spec) { return spec.bias; }, call.spec);
  const auto* const dequant = std::get_if<DequantMatmulSpec>(&call.spec);
  const Dtype dtype = dequant != nullptr ? dequant->x : Dtype::bf16;
  return {.spec = GemmSpec{.a = dtype, .b = dtype, .out = dtype, .bias = bias}, .size = call.size};
}

// Are its operands 16 or 32 bits wide?
bool in_high_precision(const MatmulSpec& matmul) {
  const auto* const gemm = std::get_if<GemmSpec>(&matmul);
  return gemm != nullptr && !is_fp8(gemm->a);
}

Dtype parse_weight(const std::string& text) {
  const auto dtype = parse_dtype(text);
  if (!dtype || std::ranges::find(kWeightDtypes, *dtype) == kWeightDtypes.end()) {
    std::string allowed;
    for (const Dtype weight : kWeightDtypes) allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", name(weight));
    refuse("--weight-only", text, "one of " + allowed);
  }
  return *dtype;
}

// With the scale_inv that WeightOnlyLinear::quantize() makes by default, unless the request names others.
DequantMatmulSpec weight_only_spec(const TuneRequest& request) {
  constexpr std::string_view kMx = "mx";
  DequantMatmulSpec spec{.weight = parse_weight(request.weight_only)};
  if (request.activations == "f16") {
    spec.x = spec.out = Dtype::f16;
    spec.layout = WeightLayout::packed_f16;
  } else if (!request.activations.empty() && request.activations != "bf16") {
    refuse("--activations", request.activations, "bf16 or f16");
  }
  std::string_view scale = request.weight_scale;
  if (scale.empty()) scale = is_fp8(spec.weight) ? "row" : kMx;
  if (scale == kMx) {
    spec.scale = kRowGroups32;
    spec.scale_inv = Dtype::e8m0fnu;
    return spec;
  }
  std::string allowed;
  for (const ScaleGranularity known : kDequantGranularities) {
    if (print(known) == scale) {
      spec.scale = known;
      return spec;
    }
    allowed += print(known) + ", ";
  }
  refuse("--weight-scale", scale, fmt::format("one of {}{}", allowed, kMx));
}

class Plan {
 public:
  explicit Plan(const TuneRequest& request) {
    const std::string& recipe = request.recipe;
    if (!request.weight_only.empty()) {
      if (!recipe.empty()) refuse("--recipe", recipe, "left out with --weight-only, which has none");
      weight_ = weight_only_spec(request);
      return;
    }
    if (!request.weight_scale.empty()) {
      refuse("--weight-scale", request.weight_scale, "left out without --weight-only, whose scales it names");
    }
    if (!request.activations.empty()) {
      refuse("--activations", request.activations, "left out without --weight-only, whose activations it names");
    }
    for (const Recipe& known : recipes()) {
      if (recipe.empty() || known.name == recipe) recipes_.push_back(known);
    }
    if (recipes_.empty()) refuse("--recipe", recipe, "one of " + recipe_names());
  }

  // bias: of the output.
  void add_layer(const std::string& name, const LinearSize& size, bool bias = false) {
    if (weight_) {
      DequantMatmulSpec spec = *weight_;
      spec.bias = bias;
      const MatmulCall call{.spec = spec, .size = {.m = size.tokens, .n = size.out_features, .k = size.in_features}};
      add({.label = fmt::format("{}{}weight-only", name, name.empty() ? "" : ", "),
           .call = call,
           .bf16 = in_16_bits(call)});
      return;
    }
    const auto gemms_of = [&](const LinearConfig& config) {
      std::array<LinearGemm, 3> gemms = linear_gemms(config, size, Dtype::bf16);
      gemms[0].call.spec.bias = bias;
      return gemms;
    };
    const auto baselines = gemms_of(high_precision());
    for (const Recipe& recipe : recipes_) {
      const auto gemms = gemms_of(recipe.config);
      for (std::size_t i = 0; i < gemms.size(); ++i) {
        add({.label = fmt::format("{}{}{}, {}", name, name.empty() ? "" : " ", gemms[i].role, recipe.name),
             .call = {.spec = gemms[i].call.spec, .size = gemms[i].call.size},
             .bf16 = MatmulCall{.spec = baselines[i].call.spec, .size = baselines[i].call.size}});
      }
    }
  }

  void add_call(const MatmulCall& call) { add({.label = "", .call = call, .bf16 = in_16_bits(call)}); }

  std::vector<PlannedGemm> take() {
    std::stable_partition(planned_.begin(), planned_.end(), [](const PlannedGemm& gemm) { return !gemm.bf16; });
    return std::move(planned_);
  }

 private:
  void add(PlannedGemm gemm) {
    if (in_high_precision(gemm.call.spec)) gemm.bf16.reset();
    if (gemm.bf16) add({.label = kBaseline, .call = *gemm.bf16, .bf16 = {}});
    const auto [there, is_new] = places_.emplace(gemm.call, planned_.size());
    if (is_new) {
      planned_.push_back(std::move(gemm));
    } else if (PlannedGemm& known = planned_[there->second]; known.label == kBaseline) {
      known.label = gemm.label;
    }
  }

  struct Hash {
    std::size_t operator()(const MatmulCall& call) const { return hash_value(call); }
  };

  std::vector<Recipe> recipes_;
  std::optional<DequantMatmulSpec> weight_;
  std::vector<PlannedGemm> planned_;
  std::unordered_map<MatmulCall, std::size_t, Hash> places_;  // in `planned_`: a recording may have many
};

}  // namespace

std::vector<PlannedGemm> plan(const TuneRequest& request) {
  if (request.tokens && request.set.empty()) {
    refuse("--tokens", std::to_string(*request.tokens),
           "left out without --set, whose tokens it gives; --mnk and a recording have their own");
  }
  Plan made(request);
  for (const std::string& mnk : request.mnk) made.add_layer("", parse_mnk(mnk));
  if (!request.set.empty()) {
    const KnownModel& model = known_model(request.set, "--set");
    const std::int64_t tokens = request.tokens.value_or(request.weight_only.empty() ? 8192 : 16);
    if (tokens <= 0 || tokens > kMostOfASize) refuse("--tokens", std::to_string(tokens), kTokens);
    for (const ModelLayer& layer : layers_of(model)) {
      made.add_layer(layer.name, {tokens, layer.in_features, layer.out_features}, layer.bias);
    }
  }
  if (!request.recording.empty()) {
    const RecordingFile read = read_recording(request.recording);
    if (read.damaged > 0) request.warn(read.problem);
    for (const MatmulCall& call : read.recording.matmuls()) {
      if (is_tuned(call.spec)) made.add_call(call);
    }
  }
  return made.take();
}

std::optional<std::int64_t> parse_tokens(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::int64_t tokens = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, tokens);
  if (error != std::errc{} || stop != end) refuse("--tokens", text, kTokens);
  return tokens;
}

double parse_seconds(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
  const double seconds = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc{} || seconds == 0 || !(value > 0) || value > 1e6) {
    refuse("--budget", text, "a time such as 60s, 5m or 1.5h");
  }
  return value * seconds;
}

}  // namespace ingot::tools
