// quantize_mx on the CPU, against float64: every bf16 and f16 value as an element of some groups, every case, and bytes
// packed by hand. (test_quantize_emulated.cpp compares the kernels with the CPU, test_quantize_gpu.cpp the GPU.)
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/packed_codes.h"
#include "support/quantize_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_quantize_mx)

namespace {

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream stream{*cpu};

  // Empty if codes and scales agree with float64.
  static std::string fault_of(const MxQuantizeSpec& spec, const GuardedMatrix& input, const MxOutputs& found) {
    const CodeSearch search(spec.out);
    const auto cols = static_cast<std::size_t>(input.cols());
    std::vector<std::uint8_t> row(found.codes.row_bytes());
    std::vector<std::uint8_t> codes(cols);
    for (std::int64_t r = 0; r < input.rows(); ++r) {
      if (cols == 0) continue;
      std::memcpy(row.data(), found.codes.element(r, 0), row.size());
      unpack_codes(spec.out, row, codes);
      std::vector<std::uint8_t> again(row.size());
      pack_codes(spec.out, codes, again);
      if (again != row) return fmt::format("row {}: the bits after the last code are not 0", r);
      for (std::int64_t c = 0; c < input.cols(); c += 32) {
        const MxGroup expected = expected_mx_group(spec.out, search, input, r, c);
        if (found.scales.bits(r, c / 32) != expected.scale) {
          return fmt::format("row {}, group {}: scale {} instead of {}", r, c / 32, found.scales.bits(r, c / 32),
                             expected.scale);
        }
        for (std::size_t i = 0; i < expected.codes.size(); ++i) {
          const std::size_t at = static_cast<std::size_t>(c) + i;
          if (codes[at] == expected.codes[i]) continue;
          return fmt::format("row {}, col {}: {:.9g} gives code {:#x} with scale {}, instead of {:#x}", r, at,
                             input.value(r, static_cast<std::int64_t>(at)), codes[at], expected.scale,
                             expected.codes[i]);
        }
      }
    }
    return {};
  }
};

BOOST_FIXTURE_TEST_SUITE(quantize_mx, Fixture)

BOOST_AUTO_TEST_CASE(every_case_against_float64) {
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) {
    for (const MxCase& c : mx_cases()) {
      const GuardedMatrix input = mx_input(spec.in, c.shape, c.input, c.at);
      const MxOutputs found = run_mx(spec, input, c.at, *cpu, stream);
      const std::string fault = fault_of(spec, input, found) + found.codes.damage() + found.scales.damage();
      BOOST_CHECK_MESSAGE(fault.empty(), name(spec, c) << ": " << fault);
    }
  }
}

// Rows of all bit patterns: in groups of neighbours, which are near their largest value; in arbitrary groups; and below
// a larger value, at each of many powers of two.
BOOST_AUTO_TEST_CASE(every_16_bit_element) {
  constexpr std::int64_t kPatterns = 0x10000;
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) {
    if (spec.in == Dtype::f32) continue;
    GuardedMatrix input(spec.in, 22, kPatterns);
    const int mantissa_bits = spec.in == Dtype::bf16 ? 7 : 10;
    const std::uint32_t inf = spec.in == Dtype::bf16 ? 0x7f80 : 0x7c00;
    for (std::int64_t i = 0; i < kPatterns; ++i) {
      const auto bits = static_cast<std::uint32_t>(i);
      input.set_bits(0, i, bits);
      input.set_bits(1, i, bits * 40503U & 0xffffU);
      for (std::uint32_t r = 2; r < 22; ++r) {
        // The first element of each group is a power of two larger than the others, if that is finite.
        const std::uint32_t leader = ((bits & 0x7fffU) >> mantissa_bits << mantissa_bits) + ((r - 1U) << mantissa_bits);
        input.set_bits(r, i, bits % 32 == 0 && leader < inf ? leader : bits);
      }
    }
    const std::string fault = fault_of(spec, input, run_mx(spec, input, {}, *cpu, stream));
    BOOST_CHECK_MESSAGE(fault.empty(), print(spec) << ": " << fault);
  }
}

// For f32, every boundary between two codes and the adjacent floats, under every possible scale.
BOOST_AUTO_TEST_CASE(boundaries_of_f32) {
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) {
    if (spec.in != Dtype::f32) continue;
    const CodeSearch search(spec.out);
    std::vector<float> around;
    for (std::size_t i = 1; i < search.values().size(); ++i) {
      const auto middle = static_cast<float>((search.values()[i - 1] + search.values()[i]) / 2);
      const float next = std::nextafter(middle, 1e9F);
      const float previous = std::nextafter(middle, 0.0F);
      for (const float x : {previous, middle, next, static_cast<float>(search.values()[i])}) {
        around.push_back(x);
        around.push_back(-x);
      }
    }
    // In each group 31 of those are below the largest element, which decides the scale.
    const auto groups = static_cast<std::int64_t>((around.size() + 30) / 31);
    GuardedMatrix input(Dtype::f32, 254, groups * 32);
    for (int r = 0; r < 254; ++r) {
      const auto scaled = [&](double x) { return float_bits(static_cast<float>(std::ldexp(x, r - 130))); };
      for (std::int64_t i = 0; i < groups * 32; ++i) {
        const auto at = static_cast<std::size_t>(i / 32 * 31 + i % 32 - 1);
        const bool is_first = i % 32 == 0 || at >= around.size();
        input.set_bits(r, i, scaled(is_first ? search.largest() : static_cast<double>(around[at])));
      }
    }
    const std::string fault = fault_of(spec, input, run_mx(spec, input, {}, *cpu, stream));
    BOOST_CHECK_MESSAGE(fault.empty(), print(spec) << ": " << fault);
  }
}

// By hand: e2m1fn's largest value is 6, so 48 gets the scale 2^3.
BOOST_AUTO_TEST_CASE(known_bytes) {
  GuardedMatrix input(Dtype::f32, 1, 5);
  std::int64_t c = 0;
  for (const float x : {48.0F, -4.0F, 10.0F, -60.0F, 1.9F}) input.set_bits(0, c++, float_bits(x));
  const MxOutputs found = run_mx({.in = Dtype::f32, .out = Dtype::e2m1fn}, input, {}, *cpu, stream);
  BOOST_TEST(found.scales.bits(0, 0) == 130U);
  // 6, -0.5, 1.25 -> 1 (even), -7.5 -> -6, 0.24 -> 0.
  BOOST_TEST(found.codes.bits(0, 0) == 0x97U);
  BOOST_TEST(found.codes.bits(0, 1) == 0xf2U);
  BOOST_TEST(found.codes.bits(0, 2) == 0x00U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
