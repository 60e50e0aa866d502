#define BOOST_TEST_MODULE nn_config
#include <boost/test/included/unit_test.hpp>

#include <string>

#include "ingot/nn/config.h"
#include "ingot/runtime/error.h"

using namespace ingot;

namespace {

// The whole message of the error that validate() throws; empty where it accepts.
std::string refusal(const LinearConfig& config) {
  try {
    validate(config);
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::invalid_spec));
    return error.what();
  }
  return {};
}

LinearConfig with_gw_hp() {
  LinearConfig config = tensorwise();
  config.grad_weight = {};
  return config;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tensorwise_is_the_default_of_torchao) {
  const LinearConfig config = tensorwise();
  BOOST_TEST(
      (config.output ==
       GemmConfig{.a = Cast{.dtype = Dtype::e4m3fn}, .b = Cast{.dtype = Dtype::e4m3fn}, .fast_accumulation = true}));
  BOOST_TEST((config.grad_input == GemmConfig{.a = Cast{.dtype = Dtype::e5m2}, .b = Cast{.dtype = Dtype::e4m3fn}}));
  BOOST_TEST((config.grad_weight == GemmConfig{.a = Cast{.dtype = Dtype::e5m2}, .b = Cast{.dtype = Dtype::e4m3fn}}));
}

BOOST_AUTO_TEST_CASE(recipes_are_valid) {
  BOOST_TEST(refusal(tensorwise()) == "");
  BOOST_TEST(refusal(high_precision()) == "");
  BOOST_TEST(refusal(with_gw_hp()) == "");
}

BOOST_AUTO_TEST_CASE(a_cast_is_found_at_either_of_its_gemms) {
  const LinearConfig both = tensorwise();
  BOOST_TEST((input_cast(both) == Cast{.dtype = Dtype::e4m3fn}));
  BOOST_TEST((weight_cast(both) == Cast{.dtype = Dtype::e4m3fn}));
  BOOST_TEST((grad_output_cast(both) == Cast{.dtype = Dtype::e5m2}));

  LinearConfig backward_only = both;
  backward_only.output = {};
  BOOST_TEST((input_cast(backward_only) == Cast{.dtype = Dtype::e4m3fn}));
  BOOST_TEST((weight_cast(backward_only) == Cast{.dtype = Dtype::e4m3fn}));

  LinearConfig no_grad_input = both;
  no_grad_input.grad_input = {};
  BOOST_TEST((grad_output_cast(no_grad_input) == Cast{.dtype = Dtype::e5m2}));

  BOOST_TEST(!input_cast(high_precision()));
  BOOST_TEST(!weight_cast(high_precision()));
  BOOST_TEST(!grad_output_cast(high_precision()));
}

BOOST_AUTO_TEST_CASE(print_is_one_readable_line) {
  BOOST_TEST(print(tensorwise()) == "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output");
  BOOST_TEST(print(high_precision()) == "high precision");
  BOOST_TEST(print(with_gw_hp()) == "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 hp:grad_weight fast:output");

  LinearConfig output_only;
  const Cast pow2{.dtype = Dtype::e4m3fnuz, .pow2 = true};
  output_only.output = {.a = pow2, .b = pow2};
  BOOST_TEST(print(output_only) == "i:dyn_ten_e4m3fnuz_pow2 w:dyn_ten_e4m3fnuz_pow2 hp:grad_input,grad_weight");
}

BOOST_AUTO_TEST_CASE(both_operands_or_neither) {
  LinearConfig output = tensorwise();
  output.output.b.reset();
  BOOST_TEST(refusal(output) ==
             "linear config: incompatible operand precision for output: input is dyn_ten_e4m3fn and weight is high "
             "precision, but both operands of a GEMM are cast, or neither");
  LinearConfig grad_input = tensorwise();
  grad_input.grad_input.a.reset();
  BOOST_TEST(refusal(grad_input) ==
             "linear config: incompatible operand precision for grad_input: grad_output is high precision and weight "
             "is dyn_ten_e4m3fn, but both operands of a GEMM are cast, or neither");
  LinearConfig grad_weight = tensorwise();
  grad_weight.grad_weight.b.reset();
  BOOST_TEST(refusal(grad_weight) ==
             "linear config: incompatible operand precision for grad_weight: grad_output is dyn_ten_e5m2 and input is "
             "high precision, but both operands of a GEMM are cast, or neither");
}

BOOST_AUTO_TEST_CASE(one_cast_per_tensor) {
  const Cast other{.dtype = Dtype::e4m3fnuz};
  LinearConfig input = tensorwise();
  input.grad_weight.b = other;
  BOOST_TEST(refusal(input) ==
             "linear config: input is cast as dyn_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fnuz for the "
             "grad_weight GEMM, but one cast serves both: make them equal, or one of the GEMMs high precision");
  LinearConfig weight = tensorwise();
  weight.grad_input.b->pow2 = true;
  BOOST_TEST(refusal(weight) ==
             "linear config: weight is cast as dyn_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fn_pow2 for the "
             "grad_input GEMM, but one cast serves both: make them equal, or one of the GEMMs high precision");
  LinearConfig grad_output = tensorwise();
  grad_output.grad_input.a = other;
  BOOST_TEST(refusal(grad_output) ==
             "linear config: grad_output is cast as dyn_ten_e4m3fnuz for the grad_input GEMM and as dyn_ten_e5m2 for "
             "the grad_weight GEMM, but one cast serves both: make them equal, or one of the GEMMs high precision");
  grad_output.grad_weight = {};
  BOOST_TEST(refusal(grad_output) == "");
}

BOOST_AUTO_TEST_CASE(one_scale_per_tensor) {
  LinearConfig config = tensorwise();
  config.output.a->granularity = kRowwise;
  BOOST_TEST(refusal(config) ==
             "linear config: input of the output GEMM has scale=row, but must have scale=tensor: its codes are "
             "transposed for another GEMM, which only one scale per tensor survives");
}

BOOST_AUTO_TEST_CASE(casts_are_to_fp8) {
  for (const Dtype dtype : kHighPrecisionDtypes) {
    LinearConfig config = tensorwise();
    config.grad_weight.a->dtype = dtype;
    BOOST_TEST(refusal(config) == "linear config: grad_output of the grad_weight GEMM is cast to " +
                                      std::string(name(dtype)) +
                                      ", but must be cast to an FP8 format (e4m3fn, e5m2, e4m3fnuz, e5m2fnuz), or to "
                                      "none for high precision");
  }
}

BOOST_AUTO_TEST_CASE(fast_accumulation_is_for_fp8) {
  LinearConfig config = high_precision();
  config.grad_input.fast_accumulation = true;
  BOOST_TEST(refusal(config) ==
             "linear config: fast_accumulation is set for the grad_input GEMM, but is for FP8 operands only: "
             "high-precision ones always sum in f32");
}
