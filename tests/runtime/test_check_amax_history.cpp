// Every refusal of amax_history's arguments, by its message. test_check.cpp tests what holds for tensors of any
// operation (strides, null, alignment).
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <string>

#include "ingot/runtime/cast/cast_operations.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check_amax_history)

using namespace ingot;
using ingot::test::refused;

namespace {

constexpr Device kCpu{};

// Memory that is never read: checks look only at addresses.
alignas(256) std::byte memory[1 << 14];
void* at(std::size_t offset) { return memory + offset; }

std::string message(test::FunctionRef<void(AmaxHistoryTensors&)> change, const AmaxHistorySpec& spec = {}) {
  AmaxHistoryTensors tensors{.amax = vector(at(0), Dtype::f32, 4, kCpu),
                             .history = matrix(at(1024), Dtype::f32, 4, 16, kCpu),
                             .scale = vector(at(2048), Dtype::f32, 4, kCpu),
                             .limits = vector(at(3072), Dtype::f32, 4, kCpu),
                             .pow2 = vector(at(4096), Dtype::f32, 4, kCpu)};
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}

const std::string kNothing = "nothing was thrown";

}  // namespace

BOOST_AUTO_TEST_CASE(right_calls_pass) {
  BOOST_TEST(message([](auto&) {}) == kNothing);
  BOOST_TEST(message([](auto& t) { t.history = matrix(at(1024), Dtype::f32, 4, 1, kCpu); }) == kNothing);
  BOOST_TEST(message([](auto& t) { t.history.row_stride = 20; }) == kNothing);
  BOOST_TEST(message([](auto& t) { t = {}; }) == kNothing);                       // no slots
  BOOST_TEST(message([](auto& t) { t.pow2.data = t.limits.data; }) == kNothing);  // both are only read
}

BOOST_AUTO_TEST_CASE(known_scales_may_be_missing) {
  BOOST_TEST(message([](auto& t) { t.known = vector(at(5120), Dtype::f32, 4, kCpu); }) == kNothing);
  BOOST_TEST(message([](auto& t) { t.known = vector(at(5120), Dtype::f32, 3, kCpu); }) ==
             "amax_history known: is f32[1, 3] on cpu; it must be [1, 4]: one for each row of the history");
  BOOST_TEST(message([](auto& t) { t.known = t.scale; }) ==
             "amax_history scale: is f32[1, 4] on cpu; its memory overlaps that of amax_history known, which is "
             "f32[1, 4] on cpu; an output needs its own memory");
}

BOOST_AUTO_TEST_CASE(a_spec_that_cannot_exist_is_refused) {
  const auto error = refused([] { check(AmaxHistorySpec{.reduction = static_cast<AmaxReduction>(3)}, {}, kCpu); });
  BOOST_TEST(error.message ==
             "amax_history reduce=unknown: reduction is 3, which is not valid; it must be max or most_recent");
}

BOOST_AUTO_TEST_CASE(dtypes_and_devices) {
  BOOST_TEST(message([](auto& t) { t.history.dtype = Dtype::bf16; }) ==
             "amax_history history: is bf16[4, 16] on cpu; the spec asks for f32");
  BOOST_TEST(message([](auto& t) { t.amax.dtype = Dtype::f16; }) ==
             "amax_history amax: is f16[1, 4] on cpu; the spec asks for f32");
  BOOST_TEST(message([](auto& t) {
               t.scale.device = {DeviceType::cuda, 0};
             }) == "amax_history scale: is f32[1, 4] on cuda:0; this backend works on cpu: copy it there");
}

BOOST_AUTO_TEST_CASE(shapes) {
  BOOST_TEST(message([](auto& t) { t.history.cols = 0; }) ==
             "amax_history history: is f32[4, 0] on cpu, row stride 16; it must have a column for each step that it "
             "keeps, at least one");
  const std::string four = "it must be [1, 4]: one for each row of the history";
  BOOST_TEST(message([](auto& t) { t.amax.cols = t.amax.row_stride = 5; }) ==
             "amax_history amax: is f32[1, 5] on cpu; " + four);
  BOOST_TEST(message([](auto& t) { t.scale.cols = t.scale.row_stride = 1; }) ==
             "amax_history scale: is f32[1, 1] on cpu; " + four);
  BOOST_TEST(message([](auto& t) { t.limits = matrix(at(3072), Dtype::f32, 4, 1, kCpu); }) ==
             "amax_history limits: is f32[4, 1] on cpu; " + four);
  BOOST_TEST(message([](auto& t) { t.pow2 = {}; }) ==
             "amax_history pow2: is missing; it must be f32[1, 4]: one for each row of the history");
}

BOOST_AUTO_TEST_CASE(outputs_overlap_nothing) {
  const std::string own = "; an output needs its own memory";
  BOOST_TEST(message([](auto& t) { t.scale.data = t.limits.data; }) ==
             "amax_history scale: is f32[1, 4] on cpu; its memory overlaps that of amax_history limits, which is "
             "f32[1, 4] on cpu" +
                 own);
  BOOST_TEST(message([](auto& t) { t.amax.data = at(1024 + 252); }) ==
             "amax_history history: is f32[4, 16] on cpu; its memory overlaps that of amax_history amax, which is "
             "f32[1, 4] on cpu" +
                 own);
}

BOOST_AUTO_TEST_SUITE_END()
