// Runs the built program as a user would: what it prints, where, and with which exit code.
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "support/fixed_set.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_cli)

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

// A new folder for each case, removed at the end.
class Folder {
 public:
  fs::path operator/(const std::string& name) const { return directory_.path() / name; }

 private:
  ingot::test::TemporaryDirectory directory_;
};

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// `arguments` and `environment` are shell text, and so is `redirections`, which may send the output elsewhere. A GPU of
// this machine is not seen: what is shown follows from its multiprocessors.
Result run(const std::string& arguments, const std::string& environment = "", const std::string& redirections = "") {
  const Folder folder;
  const std::string command = "env CUDA_VISIBLE_DEVICES= INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "' INGOT_CACHE_DIR='" +
                              (folder / "store").string() + "' " + environment + " '" INGOT_PROGRAM "' " + arguments +
                              " >'" + (folder / "out").string() + "' 2>'" + (folder / "err").string() + "' " +
                              redirections;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder / "out"), read(folder / "err")};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

#define CHECK_CONTAINS(text, part) BOOST_TEST(contains(text, part), "\"" << (part) << "\" is not in:\n" << (text))

// A spec with one pass and one with two.
const std::string kOnePass = "'cast bf16->e4m3fn scale=1x128 out=codes'";
const std::string kTwoPasses = "'amax bf16 scale=tensor'";

}  // namespace

BOOST_AUTO_TEST_CASE(version_and_help) {
  const Result version = run("--version");
  BOOST_TEST(version.code == 0);
  BOOST_TEST(version.out.starts_with("ingot "));
  const Result help = run("--help");
  BOOST_TEST(help.code == 0);
  CHECK_CONTAINS(help.out, "info");
  CHECK_CONTAINS(help.out, "show");
  CHECK_CONTAINS(help.out, "tune");
  const Result show = run("show --help");
  BOOST_TEST(show.code == 0);
  CHECK_CONTAINS(show.out, "cast bf16->e4m3fn scale=row out=codes,transposed pow2");
  for (const char* part : {" of=", " list", " stacked", " gathered", "row+col", " given", "kernel=", "dequant_matmul ",
                           "pack_weight ", "quantize_mx ", "float_quantize "}) {
    CHECK_CONTAINS(show.out, part);
  }
}

BOOST_AUTO_TEST_CASE(output_that_cannot_be_written_is_an_error) {
  for (const char* const arguments :
       {"--help", "--version", "show --help", "info", "info --json", "tune --list --set llama3-8b",
        "tune --list --json --set llama3-8b", "warm --list --set llama3-8b", "warm --list --json --set llama3-8b",
        "--help-all", "bench --list", "bench --list --json"}) {
    for (const char* const stdout_to : {">/dev/full", ">&-"}) {
      const Result result = run(arguments, "INGOT_DEVICE=cpu", stdout_to);
      BOOST_TEST(result.code == 1, arguments << " " << stdout_to << " ended with " << result.code);
      CHECK_CONTAINS(result.err, "ingot: error: standard output: cannot be written: ");
      BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
    }
  }
  // A message that nobody can read changes no exit code, and ends no program.
  for (const char* const stderr_to : {"2>/dev/full", "2>&-", "<&- 2>&-"}) {
    BOOST_TEST(run("tune --list --recording /no/such/file", "", stderr_to).code == 1, stderr_to);
    BOOST_TEST(run("frobnicate", "", stderr_to).code == 2, stderr_to);
  }
  BOOST_TEST(run("--version", "", "<&- 2>&-").code == 0);
}

BOOST_AUTO_TEST_CASE(the_specs_of_the_help_are_specs) {
  std::istringstream help(run("show --help").out);
  std::string line;
  while (std::getline(help, line) && line != "Specs:") {}
  int specs = 0;
  std::set<std::string> kinds;
  const ingot::test::FixedSet shown(8);
  for (; std::getline(help, line) && line.starts_with("  "); ++specs) {
    kinds.insert(line.substr(2, line.find(' ', 2) - 2));
    BOOST_CHECK_NO_THROW(ingot::parse(line.substr(2)));
    if (!shown.has(line)) continue;  // a program that compiles takes a second
    const Result result = run("show '" + line.substr(2) + "' --target sm_90a");
    BOOST_TEST(result.code == 0, line << ": " << result.err);
  }
  BOOST_TEST(specs >= 10);
  // There is one of each kind that the message about an unknown one lists.
  std::istringstream known(run("show frobnicate").err);
  std::string word;
  while (known >> word && word != "expected") {}
  std::size_t listed = 0;
  while (known >> word) {
    if (word == "or") continue;
    if (word.ends_with(',')) word.pop_back();
    BOOST_TEST(kinds.contains(word), "show --help has no " << word);
    ++listed;
  }
  BOOST_TEST(listed >= 14U);
}

BOOST_AUTO_TEST_CASE(wrong_usage_is_code_2) {
  for (const char* arguments : {"",
                                "frobnicate",
                                "show",
                                "info --yaml",
                                "show 'amax bf16 scale=row' --ptx --source",
                                "show 'amax bf16 scale=row' --json --ptx",
                                "show 'amax bf16 scale=row' --ptx --sass",
                                "bench",
                                "bench frobnicate",
                                "bench --list gemm",
                                "bench --json",
                                "warm",
                                "warm --set foo",
                                "warm --set llama3-8b --recipe foo",
                                "warm --set llama3-8b --tokens x",
                                "warm --set llama3-8b --weight-only foo",
                                "warm --set llama3-8b --gpu foo",
                                "warm --set llama3-8b --dtype f64",
                                "warm --set llama3-8b --list --check",
                                "plan",
                                "plan --config '' --mesh dp=8",
                                "tune",
                                "tune --list --set foo",
                                "show garbage",
                                "show 'amax bf16 scale=row' --target sm_1",
                                "show 'amax bf16 scale=row' --cubin ''",
                                "warm --set llama3-8b --bundle ''",
                                "tune --list --set llama3-8b --recording ''",
                                "cache export ''"}) {
    const Result result = run(arguments);
    BOOST_TEST(result.code == 2, "`ingot " << arguments << "` ended with " << result.code);
    BOOST_TEST(result.out == "");
    BOOST_TEST(result.err.starts_with("ingot: error: "), result.err);
    BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
  }
}

