// convert(): which layers of a described model become FP8, the reasons where they do not, and invalid descriptions.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/nn/conversion.h"
#include "support/expect_error.h"

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

std::string refusal(const std::function<void()>& act) { return test::error_of(act, ErrorCode::invalid_argument); }

}  // namespace

BOOST_AUTO_TEST_CASE(names_come_from_the_root) {
  std::vector<std::string> names;
  for (const LinearLayer& layer : linear_layers(llama())) names.push_back(layer.name);
  BOOST_TEST(names == (std::vector<std::string>{"layers.0.attention.wqkv", "layers.0.attention.wo", "layers.0.mlp.w13",
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
    const auto decisions = convert(model, recipe.config, {.tokens = 8192});
    BOOST_TEST(decisions[0].reason == "", recipe.name);
    BOOST_TEST(decisions[0].gain->gain() > 1.2, recipe.name);
    BOOST_TEST(decisions[0].gain->gain() < 2.1, recipe.name);
    BOOST_TEST((decisions[1].config == high_precision()), recipe.name);
    BOOST_TEST(decisions[1].reason.starts_with("expected to be 0."), decisions[1].reason);
    BOOST_TEST(decisions[1].reason.ends_with(" times as fast, but 1.05 is required"));
  }
  // The requested gain decides.
  BOOST_TEST(convert(model, rowwise(), {.tokens = 8192, .least_gain = 0})[1].reason == "");
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
  BOOST_TEST(refusal([] { convert(linear("a", 4096, 4096), rowwise(), {.tokens = std::int64_t{1} << 62}); }) ==
             "expected_gain: the layer has 4611686018427387904 tokens, 4096 inputs and 4096 outputs; each must be from "
             "0 to 281474976710656 (2^48)");
  BOOST_TEST(refusal([] { convert(llama(), rowwise(), {.multiprocessors = 0}); }) ==
             "conversion multiprocessors: is 0, but must be 1 or more");
}
