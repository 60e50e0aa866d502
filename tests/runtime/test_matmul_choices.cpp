// The choice of kernels from tuning records: lookups, INGOT_TUNING's modes, and records that are damaged or from
// another machine.
#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_matmul_choices)

using namespace ingot;
using test::check_contains;
using test::machine;
using test::record;
namespace fs = std::filesystem;

namespace {

struct Fixture {
  MatmulCall call(std::int64_t m) const { return {.spec = record().spec, .size = record(m).size}; }
  MatmulChoices::Warn warn() {
    return [this](const std::string& text) { warnings.push_back(text); };
  }

  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "store";
  fs::path file = directory.path() / "records";
  std::vector<std::string> warnings;
  TuningStore store{root, warn()};
};

// A tier with tuning records alone, which counts how often they are read.
class RecordTier final : public KernelTier {
 public:
  RecordTier(std::string name, std::vector<std::string> lines) : name_(std::move(name)), lines_(std::move(lines)) {}
  std::optional<CompiledKernel> find(const KernelKey&, const KernelWanted*) const override { return std::nullopt; }
  std::vector<KernelEntry> list() const override { return {}; }
  std::optional<KernelFile> read(const KernelKey&, std::string&) const override { return std::nullopt; }
  void read_tuning(const TakeTuningLine& take) const override {
    ++reads;
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    take_tuning_lines(text, take);
  }
  std::int64_t count_tuning() const override { return std::ssize(lines_); }
  const std::string& name() const override { return name_; }
  mutable int reads = 0;

 private:
  std::string name_;
  std::vector<std::string> lines_;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(gemm_choices, Fixture)

BOOST_AUTO_TEST_CASE(what_was_tuned_is_found) {
  store.put(record(1));
  store.put(record(2));
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  const MatmulSpec* const chosen = choices.find(call(1));
  BOOST_REQUIRE(chosen != nullptr);
  BOOST_TEST((*chosen == record(1).chosen));
  BOOST_TEST(choices.find(call(1)) == chosen);
  BOOST_TEST(choices.find(call(3)) == nullptr);
  MatmulCall with_bias = call(1);
  std::get<GemmSpec>(with_bias.spec).bias = true;
  BOOST_TEST(choices.find(with_bias) == nullptr);
  BOOST_TEST(choices.size() == 2U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(products_with_decoded_weights_are_found) {
  store.put(test::dequant_record(1));
  TuningRecord open = test::dequant_record(2);  // a record that tuning never makes
  std::get<DequantMatmulSpec>(open.chosen).tiling.reset();
  store.put(open);
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  const auto dequant = [](std::int64_t m) {
    return MatmulCall{.spec = test::dequant_record().spec, .size = test::dequant_record(m).size};
  };
  const MatmulSpec* const chosen = choices.find(dequant(1));
  BOOST_REQUIRE(chosen != nullptr);
  BOOST_TEST((*chosen == test::dequant_record(1).chosen));
  BOOST_TEST(choices.find(dequant(2)) == nullptr);
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {"has a kernel without its tiling"});
}

// Records that are written meanwhile take effect in the next run.
BOOST_AUTO_TEST_CASE(one_run_makes_one_choice) {
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  store.put(record(1));
  BOOST_TEST(choices.find(call(1)) == nullptr);
}

BOOST_AUTO_TEST_CASE(off_does_not_look) {
  store.put(record(1));
  store.put(record(1, "NVIDIA H100"));
  MatmulChoices choices(Tuning::off, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_TEST(choices.size() == 0U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(frozen_reads) {
  store.put(record(1));
  MatmulChoices choices(Tuning::frozen, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) != nullptr);
}

BOOST_AUTO_TEST_CASE(another_gpu_is_one_line) {
  store.put(record(1, "NVIDIA H100"));
  store.put(record(2, "NVIDIA H100"));
  store.put(record(3));
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_TEST(choices.find(call(3)) != nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] ==
             "2 tuning records are another machine's (device NVIDIA H100, and this is NVIDIA H200) and are ignored; "
             "`ingot tune` makes this one's");
}

BOOST_AUTO_TEST_CASE(one_record_of_another_gpu) {
  store.put(record(1, "NVIDIA H100"));
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {"1 tuning record is another machine's", " and is ignored; "});
  MatmulChoices silent(Tuning::on, {.store = &store}, machine(), {});
  BOOST_TEST(silent.find(call(1)) == nullptr);
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_counted) {
  std::ofstream(file) << "one\ntwo\n" << print(record(1)) << "\n";
  MatmulChoices choices(Tuning::on, {.store = &store, .file = file}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) != nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {"line 1 ", "; 2 records are ignored"});
}

BOOST_AUTO_TEST_CASE(a_damaged_record_is_one_line) {
  store.put(record(1));
  for (const auto& entry : fs::directory_iterator(root / "tuning")) fs::resize_file(entry.path(), 100);
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].starts_with("store file "), warnings[0]);
}

