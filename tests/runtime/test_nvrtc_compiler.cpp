// NvrtcCompiler: cubins with their resources, error messages with source lines, reproducible output, concurrent
// compiles, and the signal handlers that NVRTC installs.
#include "ingot/runtime/jit/kernel_identity.h"
#include "ingot/runtime/jit/nvrtc_compiler.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "support/function_ref.h"
#include "support/processes.h"
#include "support/refused.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_nvrtc_compiler)

using namespace ingot;
using ingot::test::refused;
using ingot::test::TemporaryDirectory;

namespace {

constexpr Target kHopper{9, 0, true};

std::string cuda_root() {
  const char* root = std::getenv("INGOT_CUDA_ROOT");
  return root == nullptr ? "" : root;
}

std::unique_ptr<NvrtcCompiler> open(TemplateFiles templates = embedded_templates()) {
  std::string problem;
  auto compiler = NvrtcCompiler::open(cuda_root(), std::move(templates), problem);
  BOOST_REQUIRE_MESSAGE(compiler != nullptr, problem);
  return compiler;
}

Source source_of(std::string kernel) { return {"a kernel", std::move(kernel) + "\nconstexpr auto kKernel = &k;\n"}; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

double milliseconds(test::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

const std::string kOnlyTemplates =
    ", but a kernel may include only Ingot's templates, by their path there (\"cast/cast_tiles.cuh\"): a file that the "
    "kernel's key does not cover could change without the kernel being compiled again; copy its text into the source";

}  // namespace

BOOST_AUTO_TEST_CASE(compiles_to_a_cubin_with_the_name_and_resources_of_the_kernel) {
  const auto compiler = open();
  const Source source{"scaled copy", R"(
struct Params { const float* x; float* y; };
template <int kScale>
__global__ void scaled_copy(const __grid_constant__ Params p) {
  __shared__ float tile[64];
  tile[threadIdx.x] = p.x[threadIdx.x];
  __syncthreads();
  p.y[threadIdx.x] = kScale * tile[63 - threadIdx.x];
}
constexpr auto kKernel = &scaled_copy<3>;
)"};
  const CompiledKernel kernel = compiler->compile(source, kHopper);
  BOOST_TEST(contains(kernel.lowered_name, "scaled_copyILi3EE"), kernel.lowered_name);
  BOOST_REQUIRE(kernel.cubin.size() > 4);
  BOOST_TEST(std::memcmp(kernel.cubin.data(),
                         "\x7f"
                         "ELF",
                         4) == 0);
  BOOST_TEST(kernel.resources.registers > 0);
  BOOST_TEST(kernel.resources.registers <= 32);
  BOOST_TEST(kernel.resources.static_shared_bytes == 256);
  BOOST_TEST(kernel.resources.spill_bytes == 0);
  BOOST_TEST(kernel.resources.stack_bytes == 0);
  BOOST_TEST(kernel.log == "");
}

BOOST_AUTO_TEST_CASE(spills_stack_and_warnings_are_reported) {
  const auto compiler = open();
  const CompiledKernel kernel = compiler->compile(source_of(R"(
__global__ void __launch_bounds__(1024, 2) k(const float* p, float* q) {
  float a[64];
  int never_used;
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = p[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) q[i * 1024 + threadIdx.x] = a[63 - i] * a[i * 7 % 64];
})"),
                                                  kHopper);
  BOOST_TEST(kernel.resources.spill_bytes > 0);
  BOOST_TEST(kernel.resources.stack_bytes > 0);
  BOOST_TEST(kernel.resources.registers == 32);
  BOOST_TEST(contains(kernel.log, "never_used"), kernel.log);
  BOOST_TEST(contains(kernel.log, "Registers are spilled to local memory"), kernel.log);
  BOOST_TEST(!contains(kernel.log, "ptxas info"), kernel.log);
}

BOOST_AUTO_TEST_CASE(an_error_in_the_unit_shows_its_numbered_source) {
  const auto compiler = open();
  const auto error = refused([&] {
    compiler->compile(
        {"my kernel",
         "// one\n// two\n__global__ void k(int* p) {\n  *p = nonsense;\n}\nconstexpr auto kKernel = &k;\n"},
        kHopper);
  });
  BOOST_TEST((error.code == ErrorCode::compile_failed));
  BOOST_TEST(error.subject == "my kernel");
  BOOST_TEST(contains(error.message, "my kernel: NVRTC "), error.message);
  BOOST_TEST(contains(error.message, "did not compile it for sm_90a: identifier \"nonsense\" is undefined"),
             error.message);
  BOOST_TEST(contains(error.message, "log()"), error.message);
  BOOST_TEST(!contains(error.message, "\n"), error.message);
  BOOST_TEST(contains(error.log, "error: identifier \"nonsense\" is undefined"), error.log);
  BOOST_TEST(contains(error.log, "      1 | // one\n"), error.log);
  BOOST_TEST(contains(error.log, ">     4 |   *p = nonsense;\n"), error.log);
  BOOST_TEST(contains(error.log, "      6 | constexpr auto kKernel = &k;\n"), error.log);
}

BOOST_AUTO_TEST_CASE(an_error_in_a_template_shows_the_templates_source) {
  const auto compiler =
      open({{"folder/inner.cuh",
             "#pragma once\n\n\n\n\n\ntemplate <class T>\n__global__ void k(T* p) {\n  p->missing();\n}\n"},
            {"outer.cuh", "#include \"folder/inner.cuh\"\n"}});
  const auto error = refused([&] {
    compiler->compile({"x", "#include \"outer.cuh\"\nconstexpr auto kKernel = &k<int>;\n"}, kHopper);
  });
  BOOST_TEST(contains(error.log, "folder/inner.cuh(9): error"), error.log);
  BOOST_TEST(contains(error.log, "\nfolder/inner.cuh:\n"), error.log);
  BOOST_TEST(contains(error.log, ">     9 |   p->missing();\n"), error.log);
  BOOST_TEST(!contains(error.log, "     1 | #pragma once"), error.log);
}

BOOST_AUTO_TEST_CASE(a_source_without_the_kernel_or_its_header_says_so) {
  const auto compiler = open();
  auto error = refused([&] { compiler->compile({"x", "__global__ void k() {}\n"}, kHopper); });
  BOOST_TEST(contains(error.message, "identifier \"kKernel\" is undefined"), error.message);
  BOOST_TEST(contains(error.message, "must define `constexpr auto kKernel = &some_kernel;`"), error.message);

  error = refused([&] { compiler->compile({"x", "#include \"nowhere.cuh\"\n"}, kHopper); });
  BOOST_TEST(error.message == "x: line 1 has #include \"nowhere.cuh\"" + kOnlyTemplates);
  BOOST_TEST(contains(error.log, ">     1 | #include \"nowhere.cuh\"\n"), error.log);

  error = refused([&] { compiler->compile(source_of("__global__ void k() { asm(\"nonsense;\"); }"), kHopper); });
  BOOST_TEST(contains(error.message, "Not a name of any known instruction: 'nonsense'"), error.message);

  error = refused([&] { compiler->compile(source_of("__global__ void k() {}"), Target{1, 3, false}); });
  BOOST_TEST(contains(error.message, "did not compile it for sm_13: "), error.message);
  BOOST_TEST(contains(error.message, "gpu-architecture"), error.message);
}

BOOST_AUTO_TEST_CASE(nothing_is_read_from_the_working_directory) {
  const auto compiler = open({});
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "here.cuh") << "__global__ void k() {}\n";
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto error = refused([&] { compiler->compile(source_of("#include \"here.cuh\""), kHopper); });
  std::filesystem::current_path(before);
  BOOST_TEST(error.message == "a kernel: line 1 has #include \"here.cuh\"" + kOnlyTemplates);
}

// NVRTC opens absolute paths whatever its options. What was compiled with such a file would be served after the file
// has changed.
BOOST_AUTO_TEST_CASE(files_that_no_key_covers_are_refused) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "mine.h";
  std::ofstream(path) << "constexpr int kMine = 1;\n";
  const std::string quoted = '"' + path + '"';
  const std::string kernel = "__global__ void k(int* p) { *p = 1; }";
  const auto compiler = open({{"ours.cuh", "constexpr int kOurs = 1;\n"}, {"theirs.cuh", "\n#include " + quoted}});
  const auto message = [&](const std::string& text) {
    return refused([&] { compiler->compile(source_of(text + "\n" + kernel), kHopper); }).message;
  };
  BOOST_TEST(message("#include \"ours.cuh\"\n#if __has_include(<ours.cuh>)\n#endif") == "nothing was thrown");
  BOOST_TEST(message("#include " + quoted) == "a kernel: line 1 has #include " + quoted + kOnlyTemplates);
  BOOST_TEST(message("#include \"theirs.cuh\"") ==
             "a kernel: line 2 of theirs.cuh has #include " + quoted + kOnlyTemplates);
  BOOST_TEST(message("\n#define MINE " + quoted + "\n#include MINE") ==
             "a kernel: line 3 has #include MINE" + kOnlyTemplates);
  BOOST_TEST(message("#if __has_include(" + quoted + ")\n#endif") ==
             "a kernel: line 1 has __has_include(" + quoted + ")" + kOnlyTemplates);
  BOOST_TEST(message("#define JOIN(a, b) a##b\n#if JOIN(__has_, include)(" + quoted + ")\n#endif") ==
             "a kernel: it has a macro with ##, which could make a __has_include" + kOnlyTemplates);
  const Source source = source_of("#include " + quoted + "\n" + kernel);
  BOOST_TEST(refused([&] { static_cast<void>(compiler->ptx(source, kHopper)); }).threw);
}

