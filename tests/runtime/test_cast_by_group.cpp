// Casts on the CPU whose scale_inv of 1x128 groups form a matrix with one row for each group of columns: the bits of
// those that go row by row, in their places. Whoever reads such scale_inv reads them in either order.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "support/cast_by_group_case.h"
#include "support/compare.h"
#include "support/refused.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_by_group)

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;
};

// The first scale_inv whose bits differ; empty if there is none.
std::string scale_inv_difference(const GuardedMatrix& by_row, const GuardedMatrix& by_group, std::int64_t rows) {
  const std::int64_t groups = by_row.cols() / rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < groups; ++g) {
      if (by_row.bits(0, r * groups + g) == by_group.bits(g, r)) continue;
      return "row " + std::to_string(r) + ", group " + std::to_string(g) + ": " + std::to_string(by_group.value(g, r)) +
             ", expected " + std::to_string(by_row.value(0, r * groups + g));
    }
  }
  return {};
}

bool grouped(const CastSpec& spec, const std::string& output) {
  return (output == "scale_inv" && spec.scale == kRowGroups) ||
         (output == "transposed_scale_inv" && spec.transposed_scale == kRowGroups);
}

constexpr Device kCpu{};

Tensor at(std::uintptr_t address, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  return matrix(reinterpret_cast<void*>(address), dtype, rows, cols, kCpu);
}

std::string message(const Tensor& scale_inv, ScaleGranularity scale = kRowGroups) {
  return refused([&] {
           check(CastSpec{.scale = scale},
                 {.input = at(0x1000, Dtype::bf16, 6, 300),
                  .codes = at(0x8000, Dtype::e4m3fn, 6, 300),
                  .scale_inv = scale_inv},
                 kCpu);
         })
      .message;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cast_by_group, Fixture)

BOOST_AUTO_TEST_CASE(has_the_bits_of_row_by_row) {
  for (const Case& c : casts_by_group()) {
    const auto& spec = std::get<CastSpec>(c.spec);
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices by_group = run(c, inputs, *backend, stream);
    Case ordinary = c;
    ordinary.scale_inv_by_group = false;
    const Matrices by_row = run(ordinary, inputs, *backend, stream);
    std::string fault = damage(by_group);
    for (const auto& [what, output] : by_group) {
      if (!fault.empty()) break;
      fault = grouped(spec, what) ? scale_inv_difference(by_row.at(what), output, c.shape.rows)
                                  : bit_difference(what, by_row.at(what), output);
    }
    BOOST_TEST(fault == "", name(c));
  }
}

// The statistics of a cast.
BOOST_AUTO_TEST_CASE(statistics_read_either_order) {
  constexpr std::int64_t kRows = 131, kCols = 300, kGroups = 3;
  Case c{.spec = parse("cast bf16->e4m3fn scale=1x128"), .shape = {.rows = kRows, .cols = kCols}};
  const SharedMatrices inputs = maker.inputs(c);
  std::vector<CastStats> found;
  for (const bool by_group : {false, true}) {
    c.scale_inv_by_group = by_group;
    PlacedCase placed(c, inputs, *backend, stream);
    placed.enqueue(stream);
    CastStats stats;
    backend->cast_stats({.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowGroups},
                        {.input = placed.tensor("input"),
                         .codes = placed.tensor("codes"),
                         .scale_inv = placed.tensor("scale_inv"),
                         .stats = vector(&stats, Dtype::f32, kCastStatsWords, kCpu)},
                        stream);
    BOOST_TEST(placed.tensor("scale_inv").rows == (by_group ? kGroups : 1));
    found.push_back(stats);
  }
  BOOST_TEST(std::memcmp(&found[0], &found[1], sizeof(CastStats)) == 0);
  BOOST_TEST(found[0].sum_of_squared_errors > 0);
  BOOST_TEST(found[0].smallest_scale_inv < found[0].largest_scale_inv);
}

// Which scale_inv must be copied for cuBLASLt, and which not.
BOOST_AUTO_TEST_CASE(cublaslt_reads_them_as_they_are) {
  const Tensor by_group = at(0x1000, Dtype::f32, 3, 6);
  BOOST_TEST(cublaslt_scale_inv(by_group, kRowGroups, 6, 300).bytes() == 0U);
  BOOST_TEST(cublaslt_scale_inv(at(0x1000, Dtype::f32, 1, 18), kRowGroups, 6, 300).bytes() > 0U);
}

BOOST_AUTO_TEST_CASE(what_a_cast_says_of_other_shapes) {
  BOOST_TEST(message(at(0x10000, Dtype::f32, 1, 18)) == "nothing was thrown");
  BOOST_TEST(message(at(0x10000, Dtype::f32, 3, 6)) == "nothing was thrown");
  BOOST_TEST(
      message(at(0x10000, Dtype::f32, 6, 3)) ==
      "cast scale_inv: is f32[6, 3] on cpu; it must be [1, 18]: one for each group of 128 in a row of the input, row "
      "by row, or [3, 6]: one row for each group of columns");
  BOOST_TEST(message(at(0x10000, Dtype::bf16, 3, 6)) == "cast scale_inv: is bf16[3, 6] on cpu; the spec asks for f32");
  BOOST_TEST(
      message(at(0x10000, Dtype::f32, 3, 1), kBlocks) ==
      "cast scale_inv: is f32[3, 1] on cpu; it must be [1, 3]: one for each block of 128 x 128 of the input, row by "
      "row");
  BOOST_TEST(refused([&] {
               check(CastStatsSpec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowGroups},
                     {.input = at(0x1000, Dtype::bf16, 6, 300),
                      .codes = at(0x8000, Dtype::e4m3fn, 6, 300),
                      .scale_inv = at(0x10000, Dtype::f32, 6, 3),
                      .stats = at(0x20000, Dtype::f32, 1, kCastStatsWords)},
                     kCpu);
             }).message ==
             "cast_stats scale_inv: is f32[6, 3] on cpu; it must be [1, 18]: one for each group of 128 in a row of the "
             "input, row by row, or [3, 6]: one row for each group of columns");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
