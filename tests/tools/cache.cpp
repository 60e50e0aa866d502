// `ingot cache` as its users run it: on good, damaged, foreign, empty, missing and read-only stores; what it prints,
// where, with which exit code, and what it leaves on disk.
#include <boost/test/unit_test.hpp>

#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/template_files.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/error.h"
#include "support/fake_compiler.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"
#include "text.h"

BOOST_AUTO_TEST_SUITE(test_cache)

using namespace ingot;
using namespace ingot::tools;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr Target kHopper{9, 0, true};
constexpr Target kAda{8, 9, false};
constexpr const char* kSpec = "cast bf16->e4m3fn scale=row out=codes";
const Source kOwn{"my kernel", "__global__ void k() {}\nconstexpr auto kKernel = &k;\n"};

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define CHECK_CONTAINS(text, part) BOOST_TEST(contains(text, part), "\"" << (part) << "\" is not in:\n" << (text))

std::string identity() { return kernel_identity(embedded_templates()); }

struct Fixture {
  // `arguments`, `environment` and `redirections` are shell text. No NVRTC, unless the environment names one.
  Result run(const std::string& arguments, const std::string& environment = "", const std::string& redirections = "") {
    const fs::path out = directory.path() / "out";
    const fs::path err = directory.path() / "err";
    const std::string command =
        "env -u INGOT_CACHE_TIERS -u INGOT_CACHE_MODE -u INGOT_TUNING INGOT_DEVICE=cpu INGOT_CUDA_ROOT=none "
        "INGOT_CACHE_DIR='" +
        root.string() + "' " + environment + " '" INGOT_PROGRAM "' cache " + arguments + " </dev/null >'" +
        out.string() + "' 2>'" + err.string() + "' " + redirections;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  json run_json(const std::string& arguments, const std::string& environment = "") {
    const Result result = run(arguments + " --json", environment);
    const json parsed = json::parse(result.out, nullptr, false);
    BOOST_REQUIRE_MESSAGE(!parsed.is_discarded(), arguments << ": " << result.out << result.err);
    return parsed;
  }

  // A kernel of a fake compiler, as the program would find it.
  KernelKey put(const Source& source, Target target = kHopper, const std::string& made_for = identity()) {
    KernelStore store(root);
    CompiledKernel kernel = test::fake_kernel(source, target);
    kernel.toolchain = "nvrtc 99.1 1234-0123456789abcdef";
    const KernelKey key = kernel_key(source, target, made_for);
    BOOST_REQUIRE(store.put(key, source, target, kernel));
    return key;
  }
  void put_record(std::int64_t m) {
    TuningStore store(root);
    TuningRecord record = test::record(m);
    record.machine.compiler = identity();
    BOOST_REQUIRE(store.put(record));
  }
  fs::path file(const KernelKey& key) const { return root / kernel_file_path(key); }
  void set_age(const KernelKey& key, std::chrono::seconds age) const {
    fs::last_write_time(file(key), fs::file_time_type::clock::now() - age);
  }
  std::size_t quarantined() const { return KernelStore(root).directory().quarantined().size(); }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
};

}  // namespace

BOOST_AUTO_TEST_CASE(sizes_and_ages) {
  BOOST_TEST((parse_size("0") == 0));
  BOOST_TEST((parse_size("123") == 123));
  BOOST_TEST((parse_size("500M") == 500 * 1024 * 1024));
  BOOST_TEST((parse_size("2GiB") == std::int64_t{2} << 30));
  BOOST_TEST((parse_size("7KB") == 7 * 1024));
  for (const char* wrong : {"", "M", "-1", "1.5G", "1X", " 1", "1 M", "9223372036854775807K", "99999999999999999999"}) {
    BOOST_TEST(!parse_size(wrong).has_value(), wrong);
    BOOST_TEST(size_problem(wrong) == std::string("\"") + wrong + "\" is no size; give one such as 500M or 2G");
  }
  BOOST_TEST((parse_age("30d") == std::chrono::hours(720)));
  BOOST_TEST((parse_age("4w") == std::chrono::hours(4 * 168)));
  BOOST_TEST((parse_age("90s") == std::chrono::seconds(90)));
  for (const char* wrong : {"", "30", "d", "-1d", "1y", "1e3d", "9223372036854775807w"}) {
    BOOST_TEST(!parse_age(wrong).has_value(), wrong);
    BOOST_TEST(age_problem(wrong) == std::string("\"") + wrong + "\" is no time; give one such as 12h, 30d or 4w");
  }
  BOOST_TEST(target_problem("sm_banana") == "\"sm_banana\" is no architecture; give one such as sm_90a");
  BOOST_TEST(target_problem("sm_90a") == "");
  BOOST_TEST(print_age(-5) == "0 s");
  BOOST_TEST(print_age(119) == "119 s");
  BOOST_TEST(print_age(7199) == "119 min");
  BOOST_TEST(print_age(7200) == "2 h");
  BOOST_TEST(print_age(40 * 86400) == "40 d");
  BOOST_TEST(one_line("a\n\x1b[31mb\xff") == "a??[31mb?");
}

BOOST_FIXTURE_TEST_SUITE(cache, Fixture)

