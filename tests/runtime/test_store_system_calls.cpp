// Every system call of what reads and writes the store fails once, and then all from there on, with every error that a
// file system may give (F3 of docs/notes/checks.md; F9: what network file systems add). The result then comes from
// memory, with one warning at most; no good file is lost; and the next run is as if nothing had been.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"
#include "support/fake_compiler.h"
#include "support/fault_row.h"
#include "support/files_in.h"
#include "support/stored_kernel.h"
#include "support/system_call_faults.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_store_system_calls)

using namespace ingot;
using namespace std::chrono_literals;
using test::Call;
using test::Fault;
using test::FaultInjection;
using test::files_in;
using test::Item;
using test::kTarget;
namespace fs = std::filesystem;

namespace {

constexpr int kShort = 0;  // not an error: fewer bytes than asked for

struct Errors {
  Call call;
  std::vector<int> errors;
};

// F3: a local disk, and a process at its limits.
const std::vector<Errors> kLocal{
    {Call::open, {ENOSPC, EDQUOT, EIO, EROFS, EACCES, EMFILE, ENFILE, ENOMEM, EINTR}},
    {Call::read, {EIO, EINTR, kShort}},
    {Call::write, {ENOSPC, EDQUOT, EIO, EINTR, kShort}},
    {Call::rename, {ENOSPC, EDQUOT, EIO, EROFS, EACCES, EINTR}},
    {Call::stat, {EIO, ENOMEM, EACCES}},
    {Call::unlink, {EIO, EROFS, EACCES}},
    {Call::mkdir, {ENOSPC, EDQUOT, EIO, EROFS, EACCES, EMLINK}},
    {Call::lock, {EINTR, EIO, ENOMEM}},
    {Call::close, {EIO, ENOSPC, EDQUOT, EINTR}},
    {Call::other, {EIO, EROFS, EACCES, EPERM, ENOSYS}},
};

// F9: ENOENT is a directory's stale view; ENOLCK, ENOSYS and EINVAL a file system without locks.
const std::vector<Errors> kNetwork{
    {Call::open, {ESTALE, ENOENT, ETIMEDOUT, EBUSY}},
    {Call::read, {ESTALE, ETIMEDOUT}},
    {Call::write, {ESTALE, EFBIG}},
    {Call::rename, {ESTALE, EXDEV, EEXIST, ENOENT, EBUSY, ENOTEMPTY, EINVAL}},
    {Call::stat, {ESTALE, ENOENT}},
    {Call::unlink, {EBUSY, ESTALE, ENOENT}},
    {Call::mkdir, {ESTALE, ENOENT}},
    {Call::lock, {ENOLCK, ENOSYS, EINVAL, EAGAIN, EACCES, ESTALE, EOPNOTSUPP}},
    {Call::close, {ESTALE}},
};

std::string text_of(int error) { return error == kShort ? "fewer bytes" : std::strerror(error); }

struct Scenario {
  std::string name;
  std::function<void()> prepare;
  std::function<std::string()> run;    // while calls fail; what is wrong, or nothing
  std::function<std::string()> after;  // when they work again
};

struct Fixture {
  // As the n-th call fails, for each n; and as all calls from the n-th on fail.
  void fail_every_call(test::FaultRow& row, const std::vector<Errors>& matrix, const Scenario& scenario) {
    for (const auto& [call, errors] : matrix) {
      fresh(scenario);
      int calls = 0;
      {
        const FaultInjection counter({.call = call, .first = std::numeric_limits<int>::max()});
        BOOST_TEST(scenario.run() == "", scenario.name << " without a fault");
        calls = counter.calls();
      }
      for (const int error : errors) {
        for (int first = 1; first <= calls; ++first) {
          inject(row, scenario, {.call = call, .first = first, .error = error});
          // Nothing interrupts for ever.
          const int from_there_on = error == EINTR ? 3 : std::numeric_limits<int>::max();
          inject(row, scenario, {.call = call, .first = first, .count = from_there_on, .error = error});
        }
      }
    }
  }

