// cast_to() on the CPU reference: its outputs, and the specs that it refuses and leaves to Backend::cast().
#include "ingot/nn/linear/float8_tensor.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_float8_tensor)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  std::vector<float> values{1, -2, 4, 0, 8, -448};
  Tensor input = matrix(values.data(), Dtype::f32, 2, 3, {});
  Float8Tensor out;

  void cast(const CastSpec& spec) { cast_to(out, spec, input, *backend, stream); }
  std::string refusal(const CastSpec& spec) {
    return error_of([&] { cast(spec); }, ErrorCode::invalid_argument);
  }
};

const std::string kRefusal = ": cast_to() makes only codes and their dynamic scale_inv; use Backend::cast() for ";

}  // namespace

// 448 is the largest e4m3fn, so the scale is 1 and the codes are the values.
BOOST_FIXTURE_TEST_CASE(codes_and_scale_inv, Fixture) {
  cast({.in = Dtype::f32, .transposed = true});
  BOOST_TEST(*static_cast<const float*>(out.scale_inv.view().data) == 1.0F);
  const auto* const codes = static_cast<const unsigned char*>(out.codes.view().data);
  const auto* const transposed = static_cast<const unsigned char*>(out.transposed.view().data);
  const std::vector<int> expected{0x38, 0xc0, 0x48, 0x00, 0x50, 0xfe};  // by hand
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BOOST_TEST(int{codes[i]} == expected[i], i);
    BOOST_TEST(int{transposed[i % 3 * 2 + i / 3]} == expected[i], i);
  }
}

// The rows' maxima are 4 and 448, the columns' 1, 8 and 448.
BOOST_FIXTURE_TEST_CASE(scale_inv_of_transposed_codes, Fixture) {
  const CastSpec spec{.in = Dtype::f32, .scale = kRowwise, .transposed = true, .transposed_scale = kColumnwise};
  cast(spec);
  const auto* const rows = static_cast<const float*>(out.scale_inv.view().data);
  BOOST_TEST(rows[0] == 1 / (448.0F / 4));
  BOOST_TEST(rows[1] == 1.0F);
  BOOST_TEST(out.scale_inv_of_transposed(spec).cols == 3);
  const auto* const columns = static_cast<const float*>(out.scale_inv_of_transposed(spec).data);
  BOOST_TEST(columns[1] == 1 / (448.0F / 8));
  BOOST_TEST(columns[2] == 1.0F);
  BOOST_TEST(out.scale_inv_of_transposed({.in = Dtype::f32}).cols == out.scale_inv.view().cols);
}

namespace {

// The formula in float64, as torchao has it.
float expected_scale(double amax, Dtype dtype, bool pow2) {
  const double limit = dtype == Dtype::e4m3fn ? 448 : dtype == Dtype::e4m3fnuz ? 240 : 57344;
  const auto scale = static_cast<float>(limit / std::max(amax, 1e-12));
  return pow2 ? std::exp2(std::floor(std::log2(scale))) : scale;
}

}  // namespace

