// Context: options from the environment, the choice of device and its reason, missing libraries, and warnings.
#include "ingot/runtime/context/context.h"

#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/util/library.h"
#include "ingot/runtime/util/store_directory.h"
#include "ingot/version.h"
#include "support/processes.h"
#include "support/refused.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_context)

using namespace ingot;
namespace fs = std::filesystem;
using ingot::test::refused;
using ingot::test::TemporaryDirectory;

namespace {

// Hides GPUs, even if there is one: the driver is told to show none.
struct NoGpu {
  NoGpu() {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    for (const char* name : {"INGOT_DEVICE", "INGOT_TEMPLATES", "INGOT_CPU_THREADS"}) ::unsetenv(name);
  }
};

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string refused_variable(const char* name, const std::string& value) {
  const Variable variable(name, value);
  const auto error = refused([] { ContextOptions::from_environment(); });
  if (error.threw) {
    BOOST_TEST((error.code == ErrorCode::invalid_argument));
    BOOST_TEST(error.subject == name);
  }
  return error.message;
}

ContextOptions options_in(const TemporaryDirectory& folder) {
  const char* root = std::getenv("INGOT_CUDA_ROOT");
  return {.store_root = folder.path() / "store", .cuda_root = root == nullptr ? "" : root};
}

const LibraryInfo& library(const ContextInfo& info, const std::string& name) {
  const auto found = std::find_if(info.libraries.begin(), info.libraries.end(),
                                  [&](const LibraryInfo& entry) { return entry.name == name; });
  BOOST_REQUIRE(found != info.libraries.end());
  return *found;
}

// By a loop that is long enough for several threads.
float largest(Context& context) {
  Stream stream(context.backend());
  std::vector<float> input(std::size_t{256} * 1024, 1.0F);
  input.back() = -3000.0F;
  float amax = -1.0F;
  context.backend().amax({.in = Dtype::f32},
                         {.input = matrix(input.data(), Dtype::f32, 256, 1024, context.device()),
                          .amax = vector(&amax, Dtype::f32, 1, context.device())},
                         stream);
  return amax;
}

// The thread sanitizer ends a child that starts a thread.
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadsAfterFork = false;
#else
constexpr bool kThreadsAfterFork = true;
#endif

}  // namespace

BOOST_AUTO_TEST_SUITE(context, *boost::unit_test::fixture<NoGpu>())

// A setuid program: this one, copied and given the bit, and started by nobody with INGOT_TEST_SETUID set.
namespace {

constexpr int kNotSetuid = 77;  // the file system or a sandbox ignores the bit
constexpr const char* kPlanted = "libingot-planted.so";

// The values that the program took from its caller: 0 if none.
int run_setuid() {
  if (::getauxval(AT_SECURE) == 0) return kNotSetuid;
  try {
    if (!ContextOptions::from_environment().templates.empty()) return 1;
  } catch (const Error&) {
    return 2;  // a value was read, and refused
  }
  if (!default_store_root().empty()) return 3;
  std::string problem;
  return Library::open_cuda({kPlanted}, "", problem) ? 4 : 0;
}

// Runs before Boost.Test reads anything.
const int kChild = [] {
  if (std::getenv("INGOT_TEST_SETUID") != nullptr) std::_Exit(run_setuid());
  return 0;
}();

}  // namespace

BOOST_AUTO_TEST_CASE(a_setuid_program_takes_nothing_from_its_caller) {
  BOOST_REQUIRE(kChild == 0);
  if (::geteuid() != 0) {
    BOOST_TEST_MESSAGE("skipped: only root can start a setuid program as someone else");
    return;
  }
  const TemporaryDirectory folder;
  const fs::path program = folder.path() / "program";
  fs::permissions(folder.path(), fs::perms(0755));
  fs::copy_file("/proc/self/exe", program);
  BOOST_REQUIRE(::chmod(program.c_str(), 04755) == 0);
  std::string problem;
  fs::copy_file(Library::open("libm.so.6", problem).path(), folder.path() / kPlanted);
  const std::vector<std::string> variables{"CUDA_PATH=" + folder.path().string(),
                                           "CUDA_HOME=" + folder.path().string(),
                                           "HOME=" + folder.path().string(),
                                           "XDG_CACHE_HOME=" + folder.path().string(),
                                           "INGOT_CACHE_DIR=" + folder.path().string(),
                                           "INGOT_TEMPLATES=" + folder.path().string(),
                                           "INGOT_CUDA_ROOT=/nowhere",
                                           "INGOT_TEST_SETUID=1"};
  const auto start = [&] {
    std::vector<char*> environment;
    for (const std::string& variable : variables) environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    char* arguments[] = {const_cast<char*>("program"), nullptr};
    ::execve(program.c_str(), arguments, environment.data());
    return 98;
  };
  const int taken = test::run_unprivileged(start);
  if (taken == kNotSetuid) BOOST_TEST_MESSAGE("skipped: setuid bits have no effect here");
  BOOST_TEST((taken == 0 || taken == kNotSetuid), "it took something: " << taken);
}

