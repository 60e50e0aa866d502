// `ingot warm`: its plan, its files of layers, its worker processes, and the whole command with a bundle, on the CPU.
#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/template_files.h"
#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/util/error.h"
#include "support/fault_row.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "warm/model_recording.h"
#include "warm/warm_layers.h"
#include "warm/warm_plan.h"
#include "worker_processes.h"

BOOST_AUTO_TEST_SUITE(test_warm)

using namespace ingot;
using namespace ingot::tools;
namespace fs = std::filesystem;

namespace {

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

fs::path write(const test::TemporaryDirectory& folder, const std::string& name, const std::string& text) {
  const fs::path path = folder.path() / name;
  std::ofstream(path) << text;
  return path;
}

// What is compiled: two specs may have one kernel, which then has the name of the first.
std::set<std::string> kernels(const std::vector<WarmJob>& jobs) {
  std::set<std::string> all;
  for (const WarmJob& job : jobs) all.insert(print(job.target) + " " + job.source.text);
  return all;
}

// Fourteen kernels.
std::vector<std::string> packing_kernels() {
  std::vector<std::string> lines;
  for (const std::string weight : {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m3fn", "e3m2fn", "e2m1fn"}) {
    for (const char* const direction : {"", " unpack"}) lines.push_back("pack_weight " + weight + direction);
  }
  return lines;
}

// Without their targets.
std::set<std::string> texts_of(const std::vector<WarmJob>& jobs) {
  std::set<std::string> all;
  for (const WarmJob& job : jobs) all.insert(job.source.text);
  return all;
}

template <class Order>
void check_kernels(const std::set<std::string>& listed, const MatmulCall& call, const Order& order) {
  for (const auto& spec : order) {
    if (kernel_of(spec).starts_with("cublaslt")) continue;  // has no source
    const bool is_listed = listed.contains(generate(spec).text);
    if (!is_listed) BOOST_TEST(is_listed, print(call) << ": " << print(spec));
  }
}

// Whatever may be chosen for the matmul is among the sources.
void check_order(const std::set<std::string>& listed, const MatmulCall& call, const MatmulDevice& device) {
  if (const auto* const gemm = std::get_if<GemmSpec>(&call.spec)) {
    check_kernels(listed, call, gemm_order({.spec = *gemm, .size = call.size}, device));
  } else {
    check_kernels(listed, call, dequant_order(std::get<DequantMatmulSpec>(call.spec), call.size, device));
  }
}

WarmRequest llama() {
  WarmRequest request;
  request.sets = {"llama3-8b"};
  return request;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tokens_are_numbers_and_ranges) {
  const auto tokens = [](const std::string& text) { return parse_tokens("--tokens", text); };
  BOOST_TEST(tokens("").empty());
  BOOST_TEST((tokens("8192") == std::vector<std::int64_t>{8192}));
  BOOST_TEST((tokens("64-67,1,16,64") == std::vector<std::int64_t>{1, 16, 64, 65, 66, 67}));
  BOOST_TEST(tokens("1-16384").size() == 16384U);
  BOOST_TEST((tokens("5-5") == std::vector<std::int64_t>{5}));
  const std::string number = "\" must be a number of tokens from 1 to 1073741824, or a range such as 1-256";
  for (const std::string wrong : {"0", "x", "1.5", "9223372036854775808", "1e3"}) {
    BOOST_TEST(error_of([&] { tokens(wrong); }) == "--tokens: \"" + wrong + number);
  }
  BOOST_TEST(error_of([&] { tokens("9-3"); }) == "--tokens: \"9-3\" must be a range such as 1-256");
  for (const std::string wrong : {"1-16385", "1-1073741824", "1-10000,20001-30000"}) {
    BOOST_TEST(error_of([&] { tokens(wrong); }) ==
               "--tokens: \"" + wrong +
                   "\" must be at most 16384 numbers, because the layers run once with each; "
                   "name only those that a run will have");
  }
  BOOST_TEST(error_of([&] { tokens("-3"); }) == "--tokens: \"-3\" must be a range such as 1-256");
}

BOOST_AUTO_TEST_CASE(a_plan_has_each_kernel_once_and_the_longest_first) {
  const std::vector<WarmJob> jobs = plan_warm(llama());
  BOOST_TEST(jobs.size() > 60U);
  BOOST_TEST(kernels(jobs).size() == jobs.size());
  BOOST_TEST(std::ranges::is_sorted(jobs, std::greater{}, &WarmJob::weight));
  std::set<std::string> texts;
  for (const WarmJob& job : jobs) BOOST_TEST(texts.insert(job.source.text).second, job.name);
  BOOST_TEST_CHECK(kernels(plan_warm(llama())) == kernels(jobs), boost::test_tools::per_element());
}

// The library's choices are asked directly here, for every number of the range.
BOOST_AUTO_TEST_CASE(a_range_has_the_decoding_kernels_of_each_of_its_numbers) {
  const test::TemporaryDirectory folder;
  WarmRequest request;
  request.layers = {write(folder, "layers.json", R"({"decoding": [{"in_features": 4096, "out_features": 6144},
      {"in_features": 14336, "out_features": 4096}, {"in_features": 520, "out_features": 1000},
      {"in_features": 8192, "out_features": 128}]})")};
  request.weights = {"e4m3fn", "e2m1fn:mx"};
  for (const char* const gpu : {"h200", "h20", "a100"}) {
    request.gpus = {gpu};
    const std::set<std::string> listed = texts_of(plan_warm(request));
    const MatmulDevice device = matmul_device(gpu_named(gpu));
    for (const DecodedLayer& layer : read_layers(request.layers[0]).decoding) {
      for (const char* const line :
           {"dequant_matmul bf16*e4m3fn->bf16 packed scale=row",
            "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu", "gemm bf16*bf16->bf16 nt"}) {
        for (std::int64_t m = 1; m <= 256; ++m) {
          check_order(listed, {parse_matmul_spec(line), {m, layer.out_features, layer.in_features}}, device);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_range_has_the_training_kernels_of_each_of_its_numbers) {
  WarmRequest request = llama();
  request.decoding_tokens = "";
  request.training_tokens = "900-1100";
  const std::set<std::string> listed = texts_of(plan_warm(request));
  const MatmulDevice device = matmul_device(gpu_named("h200"));
  for (std::int64_t tokens = 900; tokens <= 1100; ++tokens) {
    for (const TrainedLayer& layer : known_model_layers("llama3-8b").training) {
      for (const Recipe& recipe : recipes()) {
        for (const LinearGemm& gemm :
             linear_gemms(recipe.config, {tokens, layer.in_features, layer.out_features}, Dtype::bf16)) {
          check_order(listed, {gemm.call.spec, gemm.call.size}, device);
        }
      }
    }
  }
  for (const std::int64_t tokens : {901, 1000, 1099}) {  // casts too
    request.training_tokens = std::to_string(tokens);
    BOOST_TEST(std::ranges::includes(listed, texts_of(plan_warm(request))), tokens << " tokens");
  }
}

BOOST_AUTO_TEST_CASE(parts_of_a_plan) {
  WarmRequest request = llama();
  request.decoding_tokens = "";
  const std::set<std::string> training = kernels(plan_warm(request));
  for (const std::string& text : training) BOOST_TEST(text.find("dequant_matmul") == std::string::npos, text);
  request.recipes = {"rowwise"};
  const std::set<std::string> rowwise = kernels(plan_warm(request));
  BOOST_TEST(rowwise.size() < training.size());
  BOOST_TEST(std::ranges::includes(training, rowwise));
  request = llama();
  request.training_tokens = "";
  const std::set<std::string> decoding = kernels(plan_warm(request));
  BOOST_TEST(std::ranges::any_of(
      decoding, [](const std::string& name) { return name.find("dequant_matmul") != std::string::npos; }));
  request.gpus = {"h200", "a100"};
  const std::set<std::string> two = kernels(plan_warm(request));
  BOOST_TEST(std::ranges::includes(two, decoding));
  BOOST_TEST(std::ranges::any_of(two, [](const std::string& text) { return text.starts_with("sm_80 "); }));
}

BOOST_AUTO_TEST_CASE(wrong_requests_are_explained) {
  WarmRequest request = llama();
  request.sets = {"llama9"};
  BOOST_TEST(error_of([&] { plan_warm(request); }) ==
             "--set: \"llama9\" must be one of llama2-7b, llama2-70b, llama3-8b, llama3-70b, mixtral-8x7b, "
             "qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, gpt-oss-20b, gpt-oss-120b");
  request = llama();
  request.weights = {"bf16"};
  BOOST_TEST(error_of([&] { plan_warm(request); }).starts_with("--weight-only: \"bf16\" must be a weight's dtype"));
  request.weights = {"e4m3fn:wide"};
  BOOST_TEST(error_of([&] { plan_warm(request); }) ==
             "--weight-only: \"e4m3fn:wide\" must be a dtype and tensor, row, 1x128, 1x64, 1x32, 128x128 or mx");
  request = llama();
  request.dtype = "f64";
  BOOST_TEST(error_of([&] { plan_warm(request); }) == "--dtype: \"f64\" must be bf16 or f16");
}

BOOST_AUTO_TEST_CASE(layers_come_from_a_file) {
  const test::TemporaryDirectory folder;
  const ModelLayers layers =
      read_layers(write(folder, "layers.json",
                        R"({"training": [{"name": "a", "in_features": 256, "out_features": 512, "bias": true},
                             {"in_features": 256, "out_features": 512, "kind": "gated_mlp"}]})"));
  BOOST_REQUIRE(layers.training.size() == 2U);
  BOOST_TEST(layers.training[0].bias);
  BOOST_TEST((layers.training[1].kind == TrainedLayerKind::gated_mlp));
  BOOST_REQUIRE(layers.decoding.size() == 1U);  // a gated MLP is no linear layer
  BOOST_TEST(layers.decoding[0].name == "a");
  BOOST_TEST(layers.decoding[0].out_features == 512);
}

BOOST_AUTO_TEST_CASE(wrong_files_of_layers_are_explained) {
  const test::TemporaryDirectory folder;
  const auto problem = [&](const std::string& text) {
    const fs::path path = write(folder, "layers.json", text);
    const std::string message = error_of([&] { read_layers(path); });
    BOOST_REQUIRE(message.starts_with(path.string() + ": "));
    return message.substr(path.string().size() + 2);
  };
  BOOST_TEST(problem("{}") == "has neither \"training\" nor \"decoding\" layers");
  BOOST_TEST(problem("[]") == "is not a JSON object");
  BOOST_TEST(problem("{\"training\": 1}") == "has \"training\": 1, which is not an array");
  BOOST_TEST(problem("{\"training\": [1]}") == "training[0] is not a JSON object");
  BOOST_TEST(problem("{\"training\": [{}]}") == "training[0] lacks \"in_features\"");
  for (const char* wrong : {"0", "-1", "1e+22", "1.5", "\"x\"", "18446744073709551615", "null"}) {
    BOOST_TEST(problem(std::string("{\"training\": [{\"in_features\": ") + wrong + "}]}") ==
               std::string("training[0] has \"in_features\": ") + wrong +
                   ", which is not a whole number from 1 to 1073741824");
  }
  BOOST_TEST(problem(R"({"decoding": [{"in_features": 1, "out_features": 1}, {"in_features": 1}]})") ==
             "decoding[1] lacks \"out_features\"");
  BOOST_TEST(problem(R"({"training": [{"in_features": 1, "out_features": 1, "kind": "x"}]})") ==
             "training[0] has \"kind\": \"x\", which is not linear, rms_norm_linear, layer_norm_linear, gated_mlp, "
             "layer_norm_mlp, rms_norm_gated_mlp or experts");
  BOOST_TEST(problem(R"({"training": [{"in_features": 1, "out_features": 1, "name": 7}]})") ==
             "training[0] has \"name\": 7, which is not a text");
  BOOST_TEST(problem(R"({"decoding": [{"in_features": 1, "out_features": 1, "bias": 1}]})") ==
             "decoding[0] has \"bias\": 1, which is not true or false");
  BOOST_TEST(problem(R"({"training": [], "trainning\u001b": []})") ==
             "has the unknown name \"trainning?\"; expected training, decoding");
  BOOST_TEST(problem(R"({"training": [{"in_features": 1, "out_feature": 1}]})") ==
             "training[0] has the unknown name \"out_feature\"; expected name, kind, in_features, out_features, bias");
  BOOST_TEST(problem(R"({"decoding": [{"in_features": 1, "out_features": 1, "output": "f32"}]})") ==
             "decoding[0] has the unknown name \"output\"; expected name, kind, in_features, out_features, f32_output, "
             "bias");
  BOOST_TEST(problem(R"({"decoding": [{"in_features": 1, "out_features": 1, "kind": "gated_mlp"}]})") ==
             "decoding[0] has \"kind\": \"gated_mlp\", which is not linear or experts");
  BOOST_TEST(problem("{") == "is not JSON (line 1, column 2)");
  BOOST_TEST(problem(std::string(100000, '[') + std::string(100000, ']')) == "is nested deeper than 3 levels");
  BOOST_TEST(error_of([&] { read_layers(folder.path() / "nothing"); }).find("there is no such file") !=
             std::string::npos);
  BOOST_TEST(error_of([&] { read_layers("/dev/zero"); }).find("regular file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(experts_come_from_a_file) {
  const test::TemporaryDirectory folder;
  const std::string experts = R"({"kind": "experts", "name": "moe", "experts": 8, "chosen": 2, "in_features": 256,
                                  "out_features": 512})";
  for (const std::string& text :
       {"{\"training\": [" + experts + "]}", "{\"training\": [" + experts + "], \"decoding\": [" + experts + "]}"}) {
    const ModelLayers layers = read_layers(write(folder, "layers.json", text));
    BOOST_REQUIRE(layers.training.size() == 1U);
    BOOST_TEST((layers.training[0].kind == TrainedLayerKind::experts));
    BOOST_TEST(layers.training[0].experts == 8);
    BOOST_TEST(layers.training[0].chosen == 2);
    BOOST_REQUIRE(layers.decoding.size() == 1U);
    BOOST_TEST(layers.decoding[0].name == "moe");
    BOOST_TEST(layers.decoding[0].experts == 8);
    BOOST_TEST(layers.decoding[0].chosen == 2);
    BOOST_TEST(layers.decoding[0].out_features == 512);
  }
}

BOOST_AUTO_TEST_CASE(wrong_experts_in_a_file_are_explained) {
  const test::TemporaryDirectory folder;
  const auto problem = [&](const char* list, const std::string& fields) {
    const fs::path path =
        write(folder, "layers.json", "{\"" + std::string(list) + "\": [{\"kind\": \"experts\", " + fields + "}]}");
    return error_of([&] { read_layers(path); }).substr(path.string().size() + 2);
  };
  const std::string sizes = R"("in_features": 256, "out_features": 512)";
  for (const std::string list : {"training", "decoding"}) {
    const auto of = [&](const std::string& fields) { return problem(list.c_str(), fields); };
    BOOST_TEST(of(sizes) == list + "[0] lacks \"experts\"");
    BOOST_TEST(of(sizes + ", \"experts\": 8") == list + "[0] lacks \"chosen\"");
    BOOST_TEST(of(sizes + ", \"experts\": 513, \"chosen\": 1") ==
               list + "[0] has \"experts\": 513, which is not a whole number from 1 to 512");
    BOOST_TEST(of(sizes + ", \"experts\": 8, \"chosen\": 9") ==
               list + "[0] has \"chosen\": 9, which is not a whole number from 1 to 8");
    BOOST_TEST(of(R"("in_features": 256, "out_features": 500, "experts": 8, "chosen": 2)") ==
               list + "[0] has \"out_features\": 500, which is not a multiple of 16, as experts need");
    BOOST_TEST(of(R"("in_features": 8, "out_features": 512, "experts": 8, "chosen": 2)") ==
               list + "[0] has \"in_features\": 8, which is not a multiple of 16, as experts need");
    BOOST_TEST(of(sizes + ", \"expert\": 8") ==
               list +
                   "[0] has the unknown name \"expert\"; expected name, kind, in_features, out_features, bias, "
                   "experts, chosen");
  }
  BOOST_TEST(problem("training", sizes + ", \"kind2\": 1").starts_with("training[0] has the unknown name \"kind2\""));
  const fs::path linear =
      write(folder, "layers.json", R"({"training": [{"in_features": 16, "out_features": 16, "experts": 8}]})");
  BOOST_TEST(
      error_of([&] { read_layers(linear); })
          .ends_with(
              "training[0] has the unknown name \"experts\"; expected name, kind, in_features, out_features, bias"));
}

namespace {

std::size_t count_grouped(const std::vector<WarmJob>& jobs) {
  return static_cast<std::size_t>(
      std::ranges::count_if(jobs, [](const WarmJob& job) { return job.source.name.starts_with("grouped_gemm"); }));
}

// Matmuls by weights of many experts, decoded within the kernel.
std::size_t count_of_experts(const std::vector<WarmJob>& jobs, const std::string& target, const char* format = "") {
  return static_cast<std::size_t>(std::ranges::count_if(jobs, [&](const WarmJob& job) {
    const std::string& name = job.source.name;
    return print(job.target) == target && name.starts_with("dequant_matmul") &&
           name.find(" experts") != std::string::npos && name.find(format) != std::string::npos;
  }));
}

}  // namespace

// gpt-oss's checkpoints have MXFP4, whatever --weight-only says; another mixture's experts have the formats that it
// names.
BOOST_AUTO_TEST_CASE(experts_decode_with_weights_of_few_bits) {
  WarmRequest request;
  request.recipes = {"rowwise"};
  request.training_tokens = "";
  request.decoding_tokens = "1,64";
  for (const char* const set : {"gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b"}) {
    request.sets = {set};
    request.weights.clear();
    const std::vector<WarmJob> usual = plan_warm(request);
    const bool is_mxfp4 = request.sets[0].starts_with("gpt-oss");
    BOOST_TEST((count_of_experts(usual, "sm_90a", "e2m1fn") > 0U) == is_mxfp4, set);
    BOOST_TEST(count_of_experts(usual, "sm_90a", "e4m3fn") > 0U, set);
    request.weights = {"e2m1fn:mx", "e3m2fn:mx"};
    const std::vector<WarmJob> named = plan_warm(request);
    for (const char* const format : {"e2m1fn", "e3m2fn"}) {
      BOOST_TEST(count_of_experts(named, "sm_90a", format) > 0U, set << " " << format);
    }
    BOOST_TEST(count_of_experts(named, "sm_90a", "e4m3fn") == 0U, set);
    BOOST_TEST(count_grouped(named) > 0U, set);
  }
}

BOOST_AUTO_TEST_CASE(mixtures_of_experts_are_sets) {
  for (const char* const set :
       {"mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"}) {
    WarmRequest request;
    request.sets = {set};
    request.decoding_tokens = "1,64";
    std::vector<std::string> warnings;
    request.warn = [&](const std::string& text) { warnings.push_back(text); };
    const std::vector<WarmJob> all = plan_warm(request);
    BOOST_TEST(count_grouped(all) >= 10U, set);
    BOOST_TEST(warnings.empty(), set);  // all recipes are all that each layer takes
    request.recipes = {"rowwise"};
    request.decoding_tokens = "";
    const std::vector<WarmJob> rowwise = plan_warm(request);
    BOOST_TEST(count_grouped(rowwise) > 0U, set);
    BOOST_TEST(std::ranges::includes(kernels(all), kernels(rowwise)), set);
  }
}

// Each is said once, however many tokens there are.
BOOST_AUTO_TEST_CASE(experts_are_left_out_with_a_warning) {
  const test::TemporaryDirectory folder;
  WarmRequest request;
  request.layers = {write(folder, "layers.json", R"({"training": [{"in_features": 256, "out_features": 512},
      {"kind": "experts", "experts": 8, "chosen": 2, "in_features": 256, "out_features": 512}]})")};
  request.recipes = {"rowwise_folded", "rowwise", "delayed"};
  request.training_tokens = "1-70";
  request.gpus = {"h200", "a100"};
  std::vector<std::string> warnings;
  request.warn = [&](const std::string& text) { warnings.push_back(text); };
  const std::vector<WarmJob> jobs = plan_warm(request);
  const std::vector<std::string> expected{
      "experts are left out of rowwise_folded: they train by tensorwise, delayed, rowwise, blockwise",
      "experts are left out of training and of decoding with activations in FP8 for a100: their GEMMs run on Hopper "
      "(sm_90a)"};
  BOOST_TEST_CHECK(warnings == expected, boost::test_tools::per_element());
  BOOST_TEST(count_grouped(jobs) > 0U);
  for (const WarmJob& job : jobs) {
    if (job.source.name.starts_with("grouped_gemm")) BOOST_TEST(print(job.target) == "sm_90a");
  }
  BOOST_TEST(std::ranges::any_of(jobs, [](const WarmJob& job) { return print(job.target) == "sm_80"; }));
  BOOST_TEST(count_of_experts(jobs, "sm_80") > 0U);  // those that decode by activations in 16 bits
  BOOST_TEST(count_of_experts(jobs, "sm_90a") > 0U);
  request.layers.clear();
  request.sets = {"llama3-8b"};
  request.training_tokens = "8192";
  warnings.clear();
  plan_warm(request);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(workers_do_every_job_once) {
  std::vector<std::size_t> jobs(50);
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i] = 2 * i;
  for (const int processes : {0, 1, 3, 100}) {
    std::vector<std::size_t> begun;
    std::set<std::size_t> done;
    run_in_workers(jobs, {.processes = processes,
                          .work =
                              [](std::size_t job) {
                                if (job == 8) throw Error(ErrorCode::compile_failed, "job", "failed on purpose");
                                return std::string(job, 'x');
                              },
                          .begun = [&](std::size_t job) { begun.push_back(job); },
                          .done =
                              [&](const JobResult& result) {
                                BOOST_TEST(done.insert(result.job).second);
                                BOOST_TEST(result.failed == (result.job == 8));
                                BOOST_TEST(result.text ==
                                           (result.job == 8 ? "job: failed on purpose" : std::string(result.job, 'x')));
                              }});
    BOOST_TEST_CHECK(begun == jobs, boost::test_tools::per_element());
    BOOST_TEST(done.size() == jobs.size());
  }
  run_in_workers({}, {.work = [](std::size_t) { return std::string(); }, .done = [](const JobResult&) {}});
}

// A compiler that crashes costs its job and no other.
BOOST_AUTO_TEST_CASE(a_worker_that_dies_is_replaced) {
  const std::vector<std::size_t> jobs{0, 1, 2, 3, 4, 5};
  std::vector<std::string> texts(jobs.size());
  run_in_workers(jobs, {.processes = 2,
                        .work =
                            [](std::size_t job) {
                              if (job == 1) ::raise(SIGKILL);
                              if (job == 4) ::_exit(7);
                              return std::string("done");
                            },
                        .done = [&](const JobResult& result) { texts[result.job] = result.text; }});
  BOOST_TEST(texts[1] == "the process that compiled it was ended by signal 9 (Killed)");
  BOOST_TEST(texts[4] == "the process that compiled it ended with exit code 7");
  for (const std::size_t job : {0U, 2U, 3U, 5U}) BOOST_TEST(texts[job] == "done");
}

// What a compiler in its worker may do, in every order and together with jobs that work (F11 of docs/notes/checks.md).
BOOST_AUTO_TEST_CASE(workers_that_abort_crash_hang_and_answer_garbage) {
  const auto say = [](const std::string& bytes) {  // on the worker's socket, whichever that is
    for (int file = 3; file < 64; ++file) static_cast<void>(::send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  };
  const std::vector<std::pair<std::function<void()>, std::string>> faults{
      {[] { ::signal(SIGABRT, SIG_DFL), ::abort(); }, "ended by signal 6"},
      {[] { ::signal(SIGSEGV, SIG_DFL), ::raise(SIGSEGV); }, "ended by signal 11"},
      {[] { ::raise(SIGKILL); }, "ended by signal 9 (Killed)"},
      {[] { ::_exit(0); }, "ended with exit code 0"},
      {[] {
         for (;;) ::pause();
       },
       "the process that compiled it was ended after 0.4s"},
      {[] { ::raise(SIGSTOP); }, "the process that compiled it was ended after 0.4s"},
      {[&] { say(std::string(24, '\xff')), ::pause(); }, "answered garbage and was ended"},
      {[&] { say("x"), ::_exit(1); }, "ended with exit code 1"},
      {[] { throw std::bad_alloc(); }, "bad_alloc"}};
  test::FaultRow row("F11, workers");
  for (const int processes : {1, 3}) {
    std::vector<std::size_t> jobs(2 * faults.size());
    std::iota(jobs.begin(), jobs.end(), 0);
    std::vector<std::string> texts(jobs.size());
    run_in_workers(jobs, {.processes = processes,
                          .work =
                              [&](std::size_t job) {
                                if (job % 2 == 1) faults[job / 2].first();
                                return std::string("done");
                              },
                          .done = [&](const JobResult& result) { texts[result.job] += result.text; },
                          .limit = std::chrono::milliseconds(400)});
    for (const std::size_t job : jobs) {
      row.inject("job " + std::to_string(job), [&]() -> std::string {
        const std::string expected = job % 2 == 1 ? faults[job / 2].second : "done";
        return texts[job].find(expected) != std::string::npos ? "" : "\"" + texts[job] + "\" lacks " + expected;
      });
    }
  }
  row.finish(36);
}

// Ctrl-C waits for no worker, hung or busy; and none outlives the command.
BOOST_AUTO_TEST_CASE(workers_end_when_asked_to) {
  const auto start = std::chrono::steady_clock::now();
  const test::TemporaryDirectory folder;
  const auto hang = [&](std::size_t job) {
    std::ofstream(folder.path() / std::to_string(job)) << ::getpid() << '\n';
    for (;;) ::pause();
    return std::string();
  };
  const auto pid_of = [&](const char* job) {
    pid_t process = 0;
    for (int tries = 0; process == 0 && tries < 5000; ++tries, ::usleep(1000)) {
      std::ifstream(folder.path() / job) >> process;
    }
    return process;
  };
  const auto has_ended = [](pid_t process) {
    for (int tries = 0; tries < 5000; ++tries, ::usleep(1000)) {
      if (process > 0 && ::kill(process, 0) != 0) return true;
    }
    return false;
  };
  const std::vector<std::size_t> first{0};
  int done = 0;
  const auto count = [&](const JobResult&) { ++done; };
  run_in_workers(first, {.processes = 1, .work = hang, .done = count, .stop = [&] { return pid_of("0") != 0; }});
  BOOST_TEST(done == 0);
  const std::vector<std::size_t> second{1};
  run_in_workers(second, {.processes = 1, .work = hang, .done = count, .stop = [&] {
                            return fs::exists(folder.path() / "1") && pid_of("1") != 0;
                          }});
  BOOST_TEST(has_ended(pid_of("1")));
  const std::vector<std::size_t> third{2};
  const pid_t command = test::start_process([&] {
    run_in_workers(third, {.processes = 1, .work = hang, .done = count});
    return 0;
  });
  const pid_t orphan = pid_of("2");
  ::kill(command, SIGKILL);
  BOOST_TEST(test::wait_for(command) == -SIGKILL);
  BOOST_TEST(has_ended(orphan));
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(20)));
}

BOOST_AUTO_TEST_CASE(workers_begin_nothing_when_asked_to_stop) {
  const std::vector<std::size_t> jobs{0, 1, 2, 3, 4, 5};
  int done = 0;
  run_in_workers(jobs, {.processes = 1,
                        .work = [](std::size_t) { return std::string(); },
                        .done = [&](const JobResult&) { ++done; },
                        .stop = [&] { return done == 2; }});
  BOOST_TEST(done == 2);
}

namespace {

struct Outcome {
  int code = -1;
  std::string out{};
  std::string err{};

  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

// The command on a layer of a few kernels, with its own store.
class Command {
 public:
  // Instead of the layer, kernels that compile in a third of the time.
  std::string recorded(const std::string& name, const std::vector<std::string>& kernels) const {
    std::ofstream lines(path(name));
    for (const std::string& kernel : kernels) lines << kernel << '\n';
    return "--tokens none --decode none --recording '" + path(name).string() + "' ";
  }
  std::string few() const {
    return recorded("few", {"amax f32 scale=row+col rounded=f16 list", "pack_weight e4m3fn", "pack_weight e5m2"});
  }

  // The variables of a run with that store.
  std::string store() const {
    return "INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "' INGOT_CACHE_DIR='" + path("store").string() + "'";
  }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // Of a shell, so that `exec` leaves the program with the process that was started.
  std::string text(const std::string& environment, const std::string& arguments) const {
    return "exec env -u INGOT_CACHE_TIERS -u INGOT_CACHE_MODE " + environment + " '" INGOT_PROGRAM "' warm --layers '" +
           layers_.string() + "' " + arguments + " </dev/null >'" + path("out").string() + "' 2>'" +
           path("err").string() + "'";
  }

  Outcome result(int code) const { return {.code = code, .out = read(path("out")), .err = read(path("err"))}; }

  Outcome run(const std::string& environment, const std::string& arguments) const {
    const int status = std::system(text(environment, arguments).c_str());
    return result(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }

  int kernels_in_store() const {
    int kernels = 0;
    std::error_code missing;
    for (fs::recursive_directory_iterator it(path("store"), missing), end; !missing && it != end;
         it.increment(missing)) {
      kernels += it->path().extension() == ".kernel" ? 1 : 0;
    }
    return kernels;
  }

  // Sends the signal as soon as the program handles it.
  Outcome run_until_it_plans(const std::string& arguments, int signal) const {
    const std::string command = text(store(), arguments);
    const pid_t process = test::start_process([&] {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      return 1;
    });
    const auto is_handled = [&] {
      const std::string status = read(fmt::format("/proc/{}/status", process));
      const std::size_t at = status.find("SigCgt:");
      if (at == std::string::npos || !status.starts_with("Name:\tingot")) return false;  // still the shell
      return (std::strtoull(status.c_str() + at + 7, nullptr, 16) >> static_cast<unsigned>(signal - 1) & 1U) != 0;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!is_handled() && std::chrono::steady_clock::now() < deadline) ::usleep(1000);
    ::kill(process, signal);
    return result(test::wait_for(process));
  }

  // Sends the signal as soon as the store has more kernels than before. Minus a signal that has ended the program.
  Outcome run_until_one_more(const std::string& arguments, int signal) const {
    const int before = kernels_in_store();
    const std::string command = text(store(), arguments);
    const pid_t process = test::start_process([&] {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      return 1;
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (kernels_in_store() == before && std::chrono::steady_clock::now() < deadline) ::usleep(1000);
    ::kill(process, signal);
    return result(test::wait_for(process));
  }

 private:
  static std::string read(const fs::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  test::TemporaryDirectory folder_;
  fs::path layers_ =
      write(folder_, "layers.json", R"({"training": [{"in_features": 256, "out_features": 512}], "decoding": []})");
};

}  // namespace

// The whole command: into a store, again, into a bundle, and from the bundle alone, without NVRTC.
BOOST_AUTO_TEST_CASE(warm_then_run_from_the_bundle) {
  const Command command;
  const fs::path bundle = command.path("a.bundle");
  const std::string small = "--recipe high_precision --json ";
  const Outcome first = command.run(command.store(), small);
  BOOST_REQUIRE(first.code == 0);
  const int kernels = first.json().at("kernels").get<int>();
  BOOST_TEST(kernels > 1);
  BOOST_TEST(first.json().at("compiled").get<int>() == kernels);
  const Outcome second = command.run(command.store(), small + "--bundle '" + bundle.string() + "'");
  BOOST_TEST(second.code == 0);
  BOOST_TEST(second.json().at("there").get<int>() == kernels);
  BOOST_TEST(second.json().at("compiled").get<int>() == 0);
  BOOST_TEST(second.json().at("bundle_bytes").get<std::size_t>() == fs::file_size(bundle));
  const std::string elsewhere = "INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" + command.path("other").string() + "'";
  const Outcome third = command.run(elsewhere + " INGOT_CACHE_TIERS='" + bundle.string() + "'", small);
  BOOST_TEST(third.code == 0);
  BOOST_TEST(third.json().at("there").get<int>() == kernels);
  const Outcome fourth = command.run(elsewhere, "--recipe rowwise");
  BOOST_TEST(fourth.code == 1);
  for (const char* const part : {"ingot: error: NVRTC: ", " kernels have to be compiled (sm_90a ",
                                 " more, which --check lists), and it is missing: ", "INGOT_CUDA_ROOT is \"none\"",
                                 ". Unset INGOT_CUDA_ROOT or let it name a CUDA toolkit, or `pip install "
                                 "nvidia-cuda-nvrtc`, or name a bundle with "
                                 "these kernels in INGOT_CACHE_TIERS"}) {
    BOOST_TEST(fourth.err.find(part) != std::string::npos, "\"" << part << "\" is not in " << fourth.err);
  }
}

// With --check, and in the mode strict, nothing is compiled, whether NVRTC is there or not.
BOOST_AUTO_TEST_CASE(checked_it_tells_what_is_missing) {
  const Command command;
  const std::string small = command.few();
  const std::string strict = command.store() + " INGOT_CACHE_MODE=strict";
  const Outcome none = command.run(command.store(), small + "--check");
  BOOST_TEST(none.code == 1, none.err);
  BOOST_TEST(none.out.find("missing: sm_90a pack_weight e4m3fn\n") != std::string::npos, none.out);
  BOOST_TEST(none.out.find(" 0 there, ") != std::string::npos, none.out);
  BOOST_TEST(none.out.find(" missing; nothing was compiled\nstore: " + command.path("store").string() + "\n") !=
                 std::string::npos,
             none.out);
  const fs::path bundle = command.path("a.bundle");
  const Outcome bound = command.run(strict, small + "--json --bundle '" + bundle.string() + "'");
  BOOST_TEST(bound.code == 1);
  BOOST_TEST(bound.json().at("missing").size() == bound.json().at("kernels"));
  BOOST_TEST(bound.json().at("store") == command.path("store").string());
  BOOST_TEST(command.kernels_in_store() == 0);
  BOOST_TEST(!fs::exists(bundle));
  const Outcome made = command.run(command.store(), small);
  BOOST_TEST(made.code == 0, made.err);
  BOOST_TEST(made.out.find("store: " + command.path("store").string() + "\n") != std::string::npos, made.out);
  const std::string without = "INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" + command.path("store").string() + "'";
  for (const std::string& environment : {strict, without, without + " INGOT_CACHE_MODE=strict"}) {
    const Outcome all = command.run(environment, small + "--check --json");
    BOOST_TEST(all.code == 0, all.err);
    BOOST_TEST(all.json().at("missing").empty());
    BOOST_TEST(all.json().at("there") == all.json().at("kernels"));
  }
}

// It asks the store first, and counts what is found at the end.
BOOST_AUTO_TEST_CASE(nothing_is_compiled_that_is_not_kept) {
  const Command command;
  const std::string small = "--recipe high_precision";
  const std::string cuda = "INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "' ";
  std::ofstream(command.path("file")) << "x";
  for (const auto& [environment, why] : std::vector<std::pair<std::string, std::string>>{
           {"INGOT_CACHE_DIR=/proc/ingot", "store directory /proc/ingot cannot be made: "},
           {"INGOT_CACHE_DIR='" + command.path("file").string() + "'", "file is not a directory"},
           {"-u INGOT_CACHE_DIR -u XDG_CACHE_HOME -u HOME", "there is no store directory: "},
           {"INGOT_CACHE_MODE=memory", "INGOT_CACHE_MODE: is \"memory\", in which nothing on disk"}}) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome result = command.run(environment + " " + cuda, small);
    BOOST_TEST(result.code == 1, environment);
    BOOST_TEST(result.out == "");
    BOOST_TEST(result.err.find(why) != std::string::npos, result.err);
    BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(3)), environment);
  }
  BOOST_TEST(command.run("INGOT_CACHE_MODE=memory", small + " --list").code == 0);
  // A disk that is full from the start, and one that takes less than a kernel.
  const Outcome full = command.run(command.store() + " sh -c 'ulimit -f 32; exec \"$0\" \"$@\"'", small);
  BOOST_TEST(full.code == 1);
  BOOST_TEST(full.err.find(" cannot be written: File too large, so what is compiled would not be kept (0 compiled") !=
                 std::string::npos,
             full.err);
  // Kernels of 18 KB each, so that the store is trimmed meanwhile.
  const std::string many = command.recorded("many", packing_kernels());
  const Outcome evicted = command.run(command.store() + " INGOT_CACHE_MAX_BYTES=100000", many + "--json");
  BOOST_TEST(evicted.code == 1);
  BOOST_TEST(evicted.json().at("compiled") == evicted.json().at("kernels"));
  BOOST_TEST(evicted.json().at("lost").get<int>() > 0);
  const Outcome none = command.run(command.store() + " INGOT_CACHE_MAX_BYTES=1", many);
  BOOST_TEST(none.code == 1);
  BOOST_TEST(none.err.find("(is its limit, INGOT_CACHE_MAX_BYTES, too small?)") != std::string::npos, none.err);
  std::ofstream(command.path("empty")) << "";
  const std::string empty = "'" + command.path("empty").string() + "'";
  for (const auto& [arguments, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--tokens none --decode none", "what was named asks for no kernel"},
           {"--tokens none --decode none --recording " + empty, "what was named asks for no kernel"},
           {"--tuning " + empty, "has no tuning record that can be read"}}) {
    const Outcome nothing = command.run(command.store(), arguments);
    BOOST_TEST(nothing.code == 1, arguments);
    BOOST_TEST(nothing.err.find(expected) != std::string::npos, nothing.err);
  }
}

BOOST_AUTO_TEST_CASE(recordings_of_damaged_lines) {
  const test::TemporaryDirectory folder;
  const fs::path damaged = write(folder, "damaged", "train_lm Targets\nnonsense\n");
  const fs::path partly = write(folder, "partly", "train_lm Targets\namax bf16 scale=tensor\n");
  WarmRequest request;
  std::vector<std::string> warnings;
  request.warn = [&](const std::string& text) { warnings.push_back(text); };
  request.recordings = {partly, damaged};
  const std::string message = error_of([&] { plan_warm(request); });
  BOOST_TEST(message.starts_with(damaged.string() +
                                 ": is no recording: none of its lines (2) can be read; line 1: \"train_lm"),
             message);
  BOOST_TEST(message.ends_with("; a run with INGOT_RECORD makes one"), message);
  request.recordings = {partly};
  warnings.clear();
  BOOST_TEST(plan_warm(request).size() > 0U);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("1 damaged line is ignored") != std::string::npos, warnings[0]);
  for (const char* const list : {"", " --list"}) {
    const std::string text = "INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" + (folder.path() / "store").string() + "' '" +
                             INGOT_PROGRAM "' warm --recording '" + damaged.string() + "'" + list + " 2>/dev/null";
    const int status = std::system(text.c_str());
    BOOST_TEST(WEXITSTATUS(status) == 1, list);
  }
}

// A stand-in for the interpreter: writes what it is called with, and the recording that it is asked for.
BOOST_AUTO_TEST_CASE(a_model_is_recorded_by_python) {
  const test::TemporaryDirectory folder;
  const fs::path asked = folder.path() / "asked";
  const auto interpreter = [&](const std::string& name, const std::string& end) {
    const fs::path script =
        write(folder, name,
              "#!/bin/sh\nprintf '%s\\n' \"$@\" > '" + asked.string() +
                  "'\nfor word in \"$@\"; do case $word in --output=*) output=${word#--output=};; esac; "
                  "done\n" +
                  end);
    fs::permissions(script, fs::perms::owner_all);
    return script.string();
  };
  const std::string writes =
      interpreter("writes", "echo '# Ingot recording' > \"$output\"; echo 'amax bf16 scale=tensor' >> \"$output\"\n");
  WarmRequest request;
  request.recipes = {"rowwise", "delayed"};
  request.decoding_tokens = "";
  const auto record = [&](const std::string& python) {
    return record_models({.configs = {"a b.json"}, .modules = {"models:make"}, .python = python}, request,
                         folder.path());
  };
  request.recordings = record(writes);
  BOOST_TEST(plan_warm(request).size() > 0U);
  std::ifstream stream(asked);
  const std::string words{std::istreambuf_iterator<char>(stream), {}};
  BOOST_TEST(words ==
             "-m\ningot.record\n--module=models:make\n--gpu=h200\n--tokens=8192\n--decode=none\n"
             "--weight-only=e4m3fn\n--dtype=bf16\n--recipe=rowwise,delayed\n--output=" +
                 (folder.path() / "1.ingot").string() + "\n");
  const std::string failed = error_of([&] { record(interpreter("fails", "exit 3\n")); });
  BOOST_TEST(failed.find("a b.json: cannot be recorded: `") == 0U, failed);
  BOOST_TEST(failed.find("fails -m ingot.record` ended with exit code 3; its message is above") != std::string::npos,
             failed);
  const std::string killed = error_of([&] { record(interpreter("dies", "kill -9 $$\n")); });
  BOOST_TEST(killed.find("was ended by signal 9") != std::string::npos, killed);
  const std::string missing = error_of([&] { record((folder.path() / "none").string()); });
  BOOST_TEST(missing.find("none: cannot be run (No such file or directory): name the Python") != std::string::npos,
             missing);
  const std::string text = "INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" + (folder.path() / "store").string() + "' '" +
                           INGOT_PROGRAM "' warm --module models:make --python '" + writes + "' --list > '" +
                           (folder.path() / "list").string() + "' 2>&1";
  BOOST_TEST(std::system(text.c_str()) == 0);
  std::ifstream list(folder.path() / "list");
  const std::string printed{std::istreambuf_iterator<char>(list), {}};
  BOOST_TEST(printed.find("warning: runs the code of models:make") != std::string::npos, printed);
  BOOST_TEST(printed.find("sm_90a  amax bf16 scale=tensor") != std::string::npos, printed);
}

// Its own folder comes before PATH: a virtual environment is used without being active.
BOOST_AUTO_TEST_CASE(the_interpreter_is_that_of_the_programs_environment) {
  const test::TemporaryDirectory folder;
  const fs::path bin = folder.path() / "bin";
  const fs::path others = folder.path() / "others";
  for (const fs::path& each : {bin, others}) fs::create_directory(each);
  const auto interpreter = [&](const fs::path& script) {
    std::ofstream(script) << "#!/bin/sh\necho \"$0\"; exit 3\n";
    fs::permissions(script, fs::perms::owner_all);
  };
  BOOST_TEST(default_python(bin) == "python3");
  fs::create_directory(bin / "python3");  // no program
  interpreter(bin / "python");
  BOOST_TEST(default_python(bin) == (bin / "python").string());
  fs::remove(bin / "python3");
  interpreter(bin / "python3");
  BOOST_TEST(default_python(bin) == (bin / "python3").string());
  fs::permissions(bin / "python3", fs::perms::owner_read);
  if (access((bin / "python3").c_str(), X_OK) != 0) BOOST_TEST(default_python(bin) == (bin / "python").string());
  fs::permissions(bin / "python3", fs::perms::owner_all);
  interpreter(others / "python3");
  fs::copy_file(INGOT_PROGRAM, bin / "ingot");
  fs::create_symlink(bin / "ingot", folder.path() / "link");
  const auto asked = [&](const char* program) {
    const fs::path output = folder.path() / "output";
    const std::string text = "PATH='" + others.string() + ":/bin:/usr/bin' '" + (folder.path() / program).string() +
                             "' warm --module models:make --list > '" + output.string() + "' 2>/dev/null";
    BOOST_TEST(WEXITSTATUS(std::system(text.c_str())) == 1);
    std::ifstream stream(output);
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  BOOST_TEST(asked("bin/ingot") == (bin / "python3").string() + "\n");
  BOOST_TEST(asked("link") == (bin / "python3").string() + "\n");
  for (const char* const name : {"python", "python3"}) fs::remove(bin / name);
  BOOST_TEST(asked("bin/ingot") == (others / "python3").string() + "\n");
}

// At a terminal a kernel's name has the room that there is.
BOOST_AUTO_TEST_CASE(progress_takes_the_width_of_the_terminal) {
  const Command command;
  command.few();
  const auto shown_with = [&](unsigned short columns) {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      setenv("INGOT_CACHE_DIR", command.path(std::to_string(columns)).c_str(), 1);
      setenv("INGOT_CUDA_ROOT", INGOT_CUDA_ROOT, 1);
      execl(INGOT_PROGRAM, "ingot", "warm", "--tokens", "none", "--decode", "none", "--recording",
            command.path("few").c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    std::string shown;
    char bytes[256];
    for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof(bytes))) > 0;) {
      shown.append(bytes, static_cast<std::size_t>(got));
    }
    ::close(terminal);
    BOOST_TEST(test::wait_for(child) == 0, shown);
    return shown;
  };
  BOOST_TEST(shown_with(200).find("sm_90a amax f32 scale=row+col rounded=f16 list: ") != std::string::npos);
  std::istringstream drawn(shown_with(50));
  int bars = 0;
  for (std::string line; std::getline(drawn, line, '\r');) {
    const std::size_t bar = line.find('[', line.starts_with("\x1b[K") ? 3 : 0);
    if (bar == std::string::npos || !line.starts_with("\x1b[K")) continue;
    ++bars;
    BOOST_TEST(line.size() - bar <= 49U, line);
  }
  BOOST_TEST(bars > 2);
}

// Ctrl-C lets what has begun end and says how to go on; kill -9 says nothing. What was compiled is never compiled
// again.
BOOST_AUTO_TEST_CASE(stopped_or_killed_it_goes_on) {
  const Command command;
  const std::string arguments = command.recorded("many", packing_kernels()) + "--jobs 1";
  const fs::path bundle = command.path("a.bundle");
  const Outcome stopped = command.run_until_one_more(arguments + " --bundle '" + bundle.string() + "'", SIGINT);
  BOOST_TEST(stopped.code == 130);
  BOOST_TEST(stopped.out.find("stopped; the same command continues with the rest\n") != std::string::npos, stopped.out);
  BOOST_TEST(!fs::exists(bundle));
  const Outcome killed = command.run_until_one_more(arguments, SIGKILL);
  BOOST_TEST(killed.code == -SIGKILL);
  const int compiled = command.kernels_in_store();
  BOOST_TEST(compiled >= 2);
  const Outcome rest = command.run(command.store(), arguments + " --json");
  BOOST_TEST(rest.code == 0, rest.err);
  const auto json = rest.json();
  BOOST_TEST(json.at("there").get<int>() >= compiled);
  BOOST_TEST(json.at("compiled").get<int>() > 0, "there was nothing left to go on with");
  BOOST_TEST(json.at("there").get<int>() + json.at("compiled").get<int>() == json.at("kernels").get<int>());
  BOOST_TEST(command.kernels_in_store() == json.at("kernels").get<int>());
}

// What would plan for half a minute ends at once, with the code that the manual states.
BOOST_AUTO_TEST_CASE(stopped_while_it_plans) {
  const Command command;
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome stopped = command.run_until_it_plans("--tokens 1-16384 --json", signal);
    BOOST_TEST(stopped.code == 130);
    BOOST_TEST(stopped.out.empty());
  }
  BOOST_TEST(command.kernels_in_store() == 0);
}

// A kernel that does not compile is told, costs no other, and is missing in the bundle.
BOOST_AUTO_TEST_CASE(a_kernel_that_does_not_compile) {
  const Command command;
  for (const auto& [name, text] : embedded_templates()) {
    const fs::path file = command.path("templates") / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << (name == "cast/cast_list.cuh" ? "#error broken on purpose\n" : "");
  }
  const fs::path bundle = command.path("a.bundle");
  const Outcome result = command.run(command.store() + " INGOT_TEMPLATES='" + command.path("templates").string() + "'",
                                     command.few() + "--json --bundle '" + bundle.string() + "'");
  BOOST_TEST(result.code == 1);
  BOOST_TEST(result.err.find("broken on purpose") != std::string::npos, result.err);
  const auto json = result.json();
  BOOST_TEST(json.at("failed") == 1);
  BOOST_TEST(json.at("failures")[0].at("kernel") == "sm_90a amax f32 scale=row+col rounded=f16 list");
  BOOST_TEST(json.at("failures")[0].at("error").get<std::string>().find("broken on purpose") != std::string::npos);
  BOOST_TEST(json.at("compiled").get<int>() + 1 == json.at("kernels").get<int>());
  std::string problem;
  const auto read = KernelBundle::open(bundle, problem);
  BOOST_REQUIRE_MESSAGE(read != nullptr, problem);
  BOOST_TEST(static_cast<int>(read->entries().size()) == json.at("compiled").get<int>());
}

BOOST_AUTO_TEST_SUITE_END()
