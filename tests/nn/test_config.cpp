// LinearConfig and the recipes: which casts and specs they give, how they print, and every refusal of validate().
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <string>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"

BOOST_AUTO_TEST_SUITE(test_config)

using namespace ingot;

namespace {

// Returns the whole message of the error that validate() throws; empty if it accepts.
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
  for (const Recipe& known : recipes()) {
    BOOST_TEST(refusal(known.config) == "", known.name);
    BOOST_TEST((recipe(known.name) == known.config), known.name);
  }
  try {
    static_cast<void>(recipe("magic"));
    BOOST_ERROR("no error");
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    BOOST_TEST(std::string(error.what()) ==
               "recipe: \"magic\" must be one of high_precision, tensorwise, delayed, rowwise, rowwise_folded, "
               "rowwise_with_gw_hp, blockwise");
  }
}

// What torchao's Float8LinearConfig.from_recipe_name returns, with this library's names.
BOOST_AUTO_TEST_CASE(rowwise_recipes_are_those_of_torchao) {
  const Cast row{.dtype = Dtype::e4m3fn, .granularity = kRowwise, .pow2 = true};
  const Cast tensor{.dtype = Dtype::e4m3fn, .pow2 = true};
  const LinearConfig all = rowwise();
  BOOST_TEST((all.output == GemmConfig{.a = row, .b = row, .fast_accumulation = true}));
  BOOST_TEST((all.grad_input == GemmConfig{.a = row, .b = row}));
  BOOST_TEST((all.grad_weight == GemmConfig{.a = row, .b = row}));
  const LinearConfig hp = rowwise_with_gw_hp();
  BOOST_TEST((hp.output == all.output));
  BOOST_TEST((hp.grad_input == GemmConfig{.a = row, .b = tensor}));
  BOOST_TEST((hp.grad_weight == GemmConfig{}));
}

// One call makes both operands; the granularity of the second describes the tensor before its transposition.
BOOST_AUTO_TEST_CASE(casts_as_specs) {
  const auto line = [](const TensorCasts& casts) { return print(KernelSpec(cast_spec(casts, Dtype::bf16))); };
  BOOST_TEST(line(input_casts(tensorwise())) == "cast bf16->e4m3fn scale=tensor out=codes,transposed");
  BOOST_TEST(line(input_casts(rowwise())) == "cast bf16->e4m3fn scale=row+col out=codes,transposed pow2");
  BOOST_TEST(line(grad_output_casts(rowwise())) == line(input_casts(rowwise())));
  BOOST_TEST(line(input_casts(rowwise_with_gw_hp())) == "cast bf16->e4m3fn scale=row out=codes pow2");
  BOOST_TEST(line(weight_casts(rowwise_with_gw_hp())) ==
             "cast bf16->e4m3fn scale=row+tensor out=codes,transposed pow2");
  BOOST_TEST(line(input_casts(delayed())) == "cast bf16->e4m3fn scale=tensor out=codes,transposed given");
  BOOST_TEST(line(input_casts(blockwise())) == "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed");
  BOOST_TEST(line(weight_casts(blockwise())) == "cast bf16->e4m3fn scale=128x128 out=codes,transposed");
  BOOST_TEST(line(input_casts(rowwise_folded())) == "cast bf16->e4m3fn scale=row out=codes,transposed pow2");
  LinearConfig again = rowwise();
  again.input = OtherCodes::again;
  BOOST_TEST(line(input_casts(again)) == "cast bf16->e4m3fn scale=row out=codes pow2");
  BOOST_TEST(line(input_casts_again(again)) == "cast bf16->e4m3fn scale=col out=transposed pow2");
  BOOST_TEST(line({.transposed = Cast{.granularity = kRowwise}}) == "cast bf16->e4m3fn scale=col out=transposed");
}

