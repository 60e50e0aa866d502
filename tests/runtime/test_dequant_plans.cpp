// Which kernels a dequant_matmul is to be tried with, and what of it is noted for tuning.
#include <boost/test/unit_test.hpp>

#include <filesystem>

#include "ingot/runtime/cuda/dequant_plans.h"
#include "ingot/runtime/gemm_choices.h"
#include "ingot/runtime/gemm_manifest.h"
#include "support/temporary_directory.h"
#include "support/tuning_records.h"

using namespace ingot;

namespace {

struct Fixture {
  test::TemporaryDirectory directory;
  std::filesystem::path manifest_file = directory.path() / "manifest";
  TuningStore store{directory.path() / "store", {}};
  GemmManifest manifest{manifest_file};
  DequantPlace place{.target = target_for(9, 0), .multiprocessors = 132};
  DequantMatmulSpec spec = std::get<DequantMatmulSpec>(test::dequant_record().spec);
  DequantSize size{.m = 16, .n = 4096, .k = 14336};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(dequant_plans, Fixture)

BOOST_AUTO_TEST_CASE(what_was_tuned_comes_first) {
  const TuningRecord tuned = test::dequant_record(size.m);
  store.put(tuned);
  GemmChoices choices(Tuning::on, store, {}, test::machine());
  DequantPlans plans({.choices = &choices}, place);
  const auto order = plans.find(spec, size);
  const auto own = dequant_order(spec, size, place);
  BOOST_REQUIRE(order.size() == own.size() + 1);
  BOOST_TEST((Product(order[0]) == tuned.chosen));
  for (std::size_t i = 0; i < own.size(); ++i) BOOST_TEST((order[i + 1] == own[i]));
  for (const DequantMatmulSpec& each : order) BOOST_TEST(each.tiling.has_value());
}

// Of a batch-invariant product no record is read, so none is asked for.
BOOST_AUTO_TEST_CASE(batch_invariant_products_are_not_tuned) {
  spec.batch_invariant = true;
  TuningRecord tuned = test::dequant_record(size.m);
  std::get<DequantMatmulSpec>(tuned.spec).batch_invariant = true;
  std::get<DequantMatmulSpec>(tuned.chosen).batch_invariant = true;
  store.put(tuned);
  GemmChoices choices(Tuning::on, store, {}, test::machine());
  DequantPlans plans({.choices = &choices, .manifest = &manifest}, place);
  const auto order = plans.find(spec, size);
  const auto own = dequant_order(spec, size, place);
  BOOST_REQUIRE(order.size() == own.size());
  for (std::size_t i = 0; i < own.size(); ++i) BOOST_TEST((order[i] == own[i]));
  BOOST_TEST(!std::filesystem::exists(manifest_file));

  spec.batch_invariant = false;
  plans.find(spec, size);
  const GemmManifestFile noted = read_gemm_manifest(manifest_file);
  BOOST_REQUIRE(noted.calls.size() == 1U);
  BOOST_TEST((noted.calls[0].spec == Product(spec)));
}

BOOST_AUTO_TEST_SUITE_END()
