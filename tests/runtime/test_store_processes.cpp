// Many processes on one store: who compiles what, while others evict, clear, stop, die and fork (F6, F8, F10, F12 and
// F13 of docs/notes/checks.md). INGOT_FAULTS_LONG=1 repeats everything many times (label nightly).
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/util/file_lock.h"
#include "support/fake_compiler.h"
#include "support/fault_row.h"
#include "support/processes.h"
#include "support/shared_memory.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_store_processes)

using namespace ingot;
using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::Item;
using test::kTarget;
namespace fs = std::filesystem;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;
#elif defined(__has_feature)
constexpr bool kHasSanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kHasSanitizer = false;
#endif

int rounds(int once) { return std::getenv("INGOT_FAULTS_LONG") != nullptr ? 50 * once : once; }

// Of all processes.
struct Counts {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<bool> over{false};
  std::atomic<int> compiles{0};
  std::atomic<int> asked{0};
  std::atomic<int> wrong{0};
  std::atomic<int> warnings{0};
};

class CountedCompiler final : public Compiler {
 public:
  CountedCompiler(Counts& counts, milliseconds duration) : counts_(&counts), fake_("fake 1", duration) {}
  std::string identity() const override { return fake_.identity(); }
  std::string toolchain() const override { return fake_.toolchain(); }
  CompiledKernel compile(const Source& source, Target target) const override {
    ++counts_->compiles;
    return fake_.compile(source, target);
  }

 private:
  Counts* counts_;
  test::FakeCompiler fake_;
};

struct Crowd {
  int processes = 8;
  int keys = 1;
  milliseconds compile{1};
  milliseconds lock_wait = KernelStore::kLockWait;
  std::int64_t max_bytes = KernelStore::kDefaultMaxBytes;
  int rounds = 1;  // each with a new store object and an empty memory
};

struct Fixture {
  Source source(int key) const { return {.name = "kernel", .text = "kernel " + std::to_string(key)}; }

  // Every process asks for the keys in the same order, as the ranks of a job do.
  int ask_for_all(const Crowd& crowd) const {
    ++counts->ready;
    while (!counts->go) std::this_thread::sleep_for(1ms);
    int wrong = 0;
    for (int round = 0; round < crowd.rounds; ++round) {
      std::atomic<int> warnings{0};
      const CountedCompiler compiler(*counts, crowd.compile);
      KernelStore store(
          root,
          [&](const std::string& text) {
            ++warnings;
            std::fprintf(stderr, "warning: %s\n", text.c_str());
          },
          crowd.max_bytes);
      KernelCache cache({.compiler = &compiler, .identity = "fake 1", .lock_wait = crowd.lock_wait}, store, kTarget,
                        nullptr);
      for (int i = 0; i < crowd.keys; ++i) {
        const Source wanted = source(i);
        ++counts->asked;
        if (*cache.compiled(wanted, kTarget) != test::fake_kernel(wanted, kTarget)) ++wrong;
      }
      counts->warnings += warnings;
    }
    counts->wrong += wrong;
    return 0;
  }

  // `meanwhile` runs in another process until all others are done.
  void run(test::FaultRow& row, const Crowd& crowd, const std::function<void()>& meanwhile = {}) {
    fs::remove_all(root);
    new (&*counts) Counts();
    std::vector<pid_t> children;
    for (int p = 0; p < crowd.processes; ++p) {
      children.push_back(test::start_process([&] { return ask_for_all(crowd); }));
    }
    const pid_t other = test::start_process([&] {
      while (!counts->over && meanwhile) meanwhile();
      return 0;
    });
    while (counts->ready < crowd.processes) std::this_thread::sleep_for(1ms);
    counts->go = true;
    for (const pid_t child : children) row.child_ended("a process", test::wait_for(child));
    counts->over = true;
    row.child_ended("the process next to them", test::wait_for(other));
    if (counts->wrong > 0) row.wrong(std::to_string(counts->wrong) + " wrong kernels");
  }

