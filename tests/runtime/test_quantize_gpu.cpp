// quantize_mx and float_quantize on the GPU: the CPU's bits for any memory layout, and no writes outside the outputs.
#include "support/gpu_test.h"

#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/quantize_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_quantize_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream{*cpu};

  std::vector<MxCase> cases = [] {
    std::vector<MxCase> all = mx_cases();
    for (const Shape shape : {Shape{4096, 4096}, Shape{1, 100000}, Shape{3001, 1037}, Shape{70000, 32}}) {
      all.push_back({.shape = shape});
    }
    all.push_back({.shape = {515, 2064}, .input = Input::spread, .at = {16, 8}});
    all.push_back({.shape = {515, 2064}, .input = Input::nan, .at = {3, 1}});
    return all;
  }();
};

BOOST_FIXTURE_TEST_CASE(mx_codes_and_scales_are_the_cpus, Fixture) {
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) {
    for (const MxCase& c : cases) {
      const GuardedMatrix input = mx_input(spec.in, c.shape, c.input, c.at);
      const std::string fault =
          mx_difference(run_mx(spec, input, c.at, *cpu, cpu_stream), run_mx(spec, input, c.at, cuda, stream));
      BOOST_CHECK_MESSAGE(fault.empty(), name(spec, c) << ": " << fault);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(every_16_bit_element_in_mx, Fixture) {
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) {
    if (spec.in == Dtype::f32) continue;
    GuardedMatrix input(spec.in, 2, 0x10000);
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      input.set_bits(0, i, i);
      input.set_bits(1, i, i * 40503U & 0xffffU);
    }
    const std::string fault =
        mx_difference(run_mx(spec, input, {}, *cpu, cpu_stream), run_mx(spec, input, {}, cuda, stream));
    BOOST_CHECK_MESSAGE(fault.empty(), print(spec) << ": " << fault);
  }
}

// All formats in one shape, and some formats in every case, also in place.
BOOST_FIXTURE_TEST_CASE(rounded_values_are_the_cpus, Fixture) {
  const std::vector<FloatQuantizeSpec> specs = valid_specs<FloatQuantizeSpec>();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const FloatQuantizeSpec& spec = specs[i];
    const auto check = [&](const GuardedMatrix& input, Placement at, bool in_place, const std::string& what) {
      const GuardedMatrix found = run_float(spec, input, at, in_place, cuda, stream);
      const GuardedMatrix expected = run_float(spec, input, at, in_place, *cpu, cpu_stream);
      const std::string fault = bit_difference("output", expected, found) + found.damage();
      BOOST_CHECK_MESSAGE(fault.empty(), what << ": " << fault);
    };
    GuardedMatrix all(spec.in, 64, 1024);
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      all.set_bits(bits / 1024, bits % 1024, spec.in == Dtype::f32 ? bits << 16 | (bits * 40503U & 0xffffU) : bits);
    }
    check(all, {}, false, print(spec));
    if (i % 8 != 0) continue;
    for (const MxCase& c : cases) {
      const GuardedMatrix input = mx_input(spec.in, c.shape, c.input, c.at);
      for (const bool in_place : {false, true}) check(input, c.at, in_place, name(spec, c));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
