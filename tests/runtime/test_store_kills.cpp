// kill -9 at every system call of what writes to disk: a kernel's compile and publication, a tuning record, a file that
// is replaced (bundles, exports, safetensors), a line of a recording. A child process is traced and killed at its first
// call, then at its second, until it ends by itself (F1 of docs/notes/checks.md).
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/write_file.h"
#include "support/fake_compiler.h"
#include "support/fault_row.h"
#include "support/files_in.h"
#include "support/stored_kernel.h"
#include "support/temporary_directory.h"
#include "support/traced_process.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_store_kills)

using namespace ingot;
using test::files_in;
using test::Item;
using test::kTarget;
namespace fs = std::filesystem;

namespace {

std::string content_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

struct Fixture {
  Fixture() { fs::create_directory(home); }

  // Kills `work` at every call. `prepare` comes before each, in a new folder `home`; `check` returns what is wrong
  // after it.
  void kill_everywhere(test::FaultRow& row, const std::string& name, const std::function<void()>& prepare,
                       const std::function<int()>& work, const std::function<std::string()>& check) {
    for (int call = 1;; ++call) {
      fs::remove_all(home);
      fs::create_directory(home);
      prepare();
      const test::TracedEnd end = test::run_and_kill_at(call, work);
      if (!end.killed) {
        BOOST_TEST(end.status == 0, name << " by itself ended with " << end.status);
        BOOST_TEST(call > 10, name << " makes hardly any system calls");
        std::printf("F1, %s: %d calls\n", name.c_str(), call - 1);
        return;
      }
      row.inject(name + ", call " + std::to_string(call), check);
    }
  }

  test::TemporaryDirectory directory{test::memory_folder()};
  fs::path home = directory.path() / "home";
  fs::path root = home / "store";
};

struct Kernels : Fixture {
  KernelStore make() {
    return KernelStore(
        root, [this](const std::string& text) { warnings.push_back(text); }, max_bytes);
  }
  // Finds or compiles the kernel in a process's usual way; its compiles and loads are added up.
  std::string ask(const char* who) {
    const test::FakeCompiler compiler("fake 1");
    KernelStore store = make();
    KernelCache cache(&compiler, store, kTarget, nullptr);
    if (*cache.compiled(item.source, kTarget) != item.kernel) return std::string(who) + " got a wrong kernel";
    compiled = cache.stats().compiled;
    loaded = cache.stats().loaded;
    return compiled + loaded == 1 ? "" : std::string(who) + " compiled or loaded more than once";
  }

  // No bad entry is visible, the kernel is found or compiled and kept, and what the dead process left is swept once it
  // is old.
  std::string healed() {
    warnings.clear();
    if (std::string problem = ask("the next process"); !problem.empty()) return problem;
    again += compiled;
    if (std::string problem = ask("the one after it"); !problem.empty()) return problem;
    if (loaded != 1) return "the kernel was not kept";
    for (const fs::path& file : files_in(root / "tmp")) {
      ++left;
      fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(2));
    }
    KernelStore store = make();
    test::put(store, Item("another"));
    if (!files_in(root / "tmp").empty()) return "what the dead process left was not swept";
    if (!warnings.empty()) return "a warning: " + warnings[0];
    return store.find(item.key) == item.kernel ? "" : "the kernel is gone";
  }

  int compile_one() {
    const test::FakeCompiler compiler("fake 1");
    KernelStore store(root, {}, max_bytes);
    KernelCache(&compiler, store, kTarget, nullptr).compiled(item.source, kTarget);
    return 0;
  }

  Item item{"the kernel " + std::string(1000, 'k')};  // what the fake compiler makes of it is as long
  std::vector<std::string> warnings;
  std::int64_t max_bytes = KernelStore::kDefaultMaxBytes;
  std::int64_t compiled = 0;
  std::int64_t loaded = 0;
  std::int64_t again = 0;
  int left = 0;
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_a_compile, Kernels) {
  if (!test::can_trace()) {
    BOOST_TEST_MESSAGE("skipped: this process may not trace its children");
    return;
  }
  test::FaultRow row("F1, kernels");
  const auto work = [this] { return compile_one(); };
  const auto check = [this] { return healed(); };
  kill_everywhere(
      row, "into no store", [] {}, work, check);
  const auto with_others = [this] {
    KernelStore store(root);
    for (const char* text : {"a", "b", "c"}) test::put(store, Item(text));
  };
  kill_everywhere(row, "into a store", with_others, work, check);
  const auto with_another_builds = [&] {
    with_others();
    Item old = item;
    old.kernel.toolchain = "fake 0.9";
    KernelStore store(root);
    test::put(store, old);
  };
  kill_everywhere(row, "in place of another compiler's", with_another_builds, work, check);
  BOOST_TEST(left > 0, "no kill hit a write");
  BOOST_TEST(again > 0, "no kill came before the publication");
  std::printf("F1, kernels: %d files left and swept, %d kernels compiled again\n", left, static_cast<int>(again));
  row.finish(250);
}

