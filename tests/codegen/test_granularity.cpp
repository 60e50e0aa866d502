// Scale granularities: how they print and parse, and how many scales a matrix has.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/template_text.h"
#include "support/dequant_case.h"

BOOST_AUTO_TEST_SUITE(test_granularity)

using namespace ingot;

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(kTensorwise) == "tensor");
  BOOST_TEST(print(kRowwise) == "row");
  BOOST_TEST(print(ScaleGranularity{0, 1}) == "col");
  BOOST_TEST(print(ScaleGranularity{1, 128}) == "1x128");
  BOOST_TEST(print(ScaleGranularity{128, 128}) == "128x128");
  BOOST_TEST(print(ScaleGranularity{0, 128}) == "0x128");
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

namespace {

std::vector<ScaleGranularity> accepted_by_any_spec() {
  std::vector<ScaleGranularity> all;
  const auto add = [&](std::span<const ScaleGranularity> list) {
    for (const ScaleGranularity each : list) {
      if (!among(all, each)) all.push_back(each);
    }
  };
  add(kCastGranularities);
  add(kGroupedScalesOfB);
  add(kDequantGranularities);
  return all;
}

std::string kernel_text(const KernelSpec& spec) { return generate(spec, Pass::main).text; }

}  // namespace

BOOST_AUTO_TEST_CASE(every_granularity_of_a_spec_reads_back) {
  for (const ScaleGranularity each : accepted_by_any_spec()) {
    BOOST_TEST((parse_granularity(print(each)) == each), print(each) << " does not read back");
    BOOST_TEST((transposed(transposed(each)) == each), print(each));
    BOOST_TEST(scale_count(each, 256, 384) == scale_count(transposed(each), 384, 256), print(each));
  }
}

// Each granularity must arrive in the kernel's text as itself.
BOOST_AUTO_TEST_CASE(a_kernels_text_has_the_specs_granularity) {
  for (const ScaleGranularity scale : kCastGranularities) {
    const std::string text = kernel_text(CastSpec{.scale = scale, .transposed = true, .source = ScaleSource::given});
    BOOST_TEST(text.find(field("scale", scale).value) != std::string::npos, print(scale) << " is lost in " << text);
  }
  for (const ScaleGranularity scale : kGroupedScalesOfB) {
    const std::string text = kernel_text(GemmSpec{.scale_a = kRowGroups, .scale_b = scale, .kernel = GemmKernel::sm90});
    BOOST_TEST(text.find(".scale_b = " + field("scale_b", scale).value) != std::string::npos,
               print(scale) << " is lost in " << text);
  }
  for (const ScaleGranularity scale : kDequantGranularities) {
    for (const DequantKernel kernel : {DequantKernel::mma, DequantKernel::sm90}) {
      const std::string text = kernel_text(DequantMatmulSpec{.scale = scale, .kernel = kernel});
      BOOST_TEST(text.find(".scale = " + field("scale", scale).value) != std::string::npos,
                 print(scale) << " is lost in " << text);
    }
  }
}

// Tests of products with weights go through this list.
BOOST_AUTO_TEST_CASE(every_granularity_of_a_weight_is_tested) {
  for (const ScaleGranularity scale : kDequantGranularities) {
    BOOST_TEST(
        (std::ranges::find(test::kDequantScales, scale, &test::DequantScale::scale) != test::kDequantScales.end()),
        print(scale) << " is missing in kDequantScales of tests/support/dequant_case.h");
  }
}

BOOST_AUTO_TEST_CASE(a_list_in_words) {
  BOOST_TEST(one_of(kCastGranularities) == "tensor, row, col, 1x128, 128x1 or 128x128");
  BOOST_TEST(one_of(kDequantGranularities) == "tensor, row, 1x128, 1x64, 1x32 or 128x128");
}

BOOST_AUTO_TEST_SUITE_END()