BOOST_AUTO_TEST_CASE(the_stores_size_is_an_option_and_a_variable) {
  BOOST_TEST(ContextOptions::from_environment().store_max_bytes == KernelStore::kDefaultMaxBytes);
  {
    const Variable bytes("INGOT_CACHE_MAX_BYTES", "5000000000");
    BOOST_TEST(ContextOptions::from_environment().store_max_bytes == 5'000'000'000);
  }
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.where = ContextOptions::Where::cpu;
  options.store_max_bytes = 12345;
  Context context(options);
  BOOST_TEST(context.store().max_bytes() == 12345);
  for (const char* value : {"0", "-1", "2G", "99999999999999999999"}) {
    BOOST_TEST(refused_variable("INGOT_CACHE_MAX_BYTES", value) ==
               "INGOT_CACHE_MAX_BYTES: is \"" + std::string(value) +
                   "\", but must be a number of bytes from 1, such as 2147483648");
  }
}

BOOST_AUTO_TEST_CASE(the_library_has_the_version_of_its_headers) {
  static_assert(INGOT_VERSION == INGOT_VERSION_MAJOR * 10000 + INGOT_VERSION_MINOR * 100 + INGOT_VERSION_PATCH);
  BOOST_TEST(version_number() == INGOT_VERSION);
  BOOST_TEST(version() == INGOT_VERSION_STRING);
  BOOST_TEST(std::string(version_string()) == std::to_string(INGOT_VERSION_MAJOR) + "." +
                                                  std::to_string(INGOT_VERSION_MINOR) + "." +
                                                  std::to_string(INGOT_VERSION_PATCH));
}

// What a shell expands, and not within quotes.
BOOST_AUTO_TEST_CASE(a_tilde_is_the_home_folder) {
  const char* const had = ::getenv("HOME");
  const std::string before = had == nullptr ? "" : had;
  const TemporaryDirectory home;
  ::setenv("HOME", home.path().c_str(), 1);
  fs::create_directories(home.path() / "templates");
  {
    const Variable tiers("INGOT_CACHE_TIERS", "/a:~/b:c~:~");
    const Variable record("INGOT_RECORD", "~/run.ingot");
    const Variable templates("INGOT_TEMPLATES", "~/templates");
    const ContextOptions options = ContextOptions::from_environment();
    BOOST_TEST((options.tiers == std::vector<fs::path>{"/a", home.path() / "b", "c~", home.path()}));
    BOOST_TEST((options.record == home.path() / "run.ingot"));
    BOOST_TEST((options.templates == home.path() / "templates"));
  }
  {
    const Variable root("INGOT_CACHE_DIR", "~/store");
    BOOST_TEST(default_store_root() == home.path() / "store");
    ::unsetenv("HOME");
    const auto error = refused([] { default_store_root(); });
    BOOST_TEST(error.subject == "INGOT_CACHE_DIR");
    BOOST_TEST(contains(error.message, "is \"~/store\", where ~ stands for HOME, which is not set; write"),
               error.message);
  }
  ::setenv("HOME", before.c_str(), 1);
  const std::string other = refused_variable("INGOT_WARM", "~other/run");
  BOOST_TEST(contains(other, "is \"~other/run\", where only a shell knows which folder that is"), other);
}

// Neither escapes nor endless text reach a terminal.
BOOST_AUTO_TEST_CASE(a_long_or_strange_value_is_cut) {
  const std::string error = refused_variable("INGOT_DEVICE", "\x1b[31m" + std::string(100'000, 'x'));
  BOOST_TEST(contains(error, "is \"?[31mxxx"), error);
  BOOST_TEST(error.size() < 400U);
}

BOOST_AUTO_TEST_CASE(the_environment_sets_options) {
  const TemporaryDirectory folder;
  const Variable device("INGOT_DEVICE", "cuda:3");
  const Variable threads("INGOT_CPU_THREADS", "5");
  const Variable templates("INGOT_TEMPLATES", folder.path().string());
  const ContextOptions options = ContextOptions::from_environment();
  BOOST_TEST((options.where == ContextOptions::Where::cuda));
  BOOST_TEST(options.device_index == 3);
  BOOST_TEST(options.cpu_threads == 5);
  BOOST_TEST(options.templates == folder.path());
  BOOST_TEST(!options.store_root.has_value());
}

BOOST_AUTO_TEST_CASE(an_empty_variable_is_not_set) {
  const Variable device("INGOT_DEVICE", "");
  const Variable threads("INGOT_CPU_THREADS", "");
  const ContextOptions options = ContextOptions::from_environment();
  BOOST_TEST((options.where == ContextOptions::Where::automatic));
  BOOST_TEST(options.cpu_threads == 0);
}

BOOST_AUTO_TEST_CASE(values_that_make_no_sense_name_their_variable) {
  for (const std::string value : {"gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "CPU"}) {
    BOOST_TEST(refused_variable("INGOT_DEVICE", value) ==
               "INGOT_DEVICE: is \"" + value +
                   "\", but must be cpu, cuda or cuda:<number>; unset, it is CUDA where there is a GPU");
  }
  for (const std::string value : {"many", "-1", "4.5", "99999", "3 "}) {
    BOOST_TEST(refused_variable("INGOT_CPU_THREADS", value) ==
               "INGOT_CPU_THREADS: is \"" + value + "\", but must be a number from 0 (all cores) to 4096");
  }
  BOOST_TEST(refused_variable("INGOT_TEMPLATES", "/nowhere") ==
             "INGOT_TEMPLATES: is \"/nowhere\", but must be the folder templates of Ingot's source tree; there is no "
             "such folder");
  const char* set = std::getenv("INGOT_CUDA_ROOT");
  const std::string root = set == nullptr ? "" : set;
  BOOST_TEST(
      refused_variable("INGOT_CUDA_ROOT", "/nowhere") ==
      "INGOT_CUDA_ROOT: is \"/nowhere\", but must be the folder of a CUDA toolkit, or none; there is no such folder");
  BOOST_TEST(refused_variable("INGOT_CUDA_ROOT", "none") == "nothing was thrown");
  ::setenv("INGOT_CUDA_ROOT", root.c_str(), 1);
}

BOOST_AUTO_TEST_CASE(without_a_gpu_it_is_the_cpu_and_says_so) {
  const TemporaryDirectory folder;
  Context context(options_in(folder));
  BOOST_TEST((context.device() == Device{}));
  BOOST_TEST((context.backend().device() == Device{}));
  const ContextInfo info = context.info();
  BOOST_TEST(info.device_name == "CPU reference");
  const bool no_driver = contains(info.reason, "no CUDA driver: libcuda.so.1 not found");
  const bool no_device = contains(info.reason, "CUDA_ERROR_NO_DEVICE") || contains(info.reason, "sees no GPU");
  BOOST_TEST((no_driver || no_device), info.reason);
  BOOST_TEST(library(info, "CUDA driver").problem == info.reason);
  BOOST_TEST(info.ingot_version == version());
  BOOST_TEST((info.target == Target{9, 0, true}));
  BOOST_TEST(info.store_root == folder.path() / "store");
  BOOST_TEST(info.store_problem == "");
  BOOST_TEST(library(info, "NVRTC").problem == "");
  BOOST_TEST(contains(library(info, "NVRTC").path, "libnvrtc.so"));
  BOOST_TEST(!library(info, "NVRTC").version.empty());
  BOOST_TEST(library(info, "cuBLASLt").problem == "");
  BOOST_TEST(contains(library(info, "cuBLASLt").path, "libcublasLt.so"));
  BOOST_TEST(contains(library(info, "cuBLASLt").version, "."));
}

BOOST_AUTO_TEST_CASE(a_cpu_context_compiles_for_its_offline_target_and_stores) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.offline_target = {8, 0, false};
  const Source source{"k", "__global__ void k() {}\nconstexpr auto kKernel = &k;\n"};
  {
    Context context(options);
    BOOST_REQUIRE(context.compiler() != nullptr);
    BOOST_TEST((context.cache().target() == Target{8, 0, false}));
    BOOST_TEST(context.cache().compiled(source, context.cache().target())->lowered_name == "_Z1kv");
    BOOST_TEST(context.cache().stats().compiled == 1);
    BOOST_TEST(context.info().store_usage.files == 1);
  }
  Context again(options);
  BOOST_TEST(again.cache().compiled(source, again.cache().target())->lowered_name == "_Z1kv");
  BOOST_TEST(again.cache().stats().compiled == 0);
  BOOST_TEST(again.cache().stats().loaded == 1);
}

BOOST_AUTO_TEST_CASE(the_cpu_works_when_asked_for_by_name) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.where = ContextOptions::Where::cpu;
  options.cpu_threads = 1;
  Context context(options);
  BOOST_TEST(context.info().reason == "not looked for: the CPU was asked for");
  Stream stream(context.backend());
  float input[] = {1.0F, -3.0F, 2.0F};
  float amax = -1.0F;
  context.backend().amax({.in = Dtype::f32},
                         {.input = matrix(input, Dtype::f32, 1, 3, context.device()),
                          .amax = vector(&amax, Dtype::f32, 1, context.device())},
                         stream);
  BOOST_TEST(amax == 3.0F);
}

// A pool thread that waits when the program forks is not there in the child, but the pool's memory says that it waits.
BOOST_AUTO_TEST_CASE(a_forked_child_uses_and_destroys_the_parents_context_and_makes_its_own) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.where = ContextOptions::Where::cpu;
  options.cpu_threads = 4;
  auto parents = std::make_unique<Context>(options);
  BOOST_TEST(largest(*parents) == 3000.0F);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the threads wait
  const auto child = [&] {
    ::alarm(20);
    if (largest(*parents) != 3000.0F) return 1;
    parents.reset();
    if (kThreadsAfterFork) {
      Context own(options);
      if (largest(own) != 3000.0F) return 2;
    }
    return 0;
  };
  BOOST_TEST(test::run_in_process(child) == 0);
  BOOST_TEST(largest(*parents) == 3000.0F);
}

BOOST_AUTO_TEST_CASE(a_context_without_a_thread_to_be_had_runs_on_the_callers) {
  const TemporaryDirectory folder;
  const auto child = [&] {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) return 1;
    Context context({.where = ContextOptions::Where::cpu, .store_root = fs::path(), .cpu_threads = 4});
    return largest(context) == 3000.0F ? 0 : 2;
  };
  BOOST_TEST(test::run_unprivileged(child) == 0);
}