BOOST_AUTO_TEST_CASE(a_store_that_is_not_there) {
  BOOST_TEST(run("path").out == root.string() + "\n");
  const Result list = run("list");
  BOOST_TEST(list.code == 0, list.err);
  BOOST_TEST(list.out == root.string() + ": 0 kernels, 0 B\n");
  BOOST_TEST(run_json("list").at("kernels").empty());
  BOOST_TEST(run_json("stat").at("kernels") == 0);
  for (const char* const changing : {"verify", "prune --max-size 0", "clear --yes"}) {  // of a path that is misspelt
    const Result result = run(changing);
    BOOST_TEST(result.code == 1, changing);
    BOOST_TEST(result.out == "");
    BOOST_TEST(result.err == "ingot: error: " + root.string() +
                                 ": there is no store; `ingot cache path` prints where it is looked for, and "
                                 "INGOT_CACHE_DIR names another\n");
  }
  BOOST_TEST(!fs::exists(root), "looking made the store");
  fs::create_directory(directory.path() / "no store");
  for (const char* const command : {"import", "verify --tier"}) {
    const Result result = run(std::string(command) + " '" + (directory.path() / "no store").string() + "'");
    BOOST_TEST(result.code == 1, command);
    CHECK_CONTAINS(result.err, "no store: has neither a kernel nor a tuning record; give a bundle");
  }
  const Result nothing = run("export '" + (directory.path() / "a.bundle").string() + "'");
  BOOST_TEST(nothing.code == 1);
  BOOST_TEST(nothing.err ==
             "ingot: error: " + root.string() +
                 ": has nothing to export for this version of Ingot and what was asked for; `ingot cache "
                 "list` shows what it has, `ingot warm` compiles more\n");
  BOOST_TEST(!fs::exists(directory.path() / "a.bundle"));
}

BOOST_AUTO_TEST_CASE(list_shows_what_a_file_says) {
  const Source generated = generate(parse(kSpec));
  const Source first = generate(parse("cast bf16->e4m3fn scale=tensor out=codes,transposed"), Pass::first);
  const KernelKey key = put(generated);
  set_age(key, std::chrono::hours(50));
  set_age(put(first, kAda), std::chrono::hours(3));
  put({"ugly\n\x1b[31mname", kOwn.text});
  put({"old", "of another Ingot"}, kHopper, "ingot 0.0.1");
  const fs::path damaged = file(put({"damaged", "damaged"}));
  fs::resize_file(damaged, 10);

  const Result list = run("list");
  BOOST_TEST(list.code == 0, list.err);
  BOOST_TEST(list.err == "");
  CHECK_CONTAINS(list.out, "used     made     target         size  compiler     kernel\n");
  CHECK_CONTAINS(list.out, std::string("nvrtc 99.1   ") + kSpec + "\n");
  CHECK_CONTAINS(list.out, "nvrtc 99.1   cast bf16->e4m3fn scale=tensor out=codes,transposed (first pass)\n");
  CHECK_CONTAINS(list.out, "ugly??[31mname  (a program's own source)\n");
  CHECK_CONTAINS(list.out, "old  (a program's own source)  (of another version of Ingot)\n");
  CHECK_CONTAINS(list.out,
                 "damaged: " + fs::relative(damaged, root).string() + " is truncated: 10 bytes, of at least 48\n");
  CHECK_CONTAINS(list.out, root.string() + ": 4 kernels, ");
  BOOST_TEST(list.out.find("\n3 h      ") < list.out.find("\n2 d      "), "those used last come first");
  BOOST_TEST(fs::exists(damaged), "looking moves nothing");

  const json kernels = run_json("list").at("kernels");
  BOOST_REQUIRE(kernels.size() == 4U);
  const json& oldest = kernels.back();
  BOOST_TEST(oldest.at("kernel") == kSpec);
  BOOST_TEST(oldest.at("operation") == "cast");
  BOOST_TEST(oldest.at("pass") == "main");
  BOOST_TEST(oldest.at("target") == "sm_90a");
  BOOST_TEST(oldest.at("bytes") == fs::file_size(file(key)));
  BOOST_TEST(oldest.at("compiler") == "nvrtc 99.1 1234-0123456789abcdef");
  BOOST_TEST(oldest.at("symbol").get<std::string>().starts_with("_Z"));
  BOOST_TEST(oldest.at("current") == true);
  BOOST_TEST(oldest.at("file") == kernel_file_path(key));
  BOOST_TEST(std::abs(oldest.at("used").get<std::int64_t>() - (std::time(nullptr) - 50 * 3600)) < 60);
  BOOST_TEST(kernels.at(2).at("pass") == "first");
  BOOST_TEST(kernels.at(2).at("target") == "sm_89");
  BOOST_TEST(kernels.at(0).at("operation") == "");
}

BOOST_AUTO_TEST_CASE(stat_counts) {
  put(generate(parse(kSpec)));
  put(generate(parse(kSpec)), kAda);
  put(kOwn);
  put({"old", "of another Ingot"}, kHopper, "ingot 0.0.1");
  fs::resize_file(file(put({"damaged", "damaged"})), 10);
  fs::create_directories(root / "quarantine");
  std::ofstream(root / "quarantine" / "a.kernel.12-0123456789abcdef") << "x";
  std::ofstream(root / "tmp" / "12-0123456789abcdef") << "x";
  put_record(1);
  put_record(2);
  std::ofstream(root / "tuning" / (std::string(32, 'f') + ".json")) << "torn";
  const json stat = run_json("stat", "INGOT_CACHE_TIERS='/no/such/bundle:" + root.string() + "'");
  BOOST_TEST(stat.at("path") == root.string());
  BOOST_TEST(stat.at("kernels") == 4);
  BOOST_TEST(stat.at("limit") == std::int64_t{2} << 30);
  BOOST_TEST(stat.at("bytes").get<int>() > 400);
  BOOST_TEST(stat.at("targets").size() == 2U);
  BOOST_TEST(stat.at("targets").at(1).at("target") == "sm_90a");
  BOOST_TEST(stat.at("targets").at(1).at("kernels") == 3);
  BOOST_TEST(stat.at("operations").size() == 2U);
  BOOST_TEST(stat.at("operations").at(1).at("operation") == "cast");
  BOOST_TEST(stat.at("operations").at(1).at("kernels") == 2);
  BOOST_TEST(stat.at("other_versions").at("kernels") == 1);
  BOOST_TEST(stat.at("damaged") == 1);
  BOOST_TEST(stat.at("quarantined") == 1);
  BOOST_TEST(stat.at("temporaries") == 1);
  BOOST_TEST(stat.at("tuning") == json({{"this_machine", 0}, {"other_machines", 2}, {"damaged", 1}}));
  BOOST_TEST(stat.at("tiers").at(0).at("problem") ==
             "does not exist; give a bundle (`ingot cache export` writes one) or a store's folder");
  BOOST_TEST(stat.at("tiers").at(1).at("kernels") == 5);
  const Result text = run("stat");
  BOOST_TEST(text.code == 0, text.err);
  for (const char* part : {"4 kernels", "of at most 2.0 GiB", "own sources", "of other versions of Ingot",
                           "damaged           1: see `ingot cache verify`", "quarantined       1",
                           "0 for this machine, 2 for other machines, 1 damaged"}) {
    CHECK_CONTAINS(text.out, part);
  }
  BOOST_TEST(quarantined() == 1U, "counting moves nothing");
}

