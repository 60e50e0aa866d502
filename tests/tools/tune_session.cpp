// The parts of `ingot tune` and `ingot info` on the CPU: sessions, on a measurer that the test scripts, keep what they
// have found however they end; plans and reports; and how records are counted.
#include <boost/test/unit_test.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/error.h"
#include "interrupts.h"
#include "support/expect_error.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"
#include "tune/tune_plan.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include "tuning_summary.h"

BOOST_AUTO_TEST_SUITE(test_tune_session)

using namespace ingot;
using namespace ingot::tools;

namespace {

MatmulSpec algorithm(const MatmulSpec& product, int number) {
  auto spec = std::get<GemmSpec>(product);
  spec.kernel = GemmKernel::cublaslt;
  spec.algorithm = number;
  return spec;
}

int number(const MatmulSpec& product) { return std::get<GemmSpec>(product).algorithm; }

// The third algorithm is the fastest, and everything takes a moment.
class FakeMeasurer final : public MatmulMeasurer {
 public:
  void prepare(const MatmulSpec&) override {}
  std::string check(const MatmulSpec& spec) override { return number(spec) == wrong ? "row 7 is wrong" : ""; }
  double measure(const MatmulSpec& spec) override {
    std::this_thread::sleep_for(pause);
    return number(spec) == 2 ? 50 : 100 + number(spec);
  }

  int wrong = -1;
  std::chrono::microseconds pause{0};
};

struct Fixture {
  // GEMMs of m = 1, 2, ...
  static std::vector<TunedGemm> gemms(std::int64_t count) {
    std::vector<TunedGemm> all;
    for (std::int64_t m = 1; m <= count; ++m) {
      all.push_back({.planned = {.label = "gemm " + std::to_string(m), .call = {.spec = {}, .size = {m, 64, 64}}}});
    }
    return all;
  }

  TuneSession session() {
    return {.store = &store,
            .machine = test::machine(),
            .candidates =
                [](const MatmulCall& call) {
                  return std::vector{algorithm(call.spec, 0), algorithm(call.spec, 1), algorithm(call.spec, 2)};
                },
            .measurer =
                [this](const MatmulCall& call) {
                  measured.push_back(call.size.m);
                  auto measurer = std::make_unique<FakeMeasurer>();
                  measurer->wrong = wrong;
                  measurer->pause = pause;
                  return measurer;
                },
            .interrupted = [] { return false; },
            .warn = [this](const std::string& text) { warnings.push_back(text); }};
  }

