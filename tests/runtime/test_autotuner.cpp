// The autotuner's procedure, on fake candidates whose times and noise the test sets.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/util/error.h"

BOOST_AUTO_TEST_SUITE(test_autotuner)

using namespace ingot;

namespace {

// cuBLASLt's algorithms stand for any candidates.
GemmSpec candidate(int number) { return {.kernel = GemmKernel::cublaslt, .algorithm = number}; }
std::vector<MatmulSpec> candidates(int count) {
  std::vector<MatmulSpec> all;
  for (int i = 0; i < count; ++i) all.push_back(candidate(i));
  return all;
}

class FakeMeasurer final : public MatmulMeasurer {
 public:
  void prepare(const MatmulSpec& product) override {
    const auto& spec = std::get<GemmSpec>(product);
    const std::lock_guard lock(mutex);
    ++prepared[spec.algorithm];
    if (refuses_to_compile == spec.algorithm) throw Error(ErrorCode::compile_failed, "candidate", "does not compile");
  }
  std::string check(const MatmulSpec& product) override {
    const auto& spec = std::get<GemmSpec>(product);
    log.push_back("check " + std::to_string(spec.algorithm));
    if (refuses_the_call == spec.algorithm) throw Error(ErrorCode::invalid_argument, "candidate", "takes no such call");
    return wrong == spec.algorithm ? "row 3 is wrong" : "";
  }
  double measure(const MatmulSpec& product) override {
    const auto& spec = std::get<GemmSpec>(product);
    ++measured[spec.algorithm];
    order.push_back(spec.algorithm);
    return time(spec.algorithm, measured[spec.algorithm] - 1);
  }

  std::function<double(int candidate, int round)> time;
  int refuses_to_compile = -1;
  int refuses_the_call = -1;
  int wrong = -1;
  std::mutex mutex;
  std::map<int, int> prepared;
  std::map<int, int> measured;
  std::vector<int> order;
  std::vector<std::string> log;
};

// Uniform in [-1, 1], a function of its arguments.
double noise(int candidate, int round) {
  auto z = static_cast<std::uint64_t>(candidate * 1000 + round + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return static_cast<double>(z >> 11U) * 0x1p-52 - 1;
}

int chosen(const AutotuneResult& result) { return result.chosen ? static_cast<int>(*result.chosen) : -1; }

}  // namespace

BOOST_AUTO_TEST_CASE(the_fastest_is_chosen) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) { return std::vector{100.0, 99.0, 90.0, 120.0}[static_cast<std::size_t>(c)]; };
  const AutotuneResult result = autotune(candidates(4), measurer, {});
  BOOST_TEST(chosen(result) == 2);
  BOOST_TEST(!result.stopped);
  BOOST_TEST(result.trials[2].median_us == 90.0);
  for (int c = 0; c < 4; ++c) BOOST_TEST(measurer.prepared[c] == 1);
}

BOOST_AUTO_TEST_CASE(those_clearly_behind_run_no_further_rounds) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int round) { return (c == 1 ? 200.0 : 100.0 + c) + noise(c, round); };
  const AutotuneResult result = autotune(candidates(3), measurer, {.fewest_rounds = 3, .most_rounds = 11});
  BOOST_TEST(measurer.measured[0] == 12);  // the first warms up
  BOOST_TEST(measurer.measured[1] == 3);
  BOOST_TEST(measurer.measured[2] == 12);
  BOOST_TEST(result.trials[0].samples_us.size() == 11U);
  BOOST_TEST(result.trials[1].samples_us.size() == 2U);
}

BOOST_AUTO_TEST_CASE(a_leader_alone_ends_it) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) { return c == 0 ? 50.0 : 100.0; };
  BOOST_TEST(chosen(autotune(candidates(3), measurer, {.fewest_rounds = 4})) == 0);
  BOOST_TEST(measurer.measured[0] == 5);
}

BOOST_AUTO_TEST_CASE(the_incumbent_is_kept_within_the_noise) {
  int kept = 0;
  for (int seed = 0; seed < 200; ++seed) {
    FakeMeasurer measurer;  // all are equal, and scatter by 2 %
    measurer.time = [&](int c, int round) { return 100 + 2 * noise(c + 10 * seed, round); };
    kept += chosen(autotune(candidates(6), measurer, {})) == 0 ? 1 : 0;
  }
  BOOST_TEST(kept >= 160, kept << " of 200 incumbents were kept");
}

BOOST_AUTO_TEST_CASE(a_difference_beyond_the_noise_is_found) {
  int found = 0;
  for (int seed = 0; seed < 200; ++seed) {
    FakeMeasurer measurer;  // the last is 4 % faster, and all scatter by 2 %
    measurer.time = [&](int c, int round) { return (c == 5 ? 96 : 100) + 2 * noise(c + 10 * seed, round); };
    found += chosen(autotune(candidates(6), measurer, {})) == 5 ? 1 : 0;
  }
  BOOST_TEST(found >= 190, found << " of 200 winners were found");
}

// Both slow down together, by far more than they differ.
BOOST_AUTO_TEST_CASE(a_clock_that_drifts_does_not_decide) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int round) { return (c == 0 ? 100.0 : 98.0) * (1 + 0.02 * round); };
  BOOST_TEST(chosen(autotune(candidates(2), measurer, {.behind = 0.5})) == 1);
}

BOOST_AUTO_TEST_CASE(a_steady_difference_that_is_too_small_is_none) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) { return c == 0 ? 100.0 : 99.6; };
  BOOST_TEST(chosen(autotune(candidates(2), measurer, {.noise = 0.005})) == 0);
  BOOST_TEST(chosen(autotune(candidates(2), measurer, {.noise = 0.003})) == 1);
}