BOOST_AUTO_TEST_CASE(wrong_usage_says_what_to_do) {
  const auto check = [](const char* arguments, const std::string& message) {
    BOOST_TEST(run(arguments).err == "ingot: error: " + message + "\n");
  };
  check("plan --set llama3-8b",
        "ingot plan: the following arguments were not expected: --set llama3-8b; a model is named by its config.json: "
        "--config config.json; see `ingot plan --help`");
  check("info --yaml", "ingot info: the following argument was not expected: --yaml; see `ingot info --help`");
  check("info one --two three",
        "ingot info: the following arguments were not expected: one --two three; see `ingot info --help`");
  check("show", "ingot show: spec is required; see `ingot show --help`");
  check("show amax bf16 scale=row",
        "ingot show: the following arguments were not expected: bf16 scale=row; a spec is one argument: put it in "
        "quotes; see `ingot show --help`");
  check("warm --jobs 0", "ingot warm: --jobs: Value 0 not in range 1 to 4096; see `ingot warm --help`");
  check("show amax --cubin ''", "ingot show: --cubin: \"\" names nothing; give a name; see `ingot show --help`");
  check("bench --list gemm", "ingot bench: --list excludes the name of a benchmark; see `ingot bench --help`");
  check("bench",
        "ingot bench: a command is missing: cast, choice, compile, gemm, gradients, grouped_gemm, linear, runtime, "
        "weight_only or weight_only_experts; see `ingot bench --help`");
  check("bench frobnicate",
        "no command \"bench frobnicate\"; expected cast, choice, compile, gemm, gradients, grouped_gemm, linear, "
        "runtime, weight_only or weight_only_experts");
  const Result nothing = run("");
  BOOST_TEST(nothing.err.starts_with("ingot: error: a command is missing: info, show, "), nothing.err);
  BOOST_TEST(nothing.err.ends_with("; see `ingot --help`\n"), nothing.err);
}

// venv/bin/ingot, where nothing says which environment is active.
BOOST_AUTO_TEST_CASE(finds_the_wheels_of_the_environment_that_it_is_installed_in) {
  if (fs::exists("/usr/local/cuda")) {
    BOOST_TEST_MESSAGE("skipped: a toolkit in /usr/local/cuda comes before any wheels");
    return;
  }
  const Folder folder;
  const fs::path wheels = folder / "venv/lib/python3.11/site-packages/nvidia";
  fs::create_directories(folder / "venv/bin");
  fs::create_directories(wheels);
  fs::copy_file(INGOT_PROGRAM, folder / "venv/bin/ingot");
  fs::create_directory_symlink(INGOT_CUDA_ROOT, wheels / "cu13");
  const auto finds_them = [&] {
    const std::string command = "env -u VIRTUAL_ENV -u CUDA_PATH -u CUDA_HOME -u INGOT_CUDA_ROOT HOME='" +
                                (folder / "home").string() + "' INGOT_DEVICE=cpu '" +
                                (folder / "venv/bin/ingot").string() + "' info --json >'" + (folder / "out").string() +
                                "'";
    BOOST_REQUIRE(std::system(command.c_str()) == 0);
    return contains(read(folder / "out"), (wheels / "cu13").string());
  };
  BOOST_TEST(finds_them());
  for (fs::path open = wheels;; open = open.parent_path()) {  // anybody may have put libraries there
    const fs::perms before = fs::status(open).permissions();
    fs::permissions(open, fs::perms::all);
    BOOST_TEST(!finds_them(), open);
    fs::permissions(open, before);
    if (open == folder / "venv") break;
  }
  BOOST_TEST(finds_them());
}

// A copy of the program, with programs that stand in for benchmarks.
BOOST_AUTO_TEST_CASE(bench_becomes_the_benchmark) {
  const Folder folder;
  fs::create_directories(folder / "bin");
  fs::create_directories(folder / "bench");
  const fs::path program = folder / "bin/ingot";
  fs::copy_file(INGOT_PROGRAM, program);
  const auto stand_in = [&](const std::string& file, const std::string& text) {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
    fs::permissions(folder / file, fs::perms::owner_all);
  };
  stand_in("bench/bench_gemm", "#!/bin/sh\nfor word; do echo \"[$word]\"; done\nexit 77\n");
  stand_in("bench/bench_cast", "no program");
  const auto bench = [&](const std::string& arguments) {
    const std::string command = "'" + program.string() + "' bench " + arguments + " >'" + (folder / "out").string() +
                                "' 2>'" + (folder / "err").string() + "'";
    const int status = std::system(command.c_str());
    return Result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder / "out"), read(folder / "err")};
  };
  const Result passed = bench("gemm --host --filter 'a b' info --list --help -x --json=f.json gemm");
  BOOST_TEST(passed.code == 77, passed.err);
  BOOST_TEST(passed.out == "[--host]\n[--filter]\n[a b]\n[info]\n[--list]\n[--help]\n[-x]\n[--json=f.json]\n[gemm]\n");

  const std::string installed = (folder / "libexec/ingot").string();
  const Result missing = bench("linear --quick");
  BOOST_TEST(missing.code == 1);
  BOOST_TEST(missing.err ==
             "ingot: error: bench_linear: is neither in " + installed + " nor in " + (folder / "bench").string() +
                 "; build it (cmake --build <build folder> --target bench_linear), or install a build that "
                 "has benchmarks (INGOT_BENCH=ON)\n");
  const Result broken = bench("cast");
  BOOST_TEST(broken.code == 1);
  BOOST_TEST(broken.err ==
             "ingot: error: " + (folder / "bench/bench_cast").string() + ": cannot be run: Exec format error\n");

  stand_in("libexec/ingot/bench_gemm", "#!/bin/sh\necho installed\n");
  BOOST_TEST(bench("gemm").out == "installed\n");
  const Result listed = bench("--list");
  BOOST_TEST(listed.code == 0);
  CHECK_CONTAINS(listed.out, "gemm                FP8 GEMMs, against cuBLASLt's in the same run\n");
  CHECK_CONTAINS(listed.out, "with every recipe (not built)\n");
  const json list = json::parse(bench("--list --json").out);
  BOOST_TEST(list.at(3).at("name") == "gemm");
  BOOST_TEST(list.at(3).at("program") == installed + "/bench_gemm");
  BOOST_TEST(list.at(4).at("program") == "");
}

BOOST_AUTO_TEST_CASE(an_unknown_command_is_named_with_those_there_are) {
  const Result result = run("frobnicate --json");
  BOOST_TEST(result.code == 2);
  BOOST_TEST(result.err.starts_with("ingot: error: no command \"frobnicate\"; expected info"), result.err);
  CHECK_CONTAINS(result.err, "show");
}

BOOST_AUTO_TEST_CASE(info_names_every_part) {
  const Result result = run("info", "INGOT_DEVICE=cpu");
  BOOST_TEST(result.code == 0, result.err);
  for (const char* part :
       {"Ingot ", "device", "cpu", "target", "CUDA driver", "NVRTC", "cuBLASLt", "store", "0 kernels"}) {
    CHECK_CONTAINS(result.out, part);
  }
}