BOOST_AUTO_TEST_CASE(verify_names_and_moves_what_is_damaged) {
  const KernelKey good = put(generate(parse(kSpec)));
  set_age(good, std::chrono::hours(50));
  BOOST_TEST(run("verify").code == 0);
  const fs::path truncated = file(put({"a", "a"}));
  fs::resize_file(truncated, 10);
  const fs::path open_to_all = file(put({"b", "b"}));
  fs::permissions(open_to_all, fs::perms(0666));
  const fs::path fifo = file(put({"c", "c"}));
  fs::remove(fifo);
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const fs::path link = file(put({"d", "d"}));
  fs::remove(link);
  fs::create_symlink("/etc/passwd", link);
  const fs::path record = root / "tuning" / (std::string(32, 'f') + ".json");
  put_record(1);
  std::ofstream(record) << "torn";
  const fs::path notes = truncated.parent_path() / "notes.txt";
  std::ofstream(notes) << "mine";
  std::vector<std::string> lines{
      truncated.string() + " is truncated: 10 bytes, of at least 48; moved to the quarantine\n",
      open_to_all.string() + " can be written by other users (mode 0666); moved to the quarantine\n",
      fifo.string() + " is not a regular file; moved to the quarantine\n",
      link.string() + " cannot be opened: Too many levels of symbolic links; moved to ",
      record.string() + " is truncated; moved to the quarantine\n"};
  if (geteuid() == 0) {
    const fs::path foreign = file(put({"e", "e"}));
    BOOST_REQUIRE(chown(foreign.c_str(), 1234, 1234) == 0);
    lines.push_back(foreign.string() +
                    " is owned by user 1234; expected root, the current user; moved to the quarantine\n");
  }
  const Result result = run("verify");
  BOOST_TEST(result.code == 1);
  BOOST_TEST(result.err == "");
  for (const std::string& line : lines) CHECK_CONTAINS(result.out, line);
  CHECK_CONTAINS(result.out, ": " + std::to_string(lines.size()) + " damaged\n");
  BOOST_TEST(quarantined() == lines.size());
  BOOST_TEST(fs::exists(notes));
  const Result again = run("verify");
  BOOST_TEST(again.code == 0);
  BOOST_TEST(again.out == "1 kernel and 1 tuning record checked: 0 damaged\n");
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(file(good));
  BOOST_TEST((age > std::chrono::hours(49)), "verifying counted as a use");

  fs::resize_file(file(good), 10);
  const json found = run_json("verify");
  BOOST_TEST(found.at("kernels") == 1);
  BOOST_TEST(found.at("damaged").at(0).at("file") == file(good).string());
  BOOST_TEST(found.at("damaged").at(0).at("moved") == true);
}

// A bundle is checked where it is, and so is a store that is only read: nothing in them is moved.
BOOST_AUTO_TEST_CASE(verify_and_stat_of_a_tier) {
  const fs::path bundle = directory.path() / "a.bundle";
  put(generate(parse(kSpec)));
  const KernelKey own = put(kOwn);
  put_record(1);
  BOOST_REQUIRE(run("export '" + bundle.string() + "'").code == 0);
  const fs::path store = root;
  root = directory.path() / "other";
  const std::string of_bundle = " --tier '" + bundle.string() + "'";
  const Result good = run("verify" + of_bundle);
  BOOST_TEST(good.code == 0, good.err);
  BOOST_TEST(good.out == bundle.string() + ": 2 kernels and 1 tuning record checked: 0 damaged\n");
  const json stat = run_json("stat" + of_bundle);
  BOOST_TEST(stat.at("path") == bundle.string());
  BOOST_TEST(stat.at("kernels") == 2);
  BOOST_TEST(stat.at("operations").size() == 2U);
  BOOST_TEST(stat.at("tuning") == json({{"records", 1}, {"damaged", 0}}));
  CHECK_CONTAINS(run("stat" + of_bundle).out, "kernels           2 kernels");

  fs::resize_file(store / kernel_file_path(own), 10);
  const Result of_store = run("verify --tier '" + store.string() + "'");
  BOOST_TEST(of_store.code == 1);
  CHECK_CONTAINS(of_store.out, store.string() + ": " + kernel_file_path(own) + " is truncated: 10 bytes, of at least");
  BOOST_TEST(fs::exists(store / kernel_file_path(own)));
  CHECK_CONTAINS(run("stat --tier '" + store.string() + "'").out, "damaged           1: `ingot cache verify --tier`");
  std::string bytes = read(bundle);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  std::ofstream(bundle, std::ios::binary) << bytes;
  const json broken = run_json("verify" + of_bundle);
  BOOST_TEST(run("verify" + of_bundle).code == 1);
  BOOST_REQUIRE(broken.at("damaged").size() == 1U);
  BOOST_TEST(broken.at("damaged").at(0).at("problem") == "does not match its checksum");
  BOOST_TEST(read(bundle) == bytes);

  // Without --tier, those of the environment are checked with the store.
  const std::string tiers = "INGOT_CACHE_TIERS='" + bundle.string() + ":/no/such/bundle'";
  const Result both = run("verify", tiers);
  BOOST_TEST(both.code == 1);
  CHECK_CONTAINS(both.out, "0 kernels and 0 tuning records checked: 0 damaged\n");
  CHECK_CONTAINS(both.out, bundle.string() + ": 2 kernels and 1 tuning record checked: 1 damaged\n");
  CHECK_CONTAINS(both.out, "/no/such/bundle: it does not exist; give a bundle");
  BOOST_TEST(run_json("verify", tiers).at("tiers").size() == 2U);
  BOOST_TEST(run("verify --recompile" + of_bundle).code == 2);
  BOOST_TEST(!fs::exists(root), "checking a tier made the store");
  const Result none = run("verify --tier /no/such/bundle");
  BOOST_TEST(none.code == 1);
  CHECK_CONTAINS(none.err, "ingot: error: /no/such/bundle: does not exist; give a bundle");
}