// The store is full: the put also sweeps and evicts.
BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_an_eviction, Kernels) {
  if (!test::can_trace()) return;
  test::FaultRow row("F1, eviction");
  max_bytes = 12'000;
  const auto full = [this] {
    KernelStore store(root);
    for (const char* text : {"a", "b", "c"}) test::put(store, Item(text, 3500));
    std::ofstream(root / "tmp" / "1-0") << "half a kernel";
    fs::last_write_time(root / "tmp" / "1-0", fs::file_time_type::clock::now() - std::chrono::hours(2));
  };
  kill_everywhere(
      row, "into a full store", full, [this] { return compile_one(); },
      [this] {
        std::string problem = healed();
        if (problem.empty() && make().usage().bytes > max_bytes) problem = "the store has outgrown its limit";
        return problem;
      });
  row.finish(80);
}

// A damaged entry is moved aside and replaced.
BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_a_quarantine, Kernels) {
  if (!test::can_trace()) return;
  test::FaultRow row("F1, quarantine");
  kill_everywhere(
      row, "a damaged entry",
      [this] {
        KernelStore store(root);
        test::put(store, item);
        fs::resize_file(test::file_of(root, item), 100);
      },
      [this] { return compile_one(); },
      [this] {
        std::string problem = ask("the next process");  // it may find the damage and warn of it
        if (problem.empty() && warnings.size() > 1) problem = "more than one warning";
        return problem.empty() ? healed() : problem;
      });
  row.finish(80);
}

BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_a_tuning_record, Fixture) {
  if (!test::can_trace()) return;
  test::FaultRow row("F1, tuning records");
  const TuningRecord kept = test::record(1);
  TuningRecord slow = test::record(2);
  slow.us = 2000;
  const TuningRecord fast = test::record(2);
  kill_everywhere(
      row, "a record in place of another",
      [&] {
        TuningStore store(root);
        store.put(kept);
        store.put(slow);
      },
      [&] { return TuningStore(root).put(fast) ? 0 : 1; },
      [&]() -> std::string {
        std::vector<std::string> warnings;
        TuningStore store(root, [&](const std::string& text) { warnings.push_back(text); });
        const std::vector<TuningRecord> all = store.load();
        if (all.size() != 2) return std::to_string(all.size()) + " records instead of 2";
        for (const TuningRecord& each : all) {
          if (each != kept && each != slow && each != fast) return "a record that nobody wrote";
        }
        if (!store.put(fast) || store.find(fast.machine, fast.spec, fast.size) != fast) return "it cannot be written";
        return warnings.empty() ? "" : warnings[0];
      });
  row.finish(15);
}

// Bundles, exports of records and safetensors files are written so. What a dead process has left next to the file is
// not the file.
BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_a_replaced_file, Fixture) {
  if (!test::can_trace()) return;
  test::FaultRow row("F1, replaced files");
  const fs::path file = home / "file";
  const std::string before(5000, 'a');
  const std::string after(9000, 'b');
  kill_everywhere(
      row, "a file", [&] { write_file(file, {before}); },
      [&] {
        write_file(file, {std::string_view(after).substr(0, 4000), std::string_view(after).substr(4000)});
        return 0;
      },
      [&]() -> std::string {
        const std::string found = content_of(file);
        if (found != before && found != after) return std::to_string(found.size()) + " bytes that nobody wrote";
        write_file(file, {after});
        return content_of(file) == after ? "" : "it cannot be written again";
      });
  row.finish(15);
}

BOOST_FIXTURE_TEST_CASE(killed_at_every_call_of_a_recording, Fixture) {
  if (!test::can_trace()) return;
  test::FaultRow row("F1, recordings");
  const fs::path file = home / "recording";
  const KernelSpec noted(RelayoutSpec{.transposed = true});
  kill_everywhere(
      row, "a recording", [&] { std::ofstream(file) << "relayout copied\nrelayout tran"; },
      [&] {
        Recorder(file).note(noted);
        return 0;
      },
      [&]() -> std::string {
        Recorder(file).note(noted);
        const RecordingFile read = read_recording(file);
        if (read.damaged != 1) return std::to_string(read.damaged) + " damaged lines instead of the one torn before";
        return read.recording.kernels().size() == 2 ? "" : "a line is missing or there twice";
      });
  row.finish(8);
}

BOOST_AUTO_TEST_SUITE_END()