BOOST_AUTO_TEST_CASE(info_as_json) {
  const Folder folder;
  const std::string store = (folder / "my store").string();
  const Result result = run("info --json", "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + store + "'");
  BOOST_TEST(result.code == 0, result.err);
  const json info = json::parse(result.out);
  BOOST_TEST(info.at("ingot").get<std::string>() != "");
  BOOST_TEST(info.at("device").at("id") == "cpu");
  BOOST_TEST(info.at("device").at("reason") != "");
  BOOST_TEST(info.at("store").at("path") == store);
  BOOST_TEST(info.at("store").at("files") == 0);
  BOOST_TEST(info.at("store").at("bytes") == 0);
  BOOST_TEST(info.at("libraries").size() == 5U);
  for (const json& library : info.at("libraries")) {
    // Found, with version and place; or missing, with what to do.
    const bool found = library.at("found").get<bool>();
    BOOST_TEST((library.at("path") != "") == found);
    BOOST_TEST((library.at("version") != "") == found);
    BOOST_TEST((library.at("problem") != "") == !found);
  }
}

// Looking changes nothing. A folder that could not be made is told all the same.
BOOST_AUTO_TEST_CASE(info_makes_no_store) {
  const Folder folder;
  const fs::path store = folder / "no/store";
  const auto info = [](const fs::path& path) {
    const Result result = run("info --json", "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + path.string() + "'");
    BOOST_TEST(result.code == 0, result.err);
    return json::parse(result.out).at("store");
  };
  BOOST_TEST(info(store).at("problem") == "");
  BOOST_TEST(!fs::exists(folder / "no"));
  std::ofstream{folder / "file"};
  CHECK_CONTAINS(info(folder / "file/store").at("problem").get<std::string>(), "is not a directory");
}

BOOST_AUTO_TEST_CASE(info_counts_tuning_records) {
  using ingot::test::record;
  const Folder folder;
  const fs::path store = folder / "store";
  const std::string environment = "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + store.string() + "'";
  const auto tuning = [&](const std::string& more) {
    return json::parse(run("info --json", environment + more).out).at("tuning");
  };
  const json none{{"mode", "on"},
                  {"path", (store / "tuning").string()},
                  {"this_machine", 0},
                  {"other_machines", 0},
                  {"damaged", 0}};
  BOOST_TEST(tuning("") == none);
  BOOST_TEST(tuning(" INGOT_TUNING=off").at("mode") == "off");
  const Result empty = run("info", environment + " INGOT_TUNING=frozen");
  CHECK_CONTAINS(empty.out, "tuning        frozen: the records are used, and none are written\n");
  CHECK_CONTAINS(empty.out, (store / "tuning").string() + "\n");
  CHECK_CONTAINS(empty.out, " 0 records for this machine\n");

  const fs::path file = folder / "records";
  ingot::write_tuning_file(file, std::vector{record(1), record(2), record(2, "NVIDIA H100")});
  BOOST_REQUIRE(run("tune --import '" + file.string() + "'", environment).code == 0);
  std::ofstream(store / "tuning" / (std::string(32, 'f') + ".json")) << "torn";
  const Result result = run("info", environment);
  BOOST_TEST(result.code == 0, result.err);
  CHECK_CONTAINS(result.out, " 0 records for this machine, 3 for other machines, 1 damaged and moved to quarantine\n");
  CHECK_CONTAINS(result.err, "is truncated; it was moved to ");
  const json found = tuning("");
  BOOST_TEST(found.at("other_machines") == 3);
  BOOST_TEST(found.at("damaged") == 0);

  std::ofstream(file, std::ios::app) << "torn\n";
  const std::string of_file = " INGOT_TUNING_FILE='" + file.string() + "'";
  BOOST_TEST(tuning(of_file).at("path") == file.string());
  BOOST_TEST(tuning(of_file).at("damaged") == 1);
  CHECK_CONTAINS(run("info", environment + of_file).out, file.string() + " (INGOT_TUNING_FILE)\n");
}

BOOST_AUTO_TEST_CASE(info_refuses_a_device_that_does_not_exist) {
  const Result result = run("info", "INGOT_DEVICE=tpu");
  BOOST_TEST(result.code == 1);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.starts_with("ingot: error: "), result.err);
  CHECK_CONTAINS(result.err, "tpu");
}

BOOST_AUTO_TEST_CASE(show_refuses_a_bad_spec) {
  const Result word = run("show 'cast bf16->e9m9 scale=row out=codes'");
  BOOST_TEST(word.code == 2);
  BOOST_TEST(word.out == "");
  BOOST_TEST(word.err.starts_with("ingot: error: "), word.err);
  CHECK_CONTAINS(word.err, "e9m9");

  const Result impossible = run("show 'gemm bf16*f16->bf16 nt'");
  BOOST_TEST(impossible.code == 2);
  CHECK_CONTAINS(impossible.err, "b is f16, but must be bf16");

  const Result target = run("show " + kOnePass + " --target sm_banana");
  BOOST_TEST(target.code == 2);
  const std::string all = "; expected one of sm_80, sm_89, sm_90a, sm_100a, sm_120a";
  CHECK_CONTAINS(target.err, "ingot: error: target: \"sm_banana\" is no architecture" + all);

  const Result old = run("show " + kOnePass + " --target sm_70");
  BOOST_TEST(old.code == 2);
  CHECK_CONTAINS(old.err, "target: \"sm_70\" is older than the kernels can be compiled for" + all);

  const Result unknown = run("show " + kOnePass + " --target sm_91");
  BOOST_TEST(unknown.code == 2);
  CHECK_CONTAINS(unknown.err, "target: \"sm_91\" is no architecture that NVRTC ");
  CHECK_CONTAINS(unknown.err, " knows" + all);

  const Result hopper = run("show 'gemm e4m3fn*e4m3fn->bf16 nt kernel=sm90' --target sm_80");
  BOOST_TEST(hopper.code == 1);
  CHECK_CONTAINS(hopper.err, "kernel sm90 runs on sm_90a only, but the target is sm_80; use --target sm_90a");
}

BOOST_AUTO_TEST_CASE(show_takes_the_dequant_kernel_of_a_size, *boost::unit_test::label("nightly")) {
  const std::string spec = "dequant_matmul bf16*e4m3fn->bf16 packed scale=row";
  const std::string note =
      "note: this is what M = 16, N = 4096, K = 4096 takes on a GPU with 132 multiprocessors; other sizes take other ";
  const Result hopper = run("show '" + spec + "' --target sm_90a");
  BOOST_REQUIRE_MESSAGE(hopper.code == 0, hopper.err);
  BOOST_TEST(hopper.out.starts_with(spec + " kernel=sm90:"), hopper.out);
  CHECK_CONTAINS(hopper.out, note + "kernels and tilings, and on a GPU what tuning found comes first\n");
  CHECK_CONTAINS(hopper.out, "dequant/dequant_sm90.cuh");
  const Result plain = run("show '" + spec + "' --target sm_90");
  CHECK_CONTAINS(plain.out, "; kernel sm90 is for target sm_90a, which a Hopper GPU is\n");
  const Result ampere = run("show '" + spec + "' --target sm_80");
  BOOST_TEST(ampere.out.starts_with(spec + " kernel=mma:"), ampere.out);
  CHECK_CONTAINS(ampere.out, note);
  const Result kernel = run("show '" + spec + " kernel=mma' --target sm_90a --json");
  BOOST_TEST(json::parse(kernel.out).at("spec").get<std::string>().starts_with(spec + " kernel=mma:"));
  CHECK_CONTAINS(kernel.out,
                 "M = 16, N = 4096, K = 4096 takes on a GPU with 132 multiprocessors; other sizes take other "
                 "tilings\"");
  BOOST_TEST(json::parse(kernel.out).at("chosen_for").at("m") == 16);
  const Result tiled = run("show '" + spec + " kernel=mma:16x64x128:3:1:2' --source");
  BOOST_TEST(tiled.code == 0);
  BOOST_TEST(tiled.err == "");

  const std::string half = "=\"bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong\"";
  const Result pair = run("show 'gemm_pair first" + half + " second" + half + "' --target sm_80");
  BOOST_TEST(pair.code == 1);
  CHECK_CONTAINS(pair.err, "kernel sm90 runs on sm_90a only, but the target is sm_80; use --target sm_90a");

  for (const char* const sm90 : {" kernel=sm90", " kernel=sm90:mma:16x128x128:8:2:1"}) {
    const Result old = run("show '" + spec + sm90 + "' --target sm_80");
    BOOST_TEST(old.code == 1);
    CHECK_CONTAINS(old.err, "kernel sm90 runs on sm_90a only, but the target is sm_80; use --target sm_90a");
  }
}

BOOST_AUTO_TEST_CASE(show_prints_resources, *boost::unit_test::label("nightly")) {
  const Result result = run("show " + kOnePass + " --target sm_90a");
  BOOST_REQUIRE_MESSAGE(result.code == 0, result.err);
  BOOST_TEST(result.out.starts_with("cast bf16->e4m3fn scale=1x128 out=codes\nsm_90a, NVRTC "), result.out);
  for (const char* part : {"main pass", "#include", "kKernel", "registers", "spills         0 B", "stack",
                           "static shared", "cubin", "KiB", "compiled in", " ms"}) {
    CHECK_CONTAINS(result.out, part);
  }
  BOOST_TEST(!contains(result.out, "first pass"));

  const Result both = run("show " + kTwoPasses);
  BOOST_REQUIRE_MESSAGE(both.code == 0, both.err);
  CHECK_CONTAINS(both.out, "first pass");
  CHECK_CONTAINS(both.out, "main pass");
}

BOOST_AUTO_TEST_CASE(show_takes_the_gemm_kernel_of_a_size) {
  const std::string note = "this is what M = 8192, N = 4096, K = 4096 takes on a GPU with 132 multiprocessors; ";
  const std::string cublaslt = "; cuBLASLt is tried before it, but its kernels have no source to show";
  const std::string fp8 = "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row";
  const Result hopper = run("show '" + fp8 + "' --target sm_90a");
  BOOST_REQUIRE_MESSAGE(hopper.code == 0, hopper.err);
  BOOST_TEST(hopper.out.starts_with(fp8 + " kernel=sm90:"), hopper.out);
  CHECK_CONTAINS(hopper.out,
                 "\nnote: " + note + "other sizes take other kernels and tilings, and on a GPU what tuning ");
  CHECK_CONTAINS(hopper.out, "gemm/gemm_sm90.cuh");
  const Result plain = run("show '" + fp8 + "' --target sm_90 --source");
  CHECK_CONTAINS(plain.err, "; kernel sm90 is for target sm_90a, which a Hopper GPU is");
  CHECK_CONTAINS(plain.out, "gemm/gemm_mma.cuh");
  const Result ada = run("show '" + fp8 + "' --target sm_89 --json");
  BOOST_REQUIRE_MESSAGE(ada.code == 0, ada.err);
  const json shown = json::parse(ada.out);
  BOOST_TEST(shown.at("spec").get<std::string>().starts_with(fp8 + " kernel=mma:"));
  BOOST_TEST(shown.at("note").get<std::string>().starts_with(note));
  BOOST_TEST(shown.at("chosen_for") == json({{"m", 8192}, {"n", 4096}, {"k", 4096}, {"multiprocessors", 132}}));

  const Result bf16 = run("show 'gemm bf16*bf16->bf16 nt' --source --target sm_90a");
  CHECK_CONTAINS(bf16.out, "gemm/gemm_sm90.cuh");
  BOOST_TEST(bf16.err.starts_with("ingot: note: " + note), bf16.err);
  BOOST_TEST(bf16.err.ends_with(cublaslt + "\n"), bf16.err);
  const Result f32 = run("show 'gemm f32*f32->f32 nt' --source");
  CHECK_CONTAINS(f32.out, "gemm/gemm_simt.cuh");
}

BOOST_AUTO_TEST_CASE(show_takes_the_tiling_of_a_size_where_the_kernel_is_named, *boost::unit_test::label("nightly")) {
  const Result sm90 = run("show 'gemm e4m3fn*e4m3fn->bf16 nt kernel=sm90' --target sm_90a");
  BOOST_REQUIRE_MESSAGE(sm90.code == 0, sm90.err);
  BOOST_TEST(sm90.out.starts_with("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=sm90:"), sm90.out);
  CHECK_CONTAINS(sm90.out, "multiprocessors; other sizes take other tilings\n");
  // Where nothing is left open, nothing is chosen.
  for (const std::string& named : {std::string("gemm e4m3fn*e4m3fn->bf16 nt kernel=simt"), first_line(sm90.out)}) {
    const Result again = run("show '" + named + "' --source --target sm_90a");
    BOOST_TEST(again.code == 0, again.err);
    BOOST_TEST(again.err == "");
  }
}

BOOST_AUTO_TEST_CASE(show_source_and_ptx_alone) {
  const Result source = run("show " + kOnePass + " --source");
  BOOST_REQUIRE_MESSAGE(source.code == 0, source.err);
  CHECK_CONTAINS(source.out, "constexpr auto kKernel = &ingot::");
  BOOST_TEST(!contains(source.out, "pass\n"));
  std::istringstream all(run("show 'cast bf16->e4m3fn scale=tensor out=codes,transposed' --source").out);
  std::vector<std::string> headings;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("// ---- ")) headings.push_back(line);
  }
  const std::vector<std::string> expected{"// ---- first pass", "// ---- main pass", "// ---- whole pass",
                                          "// ---- unaligned pass"};
  BOOST_TEST_CHECK(headings == expected, boost::test_tools::per_element());

  const Result ptx = run("show " + kTwoPasses + " --ptx --target sm_89");
  BOOST_REQUIRE_MESSAGE(ptx.code == 0, ptx.err);
  CHECK_CONTAINS(ptx.out, ".target sm_89");
  CHECK_CONTAINS(ptx.out, ".entry");
  CHECK_CONTAINS(ptx.out, "// ---- first pass\n");
  CHECK_CONTAINS(ptx.out, "// ---- main pass\n");
}

