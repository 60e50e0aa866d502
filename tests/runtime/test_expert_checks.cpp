// ContextOptions::check_experts: ends, counts and indices out of bounds, on the CPU and in a dry run.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/expect_error.h"
#include "support/expert_checks_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_expert_checks)

BOOST_AUTO_TEST_CASE(errors_name_the_expert_or_the_row) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream(*backend);
  ExpertChecksCase of(*backend, stream);
  BOOST_TEST(of.gathered_cast({0, 9, 1}) == "");  // unspecified values, and nothing outside is read
  BOOST_TEST(of.combine({0, 48, 1, -1}) == "");
  backend->device_api().set_checks_experts(true);
  BOOST_TEST(of.grouped_gemm({0, 16, 48}) == "");
  check_contains(of.grouped_gemm({16, 9, 48}), {"grouped_gemm ends: say that expert 1 ends at row 9"});
  check_contains(of.grouped_gemm({16, 20, 49}),
                 {"grouped_gemm ends: say that expert 2 ends at row 49, but a has 48 rows"});
  check_contains(of.grouped_gemm({16, 17, 3}, true), {"grouped_gemm counts: say that expert 1 has 17 rows"});
  BOOST_TEST(of.gathered_cast({7, 0, 0, 3}) == "");
  BOOST_TEST(of.gathered_cast({0, 8, 1}) == "cast row_index: says that row 1 is row 8 of the input, which has 8");
  BOOST_TEST(of.column_sum({0, 16, 48}) == "");
  BOOST_TEST(of.column_sum({0, 1, 4}, {7, 0, 0, 3}) == "");
  check_contains(of.column_sum({16, 9, 48}), {"column_sum ends: say that expert 1 ends at row 9"});
  check_contains(of.column_sum({0, 1, 5}, {7, 0, 0, 3}),
                 {"column_sum ends: say that expert 2 ends at row 5, but the sum has 4 rows"});
  BOOST_TEST(of.column_sum({0, 1, 3}, {0, 8, 1}) ==
             "column_sum row_index: says that row 1 is row 8 of the input, which has 8");
  BOOST_TEST(of.experts_cast({0, 16, 48}) == "");
  check_contains(of.experts_cast({16, 9, 48}), {"cast ends: say that expert 1 ends at row 9"});
  check_contains(of.experts_cast({16, 20, 49}),
                 {"cast ends: say that expert 2 ends at row 49, but the cast has 48 rows"});
  BOOST_TEST(of.dequant_matmul({0, 16, 48}) == "");
  check_contains(of.dequant_matmul({16, 9, 48}), {"dequant_matmul ends: say that expert 1 ends at row 9"});
  check_contains(of.dequant_matmul({16, 20, 49}), {"dequant_matmul ends: say that expert 2 ends at row 49"});
  check_contains(of.dequant_matmul({16, 17, 3}, true), {"dequant_matmul counts: say that expert 1 has 17 rows"});
  check_contains(of.dequant_matmul({16, -1, 3}, true), {"dequant_matmul counts: say that expert 1 has -1 rows"});
  BOOST_TEST(of.combine({0, -1, 47, 0}) == "");
  BOOST_TEST(
      of.combine({0, 1, -1, 48}) ==
      "combine index: says that row 1 of the output sums row 48 of the input, which has 48: one below 0 counts as "
      "none");
  BOOST_TEST(of.gathered_cast({0, 1, -1}) == "cast row_index: says that row 2 is row -1 of the input, which has 8");
}

BOOST_AUTO_TEST_CASE(a_capture_is_refused) {
  DryRun dry(gpu_named("h200"));
  Stream stream(dry.backend());
  ExpertChecksCase of(dry.backend(), stream);
  BOOST_TEST(of.gathered_cast({0, 1}) == "");
  dry.backend().device_api().set_checks_experts(true);
  std::string message;
  const std::string of_graph = ExpertChecksCase::error_of_call([&] {
    const Graph graph(stream, [&] { message = of.gathered_cast({0, 1}, true); });
  });
  check_contains(message + of_graph,
                 {"cast row_index: are to be read, as ContextOptions::check_experts asks for, but the "
                  "stream is capturing"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
