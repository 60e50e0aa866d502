// The specs of quantize_mx and float_quantize: how they print and parse, every refusal, and their kernels' source.
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_quantize_spec)

using namespace ingot;
using namespace ingot::test;

namespace {

std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> dtypes;
  for (int i = 0; i <= static_cast<int>(Dtype::u8); ++i) dtypes.push_back(static_cast<Dtype>(i));
  return dtypes;
}

std::vector<KernelSpec> listed_specs() {
  std::vector<KernelSpec> specs;
  for (const MxQuantizeSpec& spec : valid_specs<MxQuantizeSpec>()) specs.emplace_back(spec);
  for (const FloatQuantizeSpec& spec : valid_specs<FloatQuantizeSpec>()) specs.emplace_back(spec);
  return specs;
}

}  // namespace

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(MxQuantizeSpec{}) == "quantize_mx bf16->e4m3fn");
  BOOST_TEST(print(MxQuantizeSpec{.in = Dtype::f32, .out = Dtype::e2m1fn}) == "quantize_mx f32->e2m1fn");
  BOOST_TEST(print(FloatQuantizeSpec{}) == "float_quantize bf16 e4m3");
  BOOST_TEST(print(FloatQuantizeSpec{.in = Dtype::f16, .exponent_bits = 3, .mantissa_bits = 0}) ==
             "float_quantize f16 e3m0");
}

BOOST_AUTO_TEST_CASE(parse_inverts_print) {
  for (const KernelSpec& spec : listed_specs()) BOOST_TEST((parse(print(spec)) == spec), spec);
  BOOST_TEST(
      (parse(" quantize_mx  f16 -> e3m2fn ") == KernelSpec(MxQuantizeSpec{.in = Dtype::f16, .out = Dtype::e3m2fn})));
}

BOOST_AUTO_TEST_CASE(parse_errors_quote_the_wrong_word) {
  BOOST_TEST(parse_error("quantize_mx") == "\"quantize_mx\" must be followed by <in>-><out>, such as bf16->e2m1fn");
  BOOST_TEST(parse_error("quantize_mx bf16") == "\"bf16\" must be <in>-><out>, such as bf16->e2m1fn");
  BOOST_TEST(parse_error("quantize_mx bf17->e2m1fn") == "\"bf17\" is no dtype; expected f32, bf16, f16");
  BOOST_TEST(parse_error("quantize_mx bf16->e2m1") ==
             "\"e2m1\" is no dtype; expected e4m3fn, e5m2, e3m2fn, e2m3fn, e2m1fn");
  BOOST_TEST(parse_error("quantize_mx bf16->e2m1fn scale=row") ==
             "\"scale=row\" is no word of quantize_mx; expected <in>-><out>, such as bf16->e2m1fn");
  const std::string form = "<in> and e<exponent bits>m<mantissa bits>, such as bf16 e3m2";
  BOOST_TEST(parse_error("float_quantize") == "\"float_quantize\" must be followed by " + form);
  BOOST_TEST(parse_error("float_quantize bf16") == "\"float_quantize\" must be followed by " + form);
  BOOST_TEST(parse_error("float_quantize bf16 e3m2 fast") == "\"fast\" is no word of float_quantize; expected " + form);
  BOOST_TEST(parse_error("float_quantize e3m2 bf16") == "\"e3m2\" is no dtype; expected f32, bf16, f16");
  for (const char* const word : {"e3", "m2", "e3m", "e33m2", "e3m22", "E3M2", "exm2", "e3mx", "e3n2", "e3m2fn"}) {
    BOOST_TEST(parse_error(std::string("float_quantize bf16 ") + word) ==
               "\"" + std::string(word) + "\" is no format; expected e<exponent bits>m<mantissa bits>, such as e3m2");
  }
}