  test::TemporaryDirectory directory;
  std::filesystem::path root = directory.path() / "store";
  std::vector<std::string> warnings;
  TuningStore store{root, [this](const std::string& text) { warnings.push_back(text); }};
  std::vector<std::int64_t> measured;
  int wrong = -1;
  std::chrono::microseconds pause{0};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(tune_session, Fixture)

BOOST_AUTO_TEST_CASE(a_second_session_has_nothing_to_do) {
  std::vector<TunedGemm> all = gemms(4);
  find_records(session(), all);
  BOOST_TEST(tune_missing(session(), all));
  BOOST_TEST(measured.size() == 4U);
  for (const TunedGemm& gemm : all) {
    BOOST_REQUIRE(gemm.record.has_value());
    BOOST_TEST(number(gemm.record->chosen) == 2);
    BOOST_TEST(gemm.record->us == 50.0);
    BOOST_TEST(gemm.record->cublaslt_us == 50.0);
    BOOST_TEST(gemm.record->date.size() == 10U);
  }
  std::vector<TunedGemm> again = gemms(5);
  find_records(session(), again);
  measured.clear();
  BOOST_TEST(tune_missing(session(), again));
  BOOST_TEST_CHECK(measured == (std::vector<std::int64_t>{5}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(interrupted_it_goes_on_where_it_was) {
  pause = std::chrono::microseconds(200);
  std::vector<TunedGemm> all = gemms(6);
  std::atomic<int> asked{0};
  TuneSession interrupted = session();
  interrupted.interrupted = [&] { return ++asked > 60; };
  BOOST_TEST(!tune_missing(interrupted, all));
  const std::size_t found = store.load().size();
  BOOST_TEST(found > 0U);
  BOOST_TEST(found < 6U);
  for (const TunedGemm& gemm : all) BOOST_TEST(gemm.problem == "");

  std::vector<TunedGemm> rest = gemms(6);
  find_records(session(), rest);
  measured.clear();
  BOOST_TEST(tune_missing(session(), rest));
  BOOST_TEST(measured.size() == 6 - found);
  BOOST_TEST(store.load().size() == 6U);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment_it_goes_on) {
  constexpr std::int64_t kGemms = 40;
  pause = std::chrono::microseconds(50);
  std::size_t before = 0;
  int kills = 0;
  while (kills < 200) {
    const pid_t process = test::start_process([&] {
      std::vector<TunedGemm> all = gemms(kGemms);
      find_records(session(), all);
      tune_missing(session(), all);
      return 0;
    });
    // Two of three are killed after one more record at the earliest, so that it ends on a slow machine, too.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const std::size_t wanted = kills % 3 == 0 ? 0 : std::min<std::size_t>(before + 1, kGemms);
    while (store.load().size() < wanted && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + kills % 7));
    kill(process, SIGKILL);
    const bool ended = test::wait_for(process) == 0;
    const std::vector<TuningRecord> records = store.load();
    BOOST_TEST(records.size() >= before);
    before = records.size();
    for (const TuningRecord& record : records) BOOST_TEST(number(record.chosen) == 2);
    if (ended) break;
    ++kills;
  }
  BOOST_TEST(before == static_cast<std::size_t>(kGemms));
  BOOST_TEST(kills > 0);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(a_budget_ends_it) {
  pause = std::chrono::microseconds(2000);
  std::vector<TunedGemm> all = gemms(1000);
  TuneSession short_one = session();
  short_one.seconds = 0.3;
  const auto begin = std::chrono::steady_clock::now();
  BOOST_TEST(tune_missing(short_one, all));
  BOOST_TEST(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 5);
  BOOST_TEST(!store.load().empty());
  BOOST_TEST(store.load().size() < 1000U);
}

BOOST_AUTO_TEST_CASE(one_that_fails_stops_no_other) {
  std::vector<TunedGemm> all = gemms(3);
  TuneSession failing = session();
  failing.measurer = [](const MatmulCall& call) -> std::unique_ptr<MatmulMeasurer> {
    if (call.size.m == 2) throw Error(ErrorCode::out_of_memory, "cuda:0 memory", "no room");
    return std::make_unique<FakeMeasurer>();
  };
  BOOST_TEST(tune_missing(failing, all));
  BOOST_TEST(all[0].record.has_value());
  BOOST_TEST(all[1].problem == "cuda:0 memory: no room");
  BOOST_TEST(all[2].record.has_value());
}

BOOST_AUTO_TEST_CASE(a_wrong_result_is_told_and_left_out) {
  wrong = 2;
  std::vector<TunedGemm> all = gemms(1);
  tune_missing(session(), all);
  BOOST_REQUIRE(all[0].record.has_value());
  BOOST_TEST(number(all[0].record->chosen) == 0);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=cublaslt:2 gave a wrong result and is left out: "
             "row 7 is wrong");
}

// The record's kernel is the one to beat: of equals it stays.
BOOST_AUTO_TEST_CASE(measured_again_the_record_is_the_incumbent) {
  std::vector<TunedGemm> all = gemms(1);
  TuningRecord known;
  known.machine = test::machine();
  known.size = {1, 64, 64};
  known.chosen = algorithm(GemmSpec{}, 5);
  known.us = 3;
  known.date = "2026-01-01";
  store.put(known);
  TuneSession equal = session();
  class Equal final : public MatmulMeasurer {
   public:
    void prepare(const MatmulSpec&) override {}
    std::string check(const MatmulSpec&) override { return {}; }
    double measure(const MatmulSpec&) override { return 80; }
  };
  equal.measurer = [](const MatmulCall&) { return std::make_unique<Equal>(); };
  tune_missing(equal, all);
  BOOST_REQUIRE(all[0].record.has_value());
  BOOST_TEST(number(all[0].record->chosen) == 5);
  BOOST_TEST(all[0].record->us == 80.0);
}

BOOST_AUTO_TEST_CASE(compared_with_bf16) {
  std::vector<TunedGemm> all = gemms(2);
  all[0].planned.call.spec = GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16};
  all[1].planned.bf16 = all[0].planned.call;
  tune_missing(session(), all);
  BOOST_REQUIRE(all[1].record.has_value());
  BOOST_TEST(all[0].record->bf16_us == 0.0);
  BOOST_TEST(all[1].record->bf16_us == 50.0);
  const std::string text = table(all);
  BOOST_TEST(
      text.find("gemm 1  1x64x64             cublaslt:2        50.0       0     1.000       -") != std::string::npos,
      text);
  BOOST_TEST(text.find("1.000   1.000") != std::string::npos, text);
  BOOST_TEST(json(all, test::machine()).find("\"kernel\": \"cublaslt:2\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_not_tuned_is_said) {
  std::vector<TunedGemm> all = gemms(2);
  all[1].problem = "no room";
  const std::string text = table(all);
  BOOST_TEST(text.find("not tuned yet") != std::string::npos, text);
  BOOST_TEST(text.find("no room") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(records_are_counted_by_machine) {
  const TuningSummary none = summarize_tuning(Tuning::off, store, {}, test::machine());
  BOOST_TEST((none.mode == Tuning::off));
  BOOST_TEST(none.path == root / "tuning");
  BOOST_TEST(none.this_machine + none.other_machines + none.damaged == 0U);

  for (const std::int64_t m : {1, 2, 3}) store.put(test::record(m));
  for (const std::int64_t m : {1, 2}) store.put(test::record(m, "NVIDIA H100"));
  std::ofstream(root / "tuning" / (std::string(32, 'a') + ".json")) << "{}\n";
  std::ofstream(root / "tuning" / "notes.json") << "not the store's\n";
  const TuningSummary found = summarize_tuning(Tuning::on, store, {}, test::machine());
  BOOST_TEST(found.this_machine == 3U);
  BOOST_TEST(found.other_machines == 2U);
  BOOST_TEST(found.damaged == 1U);
  BOOST_TEST(!found.is_file);
}

BOOST_AUTO_TEST_CASE(records_of_a_file_are_counted_instead_of_the_stores) {
  store.put(test::record(7));
  const std::filesystem::path file = directory.path() / "records";
  write_tuning_file(file, std::vector{test::record(1), test::record(2), test::record(1, "NVIDIA H100")});
  std::ofstream(file, std::ios::app) << "torn\n";
  const TuningSummary found = summarize_tuning(Tuning::frozen, store, file, test::machine());
  BOOST_TEST(found.path == file);
  BOOST_TEST(found.is_file);
  BOOST_TEST(found.this_machine == 2U);
  BOOST_TEST(found.other_machines == 1U);
  BOOST_TEST(found.damaged == 1U);
}

BOOST_AUTO_TEST_CASE(without_a_store_there_are_no_records) {
  TuningStore nowhere{std::filesystem::path()};
  const TuningSummary found = summarize_tuning(Tuning::on, nowhere, {}, test::machine());
  BOOST_TEST(found.path.empty());
  BOOST_TEST(found.this_machine + found.other_machines + found.damaged == 0U);
}

BOOST_AUTO_TEST_CASE(tokens_are_for_a_set_only) {
  test::check_contains(test::error_of([] { plan({.mnk = {"64,64,64"}, .tokens = 16}); }, ErrorCode::invalid_argument),
                       {"--tokens: \"16\" must be left out without --set", "--mnk"});
  test::check_contains(test::error_of([] { plan({.tokens = 16}); }, ErrorCode::invalid_argument), {"--tokens"});
  // Together with a set they are the set's.
  const std::vector<PlannedGemm> both =
      plan({.mnk = {"64,128,256"}, .set = "llama3-8b", .tokens = 16, .recipe = "high_precision"});
  BOOST_TEST(both.front().call.size.m == 64);
  BOOST_TEST(both[3].call.size.m == 16);
}

BOOST_AUTO_TEST_CASE(ctrl_c_is_held_back) {
  BOOST_TEST(test::run_in_process([] {
               {
                 const Interrupts interrupts;
                 if (interrupts.pending()) return 1;
                 kill(getpid(), SIGINT);
                 if (!interrupts.pending()) return 2;
               }
               return 3;  // still there
             }) == 3);
  BOOST_TEST(test::run_in_process([] {
               {
                 const Interrupts interrupts;
                 kill(getpid(), SIGTERM);
               }
               kill(getpid(), SIGINT);
               return 0;
             }) == -SIGINT);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