BOOST_AUTO_TEST_CASE(print_is_one_readable_line) {
  BOOST_TEST(print(tensorwise()) == "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output");
  BOOST_TEST(print(high_precision()) == "high precision");
  BOOST_TEST(print(rowwise()) == "i:dyn_row_e4m3fn_pow2 w:dyn_row_e4m3fn_pow2 go:dyn_row_e4m3fn_pow2 fast:output");
  BOOST_TEST(print(rowwise_with_gw_hp()) ==
             "i:dyn_row_e4m3fn_pow2 w:dyn_row_e4m3fn_pow2 w_gi:dyn_ten_e4m3fn_pow2 go:dyn_row_e4m3fn_pow2 "
             "hp:grad_weight fast:output");
  BOOST_TEST(print(delayed()) == "i:del_ten_e4m3fn w:del_ten_e4m3fn go:del_ten_e5m2 fast:output");
  BOOST_TEST(print(blockwise()) == "i:dyn_1x128_e4m3fn w:dyn_128x128_e4m3fn go:dyn_1x128_e4m3fn");
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

BOOST_AUTO_TEST_CASE(one_format_per_tensor) {
  const Cast other{.dtype = Dtype::e4m3fnuz};
  LinearConfig input = tensorwise();
  input.grad_weight.b = other;
  BOOST_TEST(refusal(input) ==
             "linear config: input is cast as dyn_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fnuz for the "
             "grad_weight GEMM, but both must be to one format, with pow2 in both or in neither: make them equal, or "
             "one of the GEMMs high precision");
  LinearConfig weight = tensorwise();
  weight.grad_input.b->pow2 = true;
  BOOST_TEST(refusal(weight) ==
             "linear config: weight is cast as dyn_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fn_pow2 for the "
             "grad_input GEMM, but both must be to one format, with pow2 in both or in neither: make them equal, or "
             "one of the GEMMs high precision");
  LinearConfig grad_output = tensorwise();
  grad_output.grad_input.a = other;
  BOOST_TEST(refusal(grad_output) ==
             "linear config: grad_output is cast as dyn_ten_e4m3fnuz for the grad_input GEMM and as dyn_ten_e5m2 for "
             "the grad_weight GEMM, but both must be to one format, with pow2 in both or in neither: make them equal, "
             "or one of the GEMMs high precision");
  grad_output.grad_weight = {};
  BOOST_TEST(refusal(grad_output) == "");
}

BOOST_AUTO_TEST_CASE(granularities_that_a_gemm_takes) {
  for (const ScaleGranularity scale : {kColumnwise, kRowGroups, kColumnGroups, kBlocks}) {
    LinearConfig config = tensorwise();
    config.output.a->granularity = scale;
    BOOST_TEST(refusal(config) == "linear config: the output GEMM has scale=" + print(scale) +
                                      " for input and scale=tensor for weight, but takes tensor or row for each, or "
                                      "1x128,1x128 or 1x128,128x128");
  }
  LinearConfig groups = blockwise();
  groups.output.b->granularity = kRowGroups;
  BOOST_TEST(refusal(groups) == "");
  groups.output.fast_accumulation = true;
  BOOST_TEST(refusal(groups) ==
             "linear config: fast_accumulation is set for the output GEMM, but its scales are grouped: each 128 of a "
             "sum has its own scale_inv and is summed separately");
}

BOOST_AUTO_TEST_CASE(delayed_and_fixed_scales) {
  LinearConfig rows = rowwise();
  rows.output.a->scaling = Scaling::delayed;
  BOOST_TEST(refusal(rows) ==
             "linear config: input of the output GEMM is cast as del_row_e4m3fn_pow2, but delayed scales cover whole "
             "tensors: set scale=tensor");
  LinearConfig one = tensorwise();
  one.output.a->scaling = Scaling::delayed;
  BOOST_TEST(refusal(one) ==
             "linear config: input is cast as del_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fn for the "
             "grad_weight GEMM, but where scales are delayed or fixed both must be equal");
  const auto fixed = [](float scale) {
    LinearConfig config;
    const Cast cast{.scaling = Scaling::fixed, .scale = scale};
    config.output = {.a = cast, .b = Cast{}};
    return config;
  };
  BOOST_TEST(refusal(fixed(16)) == "");
  BOOST_TEST(print(fixed(16)) == "i:sta16_ten_e4m3fn w:dyn_ten_e4m3fn hp:grad_input,grad_weight");
  for (const float scale : {0.0F, -1.0F, HUGE_VALF, std::nanf("")}) {
    BOOST_TEST(refusal(fixed(scale)).starts_with("linear config: input of the output GEMM has a fixed scale of "));
    BOOST_TEST(refusal(fixed(scale)).ends_with(", but it must be positive and finite"));
  }
  LinearConfig rounded = fixed(16);
  rounded.output.a->pow2 = true;
  BOOST_TEST(refusal(rounded) ==
             "linear config: input of the output GEMM has pow2 and a fixed scale: give a power of two");
  LinearConfig stray = tensorwise();
  stray.output.a->scale = 2;
  BOOST_TEST(refusal(stray) ==
             "linear config: input of the output GEMM has the scale 2, which only a fixed cast takes");
  LinearConfig unknown = tensorwise();
  unknown.output.a->scaling = static_cast<Scaling>(9);
  BOOST_TEST(refusal(unknown) ==
             "linear config: input of the output GEMM has scaling 9, but it must be dynamic, delayed or fixed");
}

BOOST_AUTO_TEST_CASE(other_codes) {
  LinearConfig again = tensorwise();
  again.input = OtherCodes::again;
  BOOST_TEST(refusal(again) == "");
  BOOST_TEST(print(again) == print(tensorwise()) + " again:input");
  again.grad_weight = {};
  BOOST_TEST(
      refusal(again) ==
      "linear config: input is again, but the grad_weight GEMM, which is to read its codes, is in high precision");
  LinearConfig tensor = tensorwise();
  tensor.weight = OtherCodes::folded;
  BOOST_TEST(refusal(tensor) ==
             "linear config: weight is folded, but is cast as dyn_ten_e4m3fn for the output GEMM and as dyn_ten_e4m3fn "
             "for the grad_input GEMM: both must be the same, with scale=row");
  LinearConfig delayed_gradient = rowwise_folded();
  for (Cast* cast : {&*delayed_gradient.grad_input.a, &*delayed_gradient.grad_weight.a}) {
    *cast = Cast{.pow2 = true, .scaling = Scaling::delayed};
  }
  BOOST_TEST(refusal(delayed_gradient) ==
             "linear config: input is folded into grad_output, which is then cast separately for the grad_weight GEMM: "
             "its scales must be dynamic, not del_ten_e4m3fn_pow2");
  LinearConfig unknown = rowwise();
  unknown.weight = static_cast<OtherCodes>(7);
  BOOST_TEST(refusal(unknown) == "linear config: weight is 7, but it must be together, again or folded");
  BOOST_TEST(print(rowwise_folded()) == print(rowwise()) + " folded:input,weight");
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

BOOST_AUTO_TEST_SUITE_END()
