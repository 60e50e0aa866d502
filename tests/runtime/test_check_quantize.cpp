// Every refusal of quantize_mx's and float_quantize's arguments, by its message. test_check.cpp tests what holds for
// tensors of any operation (strides, null, alignment).
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <string>

#include "ingot/runtime/quantize/quantize_operations.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check_quantize)

using namespace ingot;
using ingot::test::refused;

namespace {

constexpr Device kCpu{};
constexpr Device kGpu{DeviceType::cuda, 0};

// Memory that is never read: checks look only at addresses.
alignas(256) std::byte memory[1 << 16];
void* at(std::size_t offset) { return memory + offset; }

const std::string kNothing = "nothing was thrown";

// Each test starts from a valid call and breaks one thing.
constexpr MxQuantizeSpec kFp4{.in = Dtype::bf16, .out = Dtype::e2m1fn};
MxQuantizeTensors mx_tensors() {
  return {.input = matrix(at(0), Dtype::bf16, 4, 40, kCpu),
          .codes = matrix(at(1024), Dtype::e2m1fn, 4, 40, kCpu),
          .scales = matrix(at(2048), Dtype::e8m0fnu, 4, 2, kCpu)};
}
FloatQuantizeTensors float_tensors() {
  return {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu), .output = matrix(at(1024), Dtype::bf16, 4, 8, kCpu)};
}

template <class Spec, class Tensors>
std::string message(const Spec& spec, Tensors tensors, test::FunctionRef<void(Tensors&)> change) {
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}
std::string mx_message(test::FunctionRef<void(MxQuantizeTensors&)> change, const MxQuantizeSpec& spec = kFp4) {
  return message(spec, mx_tensors(), change);
}
std::string float_message(test::FunctionRef<void(FloatQuantizeTensors&)> change) {
  return message(FloatQuantizeSpec{}, float_tensors(), change);
}

}  // namespace

BOOST_AUTO_TEST_CASE(right_calls_pass) {
  BOOST_TEST(mx_message([](auto&) {}) == kNothing);
  BOOST_TEST(mx_message([](auto& t) { t.codes.row_stride = 42; }) == kNothing);
  BOOST_TEST(mx_message([](auto& t) { t.scales.row_stride = 5; }) == kNothing);
  BOOST_TEST(mx_message([](auto& t) { t.codes.data = at(1025); }) == kNothing);
  // A single row of any length; no columns; no rows.
  BOOST_TEST(mx_message([](auto& t) {
               t = {.input = vector(at(0), Dtype::bf16, 33, kCpu),
                    .codes = vector(at(1024), Dtype::e2m1fn, 33, kCpu),
                    .scales = vector(at(2048), Dtype::e8m0fnu, 2, kCpu)};
             }) == kNothing);
  BOOST_TEST(mx_message([](auto& t) {
               t = {.input = matrix(nullptr, Dtype::bf16, 4, 0, kCpu),
                    .codes = matrix(nullptr, Dtype::e2m1fn, 4, 0, kCpu),
                    .scales = matrix(nullptr, Dtype::e8m0fnu, 4, 0, kCpu)};
             }) == kNothing);
  BOOST_TEST(mx_message([](auto& t) {
               t = {.input = matrix(nullptr, Dtype::bf16, 0, 40, kCpu),
                    .codes = matrix(nullptr, Dtype::e2m1fn, 0, 40, kCpu),
                    .scales = matrix(nullptr, Dtype::e8m0fnu, 0, 2, kCpu)};
             }) == kNothing);
  BOOST_TEST(float_message([](auto&) {}) == kNothing);
  BOOST_TEST(float_message([](auto& t) { t.output = t.input; }) == kNothing);
}

