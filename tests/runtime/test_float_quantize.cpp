// float_quantize on the CPU, against a search over all values of the format in float64: every bf16 and f16 value in
// every format, and every boundary for f32.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/quantize_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_float_quantize)

namespace {

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream stream{*cpu};

  std::string fault_of(const FloatQuantizeSpec& spec, const GuardedMatrix& input, bool in_place = false) {
    const CodeSearch search(spec.exponent_bits, spec.mantissa_bits);
    const GuardedMatrix found = run_float(spec, input, {3, 1}, in_place, *cpu, stream);
    const std::string fault = difference(
        "output", input.rows(), input.cols(), found,
        [&](std::int64_t r, std::int64_t c) {
          const double expected = expected_float(search, input.value(r, c));
          const double value = found.value(r, c);
          if (std::isnan(expected)) return std::isnan(value);
          return expected == value && std::signbit(expected) == std::signbit(value);
        },
        [&](std::int64_t r, std::int64_t c) {
          return fmt::format("{:.9g} of {:.9g}", expected_float(search, input.value(r, c)), input.value(r, c));
        });
    return fault + found.damage();
  }
};

BOOST_FIXTURE_TEST_SUITE(float_quantize, Fixture)

BOOST_AUTO_TEST_CASE(every_16_bit_value_in_every_format) {
  for (const FloatQuantizeSpec& spec : valid_specs<FloatQuantizeSpec>()) {
    if (spec.in == Dtype::f32) continue;
    GuardedMatrix input(spec.in, 64, 1024, 5, 1);
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) input.set_bits(bits / 1024, bits % 1024, bits);
    const std::string fault = fault_of(spec, input, spec.mantissa_bits % 2 == 0);
    BOOST_CHECK_MESSAGE(fault.empty(), print(spec) << ": " << fault);
  }
}

BOOST_AUTO_TEST_CASE(values_boundaries_and_any_f32_in_every_format) {
  for (const FloatQuantizeSpec& spec : valid_specs<FloatQuantizeSpec>()) {
    if (spec.in != Dtype::f32) continue;
    const CodeSearch search(spec.exponent_bits, spec.mantissa_bits);
    std::vector<std::uint32_t> inputs{0, 1, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
    const auto add = [&](double x) {
      for (std::uint32_t near = 0; near < 5; ++near) inputs.push_back(float_bits(static_cast<float>(x)) + near - 2U);
    };
    for (std::size_t i = 1; i < search.values().size(); ++i) {
      add(search.values()[i]);
      add((search.values()[i - 1] + search.values()[i]) / 2);
    }
    for (std::uint64_t i = 0; i < 100'000; ++i) {
      inputs.push_back(static_cast<std::uint32_t>(random_bits(7, i)));
      // Within the format's range.
      inputs.push_back(float_bits(static_cast<float>(random_unit(8, i) * 1.1 * search.largest())));
    }
    const auto count = static_cast<std::int64_t>(inputs.size());
    GuardedMatrix input(Dtype::f32, 2, count);
    for (std::int64_t i = 0; i < count; ++i) {
      input.set_bits(0, i, inputs[static_cast<std::size_t>(i)]);
      input.set_bits(1, i, inputs[static_cast<std::size_t>(i)] ^ 0x80000000U);
    }
    const std::string fault = fault_of(spec, input);
    BOOST_CHECK_MESSAGE(fault.empty(), print(spec) << ": " << fault);
  }
}

// A format without Inf and NaN, unlike OCP's e4m3fn: its largest value is not 448.
BOOST_AUTO_TEST_CASE(known_values) {
  GuardedMatrix input(Dtype::f32, 1, 8);
  std::int64_t c = 0;
  for (const float x : {464.0F, 1e9F, -HUGE_VALF, 1.0625F, 1.1875F, 0x1p-10F, 0x1.8p-9F, -0x1p-11F}) {
    input.set_bits(0, c++, float_bits(x));
  }
  const GuardedMatrix found = run_float({.in = Dtype::f32}, input, {}, false, *cpu, stream);
  c = 0;
  for (const double x : {448.0, 480.0, -480.0, 1.0, 1.25, 0.0, 0x1p-8, -0.0}) {
    BOOST_TEST(found.value(0, c) == x);
    BOOST_TEST(std::signbit(found.value(0, c++)) == std::signbit(x));
  }
}

BOOST_AUTO_TEST_CASE(empty_matrices) {
  for (const Shape shape : {Shape{0, 8}, Shape{3, 0}}) {
    BOOST_TEST(run_float({}, GuardedMatrix(Dtype::bf16, shape.rows, shape.cols), {}, false, *cpu, stream).damage() ==
               "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