// Another user's store that nobody has opened is said not to be used, by every command.
BOOST_AUTO_TEST_CASE(a_private_tier_is_told) {
  if (geteuid() != 0) return;  // others could not be told from its owner
  put(kOwn);
  fs::permissions(directory.path(), fs::perms(0777));
  const std::string tier = root.string();
  root = directory.path() / "other";
  BOOST_TEST(test::run_unprivileged([&] {
               int failed = 0;
               const auto expect = [&failed](const Result& result, const std::string& output, int code) {
                 const bool said = contains(output, "cannot be opened: Permission denied; a store is private unless") &&
                                   contains(output, "`chmod -R a+rX`");
                 failed += said && result.code == code ? 0 : 1;
               };
               const std::string tiers = "INGOT_CACHE_TIERS='" + tier + "'";
               const Result stat = run("stat", tiers);
               expect(stat, stat.out, 0);
               const Result verify = run("verify", tiers);
               expect(verify, verify.out, 1);
               const Result list = run("list --tier '" + tier + "'");
               expect(list, list.err, 1);
               for (const char* const command : {"info", "warm --set llama3-8b --tokens 64 --decode none --check"}) {
                 const std::string text = tiers + " INGOT_DEVICE=cpu INGOT_CUDA_ROOT=none INGOT_CACHE_DIR='" +
                                          root.string() + "' '" INGOT_PROGRAM "' " + command + " >'" +
                                          (directory.path() / "out").string() + "' 2>&1";
                 const int status = std::system(text.c_str());
                 const std::string shown = read(directory.path() / "out");
                 const bool said = contains(shown, "the kernels of " + tier + " are not used: it cannot be opened: ");
                 failed += said && WEXITSTATUS(status) == (*command == 'i' ? 0 : 1) ? 0 : 1;
               }
               return failed;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(verify_compiles_again) {
  fs::create_directory(root);
  fs::permissions(root, fs::perms::owner_all);
  const Result without = run("verify --recompile");
  BOOST_TEST(without.code == 1);
  CHECK_CONTAINS(without.err, "ingot: error: NVRTC: --recompile needs it: ");
  const std::string nvrtc = "INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "'";
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  options.store_root = root;
  options.cuda_root = INGOT_CUDA_ROOT;
  Context context(options);
  BOOST_REQUIRE(context.compiler() != nullptr);
  const Source generated = generate(parse(kSpec));
  const auto kernel = context.cache().compiled(generated, kHopper);
  context.cache().compiled(kOwn, kHopper);
  put({"old", "of another Ingot"}, kHopper, "ingot 0.0.1");
  put({"other", "of another NVRTC"});
  const Result same = run("verify --recompile --jobs 1", nvrtc);
  BOOST_TEST(same.code == 0, same.out << same.err);
  CHECK_CONTAINS(same.out, "2 kernels compiled again: 0 differ, 0 failed\n");
  CHECK_CONTAINS(same.out, "1 kernel not compiled again: of another version of Ingot\n");
  CHECK_CONTAINS(same.out, "1 kernel not compiled again: another build of NVRTC made them\n");

  // The checksum is right, the machine code is another's.
  CompiledKernel wrong = *kernel;
  wrong.cubin.back() ^= std::byte{1};
  const KernelKey key = context.cache().key_of(generated, kHopper);
  BOOST_REQUIRE(context.store().put(key, generated, kHopper, wrong));
  BOOST_TEST(run("verify", nvrtc).code == 0);
  const Source broken{"broken", "no source\n"};
  CompiledKernel made = *kernel;
  BOOST_REQUIRE(context.store().put(context.cache().key_of(broken, kHopper), broken, kHopper, made));
  const Result differs = run("verify --recompile", nvrtc);
  BOOST_TEST(differs.code == 1);
  CHECK_CONTAINS(differs.out,
                 file(key).string() + " has other machine code than the compiler makes now; moved to the quarantine\n");
  CHECK_CONTAINS(differs.out, "3 kernels compiled again: 1 differ, 1 failed\n");
  BOOST_TEST(!fs::exists(file(key)));
}

BOOST_AUTO_TEST_CASE(prune_removes_what_was_used_longest_ago) {
  const KernelKey newest = put(generate(parse(kSpec)));
  const KernelKey old = put({"old", std::string(4000, 'x')});
  const KernelKey oldest = put({"oldest", std::string(4000, 'y')}, kAda);
  set_age(old, std::chrono::hours(48));
  set_age(oldest, std::chrono::hours(24 * 40));
  const Result dry = run("prune --older-than 30d --dry-run");
  BOOST_TEST(dry.code == 0, dry.err);
  CHECK_CONTAINS(dry.out, "would be removed: sm_89 oldest\n");
  CHECK_CONTAINS(dry.out, "1 kernel, ");
  BOOST_TEST(fs::exists(file(oldest)));
  const Result aged = run("prune --older-than 30d");
  CHECK_CONTAINS(aged.out, "removed: sm_89 oldest\n");
  BOOST_TEST(!fs::exists(file(oldest)));
  BOOST_TEST(fs::exists(file(old)));
  put({"oldest", std::string(4000, 'y')}, kAda);
  const json target = run_json("prune --target sm_89,sm_80 --max-size 1K");
  BOOST_TEST(target.at("removed") == 1);
  BOOST_TEST(target.at("kernels") == json({"sm_89 oldest"}));
  BOOST_TEST(target.at("dry_run") == false);
  const json sized = run_json("prune --max-size 6K");
  BOOST_TEST(sized.at("kernels") == json({"sm_90a old"}));
  BOOST_TEST(fs::exists(file(newest)));

  const Result nothing = run("prune");
  BOOST_TEST(nothing.code == 2);
  BOOST_TEST(nothing.err ==
             "ingot: error: ingot cache: prune: say what to remove: --max-size 500M, --older-than 30d or "
             "--target sm_90a\n");
  for (const char* wrong : {"--max-size 5X", "--older-than 30", "--target sm_banana"}) {
    const Result result = run(std::string("prune ") + wrong);
    BOOST_TEST(result.code == 2, wrong);
    CHECK_CONTAINS(result.err, "; give one such as ");
  }
}

BOOST_AUTO_TEST_CASE(clear_removes_what_is_ours_and_nothing_else) {
  const KernelKey key = put(generate(parse(kSpec)));
  put_record(1);
  std::ofstream(root / "notes.txt") << "mine";
  std::ofstream(file(key).parent_path() / "notes.txt") << "mine";
  BOOST_TEST(KernelStore(root).lock(key).held());
  const Result asked = run("clear");
  BOOST_TEST(asked.code == 2);
  BOOST_TEST(asked.err ==
             "ingot: error: ingot cache: clear: there is no terminal to ask at; add --yes to remove "
             "everything without being asked\n");
  BOOST_TEST(fs::exists(file(key)));
  const Result kernels = run("clear --yes");
  BOOST_TEST(kernels.code == 0, kernels.err);
  BOOST_TEST(kernels.out.starts_with("1 file removed, "), kernels.out);
  BOOST_TEST(!fs::exists(file(key)));
  BOOST_TEST(TuningStore(root).load().size() == 1U, "the records are kept");
  const json all = run_json("clear --yes --tuning");
  BOOST_TEST(all.at("removed") == 1);
  BOOST_TEST(all.at("tuning_records") == 1);
  BOOST_TEST(TuningStore(root).load().empty());
  BOOST_TEST(fs::exists(root / "notes.txt"));
  BOOST_TEST(fs::exists(file(key).parent_path() / "notes.txt"));
  BOOST_TEST(fs::exists(root / "lock"));
}

// Answers the question at a terminal.
BOOST_AUTO_TEST_CASE(clear_asks_at_a_terminal) {
  const KernelKey key = put(generate(parse(kSpec)));
  const auto answer = [&](const char* text) {
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      setenv("INGOT_CACHE_DIR", root.c_str(), 1);
      execl(INGOT_PROGRAM, "ingot", "cache", "clear", static_cast<char*>(nullptr));
      _exit(127);
    }
    BOOST_TEST(::write(terminal, text, std::string(text).size()) > 0);
    std::string shown;
    char bytes[256];
    for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof(bytes))) > 0;) {
      shown.append(bytes, static_cast<std::size_t>(got));
    }
    ::close(terminal);
    return std::pair(test::wait_for(child), shown);
  };
  const auto [no, refused] = answer("n\n");
  BOOST_TEST(no == 1);
  CHECK_CONTAINS(refused, "Remove 1 kernel (");
  CHECK_CONTAINS(refused, ") from " + root.string() + "? [y/N] ");
  CHECK_CONTAINS(refused, "nothing was removed");
  BOOST_TEST(fs::exists(file(key)));
  const auto [yes, removed] = answer("y\n");
  BOOST_TEST(yes == 0);
  CHECK_CONTAINS(removed, "1 file removed, ");
  BOOST_TEST(!fs::exists(file(key)));
}