BOOST_AUTO_TEST_CASE(quantize_mx_refusals) {
  BOOST_TEST(mx_message([](auto& t) { t.input.dtype = Dtype::f16; }) ==
             "quantize_mx input: is f16[4, 40] on cpu; the spec asks for bf16");
  BOOST_TEST(mx_message([](auto& t) { t.input.device = kGpu; }) ==
             "quantize_mx input: is bf16[4, 40] on cuda:0; this backend works on cpu: copy it there");
  BOOST_TEST(mx_message([](auto& t) { t.codes = {}; }) ==
             "quantize_mx codes: is missing; it must be e2m1fn[4, 40]: the input's shape");
  BOOST_TEST(mx_message([](auto& t) { t.codes.dtype = Dtype::e4m3fn; }) ==
             "quantize_mx codes: is e4m3fn[4, 40] on cpu; the spec asks for e2m1fn");
  BOOST_TEST(mx_message([](auto& t) { t.codes.cols = 20; }) ==
             "quantize_mx codes: is e2m1fn[4, 20] on cpu, row stride 40; it must be [4, 40]: the input's shape");
  BOOST_TEST(mx_message([](auto& t) { t.codes.row_stride = 38; }) ==
             "quantize_mx codes: is e2m1fn[4, 40] on cpu, row stride 38; the row stride must be at least the number of "
             "columns, or rows overlap");
  BOOST_TEST(mx_message([](auto& t) { t.codes.row_stride = 41; }) ==
             "quantize_mx codes: is e2m1fn[4, 40] on cpu, row stride 41; the row stride must be a multiple of 2, so "
             "that every row of e2m1fn starts at a byte");
  BOOST_TEST(mx_message(
                 [](auto& t) {
                   t.codes.dtype = Dtype::e3m2fn;
                   t.codes.row_stride = 42;
                 },
                 {.out = Dtype::e3m2fn}) ==
             "quantize_mx codes: is e3m2fn[4, 40] on cpu, row stride 42; the row stride must be a multiple of 4, so "
             "that every row of e3m2fn starts at a byte");
  BOOST_TEST(
      mx_message([](auto& t) { t.codes.data = nullptr; }) ==
      "quantize_mx codes: is e2m1fn[4, 40] on cpu; its data pointer is null; only an empty tensor may have none");
  BOOST_TEST(mx_message([](auto& t) { t.scales = {}; }) ==
             "quantize_mx scales: is missing; it must be e8m0fnu[4, 2]: one for each 32 columns of each row of the "
             "input");
  BOOST_TEST(mx_message([](auto& t) { t.scales.dtype = Dtype::u8; }) ==
             "quantize_mx scales: is u8[4, 2] on cpu; the spec asks for e8m0fnu");
  BOOST_TEST(mx_message([](auto& t) { t.scales.cols = 1; }) ==
             "quantize_mx scales: is e8m0fnu[4, 1] on cpu, row stride 2; it must be [4, 2]: one for each 32 columns of "
             "each row of the input");
  BOOST_TEST(mx_message([](auto& t) { t.codes.data = at(319); }) ==
             "quantize_mx codes: is e2m1fn[4, 40] on cpu; its memory overlaps that of quantize_mx input, which is "
             "bf16[4, 40] on cpu; an output needs its own memory");
  BOOST_TEST(mx_message([](auto& t) { t.codes.data = at(320); }) == kNothing);
  BOOST_TEST(mx_message([](auto& t) { t.scales.data = at(1024 + 79); }) ==
             "quantize_mx scales: is e8m0fnu[4, 2] on cpu; its memory overlaps that of quantize_mx codes, which is "
             "e2m1fn[4, 40] on cpu; an output needs its own memory");
  BOOST_TEST(mx_message([](auto& t) { t.scales.data = at(1024 + 80); }) == kNothing);
}

BOOST_AUTO_TEST_CASE(float_quantize_refusals) {
  BOOST_TEST(float_message([](auto& t) { t.input = {}; }) ==
             "float_quantize input: is missing; it must be a matrix of bf16 on cpu");
  BOOST_TEST(float_message([](auto& t) { t.output.dtype = Dtype::f32; }) ==
             "float_quantize output: is f32[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(float_message([](auto& t) { t.output.rows = 3; }) ==
             "float_quantize output: is bf16[3, 8] on cpu; it must be [4, 8]: the input's shape");
  const std::string overlaps =
      "its memory overlaps that of the input, which is bf16[4, 8] on cpu; the output may be the input itself, with the "
      "same address and row stride, or its own memory";
  BOOST_TEST(float_message([](auto& t) { t.output.data = at(16); }) ==
             "float_quantize output: is bf16[4, 8] on cpu; " + overlaps);
  BOOST_TEST(float_message([](auto& t) {
               t.output.data = t.input.data;
               t.output.row_stride = 9;
             }) == "float_quantize output: is bf16[4, 8] on cpu, row stride 9; " + overlaps);
}

BOOST_AUTO_TEST_CASE(specs_are_checked_first) {
  const auto error = refused([] { check(MxQuantizeSpec{.out = Dtype::f32}, mx_tensors(), kCpu); });
  BOOST_TEST((error.code == ErrorCode::invalid_spec));
  BOOST_TEST((refused([] { check(FloatQuantizeSpec{.exponent_bits = 9}, float_tensors(), kCpu); }).code ==
              ErrorCode::invalid_spec));
}

BOOST_AUTO_TEST_SUITE_END()