BOOST_AUTO_TEST_CASE(cuda_by_name_without_a_gpu_is_an_error_that_says_what_to_do) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.where = ContextOptions::Where::cuda;
  options.device_index = 1;
  const auto error = refused([&] { const Context context(options); });
  BOOST_TEST((error.code == ErrorCode::not_found));
  BOOST_TEST(error.subject == "cuda:1");
  BOOST_TEST(contains(error.message, "libcuda.so.1"), error.message);
  BOOST_TEST(contains(error.message, "; INGOT_DEVICE=cpu (or ContextOptions::where) chooses the CPU"), error.message);
}

// Only compared with null: no function of CUDA sees it.
BOOST_AUTO_TEST_CASE(a_cuda_context_needs_a_gpu) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  int nothing = 0;
  options.cuda_context = reinterpret_cast<CUctx_st*>(&nothing);
  auto error = refused([&] { const Context context(options); });
  BOOST_TEST((error.code == ErrorCode::not_found));
  BOOST_TEST(contains(error.message, "libcuda.so.1"), error.message);
  options.where = ContextOptions::Where::cpu;
  error = refused([&] { const Context context(options); });
  BOOST_TEST((error.code == ErrorCode::invalid_argument));
  BOOST_TEST(error.subject == "ContextOptions::cuda_context");
  BOOST_TEST(contains(error.message, "the CPU was asked for; leave it null, or set `where`"), error.message);
}

