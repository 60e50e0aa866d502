#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/dequant/visit_weight.h"
#include "ingot/runtime/util/error.h"
#include "support/reference_formats.h"

#include "numerics.cuh"

using namespace ingot;

namespace boost::test_tools::tt_detail {
template <>
struct print_log_value<Dtype> {
  void operator()(std::ostream& stream, Dtype dtype) { stream << name(dtype); }
};
}  // namespace boost::test_tools::tt_detail

BOOST_AUTO_TEST_SUITE(test_visit)

namespace {

// The dtypes that a visitor calls with a type, each of which must be the dtype's own.
template <class Visit>
std::vector<Dtype> taken_by(Visit visit) {
  std::vector<Dtype> taken;
  for (const DtypeFacts& facts : kDtypeTable) {
    try {
      visit(facts.dtype, [&]<class T>(Type<T>) {
        BOOST_TEST(kDtypeOf<T> == facts.dtype, facts.name << " was visited as " << name(kDtypeOf<T>));
      });
      taken.push_back(facts.dtype);
    } catch (const Error& error) {
      BOOST_TEST(std::string(error.what()).find(facts.name) != std::string::npos, error.what());
    }
  }
  return taken;
}

}  // namespace

BOOST_AUTO_TEST_CASE(visitors_take_their_dtypes_and_refuse_all_others) {
  const auto expect = [](const char* visitor, const std::vector<Dtype>& taken, const auto& list) {
    BOOST_TEST((taken == std::vector<Dtype>(list.begin(), list.end())), visitor << " takes other dtypes than its list");
  };
  expect("visit_high_precision", taken_by([](Dtype d, auto f) { visit_high_precision(d, f); }), kHighPrecisionDtypes);
  expect("visit_fp8", taken_by([](Dtype d, auto f) { visit_fp8(d, f); }), kFp8Dtypes);
  expect("visit_dtype", taken_by([](Dtype d, auto f) { visit_dtype(d, f); }), kGemmDtypes);
  expect("visit_mx", taken_by([](Dtype d, auto f) { visit_mx(d, f); }), kMxDtypes);
  expect("visit_weight", taken_by([](Dtype d, auto f) { visit_weight(d, f); }), kWeightDtypes);
  expect("visit_codes", taken_by([](Dtype d, auto f) { visit_codes(d, f); }), kCodeDtypes);
  BOOST_CHECK_THROW(visit_fp8(static_cast<Dtype>(99), [](auto) {}), Error);
}

// The references that tests compare with have their own definition of each format.
BOOST_AUTO_TEST_CASE(every_format_has_its_own_reference) {
  for (const Dtype dtype : kCodeDtypes) {
    visit_codes(dtype, [&]<class F>(Type<F>) {
      for (std::uint32_t code = 0; code < 1U << bits_of(dtype); ++code) {
        const double expected = test::decode_slowly(dtype, code);
        const auto found = static_cast<double>(decode(F{static_cast<u8>(code)}));
        BOOST_TEST((found == expected || (found != found && expected != expected)),
                   name(dtype) << ": code " << code << " is " << found << ", but " << expected
                               << " in decode_slowly() of tests/support/reference_formats.h");
      }
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