  void inject(test::FaultRow& row, const Scenario& scenario, Fault fault) {
    fresh(scenario);
    const std::string what = scenario.name + ", " + std::string(name(fault.call)) + " " + std::to_string(fault.first) +
                             (fault.count == 1 ? "" : " and on") + ", " + text_of(fault.error);
    row.inject(what, [&] {
      std::string problem;
      {
        const FaultInjection injection(fault);
        problem = scenario.run();
      }
      return problem.empty() ? scenario.after() : problem;
    });
  }

  void both_rows(const std::string& name, const Scenario& scenario) { both_rows(name, std::vector{scenario}); }
  void both_rows(const std::string& name, const std::vector<Scenario>& scenarios) {
    test::FaultRow local("F3, " + name);
    test::FaultRow network("F9, " + name);
    for (const Scenario& scenario : scenarios) {
      fail_every_call(local, kLocal, scenario);
      fail_every_call(network, kNetwork, scenario);
    }
    local.finish(50);
    network.finish(20);
  }

  void fresh(const Scenario& scenario) {
    fs::remove_all(home);
    fs::create_directory(home);
    fs::permissions(home, fs::perms::owner_all);
    warnings.clear();
    scenario.prepare();
  }

  std::string one_warning_at_most() const {
    if (warnings.size() <= 1) return {};
    return std::to_string(warnings.size()) + " warnings: " + warnings[0] + " | " + warnings[1];
  }
  std::function<void(const std::string&)> warn() {
    return [this](const std::string& text) { warnings.push_back(text); };
  }

  test::TemporaryDirectory directory{test::memory_folder()};
  fs::path home = directory.path() / "home";
  fs::path root = home / "store";
  std::vector<std::string> warnings;
};

struct Kernels : Fixture {
  // As a process asks for its kernel.
  std::string ask(std::int64_t max_bytes = KernelStore::kDefaultMaxBytes) {
    const test::FakeCompiler compiler("fake 1");
    KernelStore store(root, warn(), max_bytes);
    KernelCache cache({.compiler = &compiler, .identity = "fake 1", .lock_wait = 5ms}, store, kTarget, nullptr);
    if (*cache.compiled(item.source, kTarget) != item.kernel) return "a wrong kernel";
    compiled = cache.stats().compiled;
    if (compiled + cache.stats().loaded != 1) return "compiled or loaded more than once";
    return one_warning_at_most();
  }
  // Asked again in working order: at most one compile, and then none; no warning.
  std::string healed(std::int64_t max_bytes = KernelStore::kDefaultMaxBytes) {
    warnings.clear();
    if (std::string problem = ask(max_bytes); !problem.empty()) return "next run: " + problem;
    if (std::string problem = ask(max_bytes); !problem.empty()) return "second run: " + problem;
    if (compiled != 0) return "the kernel was not kept";
    if (const std::string reason = KernelStore(root).disabled_reason(); !reason.empty()) return reason;
    return warnings.empty() ? "" : "a warning of the next run: " + warnings[0];
  }
  std::size_t quarantined() const { return files_in(root / "quarantine").size(); }