// Whatever the bytes are, it is a kernel or an ingot::Error.
BOOST_AUTO_TEST_CASE(bytes_that_are_no_text) {
  const auto compiler = open();
  const std::string kernel = "__global__ void k(int* p) { *p = 1; }\nconstexpr auto kKernel = &k;\n";
  const std::vector<std::string> texts{
      "\xff",
      kernel + "\xff",
      "// \xff\n" + kernel,
      "__global__ void k\xff(int* p) { *p = 1; }\nconstexpr auto kKernel = &k\xff;\n",
      "__global__ void k\xc3\xa9(int* p) { *p = 1; }\nconstexpr auto kKernel = &k\xc3\xa9;\n",
      "namespace n\xff { __global__ void k(int* p) { *p = \xff; } }\nconstexpr auto kKernel = &n\xff::k;\n",
      "template <int> __global__ void k(int* p) { *p = 1; }\nconstexpr auto kKernel = &k<'\xff'>;\n",
      "#error \xff\n" + kernel,
      "#line 2147483647\n\xff\n" + kernel,
      std::string("\0", 1) + kernel,
      kernel.substr(0, 10) + std::string(1, '\0') + kernel.substr(10),
  };
  for (const std::string& text : texts) {
    const auto error = refused([&] { compiler->compile({"a kernel \xff", text}, kHopper); });
    if (!error.threw) continue;
    BOOST_TEST((error.code == ErrorCode::compile_failed));
    BOOST_TEST(contains(error.message, "a kernel ?: NVRTC "), error.message);
  }
}

