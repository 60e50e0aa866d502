// step_estimate(): its formulas by hand, what crosses the wire against what FSDP2 was seen to send, what was measured
// on 1, 2 and 4 GPUs, and models and meshes that cannot be.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/planning/step_estimate.h"
#include "ingot/nn/recipe/recipes.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_step_estimate)

using namespace ingot;

namespace {

namespace bt = boost::test_tools;
using Json = nlohmann::json;

const std::filesystem::path kRoot = INGOT_SOURCE_DIR;

ModelShape llama3_8b() {
  return {.hidden = 4096,
          .intermediate = 14336,
          .layers = 32,
          .heads = 32,
          .key_value_heads = 8,
          .head_size = 128,
          .vocabulary = 128256};
}

Json config() {
  return Json::parse(R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rope_scaling": {"factor": 8.0}, "head_dim": null, "tie_word_embeddings": false})");
}

Json with(const char* name, const Json& value) {
  Json json = config();
  json[name] = value;
  return json;
}

std::string refusal(test::FunctionRef<void()> act) { return test::error_of(act, ErrorCode::invalid_argument); }
std::string refusal(const Json& json) {
  return refusal([&] { read_model_shape(json.dump(), "config.json"); });
}
std::string refusal(const StepRequest& request) {
  return refusal([&] { step_estimate(request); });
}

StepRequest on(const GpuMesh& mesh, const std::string& recipe = "rowwise_folded") {
  return {.model = llama3_8b(), .mesh = mesh, .recipe = recipe};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_config_has_the_parameters_of_its_model) {
  const ModelShape model = read_model_shape(config().dump(), "config.json");
  BOOST_TEST(parameters_of(model) == 8'030'261'248.0);  // Llama-3-8B's
  BOOST_TEST(model.head_size == 128);
  const ModelShape tied = read_model_shape(with("tie_word_embeddings", true).dump(), "config.json");
  BOOST_TEST(parameters_of(model) - parameters_of(tied) == 4096.0 * 128256);
  Json wide = with("head_dim", 256);
  wide.erase("num_key_value_heads");
  BOOST_TEST(block_linears(read_model_shape(wide.dump(), ""))[1].out_features == 32 * 256);
}

BOOST_AUTO_TEST_CASE(configs_that_cannot_be_are_refused) {
  BOOST_TEST(refusal(with("model_type", "bert")) ==
             "config.json: has \"model_type\": \"bert\", which is not llama, mistral, qwen2 or qwen3");
  BOOST_TEST(refusal(with("num_local_experts", 8)) ==
             "config.json: has \"num_local_experts\": 8, so the model has experts, which this estimate does not count");
  BOOST_TEST(refusal(with("hidden_size", -1)) ==
             "config.json: has \"hidden_size\": -1, which is not a whole number from 1 to 67108864");
  BOOST_TEST(refusal(with("num_hidden_layers", 1e22)) ==
             "config.json: has \"num_hidden_layers\": 1e+22, which is not a whole number from 1 to 65536");
  BOOST_TEST(refusal(with("vocab_size", "many")) ==
             "config.json: has \"vocab_size\": \"many\", which is not a whole number from 1 to 67108864");
  BOOST_TEST(refusal(with("intermediate_size", Json::array())) ==
             "config.json: has \"intermediate_size\": an array, which is not a whole number from 1 to 67108864");
  BOOST_TEST(refusal(with("num_key_value_heads", 5)) ==
             "config.json: has \"num_key_value_heads\": 5, which does not divide \"num_attention_heads\", 32");
  BOOST_TEST(refusal(with("hidden_size", 4100)) ==
             "config.json: has \"num_attention_heads\": 32, which does not divide \"hidden_size\", 4100");
  BOOST_TEST(refusal(Json::object()) == "config.json: lacks \"model_type\"");
  BOOST_TEST(refusal(Json(3)) == "config.json: is not a JSON object");
  BOOST_TEST(refusal([] { read_model_shape("{\"a\": ", "c"); }).starts_with("c: is not JSON (line 1"));
  BOOST_TEST(refusal([] { read_model_shape(std::string(100000, '['), "c"); }) == "c: is nested deeper than 16 levels");
}

BOOST_AUTO_TEST_CASE(collectives_take_the_time_of_their_ring_or_tree) {
  const GpuLinks links{.node_gb_per_s = 400, .node_us = 2, .network_gb_per_s = 50, .network_us = 10};
  const auto check = [](double found, double expected) { BOOST_TEST_CHECK(found == expected, bt::tolerance(1e-12)); };
  check(gather_ms(shard_group({.shards = 1}), links, 1e9), 0);
  check(all_reduce_ms(shard_group({.shards = 1}), links, 1e9), 0);
  check(gather_ms(shard_group({.shards = 4}), links, 1e9), 0.75 * 1e9 / 400e6 + 3 * 0.002);
  // 8 ranks of a node have 8 adapters, 2 have 2; one hop of 8, or of 2, leaves the node.
  check(gather_ms(shard_group({.shards = 64}), links, 1e9), 63.0 / 64 * 1e9 / 400e6 + 63 * (0.01 + 7 * 0.002) / 8);
  check(gather_ms(shard_group({.shards = 64, .tensor = 4}), links, 1e9),
        63.0 / 64 * 1e9 / 100e6 + 63 * (0.01 + 0.002) / 2);
  check(gather_ms(replica_group({.shards = 8, .replicas = 4}), links, 1e9), 0.75 * 1e9 / 50e6 + 3 * 0.01);
  check(all_reduce_ms(shard_group({.shards = 64}), links, 4), 2 * (4 / 400e6 + 3 * 0.01 + 7 * 0.002));  // a tree
  check(all_reduce_ms(shard_group({.shards = 4}), links, 1e9), 2 * (0.75 * 1e9 / 400e6 + 3 * 0.002));   // a ring
}

// What test_nn_all_gather.py (check_what_is_sent) sees of a weight, in forward and again in backward.
BOOST_AUTO_TEST_CASE(a_gather_sends_what_fsdp2_was_seen_to_send) {
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kColumns = 384;
  for (const std::int64_t ranks : {1, 2}) {
    const std::int64_t codes = kRows * kColumns / ranks;
    const auto sent = [&](const char* recipe) { return gathered_bytes(recipe, kRows, kColumns, ranks, true); };
    for (const char* const recipe :
         {"tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp", "rowwise_folded", "blockwise"}) {
      BOOST_TEST(sent(recipe) == codes, recipe);
    }
    BOOST_TEST(sent("high_precision") == 2 * codes);
    BOOST_TEST(gathered_bytes("rowwise", kRows, kColumns, ranks, false) == 2 * codes);
  }
  BOOST_TEST(gathered_bytes("blockwise", 256, 384, 4, true) == 2 * 64 * 384);  // blocks would be cut
  BOOST_TEST(gathered_bytes("tensorwise", 10, 384, 4, true) == 3 * 384);       // padded to 12 rows
  BOOST_TEST(gathered_bytes("tensorwise", 256, 384, 4096, true) == 1 * 384);   // most ranks have none
  BOOST_TEST(refusal([] { gathered_bytes("tensorwise", 1, 1, 0, true); }) == "ranks: is 0, but must be 1 or more");
}

BOOST_AUTO_TEST_CASE(a_step_sends_the_bytes_of_its_weights_and_gradients) {
  const double all = 8'030'261'248;
  const double outer = 2 * 4096.0 * 128256 + 4096;  // gathered once, in 16 bits
  const double norms = 32 * 2 * 4096;
  const double linear = all - outer - norms;
  const StepEstimate values = step_estimate(on({.shards = 8}, "high_precision"));
  BOOST_TEST(values.sent.weights == 7.0 / 8 * 2 * (2 * (linear + norms) + outer));
  BOOST_TEST(values.sent.gradients == 7.0 / 8 * 4 * all);
  BOOST_TEST(values.sent.maxima == 0);
  BOOST_TEST(values.sent.tensor == 0);
  const StepEstimate codes = step_estimate(on({.shards = 8}, "tensorwise"));
  BOOST_TEST(codes.sent.weights == 7.0 / 8 * 2 * (linear + 2 * norms + outer));
  BOOST_TEST(codes.sent.maxima == 2 * 7.0 / 8 * 4 * 32 * 7);  // one for each of 7 weights
  // A rowwise weight's are one for each column: q, k, v, gate and up have 4096, o has 4096, down 14336.
  BOOST_TEST(step_estimate(on({.shards = 8}, "rowwise")).sent.maxima == 2 * 7.0 / 8 * 4 * 32 * (6 * 4096 + 14336));
  // And one scale_inv for each row: q and o have 4096, k and v 1024, gate and up 14336, down 4096; or for each block.
  for (const auto& [recipe, scale_inv] : {std::pair{"rowwise", 3 * 4096 + 2 * 1024 + 2 * 14336},
                                          std::pair{"rowwise_folded", 3 * 4096 + 2 * 1024 + 2 * 14336},
                                          std::pair{"blockwise", (2 * 32 + 2 * 8 + 3 * 112) * 32}}) {
    const double sent = step_estimate(on({.shards = 8}, recipe)).sent.weights;
    BOOST_TEST(sent == codes.sent.weights + 7.0 / 8 * 4 * 32 * scale_inv, recipe);
  }
  // Of weights that tensor parallelism has split, those of a rank's columns; maxima of whole weights go over its ranks,
  // too.
  BOOST_TEST(step_estimate(on({.shards = 8, .tensor = 2}, "rowwise")).sent.maxima ==
             2 * 7.0 / 8 * 4 * 32 * (5 * 4096 + (4096 + 14336) / 2));
  BOOST_TEST(step_estimate(on({.shards = 8, .tensor = 2}, "delayed")).sent.maxima == (2 * 7.0 / 8 + 1) * 4 * 32 * 7);
  const StepEstimate copies = step_estimate(on({.shards = 8, .replicas = 4}, "high_precision"));
  BOOST_TEST(copies.sent.gradients == 7.0 / 8 * 4 * all + 2 * 3.0 / 4 * 4 * all / 8);
  BOOST_TEST(copies.sent.weights == values.sent.weights);
  const StepEstimate whole = step_estimate(on({.replicas = 8}, "tensorwise"));  // as DDP
  BOOST_TEST(whole.sent.gradients == 2 * 7.0 / 8 * 4 * all);
  BOOST_TEST(whole.sent.all() == whole.sent.gradients);

  // Two pairs a layer: in forward the input and the sums of the output, in backward their gradients; 16 bits.
  const double activations = 3.0 / 4 * 8192 * 4096;
  const StepEstimate split = step_estimate(on({.tensor = 4}, "high_precision"));
  BOOST_TEST(split.sent.tensor == activations * 2 * (32 * 2 * 4 + 4));
  BOOST_TEST(split.sent.all() == split.sent.tensor);
  BOOST_TEST(step_estimate(on({.tensor = 4}, "tensorwise")).sent.tensor ==
             activations * (32 * 2 * (2 * 2 + 1 + 1) + 4 * 2));
  BOOST_TEST(step_estimate(on({.tensor = 4}, "rowwise_folded")).sent.tensor ==
             activations * (32 * 2 * (3 * 2 + 1) + 4 * 2) + 32 * 2 * 3.0 / 4 * 8192 * 4);
}

BOOST_AUTO_TEST_CASE(one_gpu_sends_nothing) {
  for (const Recipe& recipe : recipes()) {
    const StepEstimate step = step_estimate(on({}, std::string(recipe.name)));
    BOOST_TEST(step.sent.all() == 0);
    BOOST_TEST(step.weights_ms + step.gradients_ms + step.tensor_ms + step.exposed_ms + step.slowed_ms == 0);
    BOOST_TEST_CHECK(step.step_ms() == step.gemms_ms + step.casts_ms + step.attention_ms + step.other_ms,
                     bt::tolerance(1e-12));
    BOOST_TEST((step.casts_ms == 0) == (recipe.name == "high_precision"));
    BOOST_TEST(step.binds == "GEMMs");
  }
}

BOOST_AUTO_TEST_CASE(less_to_send_and_faster_links_make_a_step_no_slower) {
  double before = 0;
  for (const std::int64_t shards : {8, 64, 512, 4096}) {  // a ring's hops
    const StepEstimate step = step_estimate(on({.shards = shards}));
    BOOST_TEST(step.weights_ms + step.gradients_ms > before);
    before = step.weights_ms + step.gradients_ms;
    BOOST_TEST_CHECK(step.hidden_ms + step.exposed_ms == before, bt::tolerance(1e-9));
    BOOST_TEST(step.exposed_ms > 0);
  }
  for (const char* const recipe : {"tensorwise", "rowwise", "delayed"}) {
    StepRequest request = on({.shards = 64}, recipe);
    request.links.network_gb_per_s = 5;
    const StepEstimate codes = step_estimate(request);
    BOOST_TEST(codes.binds == "FSDP's collectives between nodes");
    request.float8_gather = false;
    BOOST_TEST(step_estimate(request).step_ms() > codes.step_ms());
    request.links.network_gb_per_s = 50;
    BOOST_TEST(step_estimate(request).step_ms() < codes.step_ms());
  }
  StepRequest request = on({.shards = 64});
  const double ms = step_estimate(request).step_ms();
  request.tokens *= 2;
  BOOST_TEST(step_estimate(request).step_ms() > ms);
}

BOOST_AUTO_TEST_CASE(layers_hide_the_collectives_of_their_neighbours) {
  StepRequest request = on({.shards = 8}, "high_precision");
  request.model.vocabulary = 0;
  request.optimizer = false;
  const StepEstimate fast = step_estimate(request);  // hides all but the first gathers and the last reduce-scatter
  BOOST_TEST_CHECK(fast.exposed_ms == fast.weights_ms / 32 + fast.gradients_ms / 32, bt::tolerance(1e-9));
  request.links.node_gb_per_s = 0.1;
  const StepEstimate slow = step_estimate(request);  // computes while links are busy, but for the first forward
  const double computes = slow.gemms_ms + slow.attention_ms + slow.other_ms;
  BOOST_TEST_CHECK(slow.hidden_ms == computes * (31 + 2 * 32) / (3 * 32), bt::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(weights_that_cannot_cross_as_codes_are_named) {
  BOOST_TEST(
      step_estimate(on({.shards = 64}, "blockwise")).note ==
      "gathered in 16 bits: k, v, because 1024 rows over 64 ranks are no multiple of 128; gate, up, because 14336 "
      "rows over 64 ranks are no multiple of 128; q, o, down, because 4096 rows over 64 ranks are no multiple of 128");
  BOOST_TEST(step_estimate(on({.shards = 8}, "blockwise")).note == "");
  BOOST_TEST(step_estimate(on({.shards = 8, .tensor = 4}, "rowwise")).note == "");
  BOOST_TEST(
      step_estimate(on({.shards = 8, .tensor = 4}, "blockwise")).note ==
      "gathered in 16 bits: k, v, because 256 rows over 8 ranks are no multiple of 128; gate, up, because 3584 rows "
      "over 8 ranks are no multiple of 128");
}

BOOST_AUTO_TEST_CASE(the_largest_models_and_meshes_have_finite_estimates) {
  constexpr std::int64_t kMost = std::int64_t{1} << 26;
  const ModelShape huge{.hidden = 1'000'000,
                        .intermediate = kMost,
                        .layers = 65536,
                        .heads = 65536,
                        .key_value_heads = 65536,
                        .head_size = 128,
                        .vocabulary = kMost};
  for (const Recipe& recipe : recipes()) {
    for (const GpuMesh& mesh :
         {GpuMesh{.shards = 4096}, GpuMesh{.shards = 512, .tensor = 8}, GpuMesh{.shards = 1 << 20}}) {
      const StepEstimate step =
          step_estimate({.model = huge, .mesh = mesh, .recipe = std::string(recipe.name), .tokens = 1 << 30});
      for (const double value : {step.step_ms(), step.sent.all(), step.memory_bytes, step.hidden_ms}) {
        BOOST_TEST((std::isfinite(value) && value > 0), recipe.name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(meshes_and_links_that_cannot_be_are_refused) {
  BOOST_TEST(refusal(on({.tensor = 16})) == "mesh tp: is 16, which does not divide num_key_value_heads, 8");
  BOOST_TEST(refusal(on({.tensor = 3})) == "mesh tp: is 3, which does not divide num_attention_heads, 32");
  StepRequest odd = on({.tensor = 8});
  odd.tokens = 100;
  BOOST_TEST(refusal(odd) == "mesh tp: is 8, which does not divide the tokens, 100");
  odd = on({.tensor = 8});
  odd.model.intermediate = 14340;
  BOOST_TEST(refusal(odd) == "mesh tp: is 8, which does not divide intermediate_size, 14340");
  BOOST_TEST(refusal(on({.shards = 0})) == "mesh dp: is 0, but must be a whole number from 1 to 1048576");
  BOOST_TEST(refusal(on({.shards = 1 << 20, .tensor = 8})) ==
             "mesh: dp 1048576 x tp 8 x replicas 1 is more than 1048576 GPUs");
  BOOST_TEST(refusal(on({.shards = 12})) == "mesh: 12 GPUs fill no whole nodes of 8: node is the GPUs of one");
  BOOST_TEST(refusal(on({.shards = 6, .replicas = 4})) ==
             "mesh: tp x dp of 6 neither divides nodes of 8 GPUs nor fills whole ones");
  const auto links = [](const GpuLinks& of) {
    StepRequest request = on({.shards = 8});
    request.links = of;
    return refusal(request);
  };
  BOOST_TEST(links({.node_gb_per_s = 0}) == "links nvlink: is 0 GB/s, but must be a positive number");
  BOOST_TEST(links({.network_gb_per_s = -1}) == "links network: is -1 GB/s, but must be a positive number");
  BOOST_TEST(links({.node_us = std::nan("")}) == "links nvlink_us: is nan us, but must be 0 or more");
  BOOST_TEST(links({.network_us = std::numeric_limits<double>::infinity()}) ==
             "links network_us: is inf us, but must be 0 or more");
  StepRequest request = on({});
  request.gpu = "b200";
  BOOST_TEST(refusal(request) == "gpu: \"b200\" must be one of h200, h100");
  request = on({}, "fp4");
  BOOST_TEST(refusal(request).starts_with("recipe: \"fp4\" must be one of high_precision, tensorwise, delayed"));
  request = on({});
  request.sequence = 0;
  BOOST_TEST(refusal(request) == "sequence: is 0, but must be a whole number from 1 to 1073741824");
  request = on({});
  request.parameter_bytes = 8;
  BOOST_TEST(refusal(request) == "parameter_bytes: is 8, but must be 2 or 4");
  request = on({});
  request.model.layers = 0;
  BOOST_TEST(refusal(request) == "model layers: is 0, but must be 1 or more");
}

// ---- What was measured ----------------------------------------------------------------------------------------------

namespace {

Json results(const std::string& name) {
  Json found;
  std::ifstream(kRoot / "bench/results" / name) >> found;
  return found;
}

struct Compared {
  std::string what;
  double measured_ms = 0;
  StepEstimate step{};
  double measured_gb = 0;  // 0: not known
  double apart() const { return step.step_ms() / measured_ms - 1; }
  std::string row() const {
    const std::string memory =
        measured_gb == 0 ? "|" : fmt::format("{:.1f} | {:.1f}", measured_gb, step.memory_bytes / 1e9);
    return fmt::format("| {} | {:.1f} | {:.1f} | {:+.1f} % | {} |\n", what, measured_ms, step.step_ms(), 100 * apart(),
                       memory);
  }
};

StepRequest request_of(const Json& sizes, bool mlp, std::int64_t gpus, const std::string& recipe) {
  return {.model = {.hidden = sizes.at("hidden"),
                    .intermediate = sizes.at("intermediate"),
                    .layers = mlp ? 1 : sizes.at("layers").get<std::int64_t>(),
                    .heads = mlp ? 0 : 32,
                    .key_value_heads = mlp ? 0 : 8,
                    .head_size = 128,
                    .vocabulary = mlp ? 0 : 32000},
          .mesh = {.shards = mlp ? 1 : gpus, .tensor = mlp ? gpus : 1},
          .gpu = "h200",
          .recipe = recipe,
          .tokens = sizes.at("tokens").get<std::int64_t>() * sizes.value("batch", 1),
          .optimizer = !mlp,
          .parameter_bytes = gpus == 1 ? 2 : 4};
}

std::vector<Compared> of_several_gpus() {
  std::vector<Compared> all;
  double base_ms = 0;
  const Json found = results("several_gpus.json");
  for (const Json& each : found.at("cases")) {
    const bool mlp = each.at("work") == "mlp";
    const std::int64_t gpus = each.at("gpus");
    const std::string gather = each.at("gather");
    StepRequest request = request_of(each, mlp, gpus, each.at("recipe"));
    request.gpu = each.at("gpu");
    request.float8_gather = gather == "FP8";
    if (each.contains("ms")) base_ms = each.at("ms");
    if (each.contains("tokens_per_s"))
      base_ms = static_cast<double>(request.tokens) / each.at("tokens_per_s").get<double>() * 1e3;
    all.push_back({.what = fmt::format("{} {}, {}, {}{}", gpus, gpus == 1 ? "H100" : "H200", mlp ? "MLP" : "Llama",
                                       request.recipe, gather.empty() ? "" : ", " + gather + " gather"),
                   .measured_ms = base_ms / each.at("gain").get<double>(),
                   .step = step_estimate(request),
                   .measured_gb = each.value("peak_gb", 0.0)});
  }
  return all;
}

// What bench/compare_fsdp.py and compare_tensor_parallel.py wrote, of the contenders "bf16, compiled" and "ingot
// <recipe>, compiled", with or without "FP8 gather".
std::vector<Compared> of_benchmark(const std::string& name) {
  std::vector<Compared> all;
  const Json found = results(name);
  const bool mlp = !found.contains("model");
  const std::int64_t gpus = found.at("gpus");
  for (const Json& each : found.at("cases")) {
    const std::string contender = each.at("contender");
    const std::size_t end = contender.find(", compiled");
    if (end == std::string::npos || (contender != "bf16, compiled" && !contender.starts_with("ingot "))) continue;
    if (contender.ends_with("16-bit gathers")) continue;  // of tensor parallelism: by PyTorch's styles
    const std::string recipe = contender.starts_with("bf16") ? "high_precision" : contender.substr(6, end - 6);
    StepRequest request = request_of(mlp ? found : found.at("model"), mlp, gpus, recipe);
    request.float8_gather = contender.ends_with("FP8 gather");
    const std::string gather = mlp || gpus == 1 ? "" : request.float8_gather ? ", FP8 gather" : ", 16 bits gather";
    all.push_back({.what = fmt::format("{} H200, {}, {}{}", gpus, mlp ? "MLP" : "Llama", recipe, gather),
                   .measured_ms = each.at("ms").at("median"),
                   .step = step_estimate(request)});
  }
  return all;
}

std::vector<Compared> of_train_gpt() {
  std::vector<Compared> all;
  for (const std::int64_t width : {2048, 4096}) {
    const Json found = results(fmt::format("train_gpt_speed_{}_h100.json", width));
    for (const Json& each : found.at("cases")) {
      const std::string variant = each.at("variant");
      const bool bf16 = variant == "torch:bf16+compile";
      if (!bf16 && (!variant.starts_with("ingot:") || !variant.ends_with("+compile"))) continue;
      const std::string recipe = bf16 ? "high_precision" : variant.substr(6, variant.size() - 14);
      const StepRequest request{.model = {.hidden = width,
                                          .intermediate = 4 * width,
                                          .layers = each.at("blocks"),
                                          .heads = width / 128,
                                          .key_value_heads = width / 128,
                                          .head_size = 128,
                                          .vocabulary = 256,
                                          .gated = false},
                                .gpu = "h100",
                                .recipe = recipe,
                                .tokens = 16384,
                                .sequence = 512};
      all.push_back({.what = fmt::format("1 H100, GPT {}, {}", width, recipe),
                     .measured_ms = 16384 / each.at("tokens_per_second").at("median").get<double>() * 1e3,
                     .step = step_estimate(request)});
    }
  }
  return all;
}

}  // namespace

// Small steps of FSDP2 wait for the host, which has nothing to do with a mesh that shards nothing.
BOOST_AUTO_TEST_CASE(small_steps_wait_for_the_host) {
  const auto estimate = [](const GpuMesh& mesh, std::int64_t tokens) {
    StepRequest request = request_of({{"hidden", 4096}, {"intermediate", 14336}, {"layers", 8}, {"tokens", tokens}},
                                     false, mesh.shards, "tensorwise");
    request.mesh = mesh;
    return step_estimate(request);
  };
  const StepEstimate few = estimate({.shards = 2}, 1024);
  BOOST_TEST(few.step_ms() == few.host_ms);
  BOOST_TEST(few.gpu_ms() < few.host_ms);
  BOOST_TEST(few.binds == "the host");
  const StepEstimate many = estimate({.shards = 2}, 16384);
  BOOST_TEST(many.host_ms == few.host_ms);
  BOOST_TEST(many.step_ms() == many.gpu_ms());
  BOOST_TEST(many.binds != "the host");
  BOOST_TEST(estimate({}, 1024).host_ms == 0);
}

// docs/distributed.md has these rows, and says why some are further away than 10 %.
constexpr std::array<std::string_view, 4> kFar{"1 H100, Llama, rowwise", "4 H200, Llama, tensorwise, FP8 gather",
                                               "2 H200, Llama, rowwise, 16 bits gather", "4 H200, MLP, rowwise"};
BOOST_AUTO_TEST_CASE(estimates_are_near_what_was_measured) {
  std::ifstream file(kRoot / "docs/distributed.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::vector<Compared> all = of_train_gpt();
  std::ranges::move(of_several_gpus(), std::back_inserter(all));
  for (const char* name : {"llama_one_h200.json", "fsdp_two_h200.json", "tensor_parallel_two_h200.json"}) {
    std::ranges::move(of_benchmark(name), std::back_inserter(all));
  }
  for (const Compared& each : all) {
    BOOST_TEST(page.find(each.row()) != std::string::npos, "docs/distributed.md lacks: " << each.row());
    const bool is_far = std::ranges::find(kFar, each.what) != kFar.end();
    BOOST_TEST((std::abs(each.apart()) > 0.10) == is_far, each.row());
    BOOST_TEST(std::abs(each.apart()) < 0.30, each.row());
  }
}

BOOST_AUTO_TEST_SUITE_END()