  // Holds the lock of `item` in a child process until `release` is called; the child may be stopped or killed.
  pid_t start_holder(const Item& item) const {
    counts->ready = 0;
    const pid_t child = test::start_process([&] {
      KernelStore store(root);
      const FileLock held = store.lock(item.key);
      counts->ready = held.held() ? 1 : 2;
      while (!counts->over) std::this_thread::sleep_for(1ms);
      return 0;
    });
    while (counts->ready == 0) std::this_thread::sleep_for(1ms);
    BOOST_REQUIRE(counts->ready == 1);
    return child;
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
  test::SharedMemory<Counts> counts;
};

std::string seconds(steady_clock::duration time) {
  return std::to_string(std::chrono::duration<double>(time).count()) + " s";
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(store_processes, Fixture)

// ---- one compile a key (F6) -----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(eight_processes_one_key) {
  test::FaultRow row("F6, 8 processes x 1 key");
  for (int round = 0; round < rounds(5); ++round) {
    run(row, {.keys = 1, .compile = 50ms});
    BOOST_TEST(counts->compiles == 1);
    BOOST_TEST(counts->warnings == 0);
  }
  row.finish();
  run(row, {.keys = 1, .compile = 50ms, .lock_wait = 0ms});
  std::printf("F6, 8 processes x 1 key: 1 compile; without the lock %d\n", counts->compiles.load());
  BOOST_TEST(counts->compiles > 1, "the harness without the lock shows nothing");
}

BOOST_AUTO_TEST_CASE(eight_processes_three_hundred_keys) {
  test::FaultRow row("F6, 8 processes x 300 keys");
  for (int round = 0; round < rounds(1); ++round) {
    run(row, {.keys = 300});
    BOOST_TEST(counts->compiles == 300);
    BOOST_TEST(counts->asked == 8 * 300);
    BOOST_TEST(counts->warnings == 0);
  }
  row.finish();
  run(row, {.keys = 300, .lock_wait = 0ms});
  std::printf("F6, 8 processes x 300 keys: 300 compiles; without the lock %d\n", counts->compiles.load());
}

// A store that is far too small, whose files are removed one by one, and as a whole: kernels are compiled again, and
// none is wrong.
BOOST_AUTO_TEST_CASE(with_eviction_and_clear) {
  test::FaultRow row("F6, eviction and clear during 8 processes x 60 keys");
  const auto clear = [this] {
    std::error_code error;
    std::vector<fs::path> files;
    for (auto it = fs::recursive_directory_iterator(root, error); !error && it != fs::end(it); it.increment(error)) {
      if (it->path().extension() == ".kernel") files.push_back(it->path());
    }
    for (const fs::path& file : files) fs::remove(file, error);
    std::this_thread::sleep_for(2ms);
  };
  const auto remove_all = [this] {
    std::error_code error;
    fs::remove_all(root, error);
    std::this_thread::sleep_for(5ms);
  };
  int asked = 0;
  int compiles = 0;
  for (int round = 0; round < rounds(1); ++round) {
    for (const std::int64_t max_bytes : {KernelStore::kDefaultMaxBytes, std::int64_t{5'000}, std::int64_t{0}}) {
      for (const std::function<void()>& meanwhile : {std::function<void()>(clear), std::function<void()>(remove_all)}) {
        run(row, {.keys = 60, .compile = 0ms, .max_bytes = max_bytes, .rounds = 4}, meanwhile);
        BOOST_TEST(counts->warnings == 0, counts->warnings << " warnings, although nothing is wrong");
        asked += counts->asked;
        compiles += counts->compiles;
      }
    }
  }
  std::printf("F6, eviction and clear: %d kernels asked for, %d compiles, %d bad reads\n", asked, compiles,
              counts->wrong.load());
  row.finish(8 * 6);
}

// Processes that evict at the same time remove the same files, not each other's share.
BOOST_AUTO_TEST_CASE(evicting_at_once_removes_no_more_than_one_does) {
  test::FaultRow row("F10, eviction by 8 processes at once");
  const Item sample("000", 900);
  std::int64_t file_bytes = 0;
  for (int round = 0; round < rounds(3); ++round) {
    fs::remove_all(root);
    new (&*counts) Counts();
    {
      KernelStore store(root);
      for (int i = 0; i < 200; ++i) test::put(store, Item(std::to_string(1000 + i), 900));
      file_bytes = store.usage().bytes / 200;
    }
    const std::int64_t max_bytes = 190 * file_bytes;
    std::vector<pid_t> children;
    for (int p = 0; p < 8; ++p) {
      children.push_back(test::start_process([&, p] {
        const Item own(std::to_string(2000 + p), 900);
        KernelStore store(root, {}, max_bytes);
        ++counts->ready;
        while (!counts->go) std::this_thread::yield();
        test::put(store, own);
        return 0;
      }));
    }
    while (counts->ready < 8) std::this_thread::sleep_for(1ms);
    counts->go = true;
    for (const pid_t child : children) row.child_ended("an evicting process", test::wait_for(child));
    const KernelStore::Usage left = KernelStore(root).usage();
    BOOST_TEST(left.bytes <= max_bytes);
    BOOST_TEST(left.files >= 160, "only " << left.files << " of 208 kernels are left, and the limit is 190");
  }
  row.finish();
}

// ---- who holds the lock (F8) ----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(waits_have_a_bound_and_it_is_ten_minutes) {
  BOOST_TEST((KernelOrigins{}.lock_wait == 10min));
  BOOST_TEST((KernelStore::kLockWait == 10min));
}

BOOST_AUTO_TEST_CASE(stopped_and_dead_holders) {
  test::FaultRow row("F8, lock holders");
  const Item item("held");
  const auto ask = [&](milliseconds wait, steady_clock::duration& took) {
    const test::FakeCompiler compiler("fake 1");
    KernelStore store(root);
    KernelCache cache({.compiler = &compiler, .identity = "fake 1", .lock_wait = wait}, store, kTarget, nullptr);
    const auto start = steady_clock::now();
    const bool right = *cache.compiled(item.source, kTarget) == item.kernel;
    took = steady_clock::now() - start;
    return right;
  };
  for (int round = 0; round < rounds(3); ++round) {
    for (const char* fault : {"stopped", "killed", "directory removed", "lock file removed", "killed while stopped"}) {
      fs::remove_all(root);
      new (&*counts) Counts();
      const pid_t holder = start_holder(item);
      const std::string what = fault;
      const bool stopped = what.find("stopped") != std::string::npos;
      if (stopped) kill(holder, SIGSTOP);
      if (what == "directory removed") fs::remove_all(root);
      if (what == "lock file removed") fs::remove(root / "lock");
      std::jthread killer;
      if (what.find("killed") != std::string::npos) {
        killer = std::jthread([holder] {
          std::this_thread::sleep_for(20ms);
          kill(holder, SIGKILL);
        });
      }
      row.inject(what, [&]() -> std::string {
        const bool bounded = what == "stopped";
        steady_clock::duration took{};
        if (!ask(bounded ? 100ms : 60s, took)) return "a wrong kernel";
        if (bounded && took < 100ms) return "it did not wait, but " + seconds(took);
        return took < 10s ? "" : "it waited " + seconds(took);
      });
      counts->over = true;
      kill(holder, SIGCONT);
      test::wait_for(holder);
    }
  }
  row.finish(15);
}

// What may be where the lock belongs: the kernel is compiled without it, at once.
BOOST_AUTO_TEST_CASE(no_lock_to_be_had) {
  test::FaultRow row("F8, no lock");
  for (const char* in_its_place : {"folder", "link", "dangling link", "fifo", "read-only file"}) {
    row.inject(in_its_place, [&]() -> std::string {
      fs::remove_all(root);
      const Item item("a");
      {
        KernelStore store(root);
        test::put(store, Item("another"));
      }
      const std::string what = in_its_place;
      const fs::path lock = root / "lock";
      if (what == "folder") fs::create_directory(lock);
      if (what == "link") fs::create_symlink(root / "tmp", lock);
      if (what == "dangling link") fs::create_symlink("nowhere", lock);
      if (what == "fifo" && mkfifo(lock.c_str(), 0600) != 0) return "no FIFO can be made";
      if (what == "read-only file") close(open(lock.c_str(), O_CREAT | O_WRONLY, 0400));
      const test::FakeCompiler compiler("fake 1");
      KernelStore store(root);
      KernelCache cache(&compiler, store, kTarget, nullptr);
      const auto start = steady_clock::now();
      if (*cache.compiled(item.source, kTarget) != item.kernel) return "a wrong kernel";
      if (steady_clock::now() - start > 5s) return "it waited";
      return KernelStore(root).find(item.key) == item.kernel ? "" : "it was not kept";
    });
  }
  row.finish(5);
}

// ---- signals and forks (F12, F13) -----------------------------------------------------------------------------------

// The program's handlers, installed without SA_RESTART, run all the time: every call may be interrupted.
BOOST_AUTO_TEST_CASE(signals_all_the_time) {
  test::FaultRow row("F12, signals during a compile");
  const int status = test::run_in_process([&] {
    static volatile sig_atomic_t handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { handled = handled + 1; };
    for (const int signal : {SIGALRM, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
    const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 500}, .it_value = {.tv_sec = 0, .tv_usec = 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
    int warnings = 0;
    int wrong = 0;
    for (int i = 0; i < rounds(100); ++i) {
      if (i % 10 == 0) raise(i % 20 == 0 ? SIGTERM : SIGINT);
      const test::FakeCompiler compiler("fake 1", 2ms);
      KernelStore store(root, [&](const std::string&) { ++warnings; });
      KernelCache cache(&compiler, store, kTarget, nullptr);
      const Source wanted = source(i);
      if (*cache.compiled(wanted, kTarget) != test::fake_kernel(wanted, kTarget)) ++wrong;
    }
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    counts->asked = handled;
    if (KernelStore(root).usage().files != rounds(100)) ++wrong;
    return wrong + warnings;
  });
  row.child_ended("signals", status);
  std::printf("F12: the program's handlers ran %d times\n", counts->asked.load());
  BOOST_TEST(counts->asked > 50);
  row.finish();
}

// A child that is forked while other threads of its parent look kernels up and compile them finds and compiles its own.
BOOST_AUTO_TEST_CASE(forked_at_any_moment) {
  if (kHasSanitizer) {
    BOOST_TEST_MESSAGE("skipped: a sanitizer's memory may be locked for ever in a child of a program with threads");
    return;
  }
  test::FaultRow row("F13, forks");
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; !over; ++i) {
          const test::FakeCompiler compiler("fake 1", 1ms);
          KernelStore store(root);
          KernelCache cache(&compiler, store, kTarget, nullptr);
          const Source wanted = source((i * (t + 1)) % 40);
          if (*cache.compiled(wanted, kTarget) != test::fake_kernel(wanted, kTarget)) ++wrong;
        }
      });
    }
    for (int i = 0; i < rounds(60); ++i) {
      row.child_ended("a forked child", test::run_in_process([&] {
                        const test::FakeCompiler compiler("fake 1");
                        KernelStore store(root);
                        KernelCache cache(&compiler, store, kTarget, nullptr);
                        for (const int key : {i % 40, 1000 + i}) {
                          const Source wanted = source(key);
                          if (*cache.compiled(wanted, kTarget) != test::fake_kernel(wanted, kTarget)) return 1;
                        }
                        return 0;
                      }));
    }
    over = true;
  }
  BOOST_TEST(wrong == 0);
  row.finish(60);
}