BOOST_AUTO_TEST_CASE(the_same_source_gives_the_same_bytes) {
  const Source source = source_of("namespace { __device__ int hidden; }\n__global__ void k(int* p) { *p = ++hidden; }");
  const CompiledKernel first = open()->compile(source, kHopper);
  const CompiledKernel second = open()->compile(source, kHopper);
  BOOST_TEST((first == second));
  BOOST_TEST((first.cubin != open()->compile(source, Target{8, 0, false}).cubin));
}

BOOST_AUTO_TEST_CASE(identity_follows_the_templates_and_names_no_path) {
  const auto compiler = open({{"a.cuh", "1"}, {"b.cuh", "2"}});
  BOOST_TEST(compiler->identity() == open({{"a.cuh", "1"}, {"b.cuh", "2"}})->identity());
  for (const TemplateFiles& other :
       {TemplateFiles{{"a.cuh", "1"}, {"b.cuh", "3"}}, TemplateFiles{{"a.cuh", "1"}},
        TemplateFiles{{"a.cuh", "1"}, {"c.cuh", "2"}}, TemplateFiles{{"a.cuh", "1b.cuh2"}}}) {
    BOOST_TEST(compiler->identity() != open(other)->identity());
  }
  const std::string identity = compiler->identity();
  BOOST_TEST(contains(identity, "--fmad=false"), identity);
  BOOST_TEST(!contains(identity, "nvrtc "), identity);
  BOOST_TEST(!contains(identity, "/"), identity);
  BOOST_TEST(identity == kernel_identity({{"a.cuh", "1"}, {"b.cuh", "2"}}));
  const std::string toolchain = compiler->toolchain();
  BOOST_TEST(toolchain.starts_with("nvrtc "), toolchain);
  BOOST_TEST(!contains(toolchain, "/"), toolchain);
  BOOST_TEST(toolchain == open({{"a.cuh", "3"}})->toolchain());
  BOOST_TEST(milliseconds([&] { static_cast<void>(compiler->identity()); }) < 1.0);
}

