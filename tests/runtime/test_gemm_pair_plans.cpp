// Whether one launch computes two GEMMs, as a backend keeps it, and what the recorder gets of them.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/recorder.h"

BOOST_AUTO_TEST_SUITE(test_gemm_pair_plans)

using namespace ingot;

namespace {

struct Fixture {
  Recorder recorder;
  MatmulDevice device{.target = target_for(9, 0), .multiprocessors = 132};
  int asked = 0;
  GemmPairPlans::Available always = [this](const GemmPairSpec&) { return ++asked > 0; };
  GemmPairPlans::Own own;

  static GemmCall call(const std::string& layouts, std::int64_t m, std::int64_t n, std::int64_t k) {
    return {.spec = std::get<GemmSpec>(parse("gemm bf16*bf16->bf16 " + layouts)), .size = {m, n, k}};
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(gemm_pair_plans, Fixture)

BOOST_AUTO_TEST_CASE(a_pair_is_chosen_once_and_its_gemms_noted) {
  GemmPairPlans plans({.recorder = &recorder}, device, always);
  const GemmCall first = call("nn", 512, 256, 384);
  const GemmCall second = call("tn", 384, 256, 512);
  const GemmPairSpec* const pair = plans.find(first, second, own);
  BOOST_REQUIRE(pair != nullptr);
  BOOST_TEST((*pair == choose_gemm_pair(first, second, device)));
  BOOST_TEST(plans.find(first, second, own) == pair);
  BOOST_TEST(!own.has_value());
  BOOST_TEST(asked == 1);
  BOOST_TEST(recorder.recording().matmuls().size() == 2U);
}

// Those that run apart are noted where they run.
BOOST_AUTO_TEST_CASE(what_runs_apart_is_not_noted) {
  GemmPairPlans plans({.recorder = &recorder}, device, always);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(plans.find(call("nn", 8192, 4096, 4096), call("tn", 4096, 4096, 8192), own) == nullptr);
  }
  BOOST_TEST(asked == 0);
  BOOST_TEST(recorder.recording().empty());
}

// In the mode strict, or without a compiler.
BOOST_AUTO_TEST_CASE(there_is_no_pair_whose_kernel_cannot_be_had) {
  GemmPairPlans plans({.recorder = &recorder}, device, [](const GemmPairSpec&) { return false; });
  BOOST_TEST(plans.find(call("nn", 512, 512, 512), call("tn", 512, 512, 512), own) == nullptr);
  BOOST_TEST(recorder.recording().empty());
}

BOOST_AUTO_TEST_CASE(a_full_table_keeps_what_it_has) {
  GemmPairPlans few({}, device, always, 2);
  const GemmPairSpec* kept = nullptr;
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t m = 64; m <= 320; m += 64) {
      own.reset();
      const GemmCall first = call("nn", m, 256, 256);
      const GemmCall second = call("tn", 256, 256, m);
      const GemmPairSpec* const pair = few.find(first, second, own);
      BOOST_REQUIRE(pair != nullptr);
      BOOST_TEST((*pair == choose_gemm_pair(first, second, device)));
      BOOST_TEST(own.has_value() == (m > 128));
      if (m != 64) continue;
      if (round == 0) kept = pair;
      BOOST_TEST(kept == pair);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