// Import and export: a store's kernels, a program's own among them, carried to another store and run from strictly.
BOOST_AUTO_TEST_CASE(export_then_run_strictly) {
  const fs::path bundle = directory.path() / "a.bundle";
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  options.store_root = root;
  options.cuda_root = INGOT_CUDA_ROOT;
  const Source generated = generate(parse(kSpec));
  const Source on_ada = generate(parse("amax bf16 scale=tensor"));
  {
    Context context(options);
    BOOST_REQUIRE(context.compiler() != nullptr);
    context.cache().compiled(generated, kHopper);
    context.cache().compiled(kOwn, kHopper);
    context.cache().compiled(on_ada, kAda);
  }
  put({"old", "of another Ingot"}, kHopper, "ingot 0.0.1");
  put_record(1);
  const auto missing_from = [&](const fs::path& tier) {
    const std::vector<std::pair<const char*, std::string>> environment{
        {"INGOT_DEVICE", "cpu"},
        {"INGOT_CUDA_ROOT", "none"},
        {"INGOT_CACHE_DIR", (directory.path() / "elsewhere").string()},
        {"INGOT_CACHE_TIERS", tier.string()},
        {"INGOT_CACHE_MODE", "strict"}};
    for (const auto& [name, value] : environment) setenv(name, value.c_str(), 1);
    Context context;
    for (const auto& [name, value] : environment) unsetenv(name);
    std::string missing;
    for (const auto& [source, target] :
         {std::pair(generated, kHopper), std::pair(kOwn, kHopper), std::pair(on_ada, kAda)}) {
      try {
        context.cache().compiled(source, target);
      } catch (const Error& error) {
        missing += error.subject() + ";";
      }
    }
    return missing;
  };
  const mode_t mask = umask(0002);
  const Result all = run("export '" + bundle.string() + "'");
  umask(mask);
  BOOST_TEST(all.code == 0, all.err);
  CHECK_CONTAINS(all.out, bundle.string() + ": 3 kernels, 1 tuning record, ");
  CHECK_CONTAINS(all.out, "  1 left out: of another version of Ingot\n");
  BOOST_TEST(missing_from(bundle) == "");

  BOOST_TEST(run_json("export --target sm_90a '" + bundle.string() + "'").at("kernels") == 2);
  BOOST_TEST(missing_from(bundle) == "amax bf16 scale=tensor;");
  const fs::path recording = directory.path() / "recording";
  std::ofstream(recording) << "amax bf16 scale=tensor\nfloat_quantize bf16 e4m3\n";
  const Result recorded = run("export --recording '" + recording.string() + "' '" + bundle.string() + "'");
  BOOST_TEST(recorded.code == 0, recorded.err);
  CHECK_CONTAINS(recorded.out, ": 2 kernels, ");
  std::ofstream(directory.path() / "torn") << "nonsense\n";
  const Result torn =
      run("export --recording '" + (directory.path() / "torn").string() + "' '" + bundle.string() + "'");
  BOOST_TEST(torn.code == 1);
  CHECK_CONTAINS(torn.err, "is no recording: none of its lines (1) can be read; ");
  CHECK_CONTAINS(recorded.err, "that the recordings may need are not in the store; `ingot warm --recording` compiles");
  BOOST_TEST(missing_from(bundle) == std::string(kSpec) + ";");

  const Result list = run("list --tier '" + bundle.string() + "'", "INGOT_CACHE_DIR= XDG_CACHE_HOME= HOME=");
  BOOST_TEST(list.code == 0, list.err);
  CHECK_CONTAINS(list.out, "my kernel  (a program's own source)\n");
  CHECK_CONTAINS(list.out, bundle.string() + ": 2 kernels, ");
}