BOOST_AUTO_TEST_CASE(the_cpu_needs_no_preparation_and_has_one_kernel) {
  const TemporaryDirectory folder;
  Context context(options_in(folder));
  const MatmulCall call = parse_matmul_call("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast 64 128 256");
  Recording recording;
  recording.add(call);
  context.prepare(recording, [](const PrepareProgress&) { BOOST_ERROR("nothing is to be prepared"); });
  const std::vector<MatmulSpec> order = context.matmul_order(call);
  BOOST_TEST(order.size() == 1U);
  BOOST_TEST((order.front() == call.spec));
}

BOOST_AUTO_TEST_CASE(without_nvrtc_the_cpu_works_and_a_compile_is_an_error) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.cuda_root = "none";
  Context context(options);
  BOOST_TEST(context.compiler() == nullptr);
  const ContextInfo info = context.info();
  for (const char* name : {"NVRTC", "cuBLASLt", "NVTX", "NCCL"}) {
    BOOST_TEST(contains(library(info, name).problem, "was not looked for: INGOT_CUDA_ROOT is \"none\""));
    BOOST_TEST(library(info, name).path.empty());
    BOOST_TEST(library(info, name).version.empty());
  }
  const Source source{"my kernel", "__global__ void k() {}\nconstexpr auto kKernel = &k;\n"};
  const auto error = refused([&] { context.cache().compiled(source, context.cache().target()); });
  BOOST_TEST((error.code == ErrorCode::not_found));
  BOOST_TEST(error.subject == "my kernel");
  BOOST_TEST(contains(error.message, "NVRTC"), error.message);
}

