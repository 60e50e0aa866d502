// What faulty disks, crashes and other processes do to stored tuning records: never a wrong record or an exception, and
// at most one line of warning.
#include <boost/test/unit_test.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/read_only_store.h"
#include "ingot/runtime/tuning/tuning_import.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "ingot/runtime/util/error.h"
#include "support/fault_row.h"
#include "support/files_in.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_tuning_store)

using namespace ingot;
using test::record;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  TuningStore make() {
    warnings.clear();
    return TuningStore(root, [this](const std::string& text) { warnings.push_back(text); });
  }
  fs::path file(const TuningRecord& r) const {
    return root / "tuning" / (print(tuning_key(r.machine, r.spec, r.size)) + ".json");
  }
  std::string read(const fs::path& path) const {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const fs::path& path, const std::string& bytes) const {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream << bytes;
    BOOST_REQUIRE(stream.flush().good());
  }
  std::size_t quarantined() const { return test::files_in(root / "quarantine").size(); }
  static std::optional<TuningRecord> find(TuningStore& store, const TuningRecord& r) {
    return store.find(r.machine, r.spec, r.size);
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
  std::vector<std::string> warnings;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(tuning_store, Fixture)

BOOST_AUTO_TEST_CASE(what_is_put_is_found) {
  TuningStore store = make();
  BOOST_TEST(store.load().empty());
  BOOST_TEST(!fs::exists(root), "reading makes no directory");
  BOOST_TEST(store.put(record(1)));
  BOOST_TEST(store.put(record(2)));
  BOOST_TEST(store.put(record(2, "NVIDIA H100")));
  TuningStore other = make();
  BOOST_TEST((find(other, record(1)) == record(1)));
  BOOST_TEST(!find(other, record(3)).has_value());
  BOOST_TEST(other.load().size() == 3U);
  BOOST_TEST(read(file(record(1))) == print(record(1)) + "\n");
  BOOST_TEST(((fs::status(file(record(1))).permissions() & fs::perms::all) ==
              (fs::perms::owner_read | fs::perms::owner_write)));

  TuningRecord faster = record(1);
  faster.us = 1;
  BOOST_TEST(store.put(faster));
  BOOST_TEST((find(other, record(1)) == faster));
  BOOST_TEST(other.load().size() == 3U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(loading_stops_when_asked) {
  TuningStore store = make();
  for (std::int64_t m = 1; m <= 3; ++m) BOOST_TEST(store.put(record(m)));
  int asked = 0;
  BOOST_TEST(store.load([&] { return ++asked > 2; }).size() == 2U);
  BOOST_TEST(store.load([] { return false; }).size() == 3U);
}

BOOST_AUTO_TEST_CASE(kernels_and_records_do_not_touch_each_other) {
  TuningStore store = make();
  BOOST_TEST(store.put(record()));
  KernelStore kernels(root);
  BOOST_TEST(kernels.usage().files == 0);
}

BOOST_AUTO_TEST_CASE(damage_is_one_line_and_healed) {
  const std::string good = print(record(1)) + "\n";
  for (const std::string& bad : {std::string(), std::string("\n"), good.substr(0, good.size() / 2),
                                 good.substr(0, good.size() - 1), good + "x", std::string(1000, '\0')}) {
    TuningStore writer = make();
    for (std::int64_t m = 1; m <= 3; ++m) BOOST_TEST(writer.put(record(m)));
    write(file(record(1)), bad);
    write(file(record(2)), bad);
    TuningStore store = make();
    const auto loaded = store.load();
    BOOST_REQUIRE(loaded.size() == 1U);
    BOOST_TEST((loaded[0] == record(3)));
    BOOST_REQUIRE(warnings.size() == 1U);
    BOOST_TEST(warnings[0].starts_with("store file " + (root / "tuning").string()), warnings[0]);
    BOOST_TEST(warnings[0].ends_with("and `ingot tune` measures that matmul again"), warnings[0]);
    BOOST_TEST(!fs::exists(file(record(1))));
    BOOST_TEST(store.put(record(1)));
    BOOST_TEST((find(store, record(1)) == record(1)));
  }
  BOOST_TEST(quarantined() == 12U);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_too_large) {
  TuningStore store = make();
  BOOST_TEST(store.put(record()));
  fs::resize_file(file(record()), (1U << 20U) + 1);
  BOOST_TEST(store.load().empty());
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find(" has 1048577 bytes; at most 1048576 are read; it was moved to ") != std::string::npos,
             warnings[0]);
}

BOOST_AUTO_TEST_CASE(every_bit_flipped) {
  const std::string good = print(record()) + "\n";
  TuningStore writer = make();
  for (std::size_t i = 0; i < good.size(); ++i) {
    BOOST_REQUIRE(writer.put(record()));
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    write(file(record()), bad);
    TuningStore store = make();
    BOOST_TEST(!find(store, record()).has_value(), "byte " << i);
    BOOST_TEST(warnings.size() == 1U);
  }
}

// Torn at every length (F16).
BOOST_AUTO_TEST_CASE(every_torn_tail) {
  const std::string good = print(record()) + "\n";
  test::FaultRow row("F16, torn tuning records");
  TuningStore writer = make();
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    BOOST_REQUIRE(writer.put(record()));
    write(file(record()), good.substr(0, bytes));
    row.inject(std::to_string(bytes) + " bytes", [&]() -> std::string {
      TuningStore store = make();
      if (find(store, record()) || !store.load().empty()) return "a torn record is taken for one";
      return warnings.size() == 1 ? "" : std::to_string(warnings.size()) + " warnings";
    });
  }
  row.finish(300);
}

BOOST_AUTO_TEST_CASE(a_record_under_the_name_of_another) {
  TuningStore store = make();
  BOOST_TEST(store.put(record(1, "NVIDIA H100")));
  fs::rename(file(record(1, "NVIDIA H100")), file(record(1)));
  BOOST_TEST(!find(store, record(1)).has_value());
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("holds another record") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_directory_that_is_none) {
  write(directory.path() / "file", "x");
  TuningStore store(directory.path() / "file", [this](const std::string& text) { warnings.push_back(text); });
  BOOST_TEST(!store.put(record()));
  BOOST_TEST(!store.put(record()));
  BOOST_TEST(store.load().empty());
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("is not a directory. Tuning records are not kept") != std::string::npos, warnings[0]);
  TuningStore off(fs::path(), [this](const std::string& text) { warnings.push_back(text); });
  BOOST_TEST(!off.put(record()));
  BOOST_TEST(warnings.size() == 1U);
}