BOOST_AUTO_TEST_CASE(import_says_what_it_took) {
  const fs::path bundle = directory.path() / "a.bundle";
  put(generate(parse(kSpec)));
  put(kOwn);
  put({"old", "of another Ingot"}, kHopper, "ingot 0.0.1");
  put_record(1);
  BOOST_REQUIRE(run("export '" + bundle.string() + "'").code == 0);
  const fs::path store = root;
  root = directory.path() / "other";
  const Result first = run("import '" + bundle.string() + "'");
  BOOST_TEST(first.code == 0, first.err);
  BOOST_TEST(first.out ==
             "kernels: 2 new, 0 already there, 0 refused\ntuning records: 1 new, 0 already there, 0 refused\n");
  const json again = run_json("import '" + store.string() + "'");
  BOOST_TEST(again.at("kernels").at("added") == 0);
  BOOST_TEST(again.at("kernels").at("there") == 2);
  BOOST_TEST(again.at("kernels").at("refused").at(0).at("count") == 1);
  BOOST_TEST(again.at("kernels").at("refused").at(0).at("first") == "old");
  BOOST_TEST(again.at("tuning_records").at("there") == 1);
  BOOST_TEST(fs::exists(file(kernel_key(kOwn, kHopper, identity()))));

  root = directory.path() / "third";
  const Result frozen = run("import '" + store.string() + "'", "INGOT_TUNING=frozen");
  CHECK_CONTAINS(frozen.out, "1 refused: INGOT_TUNING=frozen, so nothing writes tuning records; set INGOT_TUNING=on");
  // With an NVRTC, kernels of another one are of no use.
  root = directory.path() / "fourth";
  const Result other = run("import '" + bundle.string() + "'", "INGOT_CUDA_ROOT='" INGOT_CUDA_ROOT "'");
  BOOST_TEST(other.code == 1);
  CHECK_CONTAINS(other.out, "kernels: 0 new, 0 already there, 2 refused\n");
  CHECK_CONTAINS(other.out, "compiled by another build of NVRTC (nvrtc 99.1; here nvrtc ");
}