BOOST_AUTO_TEST_CASE(one_spike_drops_nobody) {
  for (int spike = 0; spike < 6; ++spike) {
    FakeMeasurer measurer;
    measurer.time = [&](int c, int round) { return c == 1 ? (round == spike ? 1000.0 : 90.0) : 95.0; };
    BOOST_TEST(chosen(autotune(candidates(2), measurer, {})) == 1, "with a spike in round " << spike);
  }
}

BOOST_AUTO_TEST_CASE(the_first_round_does_not_count) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int round) { return round == 0 ? 1.0 : 100.0 + 10 * c; };
  const AutotuneResult result = autotune(candidates(2), measurer, {});
  BOOST_TEST(result.trials[0].median_us == 100.0);
}

BOOST_AUTO_TEST_CASE(the_order_within_a_round_changes) {
  FakeMeasurer measurer;
  measurer.time = [](int, int) { return 100.0; };
  autotune(candidates(3), measurer, {.most_rounds = 3});
  BOOST_TEST_CHECK(measurer.order == (std::vector{0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2}),
                   boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(wrong_results_are_out_however_fast) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) { return c == 1 ? 1.0 : 100.0; };
  measurer.wrong = 1;
  const AutotuneResult result = autotune(candidates(3), measurer, {});
  BOOST_TEST(chosen(result) == 0);
  BOOST_TEST(measurer.measured[1] == 0);
  BOOST_TEST(result.trials[1].wrong);
  BOOST_TEST(result.trials[1].problem == "row 3 is wrong");
}

BOOST_AUTO_TEST_CASE(candidates_that_fail_are_out_alone) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) -> double {
    if (c == 2) throw Error(ErrorCode::cuda_failed, "candidate", "launch failed");
    return 100.0 - 10 * c;
  };
  measurer.refuses_to_compile = 0;
  measurer.refuses_the_call = 1;
  const AutotuneResult result = autotune(candidates(4), measurer, {});
  BOOST_TEST(chosen(result) == 3);
  BOOST_TEST(result.trials[0].problem == "candidate: does not compile");
  BOOST_TEST(result.trials[1].problem == "candidate: takes no such call");
  BOOST_TEST(result.trials[2].problem == "candidate: launch failed");
  BOOST_TEST(!result.trials[1].wrong);
}

BOOST_AUTO_TEST_CASE(the_incumbent_is_the_first_that_works) {
  FakeMeasurer measurer;
  measurer.time = [](int, int) { return 100.0; };
  measurer.refuses_the_call = 0;
  BOOST_TEST(chosen(autotune(candidates(3), measurer, {})) == 1);
}

BOOST_AUTO_TEST_CASE(nothing_works) {
  FakeMeasurer measurer;
  measurer.wrong = 0;
  BOOST_TEST(chosen(autotune(candidates(1), measurer, {})) == -1);
  BOOST_TEST(chosen(autotune({}, measurer, {})) == -1);
}

BOOST_AUTO_TEST_CASE(one_candidate_is_timed_too) {
  FakeMeasurer measurer;
  measurer.time = [](int, int) { return 7.0; };
  const AutotuneResult result = autotune(candidates(1), measurer, {.fewest_rounds = 3});
  BOOST_TEST(chosen(result) == 0);
  BOOST_TEST(result.trials[0].median_us == 7.0);
  BOOST_TEST(result.trials[0].samples_us.size() == 3U);
}

BOOST_AUTO_TEST_CASE(stopped_at_any_moment_nothing_is_chosen) {
  int steps = 0;
  {
    FakeMeasurer measurer;
    measurer.time = [](int c, int) { return 100.0 + c; };
    autotune(candidates(4), measurer, {.threads = 1, .stop = [&] {
                                         ++steps;
                                         return false;
                                       }});
  }
  BOOST_TEST(steps > 50);
  for (int last = 0; last < steps; ++last) {
    FakeMeasurer measurer;
    measurer.time = [](int c, int) { return 100.0 + c; };
    int asked = 0;
    const AutotuneResult result =
        autotune(candidates(4), measurer, {.threads = 1, .stop = [&] { return asked++ >= last; }});
    BOOST_TEST(result.stopped);
    BOOST_TEST(!result.chosen.has_value());
  }
}

BOOST_AUTO_TEST_CASE(in_a_hurry_the_fewest_rounds_do) {
  FakeMeasurer measurer;
  measurer.time = [](int c, int) { return 100.0 + c; };
  const AutotuneResult result =
      autotune(candidates(3), measurer, {.fewest_rounds = 3, .most_rounds = 50, .hurry = [] { return true; }});
  BOOST_TEST(measurer.measured[0] == 4);
  BOOST_TEST(chosen(result) == 0);
}

BOOST_AUTO_TEST_CASE(compiled_side_by_side) {
  class Slow final : public MatmulMeasurer {
   public:
    void prepare(const MatmulSpec&) override {
      const int now = ++inside;
      int most = at_once;
      while (now > most && !at_once.compare_exchange_weak(most, now)) {}
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      --inside;
    }
    std::string check(const MatmulSpec&) override { return "not looked at"; }
    double measure(const MatmulSpec&) override { return 1; }
    std::atomic<int> inside{0};
    std::atomic<int> at_once{0};
  } measurer;
  autotune(candidates(8), measurer, {.threads = 4});
  BOOST_TEST(measurer.at_once == 4);
}

BOOST_AUTO_TEST_SUITE_END()