// What someone else has put next to the records is nobody's damage.
BOOST_AUTO_TEST_CASE(files_of_other_names_are_left_alone) {
  TuningStore store = make();
  BOOST_TEST(store.put(record(1)));
  BOOST_TEST(store.put(record(2)));
  const std::string digits(31, 'a');
  const std::vector<std::string> names{"notes.json",      digits + ".json",   digits + "g.json",
                                       digits + "A.json", digits + "aa.json", digits + "a.jso_"};
  for (const std::string& name : names) write(root / "tuning" / name, "not ours");
  write(file(record(2)), "torn");
  BOOST_TEST(store.load().size() == 1U);
  BOOST_TEST(warnings.size() == 1U);
  BOOST_TEST(quarantined() == 1U);
  BOOST_TEST(!fs::exists(file(record(2))));
  for (const std::string& name : names) BOOST_TEST(read(root / "tuning" / name) == "not ours", name);
}

// Readers see only complete records meanwhile.
BOOST_AUTO_TEST_CASE(writers_in_many_processes) {
  constexpr int kWriters = 8;
  test::FaultRow row("F16, 8 writers of tuning records");
  constexpr int kRecords = 40;
  std::vector<pid_t> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.push_back(test::start_process([&, w] {
      TuningStore store(root);
      int failed = 0;
      for (int i = 0; i < kRecords; ++i) {
        TuningRecord r = record(i + 1);
        r.us = 1 + w;
        failed += store.put(r) ? 0 : 1;
      }
      return failed;
    }));
  }
  TuningStore reader = make();
  for (int i = 0; i < 20; ++i) reader.load();
  for (const pid_t writer : writers) row.child_ended("a writer", test::wait_for(writer));
  row.finish(kWriters);
  BOOST_TEST(reader.load().size() == static_cast<std::size_t>(kRecords));
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment) {
  for (int round = 0; round < 15; ++round) {
    const pid_t writer = test::start_process([&] {
      TuningStore store(root);
      for (std::int64_t m = 1;; ++m) store.put(record(m % 50 + 1));
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(300 + round * 700));
    kill(writer, SIGKILL);
    BOOST_TEST(test::wait_for(writer) == -SIGKILL);
    TuningStore store = make();
    for (const TuningRecord& r : store.load()) BOOST_TEST((r == record(r.size.m)));
    BOOST_TEST(warnings.empty());
    BOOST_TEST(quarantined() == 0U);
  }
}

// Killed between writing the temporary file and renaming it.
BOOST_AUTO_TEST_CASE(a_temporary_file_left_behind_is_no_record) {
  TuningStore store = make();
  BOOST_TEST(store.put(record(1)));
  write(root / "tmp" / "4711-0123456789abcdef", (print(record(2)) + "\n").substr(0, 100));
  BOOST_TEST(store.load().size() == 1U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(a_survey_changes_nothing) {
  TuningStore store = make();
  BOOST_TEST(store.survey(StoreDirectory::Damaged::stays).records.empty());
  BOOST_TEST(!fs::exists(root));
  for (std::int64_t m = 1; m <= 3; ++m) BOOST_TEST(store.put(record(m)));
  write(file(record(2)), "torn");
  write(root / "tuning" / "notes.json", "not ours");
  const TuningStore::Survey survey = store.survey(StoreDirectory::Damaged::stays);
  BOOST_TEST(survey.records.size() == 2U);
  BOOST_REQUIRE(survey.damaged.size() == 1U);
  BOOST_TEST(root / survey.damaged[0].file == file(record(2)));
  BOOST_TEST(survey.damaged[0].problem == "is truncated");
  BOOST_TEST(!survey.damaged[0].moved);
  BOOST_TEST(quarantined() == 0U);
  int asked = 0;
  const TuningStore::Survey part = store.survey(StoreDirectory::Damaged::stays, [&] { return ++asked > 1; });
  BOOST_TEST(part.stopped);
  BOOST_TEST(part.records.size() + part.damaged.size() == 1U);
  BOOST_TEST(warnings.empty());
  BOOST_TEST(store.survey(StoreDirectory::Damaged::is_moved).damaged[0].moved);
  BOOST_TEST(quarantined() == 1U);
  const RemovedFiles removed = store.clear();
  BOOST_TEST(removed.files == 2);
  BOOST_TEST(removed.failed.empty());
  BOOST_TEST(store.survey(StoreDirectory::Damaged::stays).records.empty());
  BOOST_TEST(fs::exists(root / "tuning" / "notes.json"), "a file that is not ours");
}

BOOST_AUTO_TEST_CASE(import_adds_what_is_missing) {
  TuningStore from = make();
  for (const TuningRecord& each : {record(1), record(2), record(2, "NVIDIA H100")}) BOOST_TEST(from.put(each));
  write(root / "tuning" / (std::string(32, 'f') + ".json"), "torn");
  std::string problem;
  const auto tier = ReadOnlyStore::open(root, problem);
  BOOST_REQUIRE_MESSAGE(tier != nullptr, problem);
  const TuningFile read = read_tuning_of(*tier);
  BOOST_TEST(read.records.size() == 3U);
  int asked = 0;
  const TuningFile part = read_tuning_of(*tier, [&] { return ++asked > 2; });
  BOOST_TEST(part.stopped);
  BOOST_TEST(part.records.size() + static_cast<std::size_t>(part.damaged) == 2U);
  BOOST_TEST(read.damaged == 1);
  BOOST_TEST(read.problem == (root / "tuning" / (std::string(32, 'f') + ".json")).string() + " is truncated");
  BOOST_TEST(quarantined() == 0U);
  BOOST_TEST(read_tuning_of(*tier, [] { return true; }).stopped);

  TuningStore to(directory.path() / "to");
  TuningRecord ours = record(1);
  ours.us = 1;
  BOOST_TEST(to.put(ours));
  const TuningMachine here = test::machine();
  const ImportedRecords imported = import_records(read.records, to, &here);
  BOOST_TEST(imported.added == 1);
  BOOST_TEST(imported.there == 1);
  BOOST_REQUIRE(imported.refused.size() == 1U);
  BOOST_TEST(imported.refused[0].count == 1);
  BOOST_TEST(imported.refused[0].why.starts_with("measured on another machine ("), imported.refused[0].why);
  BOOST_TEST((find(to, record(1)) == ours), "what was measured here stays");
  BOOST_TEST(import_records(read.records, to, nullptr).added == 1);
  BOOST_TEST(import_records(read.records, to, nullptr, [] { return true; }).stopped);
  TuningStore nowhere(fs::path("/proc/no/such/place"));
  try {
    import_records(read.records, nowhere, nullptr);
    BOOST_ERROR("nothing was thrown");
  } catch (const Error& error) {
    BOOST_TEST(std::string(error.what())
                   .starts_with("/proc/no/such/place: 0 tuning records imported, then one "
                                "could not be written: store directory /proc/no/such/place"),
               error.what());
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