// Each kind of ignored record gives one line, however many there are, and valid records are used.
BOOST_AUTO_TEST_CASE(damaged_and_foreign_records_are_a_line_each) {
  for (std::int64_t m = 1; m <= 3; ++m) store.put(record(m));
  for (const auto& entry : fs::directory_iterator(root / "tuning")) fs::resize_file(entry.path(), 100);
  for (std::int64_t m = 1; m <= 3; ++m) store.put(record(m, "NVIDIA H100"));
  store.put(record(4));
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  for (std::int64_t m = 1; m <= 3; ++m) BOOST_TEST(choices.find(call(m)) == nullptr);
  BOOST_TEST(choices.find(call(4)) != nullptr);
  BOOST_REQUIRE(warnings.size() == 2U);
  check_contains(warnings[0], {"store file ", "is truncated"});
  check_contains(warnings[1], {"3 tuning records are another machine's"});
  for (const std::string& line : warnings) BOOST_TEST(line.find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_file_stands_in_for_the_store) {
  store.put(record(1));
  write_tuning_file(file, std::vector{record(2), record(3)});
  std::ofstream(file, std::ios::app) << print(record(4)).substr(0, 50) << "\n";
  MatmulChoices choices(Tuning::frozen, {.store = &store, .file = file}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_TEST(choices.find(call(2)) != nullptr);
  BOOST_TEST(choices.find(call(4)) == nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {file.string(), "line 3 is truncated; 1 record is ignored"});
}

// Records in bundles and in other users' stores are used where the store has none.
BOOST_AUTO_TEST_CASE(tiers_come_after_the_store) {
  store.put(record(1));
  TuningRecord other = record(1);
  std::get<GemmSpec>(other.chosen).kernel = GemmKernel::simt;
  std::get<GemmSpec>(other.chosen).tiling.reset();
  const RecordTier first("first", {print(other), print(record(2)), print(record(5, "NVIDIA H100"))});
  const RecordTier second("second", {print(record(3)), print(record(4)).substr(0, 50)});
  const RecordTier third("third", {print(record(2, "NVIDIA H100")), print(record(3, "NVIDIA H100"))});
  const RecordTier fourth("fourth", {});
  const std::vector<const KernelTier*> tiers{&first, &second, &third, &fourth};
  MatmulChoices choices(Tuning::on, {.store = &store, .tiers = tiers}, machine(), warn());
  for (const std::int64_t m : {1, 2, 3}) BOOST_TEST(choices.find(call(m)) != nullptr);
  for (const std::int64_t m : {4, 5}) BOOST_TEST(choices.find(call(m)) == nullptr);
  BOOST_TEST((*choices.find(call(1)) == record(1).chosen));
  BOOST_TEST(choices.size() == 3U);
  for (const RecordTier* tier : {&first, &second, &third, &fourth}) BOOST_TEST(tier->reads == 1);
  BOOST_REQUIRE(warnings.size() == 2U);
  BOOST_TEST(warnings[0] == "tuning records of second: line 2 is truncated; 1 record is ignored");
  BOOST_TEST(warnings[1] ==
             "third has 2 tuning records, but none for this machine (device NVIDIA H100, and this is NVIDIA H200)");

  write_tuning_file(file, std::vector{record(6)});
  MatmulChoices from_file(Tuning::on, {.store = &store, .file = file, .tiers = tiers}, machine(), warn());
  BOOST_TEST(from_file.find(call(6)) != nullptr);
  BOOST_TEST(from_file.find(call(2)) == nullptr);
  BOOST_TEST(first.reads == 1);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_gone_fails_no_call) {
  MatmulChoices choices(Tuning::on, {.store = &store, .file = file}, machine(), warn());
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_TEST(choices.find(call(1)) == nullptr);
  BOOST_REQUIRE(warnings.size() == 1U);
  check_contains(warnings[0], {"tuning records cannot be read", "there is no such file"});
}

BOOST_AUTO_TEST_CASE(many_threads_find_the_same) {
  for (std::int64_t m = 1; m <= 100; ++m) store.put(record(m));
  MatmulChoices choices(Tuning::on, {.store = &store}, machine(), warn());
  std::vector<int> found(4);
  {
    std::vector<std::jthread> threads;
    for (int& count : found) {
      threads.emplace_back([&] {
        for (std::int64_t m = 1; m <= 200; ++m) count += choices.find(call(m)) != nullptr ? 1 : 0;
      });
    }
  }
  for (const int count : found) BOOST_TEST(count == 100);
}

BOOST_AUTO_TEST_CASE(files_of_records) {
  write_tuning_file(file, std::vector{record(1), record(2)});
  const TuningFile read = read_tuning_file(file);
  BOOST_REQUIRE(read.records.size() == 2U);
  BOOST_TEST((read.records[1] == record(2)));
  BOOST_TEST(read.damaged == 0);
  const auto error = [](ErrorCode code, const fs::path& path) {
    return test::error_of([&] { write_tuning_file(path, {}); }, code);
  };
  check_contains(error(ErrorCode::io_failed, directory.path() / "no" / "file"), {"cannot be written"});
  const auto refusal = [](const fs::path& path, ErrorCode code) {
    return test::error_of([&] { read_tuning_file(path); }, code);
  };
  check_contains(refusal(directory.path(), ErrorCode::io_failed), {"is a folder"});
  check_contains(refusal(directory.path() / "none", ErrorCode::not_found),
                 {"there is no such file; `ingot tune --export` writes one"});
  check_contains(refusal("/dev/zero", ErrorCode::io_failed), {"is not a regular file"});
  BOOST_TEST(read_tuning_file(file, [] { return true; }).stopped);

  // A device stays one, and a link is followed.
  check_contains(test::error_of([] { write_tuning_file("/dev/full", std::vector{record(1)}); }, ErrorCode::io_failed),
                 {"No space left on device"});
  BOOST_TEST(fs::is_character_file("/dev/full"));
  fs::create_symlink(file, directory.path() / "link");
  write_tuning_file(directory.path() / "link", std::vector{record(3)});
  BOOST_TEST(fs::is_symlink(directory.path() / "link"));
  BOOST_TEST((read_tuning_file(file).records == std::vector{record(3)}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