// A machine with a CUDA toolkit uses its nvdisasm; elsewhere stand-ins in PATH do.
BOOST_AUTO_TEST_CASE(show_machine_code) {
  const Folder folder;
  const auto with_program = [&](const std::string& script) {
    const fs::path program = folder / "nvdisasm";
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program, fs::perms(0755));
    return run("show " + kTwoPasses + " --sass --target sm_90a", "PATH=" + program.parent_path().string() + ":$PATH");
  };
  const Result shown = with_program(R"(echo EXIT; head -c 4 "$1" | grep -c ELF)");
  BOOST_REQUIRE_MESSAGE(shown.code == 0, shown.err);
  CHECK_CONTAINS(shown.out, "EXIT");
  CHECK_CONTAINS(shown.out, "// ---- first pass\n");
  if (!contains(shown.out, "EXIT\n1\n")) return;

  const Result failed = with_program("echo it is no use; exit 3");
  BOOST_TEST(failed.code == 1);
  CHECK_CONTAINS(failed.err, "nvdisasm cannot read the machine code: it is no use\n");
  BOOST_TEST(failed.out == "");  // not even the first pass's heading
  fs::remove(folder / "nvdisasm");
  const Result none = run("show " + kOnePass + " --sass", "PATH=/usr/bin:/bin");
  if (fs::exists("/usr/bin/nvdisasm")) return;
  BOOST_TEST(none.code == 1);
  CHECK_CONTAINS(none.err, "ingot: error: nvdisasm: was not found in ");
  CHECK_CONTAINS(none.err, "install NVIDIA's Python wheel nvidia-cuda-nvdisasm");
}