BOOST_AUTO_TEST_CASE(validation_names_the_field_and_what_is_allowed) {
  BOOST_TEST(refusal(MxQuantizeSpec{.in = Dtype::e4m3fn}) ==
             "quantize_mx e4m3fn->e4m3fn: in is e4m3fn, but must be one of f32, bf16, f16");
  BOOST_TEST(refusal(MxQuantizeSpec{.out = Dtype::e4m3fnuz}) ==
             "quantize_mx bf16->e4m3fnuz: out is e4m3fnuz, but must be one of e4m3fn, e5m2, e3m2fn, e2m3fn, e2m1fn");
  BOOST_TEST(refusal(FloatQuantizeSpec{.in = Dtype::u8}) ==
             "float_quantize u8 e4m3: in is u8, but must be one of f32, bf16, f16");
  BOOST_TEST(refusal(FloatQuantizeSpec{.exponent_bits = 0}) ==
             "float_quantize bf16 e0m3: exponent_bits is 0, but must be 1 to 7");
  BOOST_TEST(refusal(FloatQuantizeSpec{.exponent_bits = 8, .mantissa_bits = 0}) ==
             "float_quantize bf16 e8m0: exponent_bits is 8, but must be 1 to 7");
  BOOST_TEST(refusal(FloatQuantizeSpec{.exponent_bits = 1, .mantissa_bits = 7}) ==
             "float_quantize bf16 e1m7: mantissa_bits is 7, but must be 0 to 6");
  BOOST_TEST(refusal(FloatQuantizeSpec{.exponent_bits = 1, .mantissa_bits = -1}) ==
             "float_quantize bf16 e1m-1: mantissa_bits is -1, but must be 0 to 6");
  BOOST_TEST(refusal(FloatQuantizeSpec{.exponent_bits = 4, .mantissa_bits = 4}) ==
             "float_quantize bf16 e4m4: the format has 9 bits with its sign, but must have 8 at most");
  BOOST_TEST(refusal(FloatQuantizeSpec{.in = Dtype::f16, .exponent_bits = 5, .mantissa_bits = 2}) ==
             "float_quantize f16 e5m2: exponent_bits is 5, but f16 holds the values of formats of up to 4 only: take "
             "bf16 or f32");
}

BOOST_AUTO_TEST_CASE(all_valid_ones_are_listed) {
  std::set<std::string> listed;
  for (const KernelSpec& spec : listed_specs()) BOOST_TEST(listed.insert(print(spec)).second, spec);
  BOOST_TEST(listed.size() == 3U * 5U + 28U + 28U + 22U);
  for (const Dtype in : all_dtypes()) {
    for (const Dtype out : all_dtypes()) {
      const KernelSpec spec = MxQuantizeSpec{.in = in, .out = out};
      BOOST_TEST((refusal(spec) == "no error") == listed.contains(print(spec)), spec);
    }
    for (int e = -1; e < 10; ++e) {
      for (int m = -1; m < 10; ++m) {
        const KernelSpec spec = FloatQuantizeSpec{.in = in, .exponent_bits = e, .mantissa_bits = m};
        BOOST_TEST((refusal(spec) == "no error") == listed.contains(print(spec)), spec);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(hashes_do_not_collide) {
  std::set<std::size_t> hashes;
  for (const KernelSpec& spec : listed_specs()) hashes.insert(hash_value(spec));
  BOOST_TEST(hashes.size() == listed_specs().size());
}

BOOST_AUTO_TEST_CASE(each_is_its_own_kernel) {
  BOOST_TEST(generate(parse("quantize_mx bf16->e2m1fn")).text ==
             "// quantize_mx bf16->e2m1fn\n#include \"quantize/quantize_mx.cuh\"\n"
             "constexpr auto kKernel = &ingot::quantize_mx<ingot::bf16, ingot::e2m1fn>;\n");
  BOOST_TEST(generate(parse("float_quantize f32 e3m2")).text ==
             "// float_quantize f32 e3m2\n#include \"quantize/float_quantize.cuh\"\n"
             "constexpr auto kKernel = &ingot::float_quantize<ingot::f32, ingot::FloatQuantizeConfig{.exponent_bits = "
             "3, .mantissa_bits = 2}>;\n");
  std::set<std::string> texts;
  for (const KernelSpec& spec : listed_specs()) {
    BOOST_TEST(passes(spec).size() == 1U);
    texts.insert(generate(spec).text);
  }
  BOOST_TEST(texts.size() == listed_specs().size());
}

BOOST_AUTO_TEST_SUITE_END()