// A node without NVRTC and without its own store runs from a bundle, which may be anywhere.
BOOST_AUTO_TEST_CASE(a_bundle_serves_a_machine_without_nvrtc) {
  const TemporaryDirectory folder;
  const Source source = generate(CastSpec{.scale = kRowwise});
  const std::filesystem::path bundle = folder.path() / "kernels.bundle";
  {
    Context context(options_in(folder));
    const auto kernel = context.cache().compiled(source, context.cache().target());
    const KernelKey key = context.cache().key_of(source, context.cache().target());
    std::ofstream(bundle, std::ios::binary)
        << encode_bundle({.identity = context.cache().identity(),
                          .kernels = {{key, encode_kernel_file(key, source, context.cache().target(), *kernel)}},
                          .tuning = "a record\nanother\n"});
  }
  Context context(
      {.store_root = std::filesystem::path(), .tiers = {bundle}, .cache_mode = CacheMode::strict, .cuda_root = "none"});
  BOOST_TEST(context.compiler() == nullptr);
  BOOST_TEST(!context.cache().compiled(source, context.cache().target())->cubin.empty());
  BOOST_TEST(context.cache().stats().from_tiers == 1);
  const auto missing =
      refused([&] { context.cache().compiled(generate(CastSpec{.scale = kTensorwise}), context.cache().target()); });
  BOOST_TEST((missing.code == ErrorCode::not_found));
  BOOST_TEST(contains(missing.message, "the mode strict forbids compiling it"), missing.message);
  const ContextInfo info = context.info();
  BOOST_REQUIRE(info.tiers.size() == 1U);
  BOOST_TEST(info.tiers[0].kernels == 1);
  BOOST_TEST(info.tiers[0].tuning_records == 2);
  BOOST_TEST(info.tiers[0].problem == "");
  BOOST_TEST((info.cache_mode == CacheMode::strict));
}

BOOST_AUTO_TEST_CASE(a_tier_that_cannot_be_used_is_a_warning) {
  const TemporaryDirectory folder;
  std::vector<std::string> warnings;
  ContextOptions options = options_in(folder);
  options.tiers = {folder.path() / "nothing", folder.path()};
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const Context context(options);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] ==
             "the kernels of " + (folder.path() / "nothing").string() + " are not used: it does not exist");
  const ContextInfo info = context.info();
  BOOST_REQUIRE(info.tiers.size() == 2U);
  BOOST_TEST(info.tiers[0].problem == "does not exist");
  BOOST_TEST(info.tiers[1].problem == "");
}

// Its kernels have other keys, so none would ever be found in it.
BOOST_AUTO_TEST_CASE(a_bundle_of_another_version_is_a_warning) {
  const TemporaryDirectory folder;
  const std::filesystem::path bundle = folder.path() / "kernels.bundle";
  std::ofstream(bundle, std::ios::binary) << encode_bundle({.identity = "another"});
  std::vector<std::string> warnings;
  ContextOptions options = options_in(folder);
  options.tiers = {bundle};
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const Context context(options);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "the kernels of " + bundle.string() +
                                " are not used: it was made by another version of Ingot, or from other templates");
  BOOST_TEST(context.info().tiers[0].problem.starts_with("was made by another version"));
}