BOOST_AUTO_TEST_CASE(show_as_json_and_writes_the_cubin_of_each_pass) {
  const Folder folder;
  const fs::path file = folder / "kernel.cubin";
  const Result result = run("show " + kTwoPasses + " --target sm_80 --json --cubin '" + file.string() + "'");
  BOOST_REQUIRE_MESSAGE(result.code == 0, result.err);
  const json shown = json::parse(result.out);
  BOOST_TEST(shown.at("spec") == "amax bf16 scale=tensor");
  BOOST_TEST(shown.at("target") == "sm_80");
  BOOST_TEST(!shown.contains("note"));
  BOOST_TEST(!shown.contains("chosen_for"));
  const std::vector<std::string> names{"first", "main"};
  BOOST_REQUIRE(shown.at("passes").size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const json& pass = shown.at("passes").at(i);
    BOOST_TEST(pass.at("pass") == names[i]);
    BOOST_TEST(pass.at("registers").get<int>() > 0);
    BOOST_TEST(pass.at("spill_bytes") == 0);
    BOOST_TEST(pass.at("cubin_bytes").get<int>() > 500);
    BOOST_TEST(pass.at("compile_ms").get<double>() > 0);
    const auto kernel = pass.at("kernel").get<std::string>();
    BOOST_TEST(kernel != "");
    CHECK_CONTAINS(pass.at("source").get<std::string>(), "kKernel");
    CHECK_CONTAINS(pass.at("ptx").get<std::string>(), ".entry " + kernel);
    const std::string cubin = read(names[i] == "main" ? file.string() : file.string() + "." + names[i]);
    BOOST_TEST(
        cubin.starts_with("\x7f"
                          "ELF"));
    BOOST_TEST(cubin.size() == pass.at("cubin_bytes").get<std::size_t>());
  }
  BOOST_TEST(read(file.string() + ".first") != read(file));

  const Result nowhere = run("show " + kOnePass + " --cubin '" + (folder / "no/such/folder.cubin").string() + "'");
  BOOST_TEST(nowhere.code == 1);
  BOOST_TEST(nowhere.out == "");
  CHECK_CONTAINS(nowhere.err, "folder.cubin: cannot be written: No such file or directory");
}

BOOST_AUTO_TEST_CASE(a_compile_error_prints_the_log) {
  const Folder folder;
  fs::create_directories(folder / "templates/cast");
  std::ofstream(folder / "templates/cast/cast_row_groups.cuh") << "#pragma once\nthis is not C++\n";
  const Result result = run("show " + kOnePass, "INGOT_TEMPLATES='" + (folder / "templates").string() + "'");
  BOOST_TEST(result.code == 1);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.starts_with("ingot: error: "), result.err);
  CHECK_CONTAINS(result.err, "cast/cast_row_groups.cuh");
  CHECK_CONTAINS(result.err, "this is not C++");
  // Nothing is compiled for the source alone.
  const Result source =
      run("show " + kOnePass + " --source", "INGOT_TEMPLATES='" + (folder / "templates").string() + "'");
  BOOST_TEST(source.code == 0, source.err);
}

BOOST_AUTO_TEST_CASE(missing_templates_are_an_error) {
  const Result result = run("show " + kOnePass, "INGOT_TEMPLATES=/no/such/folder");
  BOOST_TEST(result.code == 1);
  CHECK_CONTAINS(result.err, "/no/such/folder");
}

BOOST_AUTO_TEST_CASE(tune_without_a_gpu_is_an_error) {
  const Result result = run("tune --mnk 1024,1024,1024", "INGOT_DEVICE=cpu");
  BOOST_TEST(result.code == 1);
  BOOST_TEST(result.out == "");
  CHECK_CONTAINS(result.err, "ingot: error: tune: kernels are measured on a GPU, and there is none");
  CHECK_CONTAINS(result.err, "--list");
}

