// Column sums of experts' rows: right against float64, in the order that the template says, and what is refused.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <functional>
#include <memory>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "support/column_sum_experts_case.h"
#include "support/compare.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_column_sum_experts)

BOOST_AUTO_TEST_CASE(within_rounding_and_in_order) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const ExpertsSumCase& c : experts_sum_cases()) {
    const PlacedExpertsSum placed(c, *backend, stream);
    backend->column_sum(c.spec, placed.tensors(), stream);
    const GuardedMatrix sum = placed.sum(stream);
    BOOST_TEST(placed.worst_error(sum) <= 1.0, describe(c));
    BOOST_TEST(bit_difference("sum", placed.expected(), sum) == "", describe(c));
    BOOST_TEST(sum.damage() == "", describe(c));
  }
}

BOOST_AUTO_TEST_CASE(specs) {
  BOOST_TEST(print(parse("column_sum bf16->f32 experts")) == "column_sum bf16->f32 experts");
  BOOST_TEST((parse("column_sum bf16->f32 experts") != parse("column_sum bf16->f32")));
  check_contains(error_of([] { parse("column_sum bf16->f32 expert"); }, ErrorCode::invalid_spec), {"experts"});
}

namespace {

struct Fixture {
  DryRun dry{gpu_named("h200")};
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  ExpertsSumCase c{.ends = {5, 5, 9}, .rows = 9, .cols = 8, .of = 4};

  std::string refusal(Backend& backend, const std::function<void(ColumnSumSpec&, ColumnSumTensors&)>& change) {
    Stream stream(backend);
    const PlacedExpertsSum placed(c, backend, stream);
    ColumnSumSpec spec = c.spec;
    ColumnSumTensors tensors = placed.tensors();
    change(spec, tensors);
    return error_of([&] { backend.column_sum(spec, tensors, stream); }, ErrorCode::invalid_argument);
  }
  std::string refusal(const std::function<void(ColumnSumSpec&, ColumnSumTensors&)>& change) {
    return refusal(dry.backend(), change);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(refusals, Fixture) {
  const auto nothing = [](ColumnSumSpec&, ColumnSumTensors&) {};
  c.ends = {5, 4, 9};
  check_contains(refusal(*cpu, nothing), {"column_sum ends: say that expert 1 ends at row 4"});
  c.ends = {5, 5, 10};
  check_contains(refusal(*cpu, nothing), {"column_sum ends: say that expert 2 ends at row 10, but the sum has 9 rows"});
  check_contains(refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.ends = {}; }),
                 {"column_sum ends: are of 0 experts, but there must be 1 to 512"});
  check_contains(refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.ends.capacity = 3; }),
                 {"column_sum ends: have a capacity, but the rows of sums follow each other"});
  check_contains(refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.row_index->data = nullptr; }),
                 {"column_sum row_index: "});
  check_contains(
      refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.sum.rows = 2; }),
      {"column_sum sum: is bf16[2, 8]", "it must be [3, 8]: one row for each expert, of the input's columns"});
  check_contains(refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.sum.row_stride = 16; }),
                 {"column_sum sum: ", "its rows must follow each other: give it dense memory"});
  check_contains(refusal([](ColumnSumSpec&, ColumnSumTensors& t) { t.sum.data = t.input.data; }),
                 {"column_sum sum: ", "overlaps that of column_sum input"});
  check_contains(refusal([](ColumnSumSpec& spec, ColumnSumTensors&) { spec.experts = false; }),
                 {"column_sum ends: must not be given (default ExpertEnds and no row_index instead): the spec has no "
                  "experts"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
