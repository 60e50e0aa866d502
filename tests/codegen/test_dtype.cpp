// Dtypes: names, sizes, largest values, and the bytes of rows of codes smaller than a byte.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "ingot/codegen/types/dtype.h"

using namespace ingot;

namespace boost::test_tools::tt_detail {
template <>
struct print_log_value<Dtype> {
  void operator()(std::ostream& stream, Dtype dtype) { stream << name(dtype); }
};
}  // namespace boost::test_tools::tt_detail

BOOST_AUTO_TEST_SUITE(test_dtype)

BOOST_AUTO_TEST_CASE(names_are_the_fields) {
  BOOST_TEST(name(Dtype::f32) == "f32");
  BOOST_TEST(name(Dtype::bf16) == "bf16");
  BOOST_TEST(name(Dtype::f16) == "f16");
  BOOST_TEST(name(Dtype::e4m3fn) == "e4m3fn");
  BOOST_TEST(name(Dtype::e5m2) == "e5m2");
  BOOST_TEST(name(Dtype::e4m3fnuz) == "e4m3fnuz");
  BOOST_TEST(name(Dtype::e5m2fnuz) == "e5m2fnuz");
  BOOST_TEST(name(Dtype::e8m0fnu) == "e8m0fnu");
  BOOST_TEST(name(Dtype::e3m2fn) == "e3m2fn");
  BOOST_TEST(name(Dtype::e2m3fn) == "e2m3fn");
  BOOST_TEST(name(Dtype::e2m1fn) == "e2m1fn");
  BOOST_TEST(name(Dtype::u8) == "u8");
  BOOST_TEST(name(static_cast<Dtype>(12)) == "unknown dtype");
  BOOST_TEST(name(static_cast<Dtype>(255)) == "unknown dtype");
}

BOOST_AUTO_TEST_CASE(parse_inverts_name) {
  for (const Dtype dtype : kHighPrecisionDtypes) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
  for (const Dtype dtype : kFp8Dtypes) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
  for (const Dtype dtype : kSubByteDtypes) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
  for (const Dtype dtype : {Dtype::e8m0fnu, Dtype::u8}) BOOST_TEST(parse_dtype(name(dtype)).value() == dtype);
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

BOOST_AUTO_TEST_CASE(less_than_a_byte) {
  for (const Dtype dtype : kSubByteDtypes) {
    BOOST_TEST(is_sub_byte(dtype));
    BOOST_TEST(!is_fp8(dtype));
    BOOST_TEST(!is_ocp(dtype));
    BOOST_TEST(size_of(dtype) == 1);
    BOOST_TEST(packed_unit(dtype) * bits_of(dtype) % 8 == 0);
    BOOST_TEST(packed_unit(dtype) / 2 * bits_of(dtype) % 8 != 0);  // the smallest such number
  }
  BOOST_TEST(bits_of(Dtype::e3m2fn) == 6);
  BOOST_TEST(bits_of(Dtype::e2m3fn) == 6);
  BOOST_TEST(bits_of(Dtype::e2m1fn) == 4);
  BOOST_TEST(packed_unit(Dtype::e3m2fn) == 4);
  BOOST_TEST(packed_unit(Dtype::e2m1fn) == 2);
  BOOST_TEST(fp8_max(Dtype::e3m2fn) == 28.0F);
  BOOST_TEST(fp8_max(Dtype::e2m3fn) == 7.5F);
  BOOST_TEST(fp8_max(Dtype::e2m1fn) == 6.0F);
  for (const Dtype dtype : {Dtype::e8m0fnu, Dtype::u8}) {
    BOOST_TEST(bits_of(dtype) == 8);
    BOOST_TEST(size_of(dtype) == 1);
    BOOST_TEST(packed_unit(dtype) == 1);
    BOOST_TEST((!is_sub_byte(dtype) && !is_fp8(dtype)));
    BOOST_TEST(fp8_max(dtype) == 0.0F);
  }
  for (const Dtype dtype : kWeightDtypes) BOOST_TEST(is_fp8(dtype) != is_sub_byte(dtype));
}

BOOST_AUTO_TEST_CASE(bytes_of_rows) {
  BOOST_TEST(row_bytes(Dtype::f32, 5) == 20);
  BOOST_TEST(row_bytes(Dtype::bf16, 5) == 10);
  BOOST_TEST(row_bytes(Dtype::e4m3fn, 5) == 5);
  BOOST_TEST(row_bytes(Dtype::e8m0fnu, 5) == 5);
  // A partly used byte counts.
  BOOST_TEST(row_bytes(Dtype::e3m2fn, 0) == 0);
  BOOST_TEST(row_bytes(Dtype::e3m2fn, 1) == 1);
  BOOST_TEST(row_bytes(Dtype::e3m2fn, 2) == 2);
  BOOST_TEST(row_bytes(Dtype::e3m2fn, 3) == 3);
  BOOST_TEST(row_bytes(Dtype::e2m3fn, 4) == 3);
  BOOST_TEST(row_bytes(Dtype::e2m3fn, 5) == 4);
  BOOST_TEST(row_bytes(Dtype::e2m1fn, 5) == 3);
  BOOST_TEST(row_bytes(Dtype::e2m1fn, 6) == 3);
}

namespace {

std::vector<Dtype> sorted(std::vector<Dtype> dtypes) {
  std::ranges::sort(dtypes);
  return dtypes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(lists_follow_from_the_table) {
  BOOST_TEST_CHECK(sorted({kHighPrecisionDtypes.begin(), kHighPrecisionDtypes.end()}) ==
                       std::vector({Dtype::f32, Dtype::bf16, Dtype::f16}),
                   boost::test_tools::per_element());
  for (const DtypeFacts& facts : kDtypeTable) {
    const auto listed = [&](const auto& list) { return std::ranges::find(list, facts.dtype) != list.end(); };
    BOOST_TEST(listed(kFp8Dtypes) == is_fp8(facts.dtype), facts.name);
    BOOST_TEST(listed(kSubByteDtypes) == is_sub_byte(facts.dtype), facts.name);
    BOOST_TEST(listed(kCodeDtypes) == (is_fp8(facts.dtype) || is_sub_byte(facts.dtype)), facts.name);
    BOOST_TEST(listed(kMxDtypes) == is_mx_element(facts.dtype), facts.name);
    BOOST_TEST(listed(kWeightDtypes) == is_weight(facts.dtype), facts.name);
  }
}

BOOST_AUTO_TEST_CASE(every_dtype_has_a_name_in_safetensors_or_is_known_to_have_none) {
  const std::vector<Dtype> without{Dtype::u8};
  std::vector<std::string> names;
  for (const DtypeFacts& facts : kDtypeTable) {
    const bool has = !facts.safetensors.empty();
    BOOST_TEST(
        has == (std::ranges::find(without, facts.dtype) == without.end()),
        facts.name << ": kDtypeTable has no name of the .safetensors format for it; if there is none, say so here");
    if (!has) continue;
    BOOST_TEST((std::ranges::find(names, facts.safetensors) == names.end()), facts.safetensors << " is there twice");
    names.emplace_back(facts.safetensors);
  }
}

BOOST_AUTO_TEST_SUITE_END()