BOOST_AUTO_TEST_CASE(version_is_exact_and_ptx_is_text) {
  const auto compiler = open();
  const std::string version = compiler->version();
  BOOST_TEST(std::count(version.begin(), version.end(), '.') == 2, version);
  BOOST_TEST(contains(compiler->path(), "libnvrtc.so."), compiler->path());
  const std::string ptx = compiler->ptx(source_of("__global__ void k() {}"), kHopper);
  BOOST_TEST(contains(ptx, ".target sm_90a"), ptx);
  BOOST_TEST(contains(ptx, ".entry _Z1kv"), ptx);
  BOOST_TEST(contains(ptx, "V" + version), ptx);
}

BOOST_AUTO_TEST_CASE(threads_compile_at_once) {
  const auto compiler = open();
  std::vector<CompiledKernel> kernels(8);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      threads.emplace_back([&, i] {
        kernels[i] =
            compiler->compile(source_of("__global__ void k(int* p) { *p = " + std::to_string(i) + "; }"), kHopper);
      });
    }
  }
  for (const CompiledKernel& kernel : kernels) {
    BOOST_TEST(kernel.lowered_name == "_Z1kPi");
    BOOST_TEST(!kernel.cubin.empty());
  }
}

// Without a thread to be had, the signal handlers are put back a little later; the kernel compiles all the same.
BOOST_AUTO_TEST_CASE(the_first_compile_needs_no_thread) {
  const auto compiler = open();
  const auto child = [&] {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) return 1;
    return compiler->compile(source_of("__global__ void k() {}"), kHopper).lowered_name == "_Z1kv" ? 0 : 2;
  };
  BOOST_TEST(ingot::test::run_unprivileged(child) == 0);
}

BOOST_AUTO_TEST_CASE(missing_nvrtc_says_where_it_was_looked_for) {
  std::string problem;
  BOOST_TEST(NvrtcCompiler::open("none", {}, problem).get() == nullptr);
  BOOST_TEST(problem ==
             "libnvrtc.so.13 or libnvrtc.so.12 was not looked for: INGOT_CUDA_ROOT is \"none\", which says "
             "to use no CUDA library");
}

