// ContextOptions::check_experts on a GPU: errors name the expert; without it, wrong values touch nothing outside.
#include "support/expert_checks_case.h"

#include "support/expect_error.h"
#include "support/gpu_test.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_expert_checks_gpu)

BOOST_AUTO_TEST_SUITE(small)
BOOST_AUTO_TEST_CASE(errors_name_the_expert_or_the_row) {
  Context context(cuda_options());
  Backend& backend = context.backend();
  Stream stream(backend);
  ExpertChecksCase of(backend, stream);
  for (const bool checks : {false, true}) {
    backend.device_api().set_checks_experts(checks);
    BOOST_TEST(of.grouped_gemm({0, 16, 48}) == "");
    BOOST_TEST(of.gathered_cast({7, 0, 0, 3}) == "");
    BOOST_TEST(of.experts_cast({0, 16, 48}) + of.dequant_matmul({0, 16, 48}) + of.combine({0, -1, 47, 0}) == "");
    const std::string decrease = of.grouped_gemm({16, 9, 48});
    const std::string beyond = of.grouped_gemm({16, 20, 1 << 30});
    const std::string counts = of.grouped_gemm({16, 17, -3}, true);
    const std::string rows = of.gathered_cast({0, 1 << 30, -7});
    const std::string sums = of.column_sum({16, 9, 48});
    const std::string casts = of.experts_cast({16, 9, 1 << 30});
    const std::string decoded = of.dequant_matmul({16, 20, 1 << 30}) + of.dequant_matmul({16, 17, -3}, true);
    const std::string combined = of.combine({0, 1, -1, 1 << 30});
    const std::string of_rows = of.column_sum({0, 1, 3}, {0, 1 << 30, -7});
    backend.device_api().synchronize(stream);
    if (!checks) {
      BOOST_TEST(decrease + beyond + counts + rows + casts + decoded + combined + sums + of_rows == "");
      continue;
    }
    check_contains(decrease, {"grouped_gemm ends: say that expert 1 ends at row 9"});
    check_contains(beyond, {"grouped_gemm ends: say that expert 2 ends at row 1073741824, but a has 48 rows"});
    check_contains(counts, {"grouped_gemm counts: say that expert 1 has 17 rows"});
    check_contains(rows, {"cast row_index: says that row 1 is row 1073741824 of the input, which has 8"});
    check_contains(casts, {"cast ends: say that expert 1 ends at row 9"});
    check_contains(decoded, {"dequant_matmul ends: say that expert 2 ends at row 1073741824",
                             "dequant_matmul counts: say that expert 1 has 17 rows"});
    check_contains(combined, {"combine index: says that row 1 of the output sums row 1073741824 of the input"});
    check_contains(sums, {"column_sum ends: say that expert 1 ends at row 9"});
    check_contains(of_rows, {"column_sum row_index: says that row 1 is row 1073741824 of the input, which has 8"});
  }
}
BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
