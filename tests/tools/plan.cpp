// `ingot plan` as users run it: its table, its JSON, and the sentence that each wrong value gets.
#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_plan)

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A folder with the config.json of a small Llama, in which the program runs.
class Case {
 public:
  Case() {
    std::ofstream(path("config.json")) << R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256})";
  }

  fs::path path(const char* name) const { return folder_.path() / name; }

  int run(const std::string& arguments) {
    const std::string command =
        "cd '" + folder_.path().string() + "' && '" INGOT_PROGRAM "' plan " + arguments + " >out 2>err";
    const int status = std::system(command.c_str());
    out = read(path("out"));
    err = read(path("err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string out{};
  std::string err{};

 private:
  ingot::test::TemporaryDirectory folder_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_table_has_every_recipe) {
  Case at;
  BOOST_TEST(at.run("--config config.json --mesh dp=64,node=8") == 0, at.err);
  BOOST_TEST(at.err == "");
  BOOST_TEST(at.out.starts_with("8.03 billion parameters in 32 layers; 64 h200 in nodes of 8: dp 64, tp 1, replicas 1\n"
                                "8192 tokens a step of a data-parallel rank (1 GPU) in sequences of 4096\n"
                                "350 GB/s and 3 us a hop within a node, 45 GB/s a GPU and 10 us between\n"),
             at.out);
  for (const char* const row :
       {"\nhigh_precision     16 bits ", "\ntensorwise         FP8 ", "\ntensorwise         16 bits ",
        "\nrowwise_with_gw_hp FP8 ", "\nblockwise: gathered in 16 bits: k, v, because 1024 rows over 64 ranks"}) {
    BOOST_TEST(at.out.find(row) != std::string::npos, row << " is not in\n" << at.out);
  }
  BOOST_TEST(std::count(at.out.begin(), at.out.end(), '\n') == 3 + 1 + 1 + 12 + 1, at.out);
  BOOST_TEST(at.run("--config config.json --mesh tp=4 --recipe rowwise,delayed --gpu h100") == 0, at.err);
  BOOST_TEST(std::count(at.out.begin(), at.out.end(), '\n') == 3 + 1 + 1 + 2, at.out);
}

BOOST_AUTO_TEST_CASE(lines_below_the_table_say_what_does_not_fit_and_what_is_assumed) {
  Case at;
  const auto check = [&](const std::string& arguments, const std::string& end) {
    BOOST_TEST(at.run("--config config.json " + arguments) == 0, at.err);
    const std::string last = at.out.substr(at.out.rfind("\nrowwise ") + 1);
    BOOST_TEST(last.substr(last.find('\n') + 1) == end, at.out);
  };
  // The largest of the recipe's.
  const auto gain = [](int tokens) {
    Case other;
    BOOST_TEST(
        other.run("--config config.json --mesh dp=8 --recipe rowwise --json a --tokens " + std::to_string(tokens)) == 0,
        other.err);
    double most = 0;
    const json plan = json::parse(read(other.path("a")));
    for (const json& each : plan.at("plans")) most = std::max(most, each.at("gain").get<double>());
    return fmt::format("{:.2f}", most);
  };
  // Nothing estimates the host of one GPU, and 8 billion parameters with AdamW's moments take 128 GB.
  check("--mesh dp=1,node=1 --recipe rowwise --gpu h100", "rowwise: does not fit in the 80 GB of an h100\n");
  BOOST_TEST(at.out.find("  0.0       -     0.00 ") != std::string::npos, at.out);
  check("--mesh dp=8 --recipe rowwise", "");
  check("--mesh dp=2,node=2 --recipe high_precision,rowwise --gpu h100 --tokens 16384",
        "high_precision: does not fit in the 80 GB of an h100\nrowwise: does not fit in the 80 GB of an h100\n");
  check("--mesh dp=8 --recipe rowwise --tokens 6144",
        "6144 tokens are no whole sequences of 4096: attention is that of 1.50 of them\n");
  check("--mesh dp=8 --recipe rowwise --tokens 1024",
        "a sequence of 4096 is longer than the step: one of 1024 is assumed\n"
        "The host binds: the step waits for it. Its time is that of the machine that was measured "
        "(docs/distributed.md).\nMore tokens a GPU hide it, and gathers in 16 bits take less of it.\n"
        "None of these gains with 1024 tokens: what binds is the host. rowwise does with --tokens 4096 (" +
            gain(4096) + ")\n");
  BOOST_TEST(std::stod(gain(4096)) > 1);
  BOOST_TEST(std::stod(gain(2048)) <= 1);
  BOOST_TEST(at.out.find(" in sequences of 1024\n") != std::string::npos, at.out);
  // With layers so narrow this recipe gains with no number of tokens.
  std::ofstream(at.path("narrow.json")) << R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256})";
  BOOST_TEST(at.run("--config narrow.json --mesh dp=1 --recipe rowwise_with_gw_hp") == 0, at.err);
  BOOST_TEST(at.out.ends_with("\nNone of these gains with 8192 tokens: what binds is GEMMs\n"), at.out);
  BOOST_TEST(at.run("--config narrow.json --mesh dp=1 --recipe high_precision") == 0, at.err);
  BOOST_TEST(at.out.find("None of") == std::string::npos, at.out);
}

