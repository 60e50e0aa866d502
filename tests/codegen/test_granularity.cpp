// Scale granularities: how they print and parse, and how many scales a matrix has.
#include <boost/test/unit_test.hpp>
#include <cstdint>

#include "ingot/codegen/types/granularity.h"

using namespace ingot;

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(kTensorwise) == "tensor");
  BOOST_TEST(print(kRowwise) == "row");
  BOOST_TEST(print({0, 1}) == "col");
  BOOST_TEST(print({1, 128}) == "1x128");
  BOOST_TEST(print({128, 128}) == "128x128");
  BOOST_TEST(print({0, 128}) == "0x128");
}

BOOST_AUTO_TEST_CASE(parse_inverts_print) {
  for (const int rows : {0, 1, 2, 128, INT32_MAX}) {
    for (const int cols : {0, 1, 2, 128, INT32_MAX}) {
      const ScaleGranularity granularity{rows, cols};
      const auto parsed = parse_granularity(print(granularity));
      BOOST_TEST((parsed == granularity), print(granularity)
                                              << " came back as " << (parsed ? print(*parsed) : "nothing"));
    }
  }
}

BOOST_AUTO_TEST_CASE(anything_else_is_refused) {
  for (const char* text : {"", "x", "1x", "x1", "rows", "Row", "tensorwise", "1x128x1", "-1x128", "1x-128", "+1x1",
                           "1 x1", "1x1 ", "2147483648x1", "1X1"}) {
    BOOST_TEST(!parse_granularity(text).has_value(), "\"" << text << "\" was taken for a granularity");
  }
}

BOOST_AUTO_TEST_CASE(number_of_scales) {
  BOOST_TEST(scale_count(kTensorwise, 5, 7) == 1);
  BOOST_TEST(scale_count(kTensorwise, 0, 7) == 1);
  BOOST_TEST(scale_count(kTensorwise, 0, 0) == 1);
  BOOST_TEST(scale_count(kRowwise, 5, 7) == 5);
  BOOST_TEST(scale_count(kRowwise, 5, 0) == 5);
  BOOST_TEST(scale_count(kRowwise, 0, 7) == 0);
  BOOST_TEST(scale_count({0, 1}, 5, 7) == 7);
  BOOST_TEST(scale_count({1, 128}, 5, 128) == 5);
  BOOST_TEST(scale_count({1, 128}, 5, 129) == 10);
  BOOST_TEST(scale_count({128, 128}, 129, 257) == 6);
  BOOST_TEST(scale_count({2, 0}, INT64_MAX, 1) == INT64_MAX / 2 + 1);  // no overflow on the way
}