BOOST_AUTO_TEST_CASE(tune_lists_what_it_would_tune) {
  const Result one = run("tune --mnk 16384,8192,7168 --recipe tensorwise --list");
  BOOST_REQUIRE_MESSAGE(one.code == 0, one.err);
  for (const char* const line : {"gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 16384 8192 7168\n",
                                 "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor 16384 7168 8192\n",
                                 "gemm e5m2*e4m3fn->bf16 nt scale=tensor,tensor 8192 7168 16384\n",
                                 "gemm bf16*bf16->bf16 nt 16384 8192 7168\n"}) {
    CHECK_CONTAINS(one.out, line);
  }
  const Result model = run("tune --set llama3-8b --tokens 8192 --list");
  BOOST_REQUIRE_MESSAGE(model.code == 0, model.err);
  BOOST_TEST(std::count(model.out.begin(), model.out.end(), '\n') ==
             5 * (3 + 3 + 3 + 2 + 3) - 1);  // each recipe's that none before it has; attention_out is square
  for (const char* const line :
       {"gate_up output, high_precision", "gemm bf16*bf16->bf16 nn 8192 4096 28672\n", "qkv output, tensorwise",
        "nt scale=tensor,tensor fast 8192 6144 4096\n", "lm_head grad_weight, tensorwise",
        "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast 8192 6144 4096\n",
        "gemm e4m3fn*e4m3fn->bf16 nt scale=row,tensor 8192 4096 6144\n", "nt scale=tensor,tensor 128256 4096 8192\n",
        "nt scale=tensor,tensor fast 8192 4096 14336\n"}) {
    CHECK_CONTAINS(model.out, line);
  }
  for (const char* const set :
       {"llama2-7b", "llama2-70b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"}) {
    BOOST_TEST(run(std::string("tune --list --set ") + set).code == 0);
  }
  const Result biased = run("tune --list --set gpt-oss-20b --recipe rowwise");
  CHECK_CONTAINS(biased.out, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast 8192 5120 2880\n");
  CHECK_CONTAINS(biased.out, "gemm bf16*bf16->bf16 nt bias 8192 5120 2880\n");
  CHECK_CONTAINS(biased.out, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast 8192 201088 2880\n");
  CHECK_CONTAINS(run("tune --list --set gpt-oss-20b --weight-only e4m3fn").out,
                 "dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias 16 5120 2880\n");
  // The same layer twice is tuned once.
  const Result twice = run("tune --mnk 64,64,64 --mnk 64,64,64 --recipe high_precision --list");
  BOOST_TEST(std::count(twice.out.begin(), twice.out.end(), '\n') == 3);
}

BOOST_AUTO_TEST_CASE(tune_lists_json) {
  const Result text = run("tune --mnk 64,128,256 --recipe tensorwise --list");
  const Result result = run("tune --mnk 64,128,256 --recipe tensorwise --list --json");
  BOOST_REQUIRE_MESSAGE(result.code == 0, result.err);
  const json gemms = json::parse(result.out).at("gemms");
  BOOST_TEST(gemms.size() == static_cast<std::size_t>(std::count(text.out.begin(), text.out.end(), '\n')));
  for (const json& gemm : gemms) {
    const auto number = [&](const char* name) { return " " + std::to_string(gemm.at(name).get<int>()); };
    CHECK_CONTAINS(text.out, gemm.at("spec").get<std::string>() + number("m") + number("n") + number("k") + "\n");
    CHECK_CONTAINS(text.out, gemm.at("label").get<std::string>());
  }
}

BOOST_AUTO_TEST_CASE(tune_lists_weight_only_products) {
  const Result model = run("tune --set llama3-8b --tokens 16 --weight-only e4m3fn --list");
  BOOST_REQUIRE_MESSAGE(model.code == 0, model.err);
  BOOST_TEST(std::count(model.out.begin(), model.out.end(), '\n') == 5 * 2);  // and what they are compared with
  CHECK_CONTAINS(model.out, "dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 28672 4096\n");
  CHECK_CONTAINS(model.out, "gemm bf16*bf16->bf16 nt 16 28672 4096\n");
  // As a decoding step has them, and with the scale_inv that quantize() makes.
  const Result few = run("tune --set llama3-8b --weight-only e2m1fn --list");
  CHECK_CONTAINS(few.out, "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu 16 28672 4096\n");
  for (const char* const weight : {"e3m2fn", "e2m3fn"}) {
    const Result mx = run(std::string("tune --mnk 1,64,64 --list --weight-only ") + weight);
    CHECK_CONTAINS(mx.out, std::string("bf16*") + weight + "->bf16 packed scale=1x32 factors=e8m0fnu 1 64 64\n");
  }
  for (const std::string scale : {"tensor", "row", "1x128", "1x64", "1x32", "128x128"}) {
    const Result asked = run("tune --mnk 1,64,64 --list --weight-only e2m1fn --weight-scale " + scale);
    CHECK_CONTAINS(asked.out, "dequant_matmul bf16*e2m1fn->bf16 packed scale=" + scale + " 1 64 64\n");
  }
  const Result mx = run("tune --mnk 1,64,64 --list --weight-only e5m2 --weight-scale mx");
  CHECK_CONTAINS(mx.out, "dequant_matmul bf16*e5m2->bf16 packed scale=1x32 factors=e8m0fnu 1 64 64\n");
  const Result scale = run("tune --mnk 1,64,64 --list --weight-only e5m2 --weight-scale col");
  BOOST_TEST(scale.code == 2);
  CHECK_CONTAINS(scale.err, "--weight-scale: \"col\" must be one of tensor, row, 1x128, 1x64, 1x32, 128x128, mx");
  const Result alone = run("tune --mnk 1,64,64 --list --weight-scale row");
  BOOST_TEST(alone.code == 2);
  CHECK_CONTAINS(alone.err, "--weight-scale: \"row\" must be left out without --weight-only");
  CHECK_CONTAINS(run("tune --help").out, "and the same matmuls in 16 bits");
  const Result f16 = run("tune --mnk 16,64,128 --list --weight-only e4m3fn --activations f16");
  CHECK_CONTAINS(f16.out, "dequant_matmul f16*e4m3fn->f16 packed_f16 scale=row 16 64 128\n");
  CHECK_CONTAINS(f16.out, "gemm f16*f16->f16 nt 16 64 128\n");
  const Result same = run("tune --mnk 16,64,128 --list --weight-only e4m3fn --activations bf16");
  CHECK_CONTAINS(same.out, "dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 64 128\n");
  const Result f32 = run("tune --mnk 16,64,128 --list --weight-only e4m3fn --activations f32");
  BOOST_TEST(f32.code == 2);
  CHECK_CONTAINS(f32.err, "--activations: \"f32\" must be bf16 or f16");
  const Result of_nothing = run("tune --mnk 16,64,128 --list --activations f16");
  BOOST_TEST(of_nothing.code == 2);
  CHECK_CONTAINS(of_nothing.err, "--activations: \"f16\" must be left out without --weight-only");
  const Result wrong = run("tune --set llama3-8b --weight-only int8 --list");
  BOOST_TEST(wrong.code == 2);
  CHECK_CONTAINS(wrong.err,
                 "--weight-only: \"int8\" must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e3m2fn, e2m3fn, e2m1fn");
  const Result both = run("tune --set llama3-8b --weight-only e4m3fn --recipe tensorwise --list");
  BOOST_TEST(both.code == 2);
  CHECK_CONTAINS(both.err, "--recipe: \"tensorwise\" must be left out with --weight-only, which has none");
}

BOOST_AUTO_TEST_CASE(tune_takes_a_recording) {
  const Folder folder;
  std::ofstream(folder / "recording") << "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias 128 256 512\n";
  const Result result = run("tune --list --recording '" + (folder / "recording").string() + "'");
  BOOST_REQUIRE_MESSAGE(result.code == 0, result.err);
  CHECK_CONTAINS(result.out, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias 128 256 512\n");
  CHECK_CONTAINS(result.out, "gemm bf16*bf16->bf16 nt bias 128 256 512\n");
  std::ofstream(folder / "weights") << "dequant_matmul f16*e2m1fn->f16 packed scale=row bias 1 256 512\n";
  // Kernels, and matmuls that cannot be tuned, are left out.
  std::ofstream(folder / "others") << "relayout copied\n"
                                      "dequant_matmul bf16*e4m3fn->bf16 packed scale=row batch_invariant 8 64 64\n"
                                      "gemm bf16*bf16->bf16 nt 8 8 8\n";
  const Result others = run("tune --list --recording '" + (folder / "others").string() + "'");
  CHECK_CONTAINS(others.out, "gemm bf16*bf16->bf16 nt 8 8 8\n");
  BOOST_TEST(std::count(others.out.begin(), others.out.end(), '\n') == 1, others.out);
  BOOST_TEST(others.err == "");
  const Result weights = run("tune --list --recording '" + (folder / "weights").string() + "'");
  CHECK_CONTAINS(weights.out, "dequant_matmul f16*e2m1fn->f16 packed scale=row bias 1 256 512\n");
  CHECK_CONTAINS(weights.out, "gemm f16*f16->f16 nt bias 1 256 512\n");

  // Epilogues, too; and a torn line costs no other.
  std::ofstream(folder / "recording", std::ios::app) << "gemm bf16*bf16->bf16 nt 128 256\n"
                                                        "gemm e5m2*e4m3fn->f32 nt scale=row,row c=f32 256 512 128\n";
  const Result torn = run("tune --list --recording '" + (folder / "recording").string() + "'");
  BOOST_REQUIRE_MESSAGE(torn.code == 0, torn.err);
  CHECK_CONTAINS(torn.out, "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias 128 256 512\n");
  CHECK_CONTAINS(torn.out, "gemm e5m2*e4m3fn->f32 nt scale=row,row c=f32 256 512 128\n");
  CHECK_CONTAINS(torn.err, "ingot: warning: recording ");
  CHECK_CONTAINS(torn.err, "recording: 1 damaged line is ignored; line 2: \"nt\" is no m");
  std::ofstream(folder / "recording") << "\x7f"
                                         "ELF\n";
  const Result empty = run("tune --list --recording '" + (folder / "recording").string() + "'");
  BOOST_TEST(empty.code == 1);
  CHECK_CONTAINS(empty.err, "there is nothing to tune");
  const Result none = run("tune --list --recording /no/such/recording");
  BOOST_TEST(none.code == 1);
  CHECK_CONTAINS(none.err, "there is no such file; a run with INGOT_RECORD set to this path records");
  BOOST_REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const Result pipe = run("tune --list --recording '" + (folder / "pipe").string() + "'");
  BOOST_TEST(pipe.code == 1);
  CHECK_CONTAINS(pipe.err, "pipe: is not a regular file");
}

BOOST_AUTO_TEST_CASE(warm_takes_several_models) {
  const auto listed = [](const std::string& sets) { return run("warm --list --tokens 64 --decode none " + sets).out; };
  BOOST_TEST(listed("--set llama2-7b,llama3-8b") == listed("--set llama2-7b --set llama3-8b"));
  BOOST_TEST(listed("--set llama2-7b,llama3-8b") != "");
  const Result wrong = run("warm --list --set llama2-7b,llama9");
  BOOST_TEST(wrong.code == 2);
  CHECK_CONTAINS(wrong.err, "--set: \"llama9\" must be one of llama2-7b");
}

BOOST_AUTO_TEST_CASE(tune_refuses_bad_options) {
  for (const char* const mnk : {"1024", "1024,1024", "1024,1024,0", "1024,1024,-8", "1024,1024,1024,1024", "a,b,c",
                                "1024;1024;1024", "1024,1024,3000000000", ",,"}) {
    const Result result = run("tune --list --mnk '" + std::string(mnk) + "'");
    BOOST_TEST(result.code == 2, mnk << " ended with " << result.code);
    CHECK_CONTAINS(result.err, std::string("--mnk: \"") + mnk + "\" must be three sizes");
  }
  const Result set = run("tune --list --set llama9");
  BOOST_TEST(set.code == 2);
  CHECK_CONTAINS(set.err,
                 "--set: \"llama9\" must be one of llama2-7b, llama2-70b, llama3-8b, llama3-70b, mixtral-8x7b, ");
  const Result recipe = run("tune --list --set llama3-8b --recipe magic");
  BOOST_TEST(recipe.code == 2);
  CHECK_CONTAINS(recipe.err,
                 "--recipe: \"magic\" must be one of high_precision, tensorwise, delayed, rowwise, rowwise_folded, "
                 "rowwise_with_gw_hp, blockwise");
  for (const char* const tokens : {"0", "-5", "x", "1e22", "2147483648", "9223372036854775808", "1 "}) {
    const Result result = run("tune --list --set llama3-8b --tokens='" + std::string(tokens) + "'");
    BOOST_TEST(result.code == 2, tokens << " ended with " << result.code);
    CHECK_CONTAINS(result.err, std::string("--tokens: \"") + tokens + "\" must be a whole number from 1 to 2147483647");
  }
  BOOST_TEST(run("tune --list --set llama3-8b --tokens 2147483647").code == 0);
  const Result tokens_twice = run("tune --list --mnk 64,64,64 --tokens 128");
  BOOST_TEST(tokens_twice.code == 2);
  BOOST_TEST(tokens_twice.out == "");
  CHECK_CONTAINS(tokens_twice.err,
                 "--tokens: \"128\" must be left out without --set, whose tokens it gives; --mnk and a recording have "
                 "their own");
  for (const char* const budget : {"", "x", "-5s", "0", "5 minutes", "nan", "1e99"}) {
    const Result result = run("tune --list --set llama3-8b --budget '" + std::string(budget) + "'");
    BOOST_TEST((result.code != 0 || *budget == '\0'), "--budget " << budget << " ended with " << result.code);
  }
  for (const char* const budget : {"60s", "5m", "1.5h", "90"}) {
    BOOST_TEST(run(std::string("tune --list --set llama3-8b --budget ") + budget).code == 0, budget);
  }
  const Result nothing = run("tune");
  BOOST_TEST(nothing.code == 2);
  CHECK_CONTAINS(nothing.err, "there is nothing to tune");
}

BOOST_AUTO_TEST_CASE(tune_moves_records_between_stores) {
  using ingot::test::record;
  const Folder folder;
  const fs::path given = folder / "given";
  const fs::path again = folder / "again";
  const std::string environment = "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + (folder / "store").string() + "'";
  ingot::write_tuning_file(given, std::vector{record(1), record(2), record(2, "NVIDIA H100")});

  const Result result = run("tune --import '" + given.string() + "' --export '" + again.string() + "'", environment);
  BOOST_REQUIRE_MESSAGE(result.code == 0, result.err);
  CHECK_CONTAINS(result.err, "3 records imported from ");
  CHECK_CONTAINS(result.err, "3 records exported to ");
  const ingot::TuningFile read = ingot::read_tuning_file(again);
  BOOST_TEST(read.records.size() == 3U);
  BOOST_TEST(read.damaged == 0);
  for (const ingot::TuningRecord& expected : {record(1), record(2), record(2, "NVIDIA H100")}) {
    BOOST_TEST((std::find(read.records.begin(), read.records.end(), expected) != read.records.end()));
  }

  // A damaged line costs itself and one line of warning.
  std::ofstream(given, std::ios::app) << "{\"ingot_tuning\":1,\"m\":3}\n" << print(record(4)) << "\n";
  const Result damaged = run("tune --import '" + given.string() + "'", environment);
  BOOST_TEST(damaged.code == 0, damaged.err);
  CHECK_CONTAINS(damaged.err, "line 4 ");
  CHECK_CONTAINS(damaged.err, "; 1 damaged line is ignored");
  CHECK_CONTAINS(damaged.err, "4 records imported from ");

  const Result frozen = run("tune --import '" + given.string() + "'", environment + " INGOT_TUNING=frozen");
  BOOST_TEST(frozen.code == 1);
  CHECK_CONTAINS(frozen.err, "INGOT_TUNING=frozen, and --import writes tuning records");
  const Result missing = run("tune --import /no/such/file", environment);
  BOOST_TEST(missing.code == 1);
  CHECK_CONTAINS(missing.err, "there is no such file");
  const Result nowhere = run("tune --export /no/such/folder/file", environment);
  BOOST_TEST(nowhere.code == 1);
  CHECK_CONTAINS(nowhere.err, "cannot be written");
}

// What is no regular file stays what it is.
BOOST_AUTO_TEST_CASE(tune_exports_into_devices_and_pipes) {
  using ingot::test::record;
  const Folder folder;
  const std::string environment = "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + (folder / "store").string() + "'";
  ingot::write_tuning_file(folder / "given", std::vector{record(1)});
  BOOST_REQUIRE(run("tune --import '" + (folder / "given").string() + "'", environment).code == 0);
  const Result out = run("tune --export /dev/stdout", environment);
  BOOST_TEST(out.code == 0, out.err);
  BOOST_TEST(out.out == print(record(1)) + "\n");
  BOOST_TEST(fs::is_symlink("/dev/stdout"));
  const Result full = run("tune --export /dev/full", environment);
  BOOST_TEST(full.code == 1);
  CHECK_CONTAINS(full.err, "/dev/full: cannot be written: No space left on device");
  BOOST_TEST(fs::is_character_file("/dev/full"));
  const fs::path pipe = folder / "pipe";
  BOOST_REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const Result unread = run("tune --export '" + pipe.string() + "'", environment);
  BOOST_TEST(unread.code == 1);
  CHECK_CONTAINS(unread.err, "nothing reads from it");
  BOOST_TEST(fs::is_fifo(pipe));
}

// Ctrl-C and SIGTERM end an import soon, whichever part of it runs, and what was taken is kept.
BOOST_AUTO_TEST_CASE(tune_ends_an_import_when_asked_to) {
  using ingot::test::record;
  const Folder folder;
  constexpr int kRecords = 40000;
  {
    std::ofstream given(folder / "given");
    for (int m = 1; m <= kRecords; ++m) given << print(record(m)) << "\n";
  }
  const std::string environment = "INGOT_DEVICE=cpu INGOT_CACHE_DIR='" + (folder / "store").string() + "'";
  const std::string import = " tune --import '" + (folder / "given").string() + "'";
  for (const bool begun : {false, true}) {
    // The program ends with its code; the shell's `wait` passes that on.
    const std::string signal_it =
        begun ? "until ls '" + (folder / "store").string() + "'/tuning/*.json >/dev/null 2>&1; do sleep 0.01; done"
              : std::string("sleep 0.2");
    const std::string command = "exec 2>'" + (folder / "err").string() + "'; env INGOT_CUDA_ROOT=none " + environment +
                                " '" INGOT_PROGRAM "'" + import + " & " + signal_it + "; date +%s%N >'" +
                                (folder / "sent").string() + "'; kill -TERM $!; wait $!";
    const int status = std::system(command.c_str());
    const auto ended = std::chrono::system_clock::now().time_since_epoch();
    const std::chrono::nanoseconds sent(std::stoll(read(folder / "sent")));
    const std::string err = read(folder / "err");
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    BOOST_TEST((ended - sent < std::chrono::seconds(1)), "it went on for " << (ended - sent).count() << " ns");
    // 143 where it had hardly started.
    BOOST_TEST((code == 130 || (!begun && code == 143)), code << ": " << err);
    if (code == 130) CHECK_CONTAINS(err, "; interrupted: run the same command again to take the rest");
  }
}

BOOST_AUTO_TEST_CASE(tuning_variables_that_make_no_sense) {
  const Result mode = run("info", "INGOT_DEVICE=cpu INGOT_TUNING=maybe");
  BOOST_TEST(mode.code == 1);
  CHECK_CONTAINS(mode.err, "INGOT_TUNING: is \"maybe\", but must be on, off");
  const Result file = run("info", "INGOT_DEVICE=cpu INGOT_TUNING_FILE=/no/such/file");
  BOOST_TEST(file.code == 1);
  CHECK_CONTAINS(file.err, "ingot tune --export");
}

BOOST_AUTO_TEST_SUITE_END()
