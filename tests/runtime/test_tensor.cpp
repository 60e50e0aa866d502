// Tensor: how tensors and devices print, and the bytes that a tensor spans.
#include "ingot/runtime/core/tensor.h"

#include <boost/test/unit_test.hpp>
#include <limits>

#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_tensor)

using namespace ingot;
using ingot::test::refused;

namespace {
constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLargest = std::int64_t{1} << 48;
}  // namespace

BOOST_AUTO_TEST_CASE(devices_print) {
  BOOST_TEST(print(Device{}) == "cpu");
  BOOST_TEST(print(kGpu) == "cuda:0");
  BOOST_TEST(print(Device{DeviceType::cuda, 3}) == "cuda:3");
}

BOOST_AUTO_TEST_CASE(describe_shows_the_stride_only_where_it_says_something) {
  Tensor tensor = matrix(nullptr, Dtype::bf16, 4096, 1024, kGpu);
  BOOST_TEST(describe(tensor) == "bf16[4096, 1024] on cuda:0");
  tensor.row_stride = 1088;
  BOOST_TEST(describe(tensor) == "bf16[4096, 1024] on cuda:0, row stride 1088");
  BOOST_TEST(describe(vector(nullptr, Dtype::f32, 7, Device{})) == "f32[1, 7] on cpu");
}

BOOST_AUTO_TEST_CASE(span_ends_with_the_last_element_and_not_with_its_row) {
  Tensor tensor = matrix(nullptr, Dtype::bf16, 3, 5, Device{});
  BOOST_TEST(byte_span(tensor, "x") == 30U);
  tensor.row_stride = 8;
  BOOST_TEST(byte_span(tensor, "x") == 42U);  // (2 * 8 + 5) * 2
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::f32, 0, 5, Device{}), "x") == 0U);
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::f32, 5, 0, Device{}), "x") == 0U);
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::f32, 1 << 20, 1 << 20, Device{}), "x") == std::size_t{1} << 42U);
}

// Each row of codes begins at a byte, and the last one ends at a byte.
BOOST_AUTO_TEST_CASE(spans_of_packed_rows) {
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::e2m1fn, 3, 6, Device{}), "x") == 9U);
  Tensor tensor = matrix(nullptr, Dtype::e2m1fn, 3, 5, Device{});
  tensor.row_stride = 8;
  BOOST_TEST(byte_span(tensor, "x") == 11U);  // (2 * 8 + 5) * 4 bits are 84
  BOOST_TEST(describe(tensor) == "e2m1fn[3, 5] on cpu, row stride 8");
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::e3m2fn, 2, 8, Device{}), "x") == 12U);
  BOOST_TEST(byte_span(vector(nullptr, Dtype::e2m3fn, 5, Device{}), "x") == 4U);
  BOOST_TEST(byte_span(vector(nullptr, Dtype::e8m0fnu, 5, Device{}), "x") == 5U);
  BOOST_TEST(describe(vector(nullptr, Dtype::u8, 5, Device{})) == "u8[1, 5] on cpu");
}

BOOST_AUTO_TEST_CASE(negative_sizes_and_overflow_are_refused) {
  auto error = refused([] { byte_span(matrix(nullptr, Dtype::f32, -1, 5, Device{}), "cast input"); });
  BOOST_TEST(error.message == "cast input: is f32[-1, 5] on cpu; sizes and strides must not be negative");
  BOOST_TEST((error.code == ErrorCode::invalid_argument));

  error = refused([] { byte_span(Tensor{nullptr, Dtype::f32, 2, 2, -2, Device{}}, "x"); });
  BOOST_TEST(error.message == "x: is f32[2, 2] on cpu, row stride -2; sizes and strides must not be negative");

  // No size that memory can have, even where nothing has such a size.
  for (const Tensor& tensor :
       {matrix(nullptr, Dtype::e5m2, kMax, kMax, Device{}), Tensor{nullptr, Dtype::e5m2, 2, kMax, kMax, Device{}},
        matrix(nullptr, Dtype::f32, 1, kLargest + 1, Device{}), matrix(nullptr, Dtype::f32, kMax, 0, Device{}),
        matrix(nullptr, Dtype::f32, 0, kMax, Device{}), Tensor{nullptr, Dtype::f32, 2, 2, kLargest + 1, Device{}}}) {
    error = refused([&] { byte_span(tensor, "x"); });
    BOOST_TEST(error.message ==
               "x: is " + describe(tensor) + "; no size or stride may be larger than 281474976710656 (2^48)");
  }
  // Overflow in the product of the sizes, and in the product with the element size.
  for (const Tensor& tensor : {matrix(nullptr, Dtype::e5m2, 1 << 20, kLargest, Device{}),
                               matrix(nullptr, Dtype::f32, 1 << 14, kLargest / 2 + 1, Device{})}) {
    error = refused([&] { byte_span(tensor, "x"); });
    BOOST_TEST(error.message ==
               "x: is " + describe(tensor) + "; its bytes do not fit in 64 bits: check the sizes and the row stride");
  }
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::f32, 1, kLargest, Device{}), "x") == std::size_t{1} << 50U);
  BOOST_TEST(byte_span(matrix(nullptr, Dtype::e2m1fn, 1, kLargest, Device{}), "x") == std::size_t{1} << 47U);
}

BOOST_AUTO_TEST_SUITE_END()