  Item item{"the kernel " + std::string(1000, 'k')};  // what the fake compiler makes of it is as long
  std::int64_t compiled = 0;
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_kernel_that_the_store_lacks, Kernels) {
  root = home / "deep" / "store";
  both_rows(
      "first kernel",
      {.name = "no store", .prepare = [] {}, .run = [this] { return ask(); }, .after = [this] { return healed(); }});
}

BOOST_FIXTURE_TEST_CASE(a_kernel_of_another_compiler, Kernels) {
  Item old = item;
  old.kernel.toolchain = "fake 0.9";
  both_rows("replaced kernel", {.name = "another compiler's",
                                .prepare =
                                    [&] {
                                      KernelStore store(root);
                                      test::put(store, old);
                                    },
                                .run = [this] { return ask(); },
                                .after = [this] { return healed(); }});
}

// What is good stays, although it could not be read once.
BOOST_FIXTURE_TEST_CASE(a_kernel_that_the_store_has, Kernels) {
  both_rows("kernel found", {.name = "a hit",
                             .prepare =
                                 [this] {
                                   KernelStore store(root);
                                   test::put(store, item);
                                   fs::last_write_time(test::file_of(root, item),
                                                       fs::file_time_type::clock::now() - std::chrono::hours(2));
                                 },
                             .run = [this] { return ask(); },
                             .after =
                                 [this] {
                                   if (quarantined() != 0) return std::string("a good file was moved aside");
                                   return healed();
                                 }});
}

BOOST_FIXTURE_TEST_CASE(a_damaged_kernel, Kernels) {
  both_rows("damaged kernel", {.name = "damage",
                               .prepare =
                                   [this] {
                                     KernelStore store(root);
                                     test::put(store, item);
                                     fs::resize_file(test::file_of(root, item), 200);
                                   },
                               .run = [this] { return ask(); },
                               .after =
                                   [this] {
                                     std::string problem = ask();  // it may be the first to see the damage
                                     return problem.empty() || warnings.size() < 3 ? healed() : problem;
                                   }});
}

BOOST_FIXTURE_TEST_CASE(a_full_store, Kernels) {
  constexpr std::int64_t kMaxBytes = 12'000;
  both_rows("eviction", {.name = "eviction",
                         .prepare =
                             [this] {
                               KernelStore store(root);
                               for (const char* text : {"a", "b", "c"}) test::put(store, Item(text, 3500));
                               std::ofstream(root / "tmp" / "1-0") << "half a kernel";
                               fs::last_write_time(root / "tmp" / "1-0",
                                                   fs::file_time_type::clock::now() - std::chrono::hours(2));
                             },
                         .run = [=, this] { return ask(kMaxBytes); },
                         .after =
                             [=, this] {
                               std::string problem = healed(kMaxBytes);
                               KernelStore store(root, {}, kMaxBytes);
                               test::put(store, Item("another"));
                               if (!problem.empty()) return problem;
                               if (store.usage().bytes > kMaxBytes) return std::string("the store has no limit");
                               return std::string(files_in(root / "tmp").empty() ? "" : "a file is left in tmp");
                             }});
}

// Measuring a record takes minutes: no fault of the disk may cost one that is good.
BOOST_FIXTURE_TEST_CASE(tuning_records, Fixture) {
  const TuningRecord kept = test::record(1);
  const TuningRecord added = test::record(2);
  const auto find = [](TuningStore& store, const TuningRecord& record) {
    return store.find(record.machine, record.spec, record.size);
  };
  both_rows("tuning records", {.name = "records",
                               .prepare = [&] { TuningStore(root).put(kept); },
                               .run = [&]() -> std::string {
                                 TuningStore store(root, warn());
                                 for (const TuningRecord& each : store.load()) {
                                   if (each != kept) return "a wrong record";
                                 }
                                 if (const auto found = find(store, kept); found && *found != kept)
                                   return "a wrong record";
                                 store.put(added);
                                 if (const auto found = find(store, added); found && *found != added)
                                   return "a wrong record";
                                 return one_warning_at_most();
                               },
                               .after = [&]() -> std::string {
                                 warnings.clear();
                                 TuningStore store(root, warn());
                                 if (find(store, kept) != kept) return "a good record is lost";
                                 if (!store.put(added) || find(store, added) != added)
                                   return "records cannot be written";
                                 return warnings.empty() ? "" : "a warning of the next run: " + warnings[0];
                               }});
}

BOOST_FIXTURE_TEST_CASE(bundles_and_stores_of_others, Kernels) {
  const fs::path bundle = home / "bundle";
  const auto right_or_nothing = [&](const KernelTier* tier, const std::string& problem) -> std::string {
    if (tier == nullptr) return problem.empty() ? "refused without a reason" : "";
    const auto found = tier->find(item.key);
    return found && *found != item.kernel ? "a wrong kernel" : "";
  };
  const auto prepare = [&] {
    KernelStore store(root);
    test::put(store, item);
    write_file(bundle,
               {encode_bundle({.identity = "fake 1",
                               .kernels = {{.key = item.key,
                                            .file = encode_kernel_file(item.key, item.source, kTarget, item.kernel)}},
                               .tuning = "a record\n"})});
  };
  const auto open = [&](std::string& problem) -> std::unique_ptr<KernelTier> {
    problem.clear();
    return KernelBundle::open(bundle, problem);
  };
  const auto open_store = [&](std::string& problem) -> std::unique_ptr<KernelTier> {
    problem.clear();
    return ReadOnlyStore::open(root, problem);
  };
  const auto scenario = [&](const char* name, auto open_tier) {
    return Scenario{.name = name,
                    .prepare = prepare,
                    .run =
                        [=] {
                          std::string problem;
                          const auto tier = open_tier(problem);
                          return right_or_nothing(tier.get(), problem);
                        },
                    .after =
                        [=, this] {
                          std::string problem;
                          const auto tier = open_tier(problem);
                          const bool good = tier != nullptr && tier->find(item.key) == item.kernel;
                          return good ? std::string() : "not readable: " + problem;
                        }};
  };
  both_rows("tiers", {scenario("a bundle", open), scenario("another's store", open_store)});
}

BOOST_FIXTURE_TEST_CASE(recordings, Fixture) {
  const fs::path file = home / "recording";
  const auto note = [&] {
    Recorder recorder(file, warn());
    recorder.note(KernelSpec(RelayoutSpec{.transposed = true}));
    recorder.note(KernelSpec(CastSpec{}));
    return one_warning_at_most();
  };
  both_rows("recordings", {.name = "a recording",
                           .prepare = [&] { std::ofstream(file) << "relayout copied\n"; },
                           .run = note,
                           .after = [&]() -> std::string {
                             warnings.clear();
                             if (std::string problem = note(); !problem.empty()) return problem;
                             const RecordingFile read = read_recording(file);
                             if (read.recording.kernels().size() != 3) return "a line is missing";
                             return read.damaged <= 2 ? "" : "good lines are damaged";
                           }});
}

BOOST_FIXTURE_TEST_CASE(files_replaced_and_read, Fixture) {
  const fs::path file = home / "file";
  const std::string before(3000, 'a');
  const std::string after(5000, 'b');
  std::string refused;
  const auto in_two_parts = [&] {
    write_file(file, {std::string_view(after).substr(0, 2000), std::string_view(after).substr(2000)});
  };
  const auto message_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const Scenario write{.name = "write_file",
                       .prepare = [&] { write_file(file, {before}); },
                       .run = [&]() -> std::string {
                         refused = message_of(in_two_parts);
                         const bool said =
                             refused.empty() || refused.starts_with(file.string() + ": cannot be written: ");
                         return said ? "" : "the message " + refused;
                       },
                       .after = [&]() -> std::string {
                         const std::string found = read_file(file, 1 << 20);
                         if (found != after && (found != before || refused.empty())) return "half a file";
                         in_two_parts();
                         return read_file(file, 1 << 20) == after ? "" : "it cannot be written again";
                       }};
  const Scenario made{.name = "write_file, a new one",
                      .prepare = [] {},
                      .run = [&]() -> std::string {
                        refused = message_of(in_two_parts);
                        return {};
                      },
                      .after = [&]() -> std::string {
                        if (refused.empty() && read_file(file, 1 << 20) != after) return "half a file";
                        in_two_parts();
                        return read_file(file, 1 << 20) == after ? "" : "it cannot be written again";
                      }};
  const Scenario read{.name = "read_file",
                      .prepare = [&] { write_file(file, {before}); },
                      .run = [&]() -> std::string {
                        std::string found;
                        const std::string message = message_of([&] { found = read_file(file, 1 << 20); });
                        return found == before || message.starts_with(file.string() + ": ") ? "" : "half a file";
                      },
                      .after = [&]() -> std::string { return read_file(file, 1 << 20) == before ? "" : "lost"; }};
  // A FIFO made here, with a reader: never a device of the machine, which a wrong move would replace.
  const fs::path fifo = home / "fifo";
  FileDescriptor reader;
  const Scenario in_place{.name = "write_file into a FIFO",
                          .prepare =
                              [&] {
                                BOOST_REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
                                reader = FileDescriptor(::open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
                                BOOST_REQUIRE(static_cast<bool>(reader));
                              },
                          .run = [&]() -> std::string {
                            const std::string message = message_of([&] { write_file(fifo, {"gone"}); });
                            const bool said =
                                message.empty() || message.starts_with(fifo.string() + ": cannot be written: ");
                            return said ? "" : "the message " + message;
                          },
                          .after = [&]() -> std::string {
                            write_file(fifo, {"gone"});
                            return fs::is_fifo(fifo) ? "" : "a file is in the FIFO's place";
                          }};
  const Scenario link{.name = "write_file through a link",
                      .prepare = [&] { fs::create_symlink("target", file); },
                      .run = [&]() -> std::string {
                        refused = message_of(in_two_parts);
                        return {};
                      },
                      .after = [&]() -> std::string {
                        in_two_parts();
                        return fs::is_symlink(file) && read_file(file, 1 << 20) == after ? "" : "the link is gone";
                      }};
  both_rows("files", {write, made, read, link});
  test::FaultRow row("F3, files written in place");
  fail_every_call(row, kLocal, in_place);
  row.finish(50);
}

// A file system whose rename() does not replace: the new kernel comes in the place of the old one, and nothing is said.
BOOST_FIXTURE_TEST_CASE(a_rename_that_does_not_replace, Kernels) {
  Item old = item;
  old.kernel.toolchain = "fake 0.9";
  KernelStore store(root, warn());
  test::put(store, old);
  {
    const FaultInjection once({.call = Call::rename, .error = EEXIST});
    test::put(store, item);
    BOOST_TEST(once.hits() == 1);
  }
  BOOST_TEST((store.find(item.key) == item.kernel));
  BOOST_TEST(warnings.empty());
  BOOST_TEST(quarantined() == 0U);
}

// Of a network file system: the file has been removed on another machine.
BOOST_FIXTURE_TEST_CASE(a_stale_file_is_a_silent_miss, Kernels) {
  KernelStore store(root, warn());
  test::put(store, item);
  for (const Call call : {Call::open, Call::stat, Call::read}) {
    for (int first = 1; first <= 3; ++first) {
      const FaultInjection stale({.call = call, .first = first, .error = ESTALE});
      const auto found = store.find(item.key);
      if (call != Call::open && stale.hits() == 0) continue;
      if (call == Call::open && first == 1) continue;  // the root
      BOOST_TEST(!found.has_value());
    }
  }
  BOOST_TEST(quarantined() == 0U);
  BOOST_TEST((store.find(item.key) == item.kernel));
}

// What `ingot info` says of a tier costs no more where the tier has thousands of records.
BOOST_FIXTURE_TEST_CASE(counting_records_opens_none, Kernels) {
  TuningStore records(root, warn());
  for (std::int64_t m = 1; m <= 20; ++m) BOOST_TEST(records.put(test::record(m)));
  std::string problem;
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(tier != nullptr, problem);
  for (const auto& [call, at_most] : {std::pair(Call::open, 2), std::pair(Call::read, 0)}) {
    const FaultInjection counter({.call = call, .first = std::numeric_limits<int>::max()});
    BOOST_TEST(tier->count_tuning() == 20);
    BOOST_TEST(counter.calls() <= at_most);
  }
}

// Nobody changes a published file, so one that ends early is damaged.
BOOST_FIXTURE_TEST_CASE(a_file_that_shrinks_is_damaged, Kernels) {
  KernelStore store(root, warn());
  test::put(store, item);
  const FaultInjection shrunk({.call = Call::read, .error = test::kEndOfFile});
  BOOST_TEST(!store.find(item.key).has_value());
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("is truncated: 0 bytes") != std::string::npos, warnings[0]);
}

BOOST_FIXTURE_TEST_CASE(devices_without_a_driver_are_moved_aside, Kernels) {
  for (const int error : {ENODEV, ENXIO}) {
    KernelStore store(root, warn());
    test::put(store, item);
    {
      const FaultInjection fault({.call = Call::open, .first = 3, .error = error});
      BOOST_TEST(!store.find(item.key).has_value());
    }
    BOOST_TEST(!fs::exists(test::file_of(root, item)));
  }
  BOOST_TEST(quarantined() == 2U);
}

BOOST_FIXTURE_TEST_CASE(why_nothing_is_kept, Kernels) {
  const KernelStore store(root);
  BOOST_TEST(store.disabled_reason() == "");
  const auto reason = [&](Call call, int first) {
    const FaultInjection fault({.call = call, .first = first, .error = EIO});
    return store.disabled_reason();
  };
  const std::string directory_is = "store directory " + root.string();
  BOOST_TEST(reason(Call::open, 1) == directory_is + " cannot be opened: Input/output error");
  BOOST_TEST(reason(Call::stat, 1) == directory_is + " cannot be read: Input/output error");
  BOOST_TEST(reason(Call::open, 2) == directory_is + " cannot be written: Input/output error");
  BOOST_TEST(reason(Call::other, 1) == directory_is + " cannot be written: Input/output error");
}

BOOST_FIXTURE_TEST_CASE(a_sync_that_fails_is_told, Fixture) {
  fs::create_directory(home);
  FileWriter writer(home / "file");
  for (const auto& [error, fails] : {std::pair{EIO, true}, {EINVAL, false}, {EROFS, false}}) {
    const FaultInjection fault({.call = Call::other, .error = error});
    if (fails) {
      BOOST_CHECK_THROW(writer.sync(), Error);
    } else {
      BOOST_CHECK_NO_THROW(writer.sync());
    }
  }
}

// What could not be read is left where it is, and one line says why.
BOOST_FIXTURE_TEST_CASE(a_file_that_cannot_be_read_is_told, Kernels) {
  for (const auto& [call, first, what] :
       {std::tuple{Call::open, 3, ""}, {Call::stat, 2, ""}, {Call::read, 1, ""}, {Call::open, 2, "folder"}}) {
    warnings.clear();
    KernelStore store(root, warn());
    test::put(store, item);
    {
      const FaultInjection fault({.call = call, .first = first, .error = EIO});
      BOOST_TEST(!store.find(item.key).has_value());
    }
    BOOST_REQUIRE(warnings.size() == 1U);
    const fs::path file = test::file_of(root, item);
    const std::string named = what == std::string("folder") ? file.parent_path().string() : file.string();
    BOOST_TEST(warnings[0] == "store file " + named +
                                  " cannot be read: Input/output error; it was left there, and its kernel is compiled "
                                  "again");
  }
}

// As another process removes the store, its folder may be gone again each time that it has been made.
BOOST_FIXTURE_TEST_CASE(a_store_that_vanishes_as_it_is_made, Kernels) {
  KernelStore store(root, warn());
  {
    const FaultInjection fault({.call = Call::open, .first = 1, .count = 3, .error = ENOENT});
    test::put(store, item);
    BOOST_TEST(fault.hits() == 3);
  }
  BOOST_TEST(warnings.empty(), (warnings.empty() ? "" : warnings[0]));
  BOOST_TEST(store.find(item.key).has_value());
}

// The clock of a machine may be a year ahead or behind, and be set right later.
BOOST_FIXTURE_TEST_CASE(clock_jumps, Kernels) {
  test::FaultRow row("F10, clock jumps");
  constexpr std::int64_t kYear = 366LL * 24 * 3600;
  constexpr std::int64_t kMaxBytes = 12'000;
  for (const std::int64_t then : {-kYear, std::int64_t{0}, kYear}) {
    for (const std::int64_t now : {-kYear, std::int64_t{0}, kYear}) {
      row.inject(std::to_string(then) + " s, then " + std::to_string(now) + " s", [&]() -> std::string {
        fresh({.name = "", .prepare = [] {}, .run = {}, .after = {}});
        {
          const test::ClockJump jump(then);
          if (std::string problem = ask(kMaxBytes); !problem.empty()) return problem;
        }
        // The file times are the disk's; set them as that clock would have.
        const auto stamp = fs::file_time_type::clock::now() + std::chrono::seconds(then);
        fs::last_write_time(test::file_of(root, item), stamp);
        std::ofstream(root / "tmp" / "1-0") << "half a kernel";
        fs::last_write_time(root / "tmp" / "1-0", stamp - std::chrono::hours(2));
        const test::ClockJump jump(now);
        if (std::string problem = ask(kMaxBytes); !problem.empty()) return problem;
        if (compiled != 0) return "a good kernel was not used";
        KernelStore store(root, warn(), kMaxBytes);
        for (int i = 0; i < 20; ++i) test::put(store, Item(std::to_string(i), 3000));
        if (store.usage().bytes > kMaxBytes) return "the store has outgrown its limit";
        if (fs::exists(root / "tmp" / "1-0")) return "an abandoned file stays";
        return one_warning_at_most();
      });
    }
  }
  row.finish(9);
}

BOOST_AUTO_TEST_SUITE_END()
