// Which kernels a dequant_matmul tries, in which order, and what is recorded of it.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

BOOST_AUTO_TEST_SUITE(test_dequant_plans)

using namespace ingot;

namespace {

struct Fixture {
  test::TemporaryDirectory directory;
  TuningStore store{directory.path() / "store", {}};
  Recorder recorder;
  MatmulDevice place{.target = target_for(9, 0), .multiprocessors = 132};
  DequantMatmulSpec spec = std::get<DequantMatmulSpec>(test::dequant_record().spec);
  MatmulSize size{.m = 16, .n = 4096, .k = 14336};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(dequant_plans, Fixture)

BOOST_AUTO_TEST_CASE(what_was_tuned_comes_first) {
  const TuningRecord tuned = test::dequant_record(size.m);
  store.put(tuned);
  MatmulChoices choices(Tuning::on, {.store = &store}, test::machine());
  DequantPlans plans({.choices = &choices}, place);
  const auto order = plans.find(spec, size);
  const auto own = dequant_order(spec, size, place);
  BOOST_REQUIRE(order.size() == own.size() + 1);
  BOOST_TEST((MatmulSpec(order[0]) == tuned.chosen));
  for (std::size_t i = 0; i < own.size(); ++i) BOOST_TEST((order[i + 1] == own[i]));
  for (const DequantMatmulSpec& each : order) BOOST_TEST(each.tiling.has_value());
}

// However many sizes a program goes through, what is kept is bounded, and the answers are the same.
BOOST_AUTO_TEST_CASE(a_full_table_keeps_what_it_has) {
  DequantPlans few({.recorder = &recorder}, place, 2);
  DequantPlans many({}, place);
  const DequantMatmulSpec* kept = nullptr;
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t m = 1; m <= 5; ++m) {
      const MatmulSize each{.m = m, .n = size.n, .k = size.k};
      const auto order = few.find(spec, each);
      const auto expected = many.find(spec, each);
      BOOST_REQUIRE(order.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) BOOST_TEST((order[i] == expected[i]));
      if (m != 1) continue;
      if (round == 0) kept = &order[0];
      BOOST_TEST(kept == &order[0]);
    }
  }
  BOOST_TEST(recorder.recording().matmuls().size() == 5U);
}

// A batch-invariant GEMM reads no tuning record.
BOOST_AUTO_TEST_CASE(batch_invariant_products_are_not_tuned) {
  spec.batch_invariant = true;
  TuningRecord tuned = test::dequant_record(size.m);
  std::get<DequantMatmulSpec>(tuned.spec).batch_invariant = true;
  std::get<DequantMatmulSpec>(tuned.chosen).batch_invariant = true;
  store.put(tuned);
  MatmulChoices choices(Tuning::on, {.store = &store}, test::machine());
  DequantPlans plans({.choices = &choices, .recorder = &recorder}, place);
  const auto order = plans.find(spec, size);
  const auto own = dequant_order(spec, size, place);
  BOOST_REQUIRE(order.size() == own.size());
  for (std::size_t i = 0; i < own.size(); ++i) BOOST_TEST((order[i] == own[i]));
  spec.batch_invariant = false;
  plans.find(spec, size);
  const std::vector<MatmulCall> noted = recorder.recording().matmuls();
  BOOST_REQUIRE(noted.size() == 2U);
  BOOST_TEST(!is_tuned(noted[0].spec));
  BOOST_TEST((noted[1].spec == MatmulSpec(spec)));
}

BOOST_AUTO_TEST_CASE(the_first_that_takes_the_call_is_run) {
  const std::vector<DequantMatmulSpec> order = dequant_order(spec, size, place);
  BOOST_REQUIRE(order.size() == 2U);
  int tried = 0;
  const auto refuse_first = [&](const DequantMatmulSpec&) { return ++tried == 1 ? "the first does not" : nullptr; };
  run_first(spec, order, refuse_first);
  BOOST_TEST(tried == 2);
  const auto none = [](const DequantMatmulSpec&) { return "it is too large"; };
  BOOST_TEST(test::error_of([&] { run_first(spec, order, none); }, ErrorCode::invalid_argument) ==
             print(spec) + ": it is too large; leave kernel out to have the library choose one");
}