BOOST_AUTO_TEST_CASE(the_mode_memory_reads_no_tuning_records) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  options.cache_mode = CacheMode::memory;
  Context context(options);
  BOOST_TEST(context.tuning_store().root().empty());
  BOOST_TEST(context.store().root().empty());
}

BOOST_AUTO_TEST_CASE(tiers_and_mode_come_from_the_environment) {
  const Variable tiers("INGOT_CACHE_TIERS", "/a/kernels.bundle::/b");
  const Variable mode("INGOT_CACHE_MODE", "memory");
  const ContextOptions options = ContextOptions::from_environment();
  BOOST_TEST((options.tiers == std::vector<std::filesystem::path>{"/a/kernels.bundle", "/b"}));
  BOOST_TEST((options.cache_mode == CacheMode::memory));
  BOOST_TEST(
      refused_variable("INGOT_CACHE_MODE", "fast") ==
      "INGOT_CACHE_MODE: is \"fast\", but must be auto, strict (nothing is compiled), memory (nothing on disk is "
      "read or written) or verify (what is found on disk is compiled again and compared)");
}

BOOST_AUTO_TEST_CASE(what_is_seen_and_warmed_comes_from_the_environment) {
  BOOST_TEST(!ContextOptions::from_environment().report);
  BOOST_TEST(!ContextOptions::from_environment().log);
  BOOST_TEST(!ContextOptions::from_environment().check_memory);
  BOOST_TEST(!ContextOptions::from_environment().check_experts);
  const Variable experts("INGOT_CHECK_EXPERTS", "1");
  const Variable check("INGOT_CHECK_MEMORY", "1");
  const Variable stats("INGOT_STATS", "1");
  const Variable log("INGOT_LOG", "0");
  const Variable warm("INGOT_WARM", "/a/recording");
  const ContextOptions options = ContextOptions::from_environment();
  BOOST_TEST(options.report);
  BOOST_TEST(options.check_memory);
  BOOST_TEST(options.check_experts);
  BOOST_TEST(!options.log);
  BOOST_TEST(options.warm == "/a/recording");
  BOOST_TEST(refused_variable("INGOT_LOG", "yes") == "INGOT_LOG: is \"yes\", but must be 0 or 1");
  BOOST_TEST(refused_variable("INGOT_GEMM_MANIFEST", "run.gemms") ==
             "INGOT_GEMM_MANIFEST: is \"run.gemms\", but must be unset; set INGOT_RECORD, whose file `ingot tune "
             "--recording` reads");
}

BOOST_AUTO_TEST_CASE(checks_of_memory_are_for_all_layers_of_a_context) {
  const TemporaryDirectory folder;
  ContextOptions options = options_in(folder);
  BOOST_TEST(!Context(options).device_api().checks_memory());
  BOOST_TEST(!Context(options).device_api().checks_experts());
  options.check_memory = options.check_experts = true;
  BOOST_TEST(Context(options).device_api().checks_memory());
  BOOST_TEST(Context(options).device_api().checks_experts());
}

BOOST_AUTO_TEST_CASE(a_context_tells_what_it_has_done) {
  const TemporaryDirectory folder;
  std::vector<KernelEvent> events;
  ContextOptions options = options_in(folder);
  options.log = [&](const KernelEvent& event) { events.push_back(event); };
  Context context(options);
  const Source source = generate(AmaxSpec{});
  context.cache().compiled(source, context.cache().target());
  const ContextStats stats = context.stats();
  BOOST_TEST(stats.kernels.compiled == 1);
  BOOST_TEST(stats.launches == 0);
  BOOST_TEST(stats.tiers.empty());
  BOOST_REQUIRE(events.size() == 1U);
  BOOST_TEST(events[0].name == source.name);

  ContextStats many{.kernels = {.compiled = 1, .loaded = 12, .compile_microseconds = 1236000, .by_tier = {4}},
                    .removed = {.quarantined = 1, .evicted = 2},
                    .launches = 5321,
                    .tiers = {"/opt/llama.bundle"}};
  BOOST_TEST(print(many) ==
             "1 kernel compiled in 1.24 s, 12 from the store, 4 from /opt/llama.bundle; 1 damaged file moved aside; 2 "
             "removed for room; 5321 launches");
}

