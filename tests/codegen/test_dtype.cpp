#include <boost/test/unit_test.hpp>
#include <string>

#include "ingot/codegen/dtype.h"

using namespace ingot;

namespace boost::test_tools::tt_detail {
template <>
struct print_log_value<Dtype> {
  void operator()(std::ostream& stream, Dtype dtype) { stream << name(dtype); }
};
}  // namespace boost::test_tools::tt_detail

BOOST_AUTO_TEST_CASE(names_are_the_fields) {
  BOOST_TEST(name(Dtype::f32) == "f32");
  BOOST_TEST(name(Dtype::bf16) == "bf16");
  BOOST_TEST(name(Dtype::f16) == "f16");
  BOOST_TEST(name(Dtype::e4m3fn) == "e4m3fn");
  BOOST_TEST(name(Dtype::e5m2) == "e5m2");
  BOOST_TEST(name(Dtype::e4m3fnuz) == "e4m3fnuz");
  BOOST_TEST(name(Dtype::e5m2fnuz) == "e5m2fnuz");
  BOOST_TEST(name(static_cast<Dtype>(12)) == "unknown dtype");
  BOOST_TEST(name(static_cast<Dtype>(255)) == "unknown dtype");
}

BOOST_AUTO_TEST_CASE(parse_inverts_name) {
  for (const Dtype dtype : kHighPrecisionDtypes) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
  for (const Dtype dtype : kFp8Dtypes) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
  for (const char* text : {"", "f", "f32 ", " f32", "F32", "e4m3", "e4m3fnu", "e5m2fnuzz", "unknown dtype"}) {
    BOOST_TEST(!parse_dtype(text).has_value(), "\"" << text << "\" was taken for a dtype");
  }
}

BOOST_AUTO_TEST_CASE(sizes_and_maxima) {
  BOOST_TEST(size_of(Dtype::f32) == 4);
  BOOST_TEST(size_of(Dtype::bf16) == 2);
  BOOST_TEST(size_of(Dtype::f16) == 2);
  for (const Dtype dtype : kHighPrecisionDtypes) {
    BOOST_TEST(!is_fp8(dtype));
    BOOST_TEST(fp8_max(dtype) == 0.0F);
  }
  for (const Dtype dtype : kFp8Dtypes) {
    BOOST_TEST(size_of(dtype) == 1);
    BOOST_TEST(is_fp8(dtype));
  }
  BOOST_TEST((is_ocp(Dtype::e4m3fn) && is_ocp(Dtype::e5m2)));
  for (const Dtype dtype : {Dtype::e4m3fnuz, Dtype::e5m2fnuz, Dtype::f16, Dtype::f32}) BOOST_TEST(!is_ocp(dtype));
  BOOST_TEST(fp8_max(Dtype::e4m3fn) == 448.0F);
  BOOST_TEST(fp8_max(Dtype::e5m2) == 57344.0F);
  BOOST_TEST(fp8_max(Dtype::e4m3fnuz) == 240.0F);
  BOOST_TEST(fp8_max(Dtype::e5m2fnuz) == 57344.0F);
}
