// convert(): which layers of a described model become FP8, the reasons where they do not, and invalid descriptions;
// what expected_gain() promises, and what it does not.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ingot/nn/planning/conversion.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_conversion)

using namespace ingot;

namespace {

ModuleDescription linear(const char* name, std::int64_t in, std::int64_t out) { return {name, LinearShape{in, out}}; }

using Modules = std::vector<ModuleDescription>;

// Two blocks and the head of Llama-3-8B.
ModuleDescription llama() {
  const auto block = [](const char* name) {
    return ModuleDescription(name, Modules{{"attention", Modules{linear("wqkv", 4096, 6144), linear("wo", 4096, 4096)}},
                                           {"mlp", Modules{linear("w13", 4096, 28672), linear("w2", 14336, 4096)}}});
  };
  return {"", Modules{{"layers", Modules{block("0"), block("1")}}, linear("output", 4096, 128256)}};
}

GainGpu h200() { return gain_gpu(gpu_named("h200")); }

std::string refusal(test::FunctionRef<void()> act) { return test::error_of(act, ErrorCode::invalid_argument); }

}  // namespace

BOOST_AUTO_TEST_CASE(names_come_from_the_root) {
  std::vector<std::string> names;
  for (const LinearLayer& layer : linear_layers(llama())) names.push_back(layer.name);
  BOOST_TEST_CHECK(
      names == (std::vector<std::string>{"layers.0.attention.wqkv", "layers.0.attention.wo", "layers.0.mlp.w13",
                                         "layers.0.mlp.w2", "layers.1.attention.wqkv", "layers.1.attention.wo",
                                         "layers.1.mlp.w13", "layers.1.mlp.w2", "output"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_filter_leaves_layers_out_with_a_reason) {
  const auto decisions = convert(llama(), rowwise(), {.filter = not_named("output")});
  for (const LayerDecision& d : decisions) {
    const bool head = d.layer.name == "output";
    BOOST_TEST((d.config == (head ? high_precision() : rowwise())), d.layer.name);
    BOOST_TEST(d.reason == (head ? "the filter leaves it out" : ""));
    BOOST_TEST(!d.gain.has_value());
  }
  const auto by_name = convert(llama(), rowwise(), {.filter = not_named("w2")});
  BOOST_TEST(by_name[3].reason == "the filter leaves it out");
  BOOST_TEST(by_name[2].reason == "");
  const auto by_size = convert(llama(), rowwise(), {.filter = at_least(4097)});
  for (const LayerDecision& d : by_size) BOOST_TEST(d.reason == "the filter leaves it out");
}

BOOST_AUTO_TEST_CASE(layers_that_gain_nothing_stay_in_high_precision) {
  const ModuleDescription model("", Modules{linear("large", 8192, 8192), linear("small", 256, 256)});
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "high_precision") continue;
    const auto decisions = convert(model, recipe.config, {.tokens = 8192, .gpu = h200()});
    BOOST_TEST(decisions[0].reason == "", recipe.name);
    BOOST_TEST(decisions[0].gain->gain() > 1.1, recipe.name);
    BOOST_TEST(decisions[0].gain->gain() < 2.1, recipe.name);
    BOOST_TEST((decisions[1].config == high_precision()), recipe.name);
    BOOST_TEST(decisions[1].reason.starts_with("expected to be 0."), decisions[1].reason);
    BOOST_TEST(decisions[1].reason.ends_with(" times as fast, but 1.05 is required"));
  }
  // The requested gain decides.
  BOOST_TEST(convert(model, rowwise(), {.tokens = 8192, .least_gain = 0, .gpu = h200()})[1].reason == "");
}

BOOST_AUTO_TEST_CASE(the_table_says_why) {
  const ModuleDescription model("", Modules{linear("wq", 4096, 4096), linear("head", 4096, 128)});
  BOOST_TEST(print(std::span<const LayerDecision>(convert(model, tensorwise(), {.filter = not_named("head")}))) ==
             "layer        in -> out       gain  \n"
             "wq         4096 -> 4096         -  i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output\n"
             "head       4096 -> 128          -  high precision: the filter leaves it out\n");
}

BOOST_AUTO_TEST_CASE(a_description_that_cannot_be_is_refused) {
  BOOST_TEST(refusal([] { linear_layers(linear("", 1, 1)); }) ==
             "model description: has a linear layer without a name");
  BOOST_TEST(refusal([] {
               linear_layers({"", Modules{linear("", 1, 1)}});
             }) == "model description: has a child without a name");
  BOOST_TEST(refusal([] {
               linear_layers({"", Modules{linear("a", 1, 1), linear("a", 2, 2)}});
             }) == "a: is the name of two layers");
  BOOST_TEST(refusal([] {
               linear_layers({"", Modules{linear("a", -1, 1)}});
             }) == "a: has -1 to 1 features, but they must be 0 or more");
  BOOST_TEST(refusal([] { convert(llama(), rowwise(), {.tokens = -1}); }) ==
             "conversion tokens: is -1, but must be 0 or more");
  BOOST_TEST(refusal([] { convert(llama(), rowwise(), {.least_gain = std::nan("")}); }) ==
             "conversion least_gain: is nan, but must be a number");
  BOOST_TEST(
      refusal([] { convert(linear("a", 4096, 4096), rowwise(), {.tokens = std::int64_t{1} << 62, .gpu = h200()}); }) ==
      "expected_gain: the layer has 4611686018427387904 tokens, 4096 inputs and 4096 outputs; each must be from "
      "0 to 281474976710656 (2^48)");
  BOOST_TEST(refusal([] { convert(llama(), rowwise(), {.tokens = 1}); }) ==
             "expected_gain: the GPU has 0 multiprocessors, but must have 1 or more: name a known one "
             "(gain_gpu(gpu_named(\"h200\"))) or the one at hand (gain_gpu(context.tuning_machine()))");
  BOOST_TEST(convert(llama(), rowwise()).size() == 9U);  // without tokens no GPU is needed
}

// ---- What is promised -----------------------------------------------------------------------------------------------

// On an H200 the estimate is near what bench_linear measured there.
BOOST_AUTO_TEST_CASE(the_gain_on_an_h200_is_near_what_was_measured) {
  nlohmann::json found;
  std::ifstream(std::filesystem::path(INGOT_SOURCE_DIR) / "bench/results/linear_h200.json") >> found;
  int compared = 0;
  for (const auto& layer : found.at("cases")) {
    if (layer.at("work") != "linear") continue;
    const LinearSize size{layer.at("tokens"), layer.at("in_features"), layer.at("out_features")};
    for (const auto& run : layer.at("recipes")) {
      const std::string name = run.at("recipe");
      if (run.at("side_stream") || name == "high_precision" || name == "rowwise_again") continue;
      const double measured = run.at("over_bf16");
      const LinearGain gain = expected_gain(recipe(name), size, h200());
      BOOST_TEST_CONTEXT(layer.at("case") << " " << name << ": expected " << gain.gain() << ", measured " << measured) {
        BOOST_TEST(ingot::name(gain.basis) == "measured");
        BOOST_TEST(gain.note == "");
        if (size.tokens < 2048) {
          BOOST_TEST(gain.gain() < 1.0);
          BOOST_TEST(measured < 1.0);
        } else {
          BOOST_TEST(std::abs(gain.gain() / measured - 1) < 0.10);
        }
        ++compared;
      }
    }
  }
  BOOST_TEST(compared >= 80);
}

BOOST_AUTO_TEST_CASE(beside_what_was_measured_a_gain_is_extrapolated_and_says_so) {
  const LinearSize size{8192, 4096, 4096};
  const auto check = [](const LinearConfig& config, const LinearSize& of, const GainGpu& gpu, const std::string& note) {
    const LinearGain gain = expected_gain(config, of, gpu);
    BOOST_TEST(name(gain.basis) == "extrapolated");
    BOOST_TEST(gain.note == note);
    BOOST_TEST(gain.is_known());
    return gain.gain();
  };
  check(rowwise(), {100, 4096, 4096}, h200(), "tokens of 100 are outside the measured 256 to 16384");
  check(rowwise(), {8192, 32768, 4096}, h200(), "inputs of 32768 are outside the measured 256 to 16384");
  check(rowwise(), {8192, 4096, 128256}, h200(), "outputs of 128256 are outside the measured 256 to 28672");
  check(rowwise(), size, gain_gpu(gpu_named("h100")),
        "measured on an H200 only, not on NVIDIA H100 80GB HBM3 with 132 multiprocessors");
  check(rowwise(), size, {.target = target_for(9, 0), .multiprocessors = 60},
        "measured on an H200 only, not on this GPU with 60 multiprocessors");
  // gemm_mma multiplies AMD's formats, at a sixth of the rate of gemm_sm90.
  LinearConfig fnuz = tensorwise();
  for (GemmConfig* gemm : {&fnuz.output, &fnuz.grad_input, &fnuz.grad_weight}) {
    gemm->a->dtype = gemm->a->dtype == Dtype::e4m3fn ? Dtype::e4m3fnuz : Dtype::e5m2fnuz;
    gemm->b->dtype = Dtype::e4m3fnuz;
    gemm->fast_accumulation = false;
  }
  BOOST_TEST(check(fnuz, size, h200(), "formats were measured as OCP's (e4m3fn, e5m2) only") < 0.5);

  const auto decisions = convert(linear("head", 4096, 128256), rowwise(), {.tokens = 8192, .gpu = h200()});
  BOOST_TEST(decisions[0].reason == "");
  BOOST_TEST(print(std::span<const LayerDecision>(decisions)).find(" ~1.") != std::string::npos);
}

// An Ada or Blackwell GPU, where nothing was measured: gemm_mma gives nothing over 16 bits, and what cuBLASLt gives is
// not known.
BOOST_AUTO_TEST_CASE(a_gpu_without_measurements_promises_nothing) {
  const ModuleDescription model = linear("w", 8192, 8192);
  for (const char* gpu : {"a100", "l4", "l40s", "rtx4090", "b200", "rtx5090", "rtx-pro-6000"}) {
    const GainGpu at = gain_gpu(gpu_named(gpu));
    const std::string target = ingot::print(at.target);
    for (const Recipe& recipe : recipes()) {
      if (recipe.name == "high_precision") continue;
      BOOST_TEST_CONTEXT(gpu << " " << recipe.name) {
        const bool by_cublaslt = target != "sm_80" && (recipe.name == "tensorwise" || recipe.name == "delayed");
        const LayerDecision decision = convert(model, recipe.config, {.tokens = 8192, .gpu = at})[0];
        BOOST_TEST((decision.config == high_precision()));
        BOOST_TEST(!decision.gain->is_known());
        BOOST_TEST(decision.gain->gain() == 1.0);
        BOOST_TEST(name(decision.gain->basis) == (by_cublaslt ? "unknown" : "bound"));
        BOOST_TEST(decision.reason ==
                   (by_cublaslt ? "nothing was measured on " + target +
                                      ": time a step of the layer there, in FP8 and in 16 bits"
                                : "on " + target +
                                      " gemm_mma multiplies this recipe's FP8 in 16 bits: it is no faster than 16 "
                                      "bits"));
        const std::string table = print(std::span<const LayerDecision>({&decision, 1}));
        BOOST_TEST(table.find(by_cublaslt ? "     ?  high" : "   <=1  high") != std::string::npos, table);
        // Without tokens nothing is estimated, and the caller's word counts.
        BOOST_TEST((convert(model, recipe.config)[0].config == recipe.config));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_callers_own_rates_decide) {
  GainGpu gpu = gain_gpu(gpu_named("l40s"));
  gpu.rates = {.float8_tflops = 400, .float8_rows_tflops = 100, .high_precision_tflops = 200, .memory_gb_per_s = 1e9};
  const LinearSize size{8192, 8192, 8192};
  const LinearGain tensor = expected_gain(tensorwise(), size, gpu);
  BOOST_TEST(name(tensor.basis) == "given");
  BOOST_TEST_CHECK(tensor.high_precision_us == 3 * (2.0 * std::pow(8192.0, 3) / 200e6 + 2.3),
                   boost::test_tools::tolerance(1e-9));
  BOOST_TEST_CHECK(tensor.gain() == 2.0, boost::test_tools::tolerance(0.01));
  BOOST_TEST_CHECK(expected_gain(rowwise(), size, gpu).gain() == 0.5, boost::test_tools::tolerance(0.01));
  // Slow memory: the casts take longer than the GEMMs save.
  gpu.rates->memory_gb_per_s = 50;
  BOOST_TEST(expected_gain(tensorwise(), size, gpu).gain() < 1);
  BOOST_TEST(convert(linear("w", 8192, 8192), tensorwise(), {.tokens = 8192, .gpu = gpu})[0].reason.starts_with(
      "expected to be 0."));

  // What was not measured is unknown, not free.
  const LinearGain blocks = expected_gain(blockwise(), size, gpu);
  BOOST_TEST(name(blocks.basis) == "unknown");
  BOOST_TEST(blocks.note == "the rate float8_groups_tflops is not given");
  BOOST_TEST(!blocks.is_known());
  gpu.rates->memory_gb_per_s = 0;
  BOOST_TEST(expected_gain(tensorwise(), size, gpu).note == "the rate memory_gb_per_s is not given");
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    gpu.rates->float8_tflops = bad;
    BOOST_TEST(refusal([&] {
                 expected_gain(tensorwise(), size, gpu);
               }).starts_with("expected_gain: the rate float8_tflops is "));
    BOOST_TEST(refusal([&] {
                 expected_gain(tensorwise(), size, gpu);
               }).ends_with(", but must be a positive number, or 0 if it was not measured"));
  }
}

BOOST_AUTO_TEST_CASE(the_gpu_at_hand) {
  const GainGpu gpu = gain_gpu(TuningMachine{.device = "NVIDIA L40S", .target = "sm_89", .multiprocessors = 142});
  BOOST_TEST(gpu.device == "NVIDIA L40S");
  BOOST_TEST((gpu.target == target_for(8, 9)));
  BOOST_TEST(gpu.multiprocessors == 142);
  BOOST_TEST(refusal([] { gain_gpu(TuningMachine{.device = "CPU reference"}); }) ==
             "gain_gpu: the machine \"CPU reference\" has no GPU: name a known one, as gpu_named(\"h200\")");
}

BOOST_AUTO_TEST_SUITE_END()