// Signals: NVRTC handles SIGTERM while the first compile of a process runs, so each trial needs a new process: this
// program, started again with INGOT_TEST_SIGNALS set.
namespace {

std::atomic<int> handled{0};

double processor_ms_of(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  if (::pthread_getcpuclockid(thread, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

constexpr int kTooFewLooks = 101;  // the watching thread had to wait so long for the processor that it does not know

// How many percent of the first compile's processor time another thread's signals would have met another handler than
// `own`. The time that the compiling thread was given counts, so other work on the machine does not.
int percent_of_another_handler(const NvrtcCompiler& compiler, void (*own)(int)) {
  const pthread_t compiling = ::pthread_self();
  std::atomic<bool> done{false};
  const double begin = processor_ms_of(compiling);
  double before = begin;
  double another = 0;
  double longest = 0;  // between two looks
  {
    const std::jthread watcher([&] {
      while (!done) {
        struct sigaction seen {};
        ::sigaction(SIGTERM, nullptr, &seen);
        const double now = processor_ms_of(compiling);
        if (now == before) continue;
        longest = std::max(longest, now - before);
        if (seen.sa_handler != own) another += now - before;
        before = now;
      }
    });
    compiler.compile(source_of("__global__ void k() {}"), kHopper);
    done = true;
  }
  const double end = processor_ms_of(compiling);
  const double all = end - begin;
  longest = std::max(longest, end - before);
  return all == 0 || longest > 0.15 * all ? kTooFewLooks : static_cast<int>(100 * another / all);
}

// Mode "main": sends signals continuously while only the compiling thread could take them. Mode "watch": returns
// percent_of_another_handler().
int run_child(const std::string& mode) {
  struct sigaction action {};
  action.sa_handler = [](int) { ++handled; };
  ::sigaction(SIGTERM, &action, nullptr);
  std::string problem;
  const auto compiler = NvrtcCompiler::open(cuda_root(), embedded_templates(), problem);
  if (compiler == nullptr) return 3;
  if (mode == "watch") return percent_of_another_handler(*compiler, action.sa_handler);
  std::atomic<bool> done{false};
  int sent = 0;
  {
    const std::jthread sender([&] {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      while (!done) {
        ::kill(::getpid(), SIGTERM);
        ++sent;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    compiler->compile(source_of("__global__ void k() {}"), kHopper);
    done = true;
  }
  struct sigaction after {};
  ::sigaction(SIGTERM, nullptr, &after);
  if (after.sa_handler != action.sa_handler) return 5;
  return sent > 0 && handled > 0 ? 0 : 6;
}

// How the program ends in that mode: with which status, or 128 and the signal.
int fate(const std::string& mode) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("INGOT_TEST_SIGNALS", mode.c_str(), 1);
    ::execl("/proc/self/exe", "test_nvrtc_compiler", static_cast<char*>(nullptr));
    ::_exit(9);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs before Boost.Test reads anything: a child only compiles under signals and exits.
const int kChild = [] {
  if (const char* mode = std::getenv("INGOT_TEST_SIGNALS")) std::_Exit(run_child(mode));
  return 0;
}();

}  // namespace

BOOST_AUTO_TEST_CASE(a_signal_during_the_first_compile_reaches_the_programs_own_handler) {
  BOOST_REQUIRE(kChild == 0);
  for (int i = 0; i < 5; ++i) BOOST_TEST(fate("main") == 0);
}

// A signal that another thread takes meets NVRTC's handler until the keeper thread has restored the program's. On a
// busy machine the keeper may have to wait for the processor, so three good programs of many are enough. Without the
// keeper, the handler stands for about 30 %, and hardly one of a hundred is good.
BOOST_AUTO_TEST_CASE(another_thread_rarely_meets_nvrtcs_handler) {
  constexpr int kTrials = 50;
  constexpr int kEnough = 3;
  constexpr int kFewPercent = 2;
  int good = 0;
  int trials = 0;
  for (; trials < kTrials && good < kEnough; ++trials) good += fate("watch") <= kFewPercent ? 1 : 0;
  std::printf("NVRTC's handler stood for at most %d %% of a first compile in %d programs of %d\n", kFewPercent, good,
              trials);
  BOOST_TEST(good == kEnough);
}

// A bound in milliseconds would test the machine. The yardstick is NVRTC's own cost, that of an empty kernel: compiled
// between the casts, it suffers from the same other work.
BOOST_AUTO_TEST_CASE(cold_compile_of_a_cast_kernel_is_fast) {
  const std::string text = generate(CastSpec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowwise}).text;
  const std::string empty = "__global__ void empty() {}\nconstexpr auto kKernel = &empty;\n";
  const auto compiler = open();
  const double first = milliseconds([&] { compiler->compile({"first", text}, kHopper); });
  std::vector<double> wall;
  std::vector<double> processor;
  std::vector<double> yardstick;
  const auto processor_ms = [&](const std::string& source) {
    const std::clock_t start = std::clock();
    compiler->compile({"cold", source}, kHopper);
    return static_cast<double>(std::clock() - start) * 1e3 / CLOCKS_PER_SEC;
  };
  for (int i = 0; i < 15; ++i) {
    const std::string ending = "// " + std::to_string(i) + "\n";
    yardstick.push_back(processor_ms(empty + ending));
    wall.push_back(milliseconds([&] { processor.push_back(processor_ms(text + ending)); }));
  }
  for (auto* times : {&wall, &processor, &yardstick}) std::sort(times->begin(), times->end());
  std::printf(
      "cold compile of a rowwise cast: median %.1f ms (%.1f to %.1f), processor time %.1f ms, an empty kernel's "
      "%.1f ms; a compiler's first: %.1f ms\n",
      wall[7], wall.front(), wall.back(), processor[7], yardstick[7], first);
  BOOST_TEST(processor[7] < 10 * yardstick[7]);
}

BOOST_AUTO_TEST_SUITE_END()
