// The check of vectors of scales: its words follow from the granularity's numbers, whichever it is.
#include "ingot/runtime/core/check_scales.h"

#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check_scales)

using namespace ingot;

namespace {

constexpr ScaledMatrix kMatrix{.whole = "one for all", .row = "one for a row", .in_row = "along K", .of = " of it"};

std::string words(ScaleGranularity granularity) { return scales_in_words(granularity, kMatrix); }

alignas(16) float memory[64];

Tensor scales(std::int64_t count) { return vector(memory, Dtype::f32, count, Device{}); }

void check_256x300(const Tensor& tensor) {
  check_scales("some scale_inv", tensor, Dtype::f32, {64, 128}, 256, 300, Device{}, kMatrix);
}

}  // namespace

BOOST_AUTO_TEST_CASE(words_of_each_kind) {
  BOOST_TEST(words(kTensorwise) == "one for all");
  BOOST_TEST(words(kRowwise) == "one for a row");
  BOOST_TEST(words(kColumnwise) == "one for each column of it");
  BOOST_TEST(words({4, 0}) == "one for each 4 rows of it");
  BOOST_TEST(words({0, 4}) == "one for each 4 columns of it");
  BOOST_TEST(words({1, 48}) == "one for each group of 48 along K, row by row");
  BOOST_TEST(words({48, 1}) == "one for each group of 48 in a column of it, 48 rows by 48 rows");
  BOOST_TEST(words({64, 128}) == "one for each block of 64 x 128 of it, row by row");
}

BOOST_AUTO_TEST_CASE(no_two_granularities_have_the_same_words) {
  std::set<std::string> found;
  for (const int rows : {0, 1, 32, 64, 128}) {
    for (const int cols : {0, 1, 32, 64, 128}) {
      BOOST_TEST(found.insert(words({rows, cols})).second, print(ScaleGranularity{rows, cols}));
    }
  }
}

BOOST_AUTO_TEST_CASE(as_many_as_the_matrix_has_scales) {
  BOOST_CHECK_NO_THROW(check_256x300(scales(12)));
  const std::string expected = "it must be [1, 12]: one for each block of 64 x 128 of it, row by row";
  BOOST_TEST(test::refused([] { check_256x300(scales(11)); }).message.ends_with(expected));
  BOOST_TEST(test::refused([] { check_256x300({}); }).message ==
             "some scale_inv: is missing; it must be f32[1, 12]: one for each block of 64 x 128 of it, row by row");
}

BOOST_AUTO_TEST_SUITE_END()