BOOST_AUTO_TEST_CASE(what_cannot_be_imported_is_explained) {
  const fs::path bundle = directory.path() / "a.bundle";
  put(kOwn);
  BOOST_REQUIRE(run("export '" + bundle.string() + "'").code == 0);
  const std::string bytes = read(bundle);
  root = directory.path() / "other";
  const auto error_of = [&](const fs::path& from) {
    const Result result = run("import '" + from.string() + "'");
    BOOST_TEST(result.code == 1);
    BOOST_TEST(result.out == "");
    BOOST_TEST(std::ranges::count(result.err, '\n') == 1, result.err);
    const std::string start = "ingot: error: " + from.string() + ": ";
    BOOST_REQUIRE_MESSAGE(result.err.starts_with(start), result.err);
    return result.err.substr(start.size());
  };
  const std::string remedy = "; give a bundle (`ingot cache export` writes one) or a store's folder\n";
  const std::string again = "; copy it again, or make it again (`ingot cache export` writes a bundle)\n";
  const std::string copy = "; if you trust it, copy it to a place of yours that nobody else can write\n";
  BOOST_TEST(error_of(directory.path() / "nothing") == "does not exist" + remedy);
  for (const std::size_t size : {bytes.size() - 1, std::size_t{100}}) {
    fs::resize_file(bundle, size);
    BOOST_TEST(error_of(bundle) ==
               "is cut off: " + std::to_string(size) + " bytes, of " + std::to_string(bytes.size()) + again);
    const Result verified = run("verify --tier '" + bundle.string() + "'");
    BOOST_TEST(verified.code == 1);
    CHECK_CONTAINS(verified.err, again);
  }
  fs::resize_file(bundle, 20);
  BOOST_TEST(error_of(bundle) == "is truncated: its header is not complete" + again);
  const fs::path fifo = directory.path() / "fifo";
  BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  BOOST_TEST(error_of(fifo) == "is not a regular file" + remedy);
  std::ofstream(bundle, std::ios::binary) << bytes;
  fs::permissions(bundle, fs::perms(0666));
  BOOST_TEST(error_of(bundle) == "can be written by other users (mode 0666)" + copy);
  const fs::path open_to_all = directory.path() / "open";
  fs::create_directory(open_to_all);
  fs::permissions(open_to_all, fs::perms(0777));
  BOOST_TEST(error_of(open_to_all) == "can be written by other users (mode 0777)" + copy);
  BOOST_TEST(!fs::exists(root));
  // One byte of the kernel: the index is fine, the kernel is refused.
  std::string flipped = bytes;
  flipped[100] = static_cast<char>(flipped[100] ^ 1);
  fs::remove(bundle);
  std::ofstream(bundle, std::ios::binary) << flipped;
  fs::permissions(bundle, fs::perms(0600));
  const Result result = run("import '" + bundle.string() + "'");
  BOOST_TEST(result.code == 1);
  CHECK_CONTAINS(result.out, "  1 refused: does not match its checksum (the first: ");
  if (geteuid() != 0) return;
  BOOST_REQUIRE(chown(bundle.c_str(), 1234, 1234) == 0);
  CHECK_CONTAINS(error_of(bundle), "is owned by user 1234; expected root, the current user; if you trust it, copy");
}

BOOST_AUTO_TEST_CASE(a_store_that_must_not_be_used) {
  fs::create_directory(root);
  const auto expect = [&](const std::string& problem) {
    for (const char* command :
         {"list", "stat", "verify", "prune --max-size 1", "clear --yes", "import /dev/null", "export /dev/null"}) {
      const Result result = run(command);
      BOOST_TEST(result.code == 1, command);
      BOOST_TEST(result.err == "ingot: error: ingot cache: " + problem +
                                   "; set INGOT_CACHE_DIR to a directory of yours with mode 0700\n");
    }
    BOOST_TEST(run("path").code == 0);
  };
  fs::permissions(root, fs::perms(0777));
  expect("store directory " + root.string() + " can be written by other users (mode 0777); expected 0700");
  fs::remove(root);
  std::ofstream(root) << "a file";
  expect("store directory " + root.string() + " is not a directory");
  const Result none = run("list", "INGOT_CACHE_DIR= XDG_CACHE_HOME= HOME=");
  BOOST_TEST(none.code == 1);
  CHECK_CONTAINS(none.err, "there is no store directory: INGOT_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset");
  CHECK_CONTAINS(run("path", "INGOT_CACHE_DIR= XDG_CACHE_HOME= HOME=").err, "are all unset; set INGOT_CACHE_DIR");
  CHECK_CONTAINS(run("path", "INGOT_CACHE_DIR= XDG_CACHE_HOME=mine HOME=").err,
                 "but XDG_CACHE_HOME is \"mine\"; set INGOT");
  if (geteuid() != 0) return;
  fs::remove(root);
  fs::create_directory(root);
  fs::permissions(root, fs::perms(0700));
  BOOST_REQUIRE(chown(root.c_str(), 1234, 1234) == 0);
  expect("store directory " + root.string() + " is owned by user 1234; expected root, the current user");
  BOOST_REQUIRE(chown(root.c_str(), 0, 0) == 0);
  fs::permissions(root, fs::perms(0755));
  for (const char* const name : {"out", "err"}) fs::remove(directory.path() / name);
  fs::permissions(directory.path(), fs::perms(0777));
  BOOST_TEST(test::run_unprivileged([&] {
               const std::string err = run("list").err;
               return contains(err, "with mode 0700, and to use what root has there, name it in INGOT_CACHE_TIERS\n")
                          ? 0
                          : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_target_that_is_in_no_kernel) {
  put(kOwn);
  const Result result = run("prune --target sm_99");
  BOOST_TEST(result.code == 0);
  BOOST_TEST(result.out == "0 kernels, 0 B, removed\n");
  BOOST_TEST(result.err ==
             "ingot: warning: --target sm_99: the store has no kernel for it; it has kernels for sm_90a\n");
  BOOST_TEST(run("prune --target sm_90a").err == "");
}

// As a user whom permissions bind.
BOOST_AUTO_TEST_CASE(a_store_that_cannot_be_written) {
  fs::permissions(directory.path(), fs::perms(0777));
  const int failures = test::run_unprivileged([&] {
    const KernelKey key = put(kOwn);
    const KernelKey damaged = put({"damaged", "damaged"});
    fs::resize_file(file(damaged), 10);
    const fs::path bundle = directory.path() / "a.bundle";
    int failed = 0;
    const auto expect = [&failed](bool good) { failed += good ? 0 : 1; };
    const Result exported = run("export '" + bundle.string() + "'");
    expect(exported.code == 1);
    expect(contains(exported.err, "; it was left out, and `ingot cache verify` moves it to the quarantine\n"));
    fs::remove(file(key));
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.is_directory()) fs::permissions(entry.path(), fs::perms(0500));
    }
    fs::permissions(root, fs::perms(0500));
    expect(run("list").code == 0);
    const Result verify = run("verify");
    expect(verify.code == 1);
    expect(contains(verify.out, "; it could not be moved to the quarantine: remove it\n"));
    const Result clear = run("clear --yes");
    expect(clear.code == 1);
    expect(contains(clear.err, file(damaged).string() + " cannot be removed: Permission denied\n"));
    const Result taken = run("import '" + bundle.string() + "'");
    expect(taken.code == 1);
    expect(contains(taken.err, root.string() + ": 0 kernels imported, then one could not be written: "));
    fs::permissions(root, fs::perms(0700));
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.is_directory()) fs::permissions(entry.path(), fs::perms(0700));
    }
    return failed;
  });
  BOOST_TEST(failures == 0);
}