// The scales are written in addition to scale_inv, whose inverses may have other bits; given to a cast, they make the
// same codes.
BOOST_FIXTURE_TEST_CASE(scales_themselves, Fixture) {
  constexpr std::int64_t kRows = 40, kCols = 33;
  std::mt19937 random(1);
  std::vector<float> numbers(kRows * kCols);
  for (float& value : numbers) value = std::normal_distribution<float>(0, 3)(random);
  for (std::int64_t c = 0; c < kCols; ++c) numbers[static_cast<std::size_t>(2 * kCols + c)] = 0;  // a row of zeros
  const Tensor x = matrix(numbers.data(), Dtype::f32, kRows, kCols, {});
  bool inverse_differs = false;
  for (const Dtype dtype : kFp8Dtypes) {
    for (const ScaleGranularity scale : {kTensorwise, kRowwise, kColumnwise}) {
      for (const bool pow2 : {false, true}) {
        const CastSpec spec{.in = Dtype::f32, .out = dtype, .scale = scale, .pow2 = pow2};
        BOOST_TEST_CONTEXT(print(spec)) {
          const std::int64_t count = scale_count(scale, kRows, kCols);
          std::vector<float> found(static_cast<std::size_t>(count), -1);
          const Tensor scales = vector(found.data(), Dtype::f32, count, {});
          write_scales(spec, x, scales, *backend, stream);
          std::vector<double> maxima(static_cast<std::size_t>(count));
          for (std::int64_t r = 0; r < kRows; ++r) {
            for (std::int64_t c = 0; c < kCols; ++c) {
              double& most = maxima[static_cast<std::size_t>(scale == kRowwise ? r : scale == kColumnwise ? c : 0)];
              most = std::max(most, std::abs(static_cast<double>(numbers[static_cast<std::size_t>(r * kCols + c)])));
            }
          }
          Float8Tensor dynamic, given;
          cast_to(dynamic, spec, x, *backend, stream);
          const auto* const scale_inv = static_cast<const float*>(dynamic.scale_inv.view().data);
          for (std::size_t i = 0; i < found.size(); ++i) {
            BOOST_TEST(found[i] == expected_scale(maxima[i], dtype, pow2));
            BOOST_TEST(scale_inv[i] == 1 / found[i]);
            inverse_differs = inverse_differs || 1 / scale_inv[i] != found[i];
          }
          CastSpec with = spec;
          with.pow2 = false;
          with.source = ScaleSource::given;
          std::vector<float> amax(found.size());
          CastTensors tensors = outputs_of(parts_of(given), with, x, *backend, stream);
          tensors.scales = scales;
          tensors.amax = vector(amax.data(), Dtype::f32, count, {});
          backend->cast(with, tensors, stream);
          const Tensor a = dynamic.codes, b = given.codes;
          BOOST_TEST(std::memcmp(a.data, b.data, byte_span(a, "codes")) == 0);
        }
      }
    }
  }
  BOOST_TEST(inverse_differs);
}

BOOST_FIXTURE_TEST_CASE(scales_that_are_not_written, Fixture) {
  std::vector<float> found(2);
  const Tensor one = vector(found.data(), Dtype::f32, 1, {});
  const auto refused = [&](const CastSpec& spec, const Tensor& scales, ErrorCode code = ErrorCode::invalid_argument) {
    return error_of([&] { write_scales(spec, input, scales, *backend, stream); }, code);
  };
  CastSpec spec{.in = Dtype::f32};
  BOOST_TEST(refused(spec, vector(found.data(), Dtype::f32, 2, {})) ==
             "write_scales scales: is f32[1, 2] on cpu; it must be [1, 1]: one for each scale of the cast");
  spec.source = ScaleSource::given;
  BOOST_TEST(refused(spec, one) ==
             print(spec) +
                 ": write_scales() makes dynamic scales of the input itself: leave out `given` and the expression");
  BOOST_TEST(refused({.in = Dtype::f32, .scale = kBlocks}, one, ErrorCode::invalid_spec) ==
             "amax f32 scale=128x128: scale is 128x128, but must be tensor, row or col");
  std::vector<float> numbers{std::numeric_limits<float>::quiet_NaN(), 1};
  write_scales({.in = Dtype::f32}, matrix(numbers.data(), Dtype::f32, 1, 2, {}), one, *backend, stream);
  BOOST_TEST(std::isnan(found[0]));
}

BOOST_FIXTURE_TEST_CASE(what_a_float8_tensor_has_no_place_for, Fixture) {
  const CastSpec spec{.in = Dtype::f32};
  CastSpec given = spec;
  given.source = ScaleSource::given;
  BOOST_TEST(refusal(given) == print(given) + kRefusal + "given scales");
  CastSpec inputs = spec;
  inputs.pointwise = parse_pointwise("x * gate");
  BOOST_TEST(refusal(inputs) == print(inputs) + kRefusal + "an expression with further inputs");
  CastSpec result = spec;
  result.pointwise = parse_pointwise("exp(x)");
  cast(result);
  result.result = true;
  BOOST_TEST(refusal(result) == print(result) + kRefusal + "the result");
  CastSpec sum = spec;
  sum.sum = Dtype::f32;
  BOOST_TEST(refusal(sum) == print(sum) + kRefusal + "the sum");
}

BOOST_AUTO_TEST_SUITE_END()