// Contexts in one process share the store and nothing else.
BOOST_AUTO_TEST_CASE(two_contexts_share_the_disk_alone) {
  const TemporaryDirectory folder;
  Context first(options_in(folder));
  Context second(options_in(folder));
  const Source source = generate(AmaxSpec{});
  const auto compiled = first.cache().compiled(source, first.cache().target());
  BOOST_TEST(second.stats().kernels.compiled == 0);
  BOOST_TEST((*second.cache().compiled(source, second.cache().target()) == *compiled));
  BOOST_TEST(first.stats().kernels.compiled == 1);
  BOOST_TEST(second.stats().kernels.compiled == 0);
  BOOST_TEST(second.stats().kernels.loaded == 1);

  Stream of_second(second.backend());
  std::vector<float> numbers{1, -3, 2};
  float amax = 0;
  const AmaxTensors tensors{.input = vector(numbers.data(), Dtype::f32, 3, Device{}),
                            .amax = vector(&amax, Dtype::f32, 1, Device{})};
  const std::string text = refused([&] { first.backend().amax({.in = Dtype::f32}, tensors, of_second); }).message;
  BOOST_TEST(contains(text, "belongs to another Context's backend"), text);
  BOOST_TEST(amax == 0.0F);
  second.backend().amax({.in = Dtype::f32}, tensors, of_second);
  BOOST_TEST(amax == 3.0F);
  BOOST_TEST(print(first.recording()) != print(second.recording()));
}

// Without a GPU there is nothing to warm; a recording that cannot be read costs a warning.
BOOST_AUTO_TEST_CASE(a_recording_that_is_missing_is_a_warning) {
  const TemporaryDirectory folder;
  std::vector<std::string> warnings;
  ContextOptions options = options_in(folder);
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  options.warm = folder.path() / "none";
  Context context(options);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(contains(warnings[0], "nothing is compiled ahead"), warnings[0]);
  BOOST_TEST(contains(warnings[0], "there is no such file"), warnings[0]);
  Recording recording;
  recording.add(KernelSpec(AmaxSpec{}));
  context.warm(recording);
  BOOST_TEST(context.stats().kernels.compiled == 0);
}

BOOST_AUTO_TEST_CASE(templates_come_from_a_folder_where_one_is_given) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "mine.cuh") << "__global__ void from_my_folder() {}\n";
  ContextOptions options = options_in(folder);
  options.templates = folder.path();
  Context context(options);
  const Source source{"k", "#include \"mine.cuh\"\nconstexpr auto kKernel = &from_my_folder;\n"};
  BOOST_TEST(context.cache().compiled(source, context.cache().target())->lowered_name == "_Z14from_my_folderv");

  options.templates = folder.path() / "store";
  const auto error = refused([&] { const Context other(options); });
  BOOST_TEST((error.code == ErrorCode::not_found));
  BOOST_TEST(contains(error.message, "INGOT_TEMPLATES"), error.message);
}

BOOST_AUTO_TEST_CASE(warnings_go_where_they_are_sent_and_to_stderr_otherwise) {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "store") << "a file where the store should be\n";
  const Source source{"k", "__global__ void k() {}\nconstexpr auto kKernel = &k;\n"};
  std::vector<std::string> warnings;
  ContextOptions options = options_in(folder);
  options.warn = [&](const std::string& message) { warnings.push_back(message); };
  {
    Context context(options);
    BOOST_TEST(context.cache().compiled(source, context.cache().target())->lowered_name == "_Z1kv");
    BOOST_TEST(!context.info().store_problem.empty());
  }
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(contains(warnings[0], "store"), warnings[0]);

  options.warn = {};
  const std::string captured = (folder.path() / "stderr").string();
  std::fflush(stderr);
  const int saved = ::dup(2);
  BOOST_REQUIRE(std::freopen(captured.c_str(), "w", stderr) != nullptr);
  {
    Context context(options);
    context.cache().compiled(source, context.cache().target());
  }
  std::fflush(stderr);
  ::dup2(saved, 2);
  ::close(saved);
  std::stringstream text;
  text << std::ifstream(captured).rdbuf();
  BOOST_TEST(text.str() == "ingot: warning: " + warnings[0] + "\n");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
