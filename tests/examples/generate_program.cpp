// Runs examples/generate as a user would.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_generate_program)

namespace {

namespace fs = std::filesystem;
using ingot::test::check_contains;

// With the compiler the program first compiles what a GPU would run, which takes many times as long as its tokens here.
enum class Compiler : std::uint8_t { none, used };

class Bench {
 public:
  explicit Bench(Compiler compiler = Compiler::none) : compiler_(compiler) {}

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // On the CPU, with few tokens.
  int run(std::vector<std::string> arguments) const {
    for (const char* const each : {"--device=cpu", "--rounds=1"}) arguments.insert(arguments.begin(), each);
    return ingot::test::run_in_process([&] {
      const int log = ::open(path("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      ::setenv("INGOT_CACHE_DIR", path("store").c_str(), 1);
      ::setenv("INGOT_CPU_THREADS", "1", 1);
      if (compiler_ == Compiler::none) ::setenv("INGOT_CUDA_ROOT", "none", 1);
      std::string program = EXAMPLE_PROGRAM;
      std::vector<char*> argv{program.data()};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(program.c_str(), argv.data());
      return ingot::test::kThrew;
    });
  }

  std::string log() const { return read("log"); }
  std::string read(const std::string& name) const {
    std::ifstream stream(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // The line that starts so.
  std::string line(const std::string& begin) const {
    const std::string text = log();
    const std::size_t at = text.find("\n" + begin);
    BOOST_REQUIRE_MESSAGE(at != std::string::npos, begin << " is not in: " << text);
    return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  }

 private:
  ingot::test::TemporaryDirectory folder_;
  Compiler compiler_;
};

BOOST_AUTO_TEST_CASE(both_models_are_run_and_compared) {
  const Bench bench(Compiler::used);
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=6", "--batch=2", "--out", bench.path("report").string()}) == 0,
                        bench.log());
  check_contains(bench.log(), {"CPU reference", "tokens/s", "MB/step", "bf16", "e4m3fn row",
                               "logits after the same 12 tokens", "cosine 0.99"});
  check_contains(bench.read("report"),
                 {"\"weights\": \"bf16\"", "\"weights\": \"e4m3fn row\"", "\"top1\"", "\"batch\": 2"});
}

BOOST_AUTO_TEST_CASE(a_prompt_is_gone_on_with, *boost::unit_test::label("nightly")) {
  const Bench bench(Compiler::used);
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=5", "--prompt=7,8,9", "--only=bf16"}) == 0, bench.log());
  const std::string tokens = bench.line("bf16: ");
  check_contains(tokens, {"bf16: 7 8 9 "});
  BOOST_TEST(std::count(tokens.begin(), tokens.end(), ' ') == 8);
  BOOST_TEST(bench.log().find("logits after") == std::string::npos);
  BOOST_REQUIRE_MESSAGE(
      bench.run({"--tokens=5", "--prompt=7,8,9", "--only=quantised", "--dtype=e5m2", "--scale=1x128"}) == 0,
      bench.log());
  check_contains(bench.line("e5m2 1x128: "), {"7 8 9 "});
}

BOOST_AUTO_TEST_CASE(formats_of_fewer_bits, *boost::unit_test::label("nightly")) {
  const Bench bench(Compiler::used);
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=3", "--dtype=e2m1fn", "--mx"}) == 0, bench.log());
  check_contains(bench.log(), {"e2m1fn mx"});
}

BOOST_AUTO_TEST_CASE(weights_are_saved_and_read) {
  const Bench bench;
  const std::string folder = bench.path("model").string();
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=6", "--seed=4", "--prompt=1,2", "--save", folder}) == 0, bench.log());
  const std::string bf16 = bench.line("bf16: ");
  const std::string fp8 = bench.line("e4m3fn row: ");
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=6", "--seed=9", "--prompt=1,2", "--weights", folder}) == 0, bench.log());
  BOOST_TEST(bench.line("bf16: ") == bf16);
  BOOST_TEST(bench.line("e4m3fn row: ") == fp8);
  BOOST_REQUIRE_MESSAGE(bench.run({"--tokens=6", "--prompt=1,2", "--weights", folder + "/model.safetensors"}) == 0,
                        bench.log());
  BOOST_TEST(bench.line("bf16: ") == bf16);

  BOOST_TEST(bench.run({"--weights", folder, "--preset=llama2-7b"}) == 1);
  check_contains(bench.log(), {"generate: error:", "model.embed_tokens.weight", "has the shape [320, 64]"});
  fs::resize_file(folder + "/model.safetensors", 1000);
  BOOST_TEST(bench.run({"--weights", folder}) == 1);
  check_contains(bench.log(), {"generate: error:", "model.safetensors", "cut short"});
  fs::remove(folder + "/config.json");
  BOOST_TEST(bench.run({"--weights", folder}) == 1);
  check_contains(bench.log(), {"config.json: there is no such file", "a model's sizes stand there"});
}

BOOST_AUTO_TEST_CASE(options_are_checked_and_explained) {
  const Bench bench;
  BOOST_TEST(bench.run({"--help"}) == 0);
  check_contains(bench.log(), {"--weights", "--preset", "--dtype", "llama3-8b", "--bf16-head", "need --mx", "in bf16",
                               "of bf16, f16 or f32"});
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{"--tokens", "0"},
                                                                                     {"--tokens", "abc"},
                                                                                     {"--batch", "65"},
                                                                                     {"--batch", "0"},
                                                                                     {"--preset", "huge"},
                                                                                     {"--only", "fp16"},
                                                                                     {"--dtype", "f32"},
                                                                                     {"--scale", "col"},
                                                                                     {"--layers", "0"},
                                                                                     {"--prompt", "1,x"},
                                                                                     {"--rounds", "0"},
                                                                                     {"--seed", "18446744073709551616"},
                                                                                     {"--device", "tpu"}}) {
    BOOST_TEST_CONTEXT(wrong[0] << " " << wrong[1]) {
      BOOST_TEST(bench.run(wrong) > 1);
      check_contains(bench.log(), {wrong[0], "--help"});
    }
  }
  BOOST_TEST(bench.run({"--prompt=1,2", "--prompt-length=5"}) > 1);
  check_contains(bench.log(), {"--prompt excludes --prompt-length"});
  BOOST_TEST(bench.run({"--layers=3"}) == 1);
  check_contains(bench.log(), {"--layers", "is 3, but the model has 2"});
  BOOST_TEST(bench.run({"--prompt=320"}) == 1);
  check_contains(bench.log(), {"--prompt", "has the token 320, but the model's vocabulary is 0 to 319"});
  BOOST_TEST(bench.log().find("Decoding on") == std::string::npos);  // before weights are made
  BOOST_TEST(bench.run({"--weights=/nonexistent", "--preset=tiny"}) == 1);
  check_contains(bench.log(), {"--weights: no such file or folder: /nonexistent"});
}

BOOST_AUTO_TEST_CASE(output_that_cannot_be_written_is_an_error) {
  for (const std::string to : {">/dev/full", ">&-"}) {
    const int status = std::system(("'" EXAMPLE_PROGRAM "' --help 2>/dev/null " + to).c_str());
    BOOST_TEST((WIFEXITED(status) && WEXITSTATUS(status) == 1), to);
  }
}

// Before a model is made, whose first line says where it is decoded.
BOOST_AUTO_TEST_CASE(options_are_checked_before_anything_is_loaded) {
  const Bench bench;
  fs::create_directory(bench.path("full"));
  std::ofstream(bench.path("full") / "model-00001-of-00002.safetensors") << "weights";
  std::ofstream(bench.path("file")) << "text";
  const struct {
    std::vector<std::string> arguments;
    std::string message;
  } cases[] = {{{"--out=/nonexistent/report"},
                "--out: /nonexistent/report cannot be written: there is no folder /nonexistent; make it first"},
               {{"--out", bench.path("full").string()}, "full is a folder; name a file"},
               {{"--dtype=e2m1fn"}, "--dtype: e2m1fn is made with MX's scales only: add --mx"},
               {{"--dtype=e3m2fn"}, "--dtype: e3m2fn is made with MX's scales only: add --mx"},
               {{"--dtype=e4m3fnuz", "--mx"}, "--mx: OCP MX has no e4m3fnuz: choose e4m3fn, e5m2"},
               {{"--dtype=e5m2fnuz", "--mx"}, "--mx: OCP MX has no e5m2fnuz"},
               {{"--weights=/nonexistent"}, "--weights: no such file or folder: /nonexistent"},
               {{"--save", bench.path("full").string()},
                "full has a model already (model-00001-of-00002.safetensors); choose another folder"},
               {{"--save", bench.path("file").string()}, "file is not a folder"}};
  for (const auto& wrong : cases) {
    BOOST_TEST(bench.run(wrong.arguments) == 1);
    check_contains(bench.log(), {"generate: error: ", wrong.message});
    BOOST_TEST(bench.log().find("Decoding on") == std::string::npos);
  }
  BOOST_TEST(bench.run({"--mx", "--scale=row"}) > 1);
  check_contains(bench.log(), {"--scale excludes --mx"});
  BOOST_TEST(bench.read("full/model-00001-of-00002.safetensors") == "weights");
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()