BOOST_AUTO_TEST_CASE(a_gpu_without_kernels) {
  DequantPlans plans({}, {.target = target_for(7, 5), .multiprocessors = 72});
  const auto run = [](const DequantMatmulSpec&) -> const char* { return nullptr; };
  BOOST_TEST(test::error_of([&] { run_first(spec, plans.find(spec, size), run); }, ErrorCode::invalid_argument) ==
             print(spec) + ": no kernel on this GPU supports the spec; the CPU does");
}

namespace {

DequantMatmulTensors tensors_of(const MatmulSize& of) {
  const std::int64_t stride = (of.k + 7) / 8 * 8;
  return {.x = {.dtype = Dtype::bf16, .rows = of.m, .cols = of.k, .row_stride = stride},
          .weight = {},
          .scale_inv = {},
          .out = {.dtype = Dtype::bf16, .rows = of.m, .cols = of.n, .row_stride = of.n}};
}

}  // namespace

// Each of 512 experts may have a tile that is not full; and the table of experts counts rows in 32 bits.
BOOST_AUTO_TEST_CASE(too_many_tiles_of_experts) {
  DequantMatmulSpec of_experts = spec;
  of_experts.experts = true;
  of_experts.kernel = DequantKernel::mma;
  of_experts.tiling = DequantTiling{.tokens = 64, .rows = 64, .depth = 64, .stages = 3};
  DequantMatmulTensors tensors = tensors_of({.m = 1 << 20, .n = 64, .k = 64});
  tensors.ends.experts = 512;
  const auto refusal = [&] {
    const char* const reason = dequant_mma_refusal(of_experts, tensors, target_for(8, 0));
    return std::string(reason == nullptr ? "taken" : reason);
  };
  const std::string many = "kernel mma takes fewer than 2^31 tiles, rows of the weight, and K";
  BOOST_TEST(refusal() == "taken");
  tensors = tensors_of({.m = std::int64_t{1} << 31U, .n = 64, .k = 64});
  BOOST_TEST(refusal() == many);
  tensors = tensors_of({.m = 512, .n = std::int64_t{1} << 28U, .k = 64});
  BOOST_TEST(refusal() == "taken");
  tensors.ends.experts = 512;
  BOOST_TEST(refusal() == many);
}

// Tile counts must fit in 32 bits.
BOOST_AUTO_TEST_CASE(too_many_tiles) {
  DequantMatmulSpec mma = spec;
  mma.kernel = DequantKernel::mma;
  mma.tiling = DequantTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .split = 2, .k_warps = 2};
  const auto mma_refusal = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const char* const refusal = dequant_mma_refusal(mma, tensors_of({.m = m, .n = n, .k = k}), target_for(8, 0));
    return std::string(refusal == nullptr ? "taken" : refusal);
  };
  const std::string many = "kernel mma takes fewer than 2^31 tiles, rows of the weight, and K";
  const std::int64_t large = std::int64_t{1} << 31U;
  BOOST_TEST(mma_refusal(1 << 20, 1 << 18, 64) == "taken");
  BOOST_TEST(mma_refusal(1 << 24, 1 << 20, 64) == many);
  BOOST_TEST(mma_refusal(large * 16, 1, 64) == many);
  BOOST_TEST(mma_refusal(1, large, 64) == many);
  BOOST_TEST(mma_refusal(1, 1, large) == many);
  BOOST_TEST(dequant_mma_refusal(mma, tensors_of({.m = 1, .n = 1, .k = 1}), target_for(7, 5)) ==
             std::string("kernel mma runs on sm_80 and later"));

  DequantMatmulSpec sm90 = spec;
  sm90.kernel = DequantKernel::sm90;
  sm90.tiling = DequantTiling{.tokens = 16, .rows = 128, .depth = 128, .stages = 4};
  const auto sm90_refusal = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const char* const refusal = dequant_sm90_refusal(sm90, tensors_of({.m = m, .n = n, .k = k}), target_for(9, 0));
    return std::string(refusal == nullptr ? "taken" : refusal);
  };
  const std::string beyond = "kernel sm90 takes sizes below 2^31 and as many tiles";
  BOOST_TEST(sm90_refusal(1 << 18, 1 << 18, 64) == "taken");
  BOOST_TEST(sm90_refusal(1 << 24, 1 << 20, 64) == beyond);
  BOOST_TEST(sm90_refusal(large, 1, 64) == beyond);
  BOOST_TEST(sm90_refusal(1, large, 64) == beyond);
  BOOST_TEST(sm90_refusal(1, 1, large) == beyond);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