// The child has the parent's lock open. When the parent is killed, the lock lives on; the wait for it has its bound.
BOOST_AUTO_TEST_CASE(parent_killed_while_its_child_lives) {
  test::FaultRow row("F13, a dead parent's lock");
  const Item item("held");
  const pid_t parent = test::start_process([&] {
    KernelStore store(root);
    const FileLock held = store.lock(item.key);
    test::start_process([&] {
      ++counts->ready;
      while (!counts->over) std::this_thread::sleep_for(1ms);
      ++counts->asked;
      return 0;
    });
    pause();
    return 0;
  });
  while (counts->ready == 0) std::this_thread::sleep_for(1ms);
  kill(parent, SIGKILL);
  test::wait_for(parent);
  row.inject("a lock that lives on", [&]() -> std::string {
    const test::FakeCompiler compiler("fake 1");
    KernelStore store(root);
    KernelCache cache({.compiler = &compiler, .identity = "fake 1", .lock_wait = 100ms}, store, kTarget, nullptr);
    const auto start = steady_clock::now();
    if (*cache.compiled(item.source, kTarget) != item.kernel) return "a wrong kernel";
    return steady_clock::now() - start < 10s ? "" : "it hung";
  });
  counts->over = true;
  while (counts->asked == 0) std::this_thread::sleep_for(1ms);
  row.finish();
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
