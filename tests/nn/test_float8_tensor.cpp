// cast_to() on the CPU reference: its outputs, and the specs that it refuses and leaves to Backend::cast().
#include "ingot/nn/float8_tensor.h"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/cpu_backend.h"
#include "ingot/runtime/error.h"
#include "support/expect_error.h"

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

const std::string kRefusal = ": cast_to() makes only codes and their dynamic factors; use Backend::cast() for ";

}  // namespace

// 448 is the largest e4m3fn, so the scale is 1 and the codes are the values.
BOOST_FIXTURE_TEST_CASE(codes_and_factors, Fixture) {
  cast({.in = Dtype::f32, .transposed = true});
  BOOST_TEST(*static_cast<const float*>(out.factors.view().data) == 1.0F);
  const auto* const codes = static_cast<const unsigned char*>(out.codes.view().data);
  const auto* const transposed = static_cast<const unsigned char*>(out.transposed.view().data);
  const std::vector<int> expected{0x38, 0xc0, 0x48, 0x00, 0x50, 0xfe};  // by hand
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BOOST_TEST(int{codes[i]} == expected[i], i);
    BOOST_TEST(int{transposed[i % 3 * 2 + i / 3]} == expected[i], i);
  }
}

// The rows' maxima are 4 and 448, the columns' 1, 8 and 448.
BOOST_FIXTURE_TEST_CASE(factors_of_transposed_codes, Fixture) {
  const CastSpec spec{.in = Dtype::f32, .scale = kRowwise, .transposed = true, .transposed_scale = kColumnwise};
  cast(spec);
  const auto* const rows = static_cast<const float*>(out.factors.view().data);
  BOOST_TEST(rows[0] == 1 / (448.0F / 4));
  BOOST_TEST(rows[1] == 1.0F);
  BOOST_TEST(out.factors_of_transposed(spec).cols == 3);
  const auto* const columns = static_cast<const float*>(out.factors_of_transposed(spec).data);
  BOOST_TEST(columns[1] == 1 / (448.0F / 8));
  BOOST_TEST(columns[2] == 1.0F);
  BOOST_TEST(out.factors_of_transposed({.in = Dtype::f32}).cols == out.factors.view().cols);
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
