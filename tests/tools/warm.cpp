// `ingot warm`: its plan, its files of layers, its worker processes, and the whole command with a bundle, on the CPU.
#include <boost/test/unit_test.hpp>

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/types/gpu.h"
#include "ingot/nn/linear_gemms.h"
#include "ingot/nn/recipes.h"
#include "ingot/runtime/error.h"
#include "support/fault_row.h"
#include "support/temporary_directory.h"
#include "warm_layers.h"
#include "warm_plan.h"
#include "worker_processes.h"

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
  BOOST_TEST(kernels(plan_warm(llama())) == kernels(jobs), boost::test_tools::per_element());
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
  request.accumulate = true;
  const std::set<std::string> summed = kernels(plan_warm(request));
  request.grad_weights = {"bf16", "f32"};
  const std::set<std::string> both = kernels(plan_warm(request));
  BOOST_TEST(std::ranges::includes(summed, rowwise));
  BOOST_TEST(summed.size() > rowwise.size());
  BOOST_TEST(std::ranges::includes(both, summed));
  BOOST_TEST(both.size() > summed.size());
  request.weight_lists = true;
  const std::set<std::string> lists = kernels(plan_warm(request));
  BOOST_TEST(std::ranges::includes(lists, both));
  BOOST_TEST(lists.size() > both.size());
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

BOOST_AUTO_TEST_CASE(shares_are_a_partition) {
  const std::vector<WarmJob> jobs = plan_warm(llama());
  std::set<std::string> all;
  for (const char* share : {"0/3", "1/3", "2/3"}) {
    for (const WarmJob& job : share_of(jobs, share)) BOOST_TEST(all.insert(job.name).second, job.name);
  }
  BOOST_TEST(all.size() == jobs.size());
  for (const std::string wrong : {"", "3/3", "1", "-1/3", "0/0", "a/b"}) {
    BOOST_TEST(error_of([&] { share_of(jobs, wrong); }) ==
               "--shard: \"" + wrong + "\" must be such as 0/4, the first of four shares");
  }
}

BOOST_AUTO_TEST_CASE(wrong_requests_are_explained) {
  WarmRequest request = llama();
  request.sets = {"llama9"};
  BOOST_TEST(error_of([&] { plan_warm(request); }) ==
             "--set: \"llama9\" must be one of llama2-7b, llama2-70b, llama3-8b, llama3-70b");
  request = llama();
  request.weights = {"bf16"};
  BOOST_TEST(error_of([&] { plan_warm(request); }).starts_with("--weight-only: \"bf16\" must be a weight's dtype"));
  request.weights = {"e4m3fn:wide"};
  BOOST_TEST(error_of([&] { plan_warm(request); }) ==
             "--weight-only: \"e4m3fn:wide\" must be a dtype and tensor, row, 1x128, 1x64, 1x32, 128x128 or mx");
  request = llama();
  request.grad_weights = {"f16"};
  BOOST_TEST(error_of([&] { plan_warm(request); }) == "--grad-weight: \"f16\" must be f32 or the activations' dtype");
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
             "layer_norm_mlp or rms_norm_gated_mlp");
  BOOST_TEST(problem(R"({"training": [{"in_features": 1, "out_features": 1, "name": 7}]})") ==
             "training[0] has \"name\": 7, which is not a text");
  BOOST_TEST(problem(R"({"decoding": [{"in_features": 1, "out_features": 1, "bias": 1}]})") ==
             "decoding[0] has \"bias\": 1, which is not true or false");
  BOOST_TEST(problem("{") == "is not JSON");
  BOOST_TEST(problem(std::string(100000, '[') + std::string(100000, ']')) == "is nested deeper than 3 levels");
  BOOST_TEST(error_of([&] { read_layers(folder.path() / "nothing"); }).find("there is no such file") !=
             std::string::npos);
  BOOST_TEST(error_of([&] { read_layers("/dev/zero"); }).find("regular file") != std::string::npos);
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
    BOOST_TEST(begun == jobs, boost::test_tools::per_element());
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

// What a compiler in its worker may do, in every order and beside jobs that work (F11 of docs/notes/faults.md).
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

BOOST_AUTO_TEST_CASE(workers_stop_after_the_jobs_that_have_begun) {
  const std::vector<std::size_t> jobs{0, 1, 2, 3, 4, 5};
  int done = 0;
  run_in_workers(jobs, {.processes = 1,
                        .work = [](std::size_t) { return std::string(); },
                        .done = [&](const JobResult&) { ++done; },
                        .stop = [&] { return done == 2; }});
  BOOST_TEST(done == 2);
}

// The whole command: into a store, again, into a bundle, and from the bundle alone, without NVRTC.
BOOST_AUTO_TEST_CASE(warm_then_run_from_the_bundle) {
  const test::TemporaryDirectory folder;
  const fs::path layers =
      write(folder, "layers.json", R"({"training": [{"in_features": 256, "out_features": 512}], "decoding": []})");
  const fs::path bundle = folder.path() / "a.bundle";
  const auto run = [&](const std::string& environment, const std::string& arguments, int& code) {
    const fs::path out = folder.path() / "out";
    const std::string command = "env -u INGOT_CACHE_TIERS -u INGOT_CACHE_MODE " + environment +
                                " '" INGOT_PROGRAM "' warm --layers '" + layers.string() +
                                "' --recipe high_precision --json " + arguments + " > '" + out.string() + "' 2> '" +
                                out.string() + ".err'";
    code = std::system(command.c_str());
    std::ifstream stream(out);
    return nlohmann::json::parse(stream, nullptr, false);
  };
  const std::string store =
      "INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "' INGOT_CACHE_DIR='" + (folder.path() / "store").string() + "'";
  int code = -1;
  const auto first = run(store, "", code);
  BOOST_REQUIRE(code == 0);
  const int kernels = first.at("kernels").get<int>();
  BOOST_TEST(kernels > 1);
  BOOST_TEST(first.at("compiled").get<int>() == kernels);
  const auto second = run(store, "--bundle '" + bundle.string() + "'", code);
  BOOST_TEST(code == 0);
  BOOST_TEST(second.at("there").get<int>() == kernels);
  BOOST_TEST(second.at("compiled").get<int>() == 0);
  BOOST_TEST(second.at("bundle_bytes").get<std::size_t>() == fs::file_size(bundle));
  const std::string elsewhere = "INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" + (folder.path() / "other").string() + "'";
  const auto third = run(elsewhere + " INGOT_CACHE_TIERS='" + bundle.string() + "'", "", code);
  BOOST_TEST(code == 0);
  BOOST_TEST(third.at("there").get<int>() == kernels);
  run(elsewhere, "", code);
  BOOST_TEST(code != 0);
  std::ifstream errors(folder.path() / "out.err");
  const std::string text{std::istreambuf_iterator<char>(errors), {}};
  BOOST_TEST(text.find("kernels have to be compiled, and it is missing") != std::string::npos, text);
}