BOOST_AUTO_TEST_CASE(the_document_shows_what_the_program_prints) {
  Case at;
  BOOST_TEST(
      at.run("--config config.json --mesh dp=64,replicas=8 --recipe high_precision,tensorwise,rowwise,blockwise") == 0,
      at.err);
  const std::string page = read(fs::path(INGOT_SOURCE_DIR) / "docs/distributed.md");
  BOOST_TEST(page.find("```\n" + at.out + "```\n") != std::string::npos, "docs/distributed.md lacks\n" << at.out);
}

BOOST_AUTO_TEST_CASE(the_json_has_every_figure) {
  Case at;
  BOOST_TEST(
      at.run("--config config.json --mesh dp=16,tp=4,replicas=2 --recipe high_precision,tensorwise --tokens 16384 "
             "--sequence 8192 --links network=25,nvlink_us=1.5 --json plan.json") == 0,
      at.err);
  const json plan = json::parse(read(at.path("plan.json")));
  BOOST_TEST(plan.at("mesh") == json({{"dp", 16}, {"tp", 4}, {"replicas", 2}, {"node", 8}}));
  BOOST_TEST(plan.at("links").at("network") == 25);
  BOOST_TEST(plan.at("links").at("nvlink") == 350);
  BOOST_TEST(plan.at("links").at("nvlink_us") == 1.5);
  BOOST_TEST(plan.at("tokens") == 16384);
  BOOST_TEST(plan.at("sequence") == 8192);
  BOOST_REQUIRE(plan.at("plans").size() == 3U);
  const json& base = plan["plans"][0];
  const json& codes = plan["plans"][1];
  BOOST_TEST(base.at("recipe") == "high_precision");
  BOOST_TEST(base.at("gain") == 1);
  BOOST_TEST(codes.at("gather") == "FP8");
  BOOST_TEST_CHECK(
      codes.at("gain").get<double>() == base.at("step_ms").get<double>() / codes.at("step_ms").get<double>(),
      boost::test_tools::tolerance(1e-9));
  BOOST_TEST(codes.at("sent_bytes").at("weights") < base.at("sent_bytes").at("weights"));
  double parts = 0;
  for (const char* const part : {"gemms", "casts", "attention", "other", "tensor", "exposed", "slowed"}) {
    parts += codes.at("ms").at(part).get<double>();
  }
  BOOST_TEST(codes.at("fits") == true);
  BOOST_TEST_CHECK(codes.at("step_ms").get<double>() == parts, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(wrong_values_get_one_sentence_and_code_2) {
  Case at;
  std::ofstream(at.path("bert.json")) << R"({"model_type": "bert"})";
  std::ofstream(at.path("moe.json")) << R"({"model_type": "mixtral", "num_local_experts": 8})";
  const auto check = [&](const std::string& arguments, const std::string& message) {
    BOOST_TEST(at.run(arguments + " --json plan.json") == 2, arguments);
    BOOST_TEST(at.err == "ingot: error: " + message + "\n");
    BOOST_TEST(at.out == "");
    BOOST_TEST(!fs::exists(at.path("plan.json")));
  };
  const std::string config = "--config config.json ";
  check("--config bert.json --mesh dp=8",
        "bert.json: has \"model_type\": \"bert\", which is not llama, mistral, qwen2 or qwen3");
  check("--config moe.json --mesh dp=8",
        "moe.json: has \"num_local_experts\": 8, so the model has experts, which this estimate does not count");
  check(config + "--mesh tp=16", "--mesh tp: is 16, which does not divide num_key_value_heads, 8");
  check(config + "--mesh dp=12", "--mesh: 12 GPUs fill no whole nodes of 8: node is the GPUs of one");
  check(config + "--mesh dp=0", "--mesh dp: is 0, but must be a whole number from 1 to 1048576");
  check(config + "--mesh dp=8,pp=2", "--mesh: \"pp=2\" must be NAME=NUMBER with a name of dp, tp, replicas, node");
  check(config + "--mesh dp", "--mesh: \"dp\" must be NAME=NUMBER with a name of dp, tp, replicas, node");
  check(config + "--mesh dp=8,dp=8", "--mesh: \"dp\" is given twice");
  check(config + "--mesh dp=99999999999999999999", "--mesh: \"dp=99999999999999999999\" must have a whole number");
  check(config + "--mesh dp=8.5", "--mesh: \"dp=8.5\" must have a whole number");
  check(config + "--mesh dp=8 --links network=0", "--links network: is 0 GB/s, but must be a positive number");
  check(config + "--mesh dp=8 --links network_us=nan", "--links network_us: is nan us, but must be 0 or more");
  check(config + "--mesh dp=8 --links network=fast", "--links: \"network=fast\" must have a number");
  check(config + "--mesh dp=8 --gpu b200", "--gpu: \"b200\" must be one of h200, h100");
  check(config + "--mesh dp=8 --tokens 0", "--tokens: is 0, but must be a whole number from 1 to 1073741824");
  BOOST_TEST(at.run(config + "--mesh dp=8 --recipe fp4") == 2);
  BOOST_TEST(at.err.starts_with("ingot: error: --recipe: \"fp4\" must be one of high_precision, tensorwise,"), at.err);
  BOOST_TEST(at.run(config) == 2);
  BOOST_TEST(at.err == "ingot: error: ingot plan: --mesh is required; see `ingot plan --help`\n");
  BOOST_TEST(at.run("--config none.json --mesh dp=8") == 1);
  BOOST_TEST(at.err.starts_with("ingot: error: none.json: "), at.err);
}

BOOST_AUTO_TEST_SUITE_END()