BOOST_AUTO_TEST_CASE(output_that_cannot_be_written) {
  put(kOwn);
  for (const char* command :
       {"path", "list", "list --json", "stat", "stat --json", "verify", "prune --max-size 1G", "clear --help"}) {
    const Result result = run(command, "", ">/dev/full");
    BOOST_TEST(result.code == 1, command);
    CHECK_CONTAINS(result.err, "ingot: error: standard output: cannot be written: No space left on device\n");
  }
  const Result full = run("export /dev/full");
  BOOST_TEST(full.code == 1);
  BOOST_TEST(full.err == "ingot: error: /dev/full: cannot be written: No space left on device\n");
  BOOST_TEST(fs::is_character_file("/dev/full"));
  CHECK_CONTAINS(run("export '" + (directory.path() / "no/such/file").string() + "'").err,
                 "cannot be written: No such file or directory\n");
}

BOOST_AUTO_TEST_CASE(wrong_usage) {
  for (const char* arguments : {"", "frobnicate", "path x", "list --yaml", "import", "export", "verify --jobs 0"}) {
    const Result result = run(arguments);
    BOOST_TEST(result.code == 2, arguments);
    BOOST_TEST(result.out == "");
    BOOST_TEST(result.err != "");
  }
  const std::string commands = "; expected one of path, list, stat, verify, prune, clear, import, export\n";
  BOOST_TEST(run("").err == "ingot: error: ingot cache: no command is given" + commands);
  BOOST_TEST(run("frobnicate --json").err == "ingot: error: ingot cache: no command \"frobnicate\"" + commands);
  const KernelKey key = put(kOwn);
  BOOST_TEST(run("frobnicate clear --yes").code == 2);
  BOOST_TEST(fs::exists(file(key)));
  const Result help = run("--help");
  BOOST_TEST(help.code == 0);
  for (const char* command : {"path", "list", "stat", "verify", "prune", "clear", "import", "export", "Exit code: 0"}) {
    CHECK_CONTAINS(help.out, command);
  }
}

// Others compile, evict, clear and verify at the same time: nothing fails, nothing is lost that was not removed.
BOOST_AUTO_TEST_CASE(others_at_work) {
  const auto succeeds = [&](const std::string& arguments) {
    const Result result = run(arguments);
    BOOST_TEST(result.code == 0, arguments << ": " << result.out << result.err);
  };
  put(kOwn);  // without a store the commands end with 1, and the writer may begin late
  const pid_t writer = test::start_process([&] {
    KernelStore store(
        root, [](const std::string&) { _exit(3); }, 40'000);
    for (int i = 0; i < 1500; ++i) {
      const Source source{"kernel " + std::to_string(i % 100), std::string(500, 'x') + std::to_string(i % 100)};
      const KernelKey key = kernel_key(source, kHopper, identity());
      if (!store.put(key, source, kHopper, test::fake_kernel(source, kHopper))) return 1;
      if (const auto found = store.find(key); found && *found != test::fake_kernel(source, kHopper)) return 2;
    }
    return 0;
  });
  const fs::path bundle = directory.path() / "a.bundle";
  for (int i = 0; i < 8; ++i) {
    succeeds("verify");
    succeeds("list");
    succeeds("prune --max-size 8K");
    const Result exported = run("export '" + bundle.string() + "'");
    BOOST_TEST((exported.code == 0 || contains(exported.err, "has nothing to export")), exported.err);
    succeeds("clear --yes");
    if (fs::exists(bundle)) succeeds("import '" + bundle.string() + "'");
  }
  BOOST_TEST(test::wait_for(writer) == 0);
  BOOST_TEST(quarantined() == 0U);
}

// Ctrl-C ends a command between two files, with the exit code of a shell, and the next run goes on.
BOOST_AUTO_TEST_CASE(stopped_by_ctrl_c) {
  for (int i = 0; i < 400; ++i) put({"kernel " + std::to_string(i), std::to_string(i)});
  const fs::path bundle = directory.path() / "a.bundle";
  BOOST_REQUIRE(run("export '" + bundle.string() + "'").code == 0);
  root = directory.path() / "other";
  int stopped = 0;
  for (int i = 1; i <= 20; ++i) {
    const std::string stop = "timeout --preserve-status -s INT " + std::to_string(0.02 * i) + " ";
    const Result result = run("import '" + bundle.string() + "'", stop);
    BOOST_TEST((result.code == 0 || result.code == 130), result.code << result.err);
    stopped += contains(result.out, "stopped; the same command continues with the rest\n") ? 1 : 0;
    if (result.code == 0) KernelStore(root).clear();
  }
  BOOST_TEST(run("import '" + bundle.string() + "'").code == 0);
  BOOST_TEST(run_json("stat").at("kernels") == 400);
  BOOST_TEST(run_json("stat").at("temporaries") == 0);
  BOOST_TEST_MESSAGE(stopped << " imports were stopped on their way");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
