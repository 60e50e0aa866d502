// KernelSpec: how specs print and parse, every refusal of validate(), all_valid_specs(), hashes, and the GEMM kernel
// that a spec may name.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/util/error.h"
#include "support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_kernel_spec)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr auto kNoDtype = static_cast<Dtype>(99);

bool valid(const KernelSpec& spec) {
  try {
    validate(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Every combination of field values, valid or not.
std::vector<KernelSpec> all_combinations() {
  std::vector<Dtype> dtypes(kHighPrecisionDtypes.begin(), kHighPrecisionDtypes.end());
  dtypes.insert(dtypes.end(), kFp8Dtypes.begin(), kFp8Dtypes.end());
  const std::vector scales{
      kTensorwise, kRowwise, kColumnwise, kRowGroups, kBlocks, kColumnGroups, ScaleGranularity{1, 64}};
  std::vector<KernelSpec> specs;
  for (const Dtype in : dtypes) {
    for (const auto scale : scales) {
      specs.push_back(AmaxSpec{in, scale});
      for (const bool transposed : {false, true}) specs.push_back(CastStatsSpec{in, {}, scale, transposed});
    }
    for (const Dtype out : dtypes) {
      specs.push_back(ColumnSumSpec{in, out});
      for (const auto scale : scales) {
        for (const bool transposed : {false, true}) specs.push_back(CastStatsSpec{in, out, scale, transposed});
        for (unsigned flags = 0; flags < 8; ++flags) {
          CastSpec cast{in, out, scale, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
          specs.push_back(cast);
          cast.source = ScaleSource::given;
          specs.push_back(cast);
          for (const auto other : scales) {
            cast.transposed_scale = other;
            for (const auto source : {ScaleSource::dynamic, ScaleSource::given}) {
              cast.source = source;
              specs.push_back(cast);
            }
          }
        }
      }
      for (const Dtype result : dtypes) {
        for (const auto scale_a : scales) {
          for (const auto scale_b : scales) {
            for (unsigned flags = 0; flags < 16; ++flags) {
              specs.push_back(GemmSpec{in, out, result, static_cast<Layout>(flags & 1),
                                       static_cast<Layout>(flags >> 1 & 1), scale_a, scale_b, (flags & 4) != 0,
                                       (flags & 8) != 0});
            }
          }
        }
      }
    }
  }
  return specs;
}

// The fields that all_combinations() leaves at their defaults: expressions and further outputs.
std::vector<CastSpec> fused_combinations() {
  std::vector<CastSpec> specs;
  for (const char* const text : {"", "x", "silu(x)*gate", "(x-mean[row])*rstd[row]*gamma[col]+beta[col]", "a/b"}) {
    for (unsigned flags = 0; flags < 32; ++flags) {
      for (const std::optional<Dtype> sum : {std::optional<Dtype>{}, {Dtype::f32}, {Dtype::bf16}, {Dtype::f16}}) {
        CastSpec spec{.scale = (flags & 1) != 0 ? kRowwise : kTensorwise, .transposed = (flags & 2) != 0};
        if (*text != '\0') spec.pointwise = parse_pointwise(text);
        spec.unrounded = (flags & 4) != 0;
        spec.fast_math = (flags & 8) != 0;
        spec.result = (flags & 16) != 0;
        spec.sum = sum;
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

}  // namespace

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(AmaxSpec{}) == "amax bf16 scale=tensor");
  BOOST_TEST(print(CastSpec{.in = Dtype::bf16,
                            .out = Dtype::e4m3fn,
                            .scale = kRowwise,
                            .codes = true,
                            .transposed = true,
                            .pow2 = true}) == "cast bf16->e4m3fn scale=row out=codes,transposed pow2");
  BOOST_TEST(
      print(CastSpec{
          .scale = kRowGroups, .transposed = true, .transposed_scale = kColumnGroups, .source = ScaleSource::given}) ==
      "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed given");
  BOOST_TEST(print(CastSpec{.codes = false, .transposed = true}) == "cast bf16->e4m3fn scale=tensor out=transposed");
  BOOST_TEST(print(CastSpec{.transposed = true,
                            .pointwise = parse_pointwise("x + bias[col]"),
                            .unrounded = true,
                            .fast_math = true,
                            .result = true,
                            .sum = Dtype::f32}) ==
             "cast bf16->e4m3fn of=x+bias[col] scale=tensor out=codes,transposed,result,sum:f32 unrounded fast");
  BOOST_TEST(print(CastSpec{.sum = Dtype::bf16}) == "cast bf16->e4m3fn scale=tensor out=codes,sum:bf16");
  BOOST_TEST(print(GemmSpec{.a = Dtype::e4m3fn, .b = Dtype::e5m2, .bias = true, .fast_accumulation = true}) ==
             "gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor bias fast");
  BOOST_TEST(print(GemmSpec{.scale_b = kRowwise}) == "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,row");
  BOOST_TEST(print(ColumnSumSpec{.in = Dtype::bf16, .out = Dtype::f32}) == "column_sum bf16->f32");
  std::ostringstream stream;
  stream << KernelSpec(AmaxSpec{.in = Dtype::f16, .scale = kRowwise});
  BOOST_TEST(stream.str() == "amax f16 scale=row");
}

BOOST_AUTO_TEST_CASE(layouts_print_as_blas_letters) {
  const auto letters = [](Layout a, Layout b) {
    return print(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16, .layout_a = a, .layout_b = b});
  };
  BOOST_TEST(letters(Layout::k_major, Layout::k_major) == "gemm bf16*bf16->bf16 nt");
  BOOST_TEST(letters(Layout::k_major, Layout::mn_major) == "gemm bf16*bf16->bf16 nn");
  BOOST_TEST(letters(Layout::mn_major, Layout::k_major) == "gemm bf16*bf16->bf16 tt");
  BOOST_TEST(letters(Layout::mn_major, Layout::mn_major) == "gemm bf16*bf16->bf16 tn");
}

BOOST_AUTO_TEST_CASE(parse_inverts_print) {
  for (const KernelSpec& spec : all_valid_specs()) {
    BOOST_TEST((parse(print(spec)) == spec), print(spec) << " came back as " << print(parse(print(spec))));
  }
  for (const KernelSpec spec : fused_combinations()) {
    if (!valid(spec)) continue;
    BOOST_TEST((parse(print(spec)) == spec), print(spec) << " came back as " << print(parse(print(spec))));
  }
}

BOOST_AUTO_TEST_CASE(spaces_and_the_order_of_words_do_not_matter) {
  const std::string cast = "cast bf16->e4m3fn scale=row out=codes,transposed pow2";
  for (const char* line : {"  cast   bf16->e4m3fn\tscale=row  out=codes,transposed pow2\n",
                           "cast bf16->e4m3fn pow2 out=transposed,codes scale=row",
                           "cast bf16 -> e4m3fn scale = row out = codes , transposed pow2",
                           "cast bf16-> e4m3fn scale= row out=codes, transposed pow2"}) {
    BOOST_TEST(print(parse(line)) == cast, line);
  }
  const std::string gemm = "gemm e4m3fn*e5m2->f32 nt scale=row,tensor bias fast";
  for (const char* line : {"gemm e4m3fn*e5m2->f32 fast bias scale=row,tensor nt",
                           "gemm e4m3fn * e5m2 -> f32 fast bias scale=row, tensor nt"}) {
    BOOST_TEST(print(parse(line)) == gemm, line);
  }
  const std::string fused = "cast bf16->e4m3fn of=x*sigmoid(x)*gate+bias[col] scale=row out=codes,result,sum:f32 fast";
  for (const char* line :
       {"cast bf16->e4m3fn of=\"silu(x) * gate + bias[col]\" scale=row out=codes,result,sum:f32 fast",
        "cast bf16->e4m3fn fast out=sum:f32, codes, result of = silu(x)*gate+bias[col] scale=row",
        "cast bf16->e4m3fn scale=row fast of=\" x*sigmoid(x) *gate+ bias[col]\" out=result,codes,"
        "sum:f32"}) {
    BOOST_TEST((parse(line) == parse(fused)), line << " is " << parse(line));
  }
}

BOOST_AUTO_TEST_CASE(words_left_out_have_the_fields_defaults) {
  BOOST_TEST((parse("amax f32") == KernelSpec(AmaxSpec{.in = Dtype::f32})));
  BOOST_TEST((parse("cast f16->e5m2") == KernelSpec(CastSpec{.in = Dtype::f16, .out = Dtype::e5m2})));
  BOOST_TEST((parse("gemm e4m3fn*e4m3fn->bf16") == KernelSpec(GemmSpec{})));
}

BOOST_AUTO_TEST_CASE(parse_errors_quote_the_wrong_word) {
  BOOST_TEST(
      parse_error("casts bf16->e4m3fn") ==
      "\"casts\" is no kernel; expected amax, cast, gemm, gemm_pair, grouped_gemm, column_sum, relayout, elementwise, "
      "cast_stats, norm, norm_backward, amax_history, amax_scales, combine, quantize_mx, float_quantize, "
      "pack_weight or dequant_matmul");
  BOOST_TEST(
      parse_error("->") ==
      "\"->\" is no kernel; expected amax, cast, gemm, gemm_pair, grouped_gemm, column_sum, relayout, elementwise, "
      "cast_stats, norm, norm_backward, amax_history, amax_scales, combine, quantize_mx, float_quantize, "
      "pack_weight or dequant_matmul");

  BOOST_TEST(parse_error("amax") == "\"amax\" must be followed by the input's dtype, such as bf16");
  BOOST_TEST(parse_error("cast") == "\"cast\" must be followed by <in>-><out>, such as bf16->e4m3fn");
  BOOST_TEST(parse_error("gemm ") == "\"gemm\" must be followed by <a>*<b>-><out>, such as e4m3fn*e5m2->bf16");
  BOOST_TEST(parse_error("relayout") == "\"relayout\" must be followed by copied or transposed");
  BOOST_TEST(parse_error("relayout turned") == "\"turned\" must be copied or transposed");
  BOOST_TEST(parse_error("amax_history") == "\"amax_history\" must be followed by reduce=max or reduce=most_recent");
  BOOST_TEST(parse_error("amax_history reduce=min") == "\"reduce=min\" must be reduce=max or reduce=most_recent");
  BOOST_TEST(parse_error("amax_history max") == "\"max\" must be reduce=max or reduce=most_recent");
  BOOST_TEST(parse_error("amax_history reduce=max pow2") == "\"pow2\" is no word of amax_history; expected finite");
  BOOST_TEST(parse_error("amax_scales") == "\"amax_scales\" must be followed by the codes' dtype, such as e4m3fn");
  BOOST_TEST(parse_error("amax_scales e5m2 finite") == "\"finite\" is no word of amax_scales; expected pow2");
  BOOST_TEST(parse_error("relayout copied fast") == "\"fast\" is no word of relayout; expected nothing more");
  BOOST_TEST(parse_error("gemm e4m3fn*e4m3fn->bf16 kernel=sm90 staged=c") ==
             "\"c\" in \"staged=c\" names no operand; expected a, b or a,b");
  BOOST_TEST(parse_error("cast_stats") ==
             "\"cast_stats\" must be followed by <in> or <in>-><out>, such as bf16->e4m3fn");
  BOOST_TEST(parse_error("cast_stats bf16->e4m3fn pow2") ==
             "\"pow2\" is no word of cast_stats; expected scale=<granularity> or transposed");
  BOOST_TEST(parse_error("cast_stats bf16 transposed") == "transposed is set, but there are no codes: set out");
  BOOST_TEST(parse_error("cast_stats bf16 scale=row") == "scale is set, but there are no codes: set out");
  BOOST_TEST(parse_error("cast_stats bf16->e4m3fn scale=1x64") ==
             "scale is 1x64, but must be tensor, row, col, 1x128, 128x1 or 128x128");
  BOOST_TEST(parse_error("column_sum") == "\"column_sum\" must be followed by <in>-><out>, such as bf16->f32");

  const std::string dtypes = "is no dtype; expected f32, bf16, f16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz";
  BOOST_TEST(parse_error("amax bf17") == "\"bf17\" " + dtypes);
  BOOST_TEST(parse_error("cast bf16->e4m3") == "\"e4m3\" in \"bf16->e4m3\" " + dtypes);
  BOOST_TEST(parse_error("cast ->e4m3fn") == "\"\" in \"->e4m3fn\" " + dtypes);
  BOOST_TEST(parse_error("cast bf16->") == "\"\" in \"bf16->\" " + dtypes);
  BOOST_TEST(parse_error("gemm e4m3fn*e9m9->bf16") == "\"e9m9\" in \"e4m3fn*e9m9->bf16\" " + dtypes);
  BOOST_TEST(parse_error("column_sum bf16->int8") == "\"int8\" in \"bf16->int8\" " + dtypes);
  BOOST_TEST(parse_error("cast bf16 e4m3fn") == "\"bf16\" must be <in>-><out>, such as bf16->e4m3fn");
  BOOST_TEST(parse_error("gemm bf16*bf16") == "\"bf16*bf16\" must be <a>*<b>-><out>, such as e4m3fn*e5m2->bf16");
  BOOST_TEST(parse_error("gemm bf16->bf16") == "\"bf16->bf16\" must be <a>*<b>-><out>, such as e4m3fn*e5m2->bf16");

  const std::string options =
      "of=<expression>, scale=<granularity>, out=codes,transposed,result,sum:<dtype>,amax:<granularity>, given, "
      "pow2, unrounded, fast, rounded=<dtype>, list, stacked, gathered or experts";
  BOOST_TEST(parse_error("amax bf16 pow2") ==
             "\"pow2\" is no word of amax; expected scale=<granularity>, rounded=<dtype> or list");
  BOOST_TEST(parse_error("cast bf16->e4m3fn pow3") == "\"pow3\" is no word of cast; expected " + options);
  BOOST_TEST(parse_error("cast bf16->e4m3fn pow2=yes") == "\"pow2=yes\" is no word of cast; expected " + options);
  BOOST_TEST(parse_error("gemm e4m3fn*e4m3fn->bf16 nc") ==
             "\"nc\" is no word of gemm; expected nt, nn, tt, tn, scale=<granularity>,<granularity>, bias, c=<dtype>, "
             "epilogue=<expression>, also=preactivation,amax, fast, kernel=<kernel> or staged=a,b");
  BOOST_TEST(
      parse_error("gemm e4m3fn*e4m3fn->bf16 bias=f32") ==
      "\"bias=f32\" is no word of gemm; expected nt, nn, tt, tn, scale=<granularity>,<granularity>, bias, c=<dtype>, "
      "epilogue=<expression>, also=preactivation,amax, fast, kernel=<kernel> or staged=a,b");
  BOOST_TEST(parse_error("column_sum bf16->f32 fast") == "\"fast\" is no word of column_sum; expected experts");

  BOOST_TEST(parse_error("amax bf16 scale=rows") ==
             "\"rows\" in \"scale=rows\" is no granularity; expected tensor, row, col or <rows>x<cols>");
  BOOST_TEST(parse_error("amax bf16 scale") ==
             "\"\" in \"scale\" is no granularity; expected tensor, row, col or <rows>x<cols>");
  BOOST_TEST(parse_error("gemm e4m3fn*e4m3fn->bf16 scale=row") ==
             "\"scale=row\" must be two granularities, one for each operand, such as scale=tensor,row");
  BOOST_TEST(parse_error("gemm e4m3fn*e4m3fn->bf16 scale=row,rows") ==
             "\"rows\" in \"scale=row,rows\" is no granularity; expected tensor, row, col or <rows>x<cols>");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=cods") ==
             "\"cods\" in \"out=cods\" is not an output; expected codes, transposed, result, sum:<dtype> or "
             "amax:<granularity>");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,codes") == "\"out=codes,codes\" asks for codes a second time");

  BOOST_TEST(parse_error("cast bf16->e4m3fn of=x+1 out=codes,result,result") ==
             "\"out=codes,result,result\" asks for result a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,sum:f32,sum:bf16") ==
             "\"out=codes,sum:f32,sum:bf16\" asks for sum a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,sum") ==
             "\"sum\" in \"out=codes,sum\" is not an output; expected codes, transposed, result, sum:<dtype> or "
             "amax:<granularity>");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,sum:int8") == "\"int8\" in \"out=codes,sum:int8\" " + dtypes);
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,") ==
             "\"\" in \"out=codes,\" is not an output; expected codes, transposed, result, sum:<dtype> or "
             "amax:<granularity>");
  BOOST_TEST(parse_error("cast bf16->e4m3fn unrounded=1") == "\"unrounded=1\" is no word of cast; expected " + options);
  BOOST_TEST(parse_error("cast bf16->e4m3fn scale=row+rows") ==
             "\"rows\" in \"scale=row+rows\" is no granularity; expected tensor, row, col or <rows>x<cols>");

  BOOST_TEST(message_of([] { parse("cast bf16->e4m3fn of=\"x ** 2\" out=codes"); }) ==
             "expression: \"**\" is no operator; write x ^ 2 for a power\n  x ** 2\n    ^");
  BOOST_TEST(parse_error("cast bf16->e4m3fn of=x+1 of=x+2") == "\"of=x+2\" gives the expression a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn of=x+1 fast fast") == "\"fast\" gives fast a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn of=x+1 unrounded unrounded") ==
             "\"unrounded\" gives unrounded a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn given given") == "\"given\" gives given a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn of=\"x + 1 scale=row") == "a quotation mark is opened and not closed");
  BOOST_TEST(parse_error("cast bf16->e4m3fn pow2 pow2") == "\"pow2\" gives pow2 a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn scale=row scale=tensor") == "\"scale=tensor\" gives scale a second time");
  BOOST_TEST(parse_error("gemm bf16*bf16->bf16 nt nn") == "\"nn\" gives the layouts a second time");
}

BOOST_AUTO_TEST_CASE(lists_of_maxima) {
  const AmaxSpec spec{
      .in = Dtype::f32, .scale = kRowwise, .list = true, .second_scale = kBlocks, .rounded = Dtype::bf16};
  BOOST_TEST(print(spec) == "amax f32 scale=row+128x128 rounded=bf16 list");
  BOOST_TEST((parse("amax f32 list rounded=bf16 scale=row+128x128") == KernelSpec(spec)));
  BOOST_TEST(print(parse("amax bf16 scale=1x128 list")) == "amax bf16 scale=1x128 list");
  BOOST_TEST(refusal(AmaxSpec{.scale = {1, 64}, .list = true}) ==
             "amax bf16 scale=1x64 list: scale is 1x64, but must be tensor, row, col, 1x128, 128x1 or 128x128");
  BOOST_TEST(refusal(AmaxSpec{.list = true, .second_scale = kTensorwise}) ==
             "amax bf16 scale=tensor+tensor list: second_scale is tensor, as scale is: leave it out");
  BOOST_TEST(refusal(AmaxSpec{.list = true, .second_scale = kRowGroups64}) ==
             "amax bf16 scale=tensor+1x64 list: second_scale is 1x64, but must be tensor, row, col, 1x128, 128x1 or "
             "128x128");
  BOOST_TEST(refusal(AmaxSpec{.second_scale = kRowwise}) ==
             "amax bf16 scale=tensor+row: second_scale is set, but only lists find maxima of two kinds: set list, or "
             "call twice");
  BOOST_TEST(refusal(AmaxSpec{.in = Dtype::f32, .rounded = Dtype::f16}) ==
             "amax f32 scale=tensor rounded=f16: rounded is set, but only lists round their values first: set list");
  // Each has its own place in a table.
  std::set<std::size_t> hashes;
  for (const char* const line :
       {"amax f32 scale=row", "amax f32 scale=row list", "amax f32 scale=row+col list", "amax f32 scale=row+128x1 list",
        "amax f32 scale=col+row list", "amax f32 scale=row rounded=f16 list", "amax f32 scale=row rounded=bf16 list"}) {
    hashes.insert(hash_value(parse(line)));
  }
  BOOST_TEST(hashes.size() == 7U);
}

BOOST_AUTO_TEST_CASE(lists_may_round_their_values_first) {
  const CastSpec spec{.in = Dtype::f32, .source = ScaleSource::given, .list = true, .rounded = Dtype::bf16};
  BOOST_TEST(print(spec) == "cast f32->e4m3fn scale=tensor out=codes given rounded=bf16 list");
  BOOST_TEST((parse("cast f32->e4m3fn list given rounded=bf16") == KernelSpec(spec)));
  CastSpec other = spec;
  other.rounded = Dtype::f16;
  BOOST_TEST(hash_value(other) != hash_value(spec));
  other.rounded.reset();
  BOOST_TEST(hash_value(other) != hash_value(spec));
  const std::string line = "cast f32->e4m3fn scale=tensor out=codes ";
  BOOST_TEST(refusal(CastSpec{.in = Dtype::f32, .list = true, .rounded = Dtype::f32}) ==
             line + "rounded=f32 list: rounded is f32, but must be one of bf16, f16");
  BOOST_TEST(refusal(CastSpec{.list = true, .rounded = Dtype::f16}) ==
             "cast bf16->e4m3fn scale=tensor out=codes rounded=f16 list: rounded is set, but in is bf16: only values "
             "in f32 are rounded first");
  BOOST_TEST(refusal(CastSpec{.in = Dtype::f32, .rounded = Dtype::f16}) ==
             line +
                 "rounded=f16: rounded is set, but only lists and stacked matrices round their values first: set "
                 "list or stacked");
  BOOST_TEST(refusal(CastSpec{
                 .in = Dtype::f32, .pointwise = parse_pointwise("abs(x)"), .list = true, .rounded = Dtype::f16}) ==
             "cast f32->e4m3fn of=abs(x) scale=tensor out=codes rounded=f16 list: rounded is set, but an expression "
             "computes in f32 of what it reads: leave one of them out");
}

BOOST_AUTO_TEST_CASE(found_maxima) {
  CastSpec spec{.scale = kRowwise, .stacked = true, .found_amax = kColumnwise};
  const std::string line = "cast bf16->e4m3fn scale=row out=codes,amax:col stacked";
  BOOST_TEST(print(spec) == line);
  BOOST_TEST((parse(line) == KernelSpec(spec)));
  BOOST_TEST((parse("cast bf16->e4m3fn out=amax:tensor,codes stacked") ==
              KernelSpec(CastSpec{.stacked = true, .found_amax = kTensorwise})));
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,amax:col,amax:row") ==
             "\"out=codes,amax:col,amax:row\" asks for amax a second time");
  BOOST_TEST(parse_error("cast bf16->e4m3fn out=codes,amax:cols") ==
             "\"cols\" in \"out=codes,amax:cols\" is no granularity; expected tensor, row, col or <rows>x<cols>");
  CastSpec other = spec;
  other.found_amax.reset();
  BOOST_TEST(hash_value(KernelSpec(spec)) != hash_value(KernelSpec(other)));
  other = spec;
  other.found_amax = kTensorwise;
  BOOST_TEST(hash_value(KernelSpec(spec)) != hash_value(KernelSpec(other)));
  const std::string rule =
      "must be tensor where scale is tensor alone, or col where scale is row and codes are the only output";
  BOOST_TEST(refusal(other) ==
             "cast bf16->e4m3fn scale=row out=codes,amax:tensor stacked: found_amax is tensor, but " + rule);
  other = spec;
  other.transposed = true;
  BOOST_TEST(refusal(other) ==
             "cast bf16->e4m3fn scale=row out=codes,transposed,amax:col stacked: found_amax is col, but " + rule);
  other = spec;
  other.source = ScaleSource::given;
  BOOST_TEST(refusal(other) ==
             "cast bf16->e4m3fn scale=row out=codes,amax:col given stacked: found_amax is col, but the scales are "
             "given: such a cast raises CastTensors::amax");
  spec.stacked = false;
  BOOST_TEST(refusal(spec) ==
             "cast bf16->e4m3fn scale=row out=codes,amax:col: found_amax is col, but only stacked matrices write their "
             "maxima: set stacked, or find them with amax");
}

BOOST_AUTO_TEST_CASE(stacked_matrices) {
  const CastSpec spec{.in = Dtype::f32, .transposed = true, .rounded = Dtype::bf16, .stacked = true};
  const std::string line = "cast f32->e4m3fn scale=tensor out=codes,transposed rounded=bf16 stacked";
  BOOST_TEST(print(spec) == line);
  BOOST_TEST((parse("cast f32->e4m3fn stacked out=codes,transposed rounded=bf16") == KernelSpec(spec)));
  BOOST_TEST(parse_error(line + " stacked") == "\"stacked\" gives stacked a second time");
  std::set<std::size_t> hashes;
  for (const char* const words : {"", " list", " stacked"}) {
    hashes.insert(hash_value(parse(std::string("cast bf16->e4m3fn scale=row out=codes") + words)));
  }
  BOOST_TEST(hashes.size() == 3U);
  const std::string codes = "cast bf16->e4m3fn scale=tensor out=codes";
  BOOST_TEST(refusal(CastSpec{.list = true, .stacked = true}) ==
             codes +
                 " list stacked: stacked is set, but the matrices of a list are tensors of their own: leave one of "
                 "them out");
  BOOST_TEST(refusal(CastSpec{.sum = Dtype::f32, .stacked = true}) ==
             codes +
                 ",sum:f32 stacked: stacked is set, but stacked matrices have no column sums: cast each of them "
                 "alone");
  BOOST_TEST(refusal(CastSpec{.pointwise = parse_pointwise("abs(x)"), .result = true, .stacked = true}) ==
             "cast bf16->e4m3fn of=abs(x) scale=tensor out=codes,result stacked: stacked is set, but stacked matrices "
             "have no expression: compute it first, with elementwise");
  BOOST_TEST(refusal(CastSpec{.result = true, .stacked = true}) ==
             codes +
                 ",result stacked: result is set, but there is no pointwise expression: the values are the input's "
                 "own elements");
}

BOOST_AUTO_TEST_CASE(gathered_rows) {
  const CastSpec spec{.transposed = true, .pow2 = true, .transposed_scale = kColumnwise, .gathered = true};
  const std::string line = "cast bf16->e4m3fn scale=tensor+col out=codes,transposed pow2 gathered";
  BOOST_TEST(print(spec) == line);
  BOOST_TEST((parse("cast bf16->e4m3fn gathered scale=tensor+col out=codes,transposed pow2") == KernelSpec(spec)));
  BOOST_TEST(parse_error(line + " gathered") == "\"gathered\" gives gathered a second time");
  std::set<std::size_t> hashes;
  for (const char* const words : {"", " list", " stacked", " gathered"}) {
    hashes.insert(hash_value(parse(std::string("cast bf16->e4m3fn scale=row out=codes") + words)));
  }
  BOOST_TEST(hashes.size() == 4U);
  const std::string codes = "cast bf16->e4m3fn scale=tensor out=codes";
  BOOST_TEST(refusal(CastSpec{.list = true, .gathered = true}) ==
             codes +
                 " list gathered: gathered is set, but the matrices of a list have no index: leave one of them out");
  BOOST_TEST(refusal(CastSpec{.stacked = true, .gathered = true}) ==
             codes + " stacked gathered: gathered is set, but stacked matrices have no index: leave one of them out");
  BOOST_TEST(refusal(CastSpec{.sum = Dtype::f32, .gathered = true}) ==
             codes + ",sum:f32 gathered: gathered is set, but gathered rows have no column sums: cast without them");
  BOOST_TEST(
      refusal(CastSpec{.source = ScaleSource::given, .gathered = true}) ==
      codes +
          " given gathered: gathered is set, but gathered rows have no given scales: let them be dynamic, or set "
          "experts, which each have one");
  BOOST_TEST(refusal(CastSpec{.pointwise = parse_pointwise("abs(x)"), .gathered = true}) ==
             "cast bf16->e4m3fn of=abs(x) scale=tensor out=codes gathered: gathered is set, but gathered rows have no "
             "expression: compute it first, with elementwise");
  BOOST_TEST(refusal(CastSpec{.result = true, .gathered = true}) ==
             codes +
                 ",result gathered: result is set, but there is no pointwise expression: the values are the input's "
                 "own elements");
  BOOST_TEST(
      refusal(CastSpec{.in = Dtype::f32, .rounded = Dtype::bf16, .gathered = true}) ==
      "cast f32->e4m3fn scale=tensor out=codes rounded=bf16 gathered: rounded is set, but only lists and stacked "
      "matrices round their values first: set list or stacked");
}

BOOST_AUTO_TEST_CASE(parsed_specs_are_validated) {
  BOOST_TEST(message_of([] { parse("amax e4m3fn"); }) ==
             "amax e4m3fn scale=tensor: in is e4m3fn, but must be one of f32, bf16, f16");
  BOOST_TEST(message_of([] { parse("amax bf16 scale=1x128"); }) ==
             "amax bf16 scale=1x128: scale is 1x128, but must be tensor, row or col");
}

BOOST_AUTO_TEST_CASE(validation_names_the_field_and_what_is_allowed) {
  const std::string high = "must be one of f32, bf16, f16";
  const std::string fp8 = "must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz";

  BOOST_TEST(refusal(AmaxSpec{.in = Dtype::e5m2}) == "amax e5m2 scale=tensor: in is e5m2, but " + high);
  BOOST_TEST(refusal(AmaxSpec{.in = kNoDtype}) == "amax unknown dtype scale=tensor: in is unknown dtype, but " + high);
  BOOST_TEST(refusal(AmaxSpec{.scale = kBlocks}) ==
             "amax bf16 scale=128x128: scale is 128x128, but must be tensor, row or col");

  BOOST_TEST(refusal(CastSpec{.in = Dtype::e5m2}) ==
             "cast e5m2->e4m3fn scale=tensor out=codes: in is e5m2, but " + high);
  BOOST_TEST(refusal(CastSpec{.out = Dtype::f16}) == "cast bf16->f16 scale=tensor out=codes: out is f16, but " + fp8);
  BOOST_TEST(refusal(CastSpec{.scale = {1, 64}}) ==
             "cast bf16->e4m3fn scale=1x64 out=codes: scale is 1x64, but must be tensor, row, col, 1x128, 128x1 or "
             "128x128");
  BOOST_TEST(refusal(CastSpec{.transposed = true, .transposed_scale = ScaleGranularity{2, 2}}) ==
             "cast bf16->e4m3fn scale=tensor+2x2 out=codes,transposed: transposed_scale is 2x2, but must be tensor, "
             "row, col, 1x128, 128x1 or 128x128");
  BOOST_TEST(refusal(CastSpec{.scale = kRowwise, .transposed = true, .transposed_scale = kRowwise}) ==
             "cast bf16->e4m3fn scale=row+row out=codes,transposed: transposed_scale is row, as scale is: leave it "
             "out, both outputs then share the scales");
  BOOST_TEST(refusal(CastSpec{.transposed_scale = kColumnwise}) ==
             "cast bf16->e4m3fn scale=tensor+col out=codes: transposed_scale is col, but only a cast that writes both "
             "codes and transposed has two kinds of scales: set scale alone");
  BOOST_TEST(refusal(CastSpec{.source = static_cast<ScaleSource>(7)}) ==
             "cast bf16->e4m3fn scale=tensor out=codes: source is 7, which is not valid; it must be dynamic or given");
  BOOST_TEST(refusal(CastSpec{.pow2 = true, .source = ScaleSource::given}) ==
             "cast bf16->e4m3fn scale=tensor out=codes given pow2: pow2 is set, but the scales are given: round them "
             "where they are made");
  BOOST_TEST(
      refusal(CastSpec{.result = true}) ==
      "cast bf16->e4m3fn scale=tensor out=codes,result: result is set, but there is no pointwise expression: the "
      "values are the input's own elements");
  BOOST_TEST(refusal(CastSpec{.unrounded = true}) ==
             "cast bf16->e4m3fn scale=tensor out=codes unrounded: unrounded is set, but there is no pointwise "
             "expression: nothing is rounded before the cast");
  BOOST_TEST(refusal(CastSpec{.fast_math = true}) ==
             "cast bf16->e4m3fn scale=tensor out=codes fast: fast_math is set, but there is no pointwise expression: a "
             "cast alone has one result");
  BOOST_TEST(refusal(CastSpec{.sum = Dtype::e5m2}) ==
             "cast bf16->e4m3fn scale=tensor out=codes,sum:e5m2: sum is e5m2, but " + high);
  BOOST_TEST(
      refusal(CastSpec{.codes = false, .pointwise = parse_pointwise("exp(x)"), .result = true, .sum = Dtype::f32}) ==
      "cast bf16->e4m3fn of=exp(x) scale=tensor out=result,sum:f32: neither codes nor transposed is set, but "
      "a cast must write at least one of them");
  BOOST_TEST(
      refusal(CastSpec{.codes = false}) ==
      "cast bf16->e4m3fn scale=tensor out=nothing: neither codes nor transposed is set, but a cast must write at "
      "least one of them");

  BOOST_TEST(refusal(GemmSpec{.b = Dtype::f32}) ==
             "gemm e4m3fn*f32->bf16 nt scale=tensor,tensor: b is f32 and a is e4m3fn, but with an FP8 operand the "
             "other must be FP8, bf16 or f16");
  BOOST_TEST(
      refusal(GemmSpec{.a = Dtype::f16}) ==
      "gemm f16*e4m3fn->bf16 nt scale=tensor,tensor: out is bf16, but must be f16 (as the high-precision operand "
      "is) or f32");
  BOOST_TEST(refusal(GemmSpec{.a = Dtype::bf16, .scale_a = kRowwise}) ==
             "gemm bf16*e4m3fn->bf16 nt scale=row,tensor: scale_a is row, but must be tensor: a high-precision operand "
             "has no scale_inv");
  BOOST_TEST(refusal(GemmSpec{.b = Dtype::bf16, .scale_a = kBlocks}) ==
             "gemm e4m3fn*bf16->bf16 nt scale=128x128,tensor: scale_a is 128x128, but must be tensor or row, or "
             "1x128,128x128 or 1x128,1x128 for both");
  BOOST_TEST(
      refusal(GemmSpec{.b = Dtype::bf16, .fast_accumulation = true}) ==
      "gemm e4m3fn*bf16->bf16 nt scale=tensor,tensor fast: fast_accumulation is set, but is for two FP8 operands "
      "only: others always sum in f32");
  BOOST_TEST(refusal(GemmSpec{.kernel = GemmKernel::mma, .staged_a = true}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=mma staged=a: staged is set, but kernel is mma: "
             "sm90 alone has staged operands");
  BOOST_TEST(refusal(GemmSpec{.a = kNoDtype}) ==
             "gemm unknown dtype*e4m3fn->bf16 nt scale=tensor,tensor: a is unknown dtype, but " + fp8);
  BOOST_TEST(refusal(GemmSpec{.b = kNoDtype}) ==
             "gemm e4m3fn*unknown dtype->bf16 nt scale=tensor,tensor: b is unknown dtype, but " + fp8);
  BOOST_TEST(refusal(GemmSpec{.a = Dtype::bf16, .b = kNoDtype}) ==
             "gemm bf16*unknown dtype->bf16 nt: b is unknown dtype, but " + high);
  BOOST_TEST(refusal(GemmSpec{.out = kNoDtype}) ==
             "gemm e4m3fn*e4m3fn->unknown dtype nt scale=tensor,tensor: out is unknown dtype, but " + high +
                 ", e4m3fn, e5m2, e4m3fnuz, e5m2fnuz");
  BOOST_TEST(
      refusal(GemmSpec{.layout_b = static_cast<Layout>(7)}) ==
      "gemm e4m3fn*e4m3fn->bf16 nn scale=tensor,tensor: layout_b is 7, which is no layout; it must be k_major or "
      "mn_major");
  BOOST_TEST(
      refusal(GemmSpec{.scale_a = kColumnwise}) ==
      "gemm e4m3fn*e4m3fn->bf16 nt scale=col,tensor: scale_a is col, but must be tensor or row, or 1x128,128x128 "
      "or 1x128,1x128 for both");
  const std::string groups = "but scale_inv of groups of K are 1x128,128x128 or 1x128,1x128";
  BOOST_TEST(refusal(GemmSpec{.scale_b = {1, 128}}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,1x128: scale is tensor,1x128, " + groups);
  BOOST_TEST(refusal(GemmSpec{.scale_a = kBlocks, .scale_b = kBlocks}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=128x128,128x128: scale is 128x128,128x128, " + groups);
  BOOST_TEST(
      refusal(GemmSpec{.scale_a = kRowGroups, .scale_b = kBlocks, .fast_accumulation = true}) ==
      "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 fast: fast_accumulation is set, but each 128 of K has its "
      "own scale_inv here and is summed separately");
  const auto tiled = [](ScaleGranularity scale_b, GemmTiling tiling) {
    const ScaleGranularity scale_a = scale_b == kRowwise ? kRowwise : kRowGroups;
    return refusal(GemmSpec{.scale_a = scale_a, .scale_b = scale_b, .kernel = GemmKernel::sm90, .tiling = tiling});
  };
  BOOST_TEST(tiled(kBlocks, {128, 192, 1, 1, 5, false}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 kernel=sm90:128x192:1x1:5:cooperative: tiling has a tile "
             "of 192 columns, but with scale_inv of groups it must be 64 or 128, or 128x256 cooperative without "
             "stream-K");
  BOOST_TEST(tiled(kBlocks, {128, 256, 1, 1, 4, false}) == "no error");
  BOOST_TEST(tiled(kRowGroups, {128, 256, 2, 1, 4, false}) == "no error");
  const std::string no_three =
      " tiling has a cooperative tile of 192 rows, but that takes scale_inv of groups, 64 or 128 columns, a cluster of "
      "1x1 and no stream-K";
  BOOST_TEST(tiled(kBlocks, {192, 128, 1, 1, 4, false}) == "no error");
  BOOST_TEST(tiled(kRowGroups, {192, 64, 1, 1, 5, false}) == "no error");
  BOOST_TEST(tiled(kRowwise, {192, 128, 1, 1, 4, false}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row kernel=sm90:192x128:1x1:4:cooperative:" + no_three);
  BOOST_TEST(tiled(kBlocks, {192, 192, 1, 1, 3, false}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 kernel=sm90:192x192:1x1:3:cooperative:" + no_three);
  BOOST_TEST(tiled(kRowGroups, {192, 128, 2, 1, 4, false}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128 kernel=sm90:192x128:2x1:4:cooperative:" + no_three);
  BOOST_TEST(tiled(kBlocks, {.m = 192, .n = 128, .stages = 4, .stream_k = true}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 kernel=sm90:192x128:1x1:4:cooperative:streamk:" +
                 no_three);
  BOOST_TEST(refusal(GemmSpec{.scale_a = kRowGroups,
                              .scale_b = kBlocks,
                              .kernel = GemmKernel::sm90,
                              .tiling = GemmTiling{.m = 256, .n = 128, .stages = 4, .stream_k = true}}) ==
             "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 kernel=sm90:256x128:1x1:4:cooperative:streamk: tiling "
             "has a tile of 256 rows in stream-K, but with scale_inv of groups it must be 64 or 128");
  BOOST_TEST(refusal(GemmSpec{.scale_a = kRowGroups,
                              .scale_b = kBlocks,
                              .kernel = GemmKernel::sm90,
                              .tiling = GemmTiling{.m = 64, .n = 256, .stages = 5, .stream_k = true}}) == "no error");

  BOOST_TEST(refusal(GemmSpec{.a = Dtype::bf16, .b = Dtype::f16}) ==
             "gemm bf16*f16->bf16 nt: b is f16, but must be bf16 as a is: high-precision operands are of one dtype");
  BOOST_TEST(refusal(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::f16}) ==
             "gemm bf16*bf16->f16 nt: out is f16, but must be bf16 (as the operands are) or f32");
  BOOST_TEST(refusal(GemmSpec{.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::bf16}) ==
             "gemm f32*f32->bf16 nt: out is bf16, but must be f32, as the operands are");
  BOOST_TEST(
      refusal(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .scale_a = kRowwise}) ==
      "gemm bf16*bf16->bf16 nt scale=row,tensor: scale_a is row, but must be tensor: a high-precision operand has "
      "no scale_inv");
  BOOST_TEST(
      refusal(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .scale_b = kRowwise}) ==
      "gemm bf16*bf16->bf16 nt scale=tensor,row: scale_b is row, but must be tensor: a high-precision operand has "
      "no scale_inv");
  BOOST_TEST(
      refusal(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .fast_accumulation = true}) ==
      "gemm bf16*bf16->bf16 nt fast: fast_accumulation is set, but is for FP8 operands only: high-precision ones "
      "always sum in f32");

  BOOST_TEST(refusal(ColumnSumSpec{.in = Dtype::e4m3fn}) == "column_sum e4m3fn->bf16: in is e4m3fn, but " + high);
  BOOST_TEST(refusal(AmaxHistorySpec{.reduction = static_cast<AmaxReduction>(7)}) ==
             "amax_history reduce=unknown: reduction is 7, which is not valid; it must be max or most_recent");
  BOOST_TEST(refusal(AmaxScalesSpec{.out = Dtype::bf16}) ==
             "amax_scales bf16: out is bf16, but must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz");
  BOOST_TEST(refusal(ColumnSumSpec{.out = Dtype::e4m3fn}) == "column_sum bf16->e4m3fn: out is e4m3fn, but " + high);
}

// The list has FP8 operands only along k, only high-precision outputs, and no bias if exactly one operand is FP8.
GemmSpec listed_twin(GemmSpec spec) {
  if (is_fp8(spec.out)) spec.out = Dtype::f32;
  if (is_fp8(spec.a) || is_fp8(spec.b)) spec.layout_a = spec.layout_b = Layout::k_major;
  if (is_fp8(spec.a) != is_fp8(spec.b)) spec.bias = false;
  return spec;
}

BOOST_AUTO_TEST_CASE(staged_operands_are_named) {
  for (const char* const line : {"gemm e4m3fn*e5m2->bf16 tt scale=tensor,row kernel=sm90 staged=a",
                                 "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row kernel=sm90:64x128:1x1:8:pingpong staged=b",
                                 "gemm e4m3fn*e4m3fn->f32 tn scale=1x128,128x128 kernel=sm90 staged=a,b"}) {
    BOOST_TEST(print(parse(line)) == line);
  }
  BOOST_TEST(print(RelayoutSpec{.transposed = true}) == "relayout transposed");
  BOOST_TEST(print(CastStatsSpec{}) == "cast_stats bf16");
  BOOST_TEST(print(CastStatsSpec{.in = Dtype::f16, .out = Dtype::e5m2, .scale = kRowGroups, .transposed = true}) ==
             "cast_stats f16->e5m2 scale=1x128 transposed");
  BOOST_TEST(print(parse("cast_stats  bf16 -> e4m3fn")) == "cast_stats bf16->e4m3fn scale=tensor");
  BOOST_TEST(print(parse("relayout copied")) == "relayout copied");
}

BOOST_AUTO_TEST_CASE(pairs_quote_both_gemms) {
  const std::string line =
      "gemm_pair first=\"bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong\" "
      "second=\"bf16*bf16->f32 tn c=f32 kernel=sm90:64x128:1x1:8:pingpong\"";
  const KernelSpec spec = parse(line);
  BOOST_TEST(print(spec) == line);
  BOOST_TEST(print(std::get<GemmPairSpec>(spec).second) ==
             "gemm bf16*bf16->f32 tn c=f32 kernel=sm90:64x128:1x1:8:pingpong");
  for (const GemmPairSpec& each : valid_specs<GemmPairSpec>()) {
    validate(each);
    BOOST_TEST((parse(print(each)) == KernelSpec(each)), print(each));
    const GemmPairSpec turned{.first = each.second, .second = each.first};
    if (turned != each) BOOST_TEST(hash_value(turned) != hash_value(each), print(each));
  }
  const auto message = [](const std::string& first, const std::string& second) {
    return message_of([&] { parse("gemm_pair first=\"" + first + "\" second=\"" + second + "\""); });
  };
  const std::string good = "bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong";
  const std::string fp8 = "e4m3fn*e4m3fn->bf16 nt scale=row,row";
  const auto faulty = [&](const std::string& second, const std::string& fault) {
    const std::string all = message(good, second);
    BOOST_TEST(all.ends_with(": second " + fault), all);
  };
  faulty("bf16*bf16->bf16 tn", "must name kernel sm90 and a tiling, such as kernel=sm90:128x128:1x1:6:pingpong");
  faulty("bf16*bf16->bf16 tn kernel=sm90",
         "must name kernel sm90 and a tiling, such as kernel=sm90:128x128:1x1:6:pingpong");
  faulty(fp8 + " kernel=sm90:128x128:1x1:6:cooperative:streamk",
         "has a tiling of stream-K, which divides all multiprocessors");
  faulty(
      fp8 + " kernel=sm90:128x192:1x1:5:pingpong",
      "has a tiling with 288 sums in each thread, but its registers hold 192: set fast, which needs fewer, or take a "
      "smaller tile");
  faulty(fp8 + " kernel=sm90:128x192:2x1:5:pingpong", "has a tiling with clusters, but the pair's blocks have none");
  faulty(fp8 + " kernel=sm90:128x128:2x1:6:cooperative", "has a tiling with clusters, but the pair's blocks have none");
  faulty("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128 kernel=sm90:192x128:1x1:4:cooperative",
         "has a cooperative tile of 192 rows, whose blocks have more threads");
  faulty(fp8 + " kernel=sm90:128x128:1x1:6:cooperative staged=a", "stages an operand, which takes a separate launch");
  faulty("e4m3fn*e4m3fn->bf16 tt scale=row,row kernel=sm90:128x128:1x1:6:cooperative",
         "has FP8 operands across k, which would have to be staged");
  faulty(fp8 + " bias kernel=sm90:128x128:1x1:6:cooperative", "has a bias");
  faulty(fp8 + " epilogue=relu(x) kernel=sm90:128x128:1x1:6:cooperative", "has an epilogue that does more than add c");
  faulty(fp8 + " also=amax kernel=sm90:128x128:1x1:6:cooperative", "has an epilogue that does more than add c");
  faulty("e4m3fn*e4m3fn->e4m3fn nt scale=row,row kernel=sm90:128x128:1x1:6:cooperative", "has an FP8 output");
  BOOST_TEST(message(good, "gemm " + good).ends_with(": second begins with the word gemm: leave it out"));
  BOOST_TEST(message(good, "bf16*f16->bf16 tn").ends_with("high-precision operands are of one dtype"));
  BOOST_TEST(message(good, "bf16*bf16->bf16 sideways") ==
             "gemm bf16*bf16->bf16 sideways: \"sideways\" is no word of gemm; expected nt, nn, tt, tn, "
             "scale=<granularity>,<granularity>, bias, c=<dtype>, epilogue=<expression>, also=preactivation,amax, "
             "fast, kernel=<kernel> or staged=a,b");
  const std::string form = "first=\"<a gemm's line>\" and second=\"<a gemm's line>\", without the word gemm";
  BOOST_TEST(message_of([] { parse("gemm_pair first=x"); }) ==
             "gemm_pair first=x: \"gemm_pair\" must be followed by " + form);
  BOOST_TEST(message_of([] { parse("gemm_pair first second"); }) ==
             "gemm_pair first second: \"first\" is no word of gemm_pair; expected " + form);
}

BOOST_AUTO_TEST_CASE(histories_say_what_they_are_reduced_to) {
  BOOST_TEST(print(AmaxHistorySpec{}) == "amax_history reduce=max");
  BOOST_TEST((parse("amax_history reduce = most_recent") ==
              KernelSpec(AmaxHistorySpec{.reduction = AmaxReduction::most_recent})));
  BOOST_TEST(print(AmaxHistorySpec{.finite = true}) == "amax_history reduce=max finite");
  BOOST_TEST((parse("amax_history reduce=max finite") == KernelSpec(AmaxHistorySpec{.finite = true})));
  BOOST_TEST((parse("amax_history reduce=max") == KernelSpec(AmaxHistorySpec{})));
}

BOOST_AUTO_TEST_CASE(scales_say_of_which_codes_they_are) {
  BOOST_TEST(print(AmaxScalesSpec{}) == "amax_scales e4m3fn");
  const AmaxScalesSpec spec{.out = Dtype::e5m2fnuz, .pow2 = true};
  BOOST_TEST(print(spec) == "amax_scales e5m2fnuz pow2");
  BOOST_TEST((parse(print(spec)) == KernelSpec(spec)));
}

BOOST_AUTO_TEST_CASE(columns_of_f32_are_for_casts_and_elementwise) {
  for (const char* const line : {"cast bf16->e5m2 of=grad*factor[col:f32] scale=row out=codes,transposed",
                                 "elementwise f16 of=x*factor[col:f32]"}) {
    BOOST_TEST(print(parse(line)) == line);
  }
  BOOST_TEST(refusal(GemmSpec{.out = Dtype::e5m2, .epilogue = {.pointwise = parse_pointwise("x * f[col:f32]")}}) ==
             "gemm e4m3fn*e4m3fn->e5m2 nt scale=tensor,tensor epilogue=x*f[col:f32]: epilogue reads f[col:f32], but a "
             "GEMM's vectors along the columns are of bf16: write f[col], or make it a factor of b");
}

BOOST_AUTO_TEST_CASE(elementwise_is_named_by_its_expression) {
  const ElementwiseSpec spec{.in = Dtype::f16, .pointwise = parse_pointwise("silu(x) * gate"), .fast_math = true};
  BOOST_TEST(print(spec) == "elementwise f16 of=x*sigmoid(x)*gate fast");
  for (const char* const line :
       {"elementwise f16 of=silu(x)*gate fast", "elementwise f16 fast of = \"silu(x) * gate\""})
    BOOST_TEST((parse(line) == KernelSpec(spec)), line);
  BOOST_TEST((parse("elementwise bf16 of=x") != parse("elementwise bf16 of=x fast")));

  const std::string dtypes = "must be one of f32, bf16, f16";
  BOOST_TEST(refusal(ElementwiseSpec{}) ==
             "elementwise bf16: there is no pointwise expression, but it is all that this kernel computes: "
             "of=silu(x)*gate");
  BOOST_TEST(refusal(ElementwiseSpec{.in = Dtype::e5m2, .pointwise = parse_pointwise("exp(x)")}) ==
             "elementwise e5m2 of=exp(x): in is e5m2, but " + dtypes);
  BOOST_TEST(parse_error("elementwise") == "\"elementwise\" must be followed by the dtype of its values, such as bf16");
  BOOST_TEST(parse_error("elementwise bf16 of=x list") ==
             "\"list\" is no word of elementwise; expected of=<expression>, second=<expression>, row_sum=<expression>, "
             "amax, maxima or fast");
  BOOST_TEST(parse_error("elementwise bf16 of=x fast=1") ==
             "\"fast=1\" is no word of elementwise; expected of=<expression>, second=<expression>, "
             "row_sum=<expression>, amax, maxima or fast");
  BOOST_TEST(parse_error("elementwise bf16 of=x of=x") == "\"of=x\" gives the expression a second time");

  std::set<std::size_t> hashes;
  for (const char* const text : {"x", "silu(x)", "silu(x)*gate", "silu(x)*gate[col]"}) {
    for (const Dtype in : kHighPrecisionDtypes) {
      for (const bool fast : {false, true}) {
        hashes.insert(hash_value(ElementwiseSpec{.in = in, .pointwise = parse_pointwise(text), .fast_math = fast}));
      }
    }
  }
  BOOST_TEST(hashes.size() == 4U * 3U * 2U);

  const CastSpec values = cast_of_values(spec);
  BOOST_TEST(print(values) == "cast f16->e4m3fn of=x*sigmoid(x)*gate scale=tensor out=codes,result fast");
}

BOOST_AUTO_TEST_CASE(elementwise_may_have_a_second_expression) {
  const ElementwiseSpec spec{.in = Dtype::f16,
                             .pointwise = parse_pointwise("grad * up"),
                             .second = parse_pointwise("grad * x"),
                             .fast_math = true};
  BOOST_TEST(print(spec) == "elementwise f16 of=grad*up second=grad*x fast");
  BOOST_TEST((parse(print(spec)) == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise f16 fast second=grad*x of=grad*up") == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise bf16 of=x second=-x") != parse("elementwise bf16 of=x")));
  BOOST_TEST(parse_error("elementwise bf16 of=x second=x second=x") ==
             "\"second=x\" gives the second expression a second time");
  BOOST_TEST(refusal(ElementwiseSpec{.second = parse_pointwise("x")}) ==
             "elementwise bf16 second=x: there is no pointwise expression, but it is all that this kernel computes: "
             "of=silu(x)*gate");
  const auto refused_pair = [&](const char* first, const char* second) {
    return refusal(ElementwiseSpec{.pointwise = parse_pointwise(first), .second = parse_pointwise(second)});
  };
  BOOST_TEST(refused_pair("x*a", "x*a[col]") ==
             "elementwise bf16 of=x*a second=x*a[col]: the two expressions read a as inputs of different kinds: give "
             "one of the two another name");
  BOOST_TEST(refused_pair("a+b+c", "x+d*e") ==
             "elementwise bf16 of=a+b+c second=x+d*e: the two expressions read 5 inputs besides x, but a kernel reads "
             "at most 4");
  BOOST_TEST(valid(ElementwiseSpec{.pointwise = parse_pointwise("a+b+c"), .second = parse_pointwise("x+d*a")}));

  std::set<std::size_t> hashes;
  for (const char* const first : {"x", "silu(x)", "silu(x)*gate"}) {
    for (const char* const second : {"x", "silu(x)", "silu(x)*gate"}) {
      hashes.insert(
          hash_value(ElementwiseSpec{.pointwise = parse_pointwise(first), .second = parse_pointwise(second)}));
    }
    hashes.insert(hash_value(ElementwiseSpec{.pointwise = parse_pointwise(first)}));
  }
  BOOST_TEST(hashes.size() == 3U * 4U);
}

BOOST_AUTO_TEST_CASE(combine_has_a_dtype) {
  BOOST_TEST(print(CombineSpec{.in = Dtype::f16}) == "combine f16");
  BOOST_TEST((parse("combine f32") == KernelSpec(CombineSpec{.in = Dtype::f32})));
  BOOST_TEST(valid_specs<CombineSpec>().size() == 3U);
  BOOST_TEST(hash_value(parse("combine f32")) != hash_value(parse("combine bf16")));
  BOOST_TEST(parse_error("combine") == "\"combine\" must be followed by the dtype of its values, such as bf16");
  BOOST_TEST(parse_error("combine bf16 f32") == "\"f32\" is no word of combine; expected nothing after the dtype");
  BOOST_TEST(refusal(CombineSpec{.in = Dtype::e5m2}).starts_with("combine e5m2: in is e5m2, but "));
}

BOOST_AUTO_TEST_CASE(elementwise_may_sum_rows) {
  const ElementwiseSpec spec{.in = Dtype::f16,
                             .pointwise = parse_pointwise("grad * w[row]"),
                             .row_sum = parse_pointwise("grad * x"),
                             .fast_math = true};
  BOOST_TEST(print(spec) == "elementwise f16 of=grad*w[row] row_sum=grad*x fast");
  BOOST_TEST((parse(print(spec)) == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise f16 fast row_sum=grad*x of=grad*w[row]") == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise f16 of=grad*w[row] second=grad*x fast") != KernelSpec(spec)));
  BOOST_TEST(hash_value(parse("elementwise bf16 of=x row_sum=-x")) !=
             hash_value(parse("elementwise bf16 of=x second=-x")));
  BOOST_TEST(uses_x(spec));
  BOOST_TEST(parse_error("elementwise bf16 of=x row_sum=x amax") ==
             "amax is set with a row_sum, but no kernel finds both: find the amax "
             "in another pass");
  BOOST_TEST(parse_error("elementwise bf16 of=x*a row_sum=a[col]") ==
             "the two expressions read a as inputs of different kinds: give one "
             "of the two another name");
  BOOST_TEST(parse_error("elementwise bf16 of=a+b second=c row_sum=d+e") ==
             "the three expressions read 5 inputs besides x, but a kernel "
             "reads at most 4");
}

BOOST_AUTO_TEST_CASE(elementwise_may_find_an_amax) {
  const ElementwiseSpec spec{.pointwise = parse_pointwise("x*a"), .amax = true, .fast_math = true};
  BOOST_TEST(print(spec) == "elementwise bf16 of=x*a amax fast");
  BOOST_TEST((parse("elementwise bf16 fast amax of=x*a") == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise bf16 of=x*a fast") != KernelSpec(spec)));
  BOOST_TEST(print(parse("elementwise f16 amax of=x second=-x")) == "elementwise f16 of=x second=-x amax");
  BOOST_TEST(parse_error("elementwise bf16 of=x amax amax") == "\"amax\" gives amax a second time");

  std::set<std::size_t> hashes;
  for (const char* const line : {"of=x", "of=x fast", "of=x second=-x"}) {
    for (const char* const end : {"", " amax"}) {
      hashes.insert(hash_value(parse(std::string("elementwise bf16 ") + line + end)));
    }
  }
  BOOST_TEST(hashes.size() == 6U);
}

// Those of the first expression, then those that only the second has.
BOOST_AUTO_TEST_CASE(elementwise_may_find_maxima) {
  const ElementwiseSpec spec{.pointwise = parse_pointwise("x*a"), .maxima = true, .fast_math = true};
  BOOST_TEST(print(spec) == "elementwise bf16 of=x*a maxima fast");
  BOOST_TEST((parse("elementwise bf16 fast maxima of=x*a") == KernelSpec(spec)));
  BOOST_TEST((parse("elementwise bf16 of=x*a fast") != KernelSpec(spec)));
  BOOST_TEST(hash_value(parse("elementwise bf16 of=x maxima")) != hash_value(parse("elementwise bf16 of=x")));
  BOOST_TEST(hash_value(parse("elementwise bf16 of=x maxima")) != hash_value(parse("elementwise bf16 of=x amax")));
  BOOST_TEST(print(parse("elementwise f16 maxima row_sum=x of=x second=-x")) ==
             "elementwise f16 of=x second=-x row_sum=x maxima");
  BOOST_TEST(parse_error("elementwise bf16 of=x maxima maxima") == "\"maxima\" gives maxima a second time");
  BOOST_TEST(refusal(ElementwiseSpec{.pointwise = parse_pointwise("x"), .amax = true, .maxima = true}) ==
             "elementwise bf16 of=x amax maxima: amax is set with maxima, but no kernel finds both: the amax is the "
             "largest of row_amax");
}

BOOST_AUTO_TEST_CASE(inputs_of_elementwise_are_those_of_both_expressions) {
  const auto spec = std::get<ElementwiseSpec>(parse("elementwise bf16 of=b*a[col] second=c[row]*x+b"));
  const ElementwiseInputs inputs(spec);
  std::vector<std::string> names;
  for (const PointwiseInput* const input : inputs.all()) names.push_back(input->name);
  const std::vector<std::string> first = [&] {
    std::vector<std::string> own;
    for (const PointwiseInput& input : spec.pointwise.inputs()) own.push_back(input.name);
    return own;
  }();
  BOOST_TEST(names.size() == 3U);
  BOOST_TEST(std::equal(first.begin(), first.end(), names.begin()));
  BOOST_TEST(names.back() == "c");
  BOOST_TEST(inputs.index_of("c") == 2U);
  BOOST_TEST(inputs.index_of("d") == 3U);
  BOOST_TEST(uses_x(spec));
  BOOST_TEST(!uses_x(std::get<ElementwiseSpec>(parse("elementwise bf16 of=a"))));
  BOOST_TEST(!uses_x(std::get<ElementwiseSpec>(parse("elementwise bf16 of=a second=b"))));

  BOOST_TEST(print(cast_of_values(spec)) == "cast bf16->e4m3fn of=b*a[col] scale=tensor out=codes,result");
  BOOST_TEST(print(cast_of_values(spec, true)) == "cast bf16->e4m3fn of=c[row]*x+b scale=tensor out=codes,result");
}

BOOST_AUTO_TEST_CASE(all_valid_specs_are_all_and_valid) {
  std::set<std::string> listed;
  for (const KernelSpec& spec : all_valid_specs()) {
    BOOST_TEST(valid(spec), spec);
    BOOST_TEST(listed.insert(print(spec)).second, spec << " is listed twice");
  }
  BOOST_TEST(listed.size() == 9U + 12U * 48U * 3U + 768U + 192U + 40U + 64U + 9U + 2U + 616U + 16U + 4U + 8U + 147U);
  for (const KernelSpec& spec : all_combinations()) {
    const auto* const gemm = std::get_if<GemmSpec>(&spec);
    if (gemm == nullptr) {
      BOOST_TEST(valid(spec) == (listed.count(print(spec)) == 1), spec);
    } else {
      const bool codes_of_others = is_fp8(gemm->out) && !(is_fp8(gemm->a) && is_fp8(gemm->b));
      BOOST_TEST(valid(spec) == (!codes_of_others && listed.count(print(listed_twin(*gemm))) == 1), spec);
    }
  }
}

// Options of an expression require one; a sum does not.
BOOST_AUTO_TEST_CASE(fused_specs_are_valid_where_there_is_an_expression) {
  for (const CastSpec& spec : fused_combinations()) {
    const bool needs_one = spec.result || spec.unrounded || spec.fast_math;
    BOOST_TEST(valid(spec) == (spec.pointwise || !needs_one), KernelSpec(spec));
  }
}

// Hash tables use the low bits, so these alone must tell most specs apart.
BOOST_AUTO_TEST_CASE(hashes_do_not_collide) {
  const std::vector<KernelSpec> specs = all_valid_specs();
  std::set<std::size_t> hashes;
  std::vector<int> buckets(4096);
  for (const KernelSpec& spec : specs) {
    BOOST_TEST(hash_value(spec) == hash_value(KernelSpec(spec)));
    hashes.insert(hash_value(spec));
    ++buckets[hash_value(spec) % buckets.size()];
  }
  BOOST_TEST(hashes.size() == specs.size());
  BOOST_TEST(std::ranges::max(buckets) <= 7);  // 2554 specs thrown at random: 8 in one bucket has odds of 1 in 1000

  std::set<std::size_t> more;
  const std::vector<KernelSpec> combinations = all_combinations();
  for (const KernelSpec& spec : combinations) more.insert(hash_value(spec));
  BOOST_TEST(more.size() == combinations.size());

  std::set<std::size_t> fused;
  const std::vector<CastSpec> fusions = fused_combinations();
  for (const KernelSpec spec : fusions) fused.insert(hash_value(spec));
  BOOST_TEST(fused.size() == fusions.size());
}

BOOST_AUTO_TEST_CASE(type_of_the_bias) {
  const auto bias = [](const char* line) { return name(bias_dtype(std::get<GemmSpec>(parse(line)))); };
  BOOST_TEST(bias("gemm e4m3fn*e4m3fn->bf16 bias") == "bf16");
  BOOST_TEST(bias("gemm e4m3fn*e4m3fn->f16 bias") == "f16");
  BOOST_TEST(bias("gemm e4m3fn*e4m3fn->f32 bias") == "bf16");
  BOOST_TEST(bias("gemm bf16*bf16->f32 bias") == "f32");
  BOOST_TEST(bias("gemm f16*f16->f16 bias") == "f16");
  BOOST_TEST(bias("gemm f32*f32->f32 bias") == "f32");
}

BOOST_AUTO_TEST_CASE(the_kernel_of_a_gemm) {
  const std::string tiled = "gemm e5m2*e4m3fn->f32 nt scale=tensor,row bias fast kernel=sm90:128x256:2x1:4:cooperative";
  const GemmSpec spec = std::get<GemmSpec>(parse(tiled));
  BOOST_TEST((spec.kernel == GemmKernel::sm90));
  BOOST_TEST((spec.tiling == GemmTiling{128, 256, 2, 1, 4, false}));
  BOOST_TEST(print(spec) == tiled);
  for (const char* const kernel :
       {"cublaslt", "cublaslt:1", "cublaslt:7", "sm90", "mma", "mma:128x128", "mma:64x64", "simt"}) {
    const std::string line = std::string("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor kernel=") + kernel;
    BOOST_TEST(print(parse(line)) == line);
  }
  BOOST_TEST(print(parse("gemm bf16*bf16->bf16 nt kernel=automatic")) == "gemm bf16*bf16->bf16 nt");
  BOOST_TEST(print(parse("gemm bf16*bf16->bf16 nt kernel=cublaslt:0")) == "gemm bf16*bf16->bf16 nt kernel=cublaslt");
  BOOST_TEST(std::get<GemmSpec>(parse("gemm bf16*bf16->bf16 nt kernel=cublaslt:3")).algorithm == 3);

  // Specs of different kernels must have different keys.
  std::set<std::size_t> hashes;
  for (const char* const end :
       {"", " kernel=sm90", " kernel=simt", " kernel=cublaslt", " kernel=cublaslt:1", " kernel=cublaslt:2",
        " kernel=sm90:128x256:2x1:4:cooperative", " kernel=sm90:128x256:1x1:4:cooperative",
        " kernel=sm90:128x128:1x1:4:pingpong", " kernel=sm90:128x128:1x1:4:cooperative",
        " kernel=sm90:128x128:1x1:5:cooperative", " kernel=sm90:128x128:1x1:5:cooperative:streamk", " kernel=mma",
        " kernel=mma:128x128", " kernel=mma:64x64"}) {
    hashes.insert(hash_value(parse(std::string("gemm e4m3fn*e4m3fn->bf16 fast") + end)));
  }
  BOOST_TEST(hashes.size() == 15U);

  const std::string cut = "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast kernel=sm90:64x128:1x1:8:cooperative:streamk";
  BOOST_TEST((std::get<GemmSpec>(parse(cut)).tiling == GemmTiling{64, 128, 1, 1, 8, false, true}));
  BOOST_TEST(print(parse(cut)) == cut);
}

BOOST_AUTO_TEST_CASE(the_epilogue_of_a_gemm) {
  const std::string all =
      "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias c=f32 epilogue=relu(x)*gate+r[row] "
      "also=preactivation,amax fast";
  const GemmSpec spec = std::get<GemmSpec>(parse(all));
  BOOST_TEST((spec.epilogue.c == Dtype::f32));
  BOOST_TEST(spec.epilogue.pointwise.inputs().size() == 2U);
  BOOST_TEST((spec.epilogue.preactivation && spec.epilogue.amax));
  BOOST_TEST((parse(print(spec)) == KernelSpec(spec)));
  BOOST_TEST(print(parse("gemm e4m3fn*e4m3fn->e5m2 also=amax")) ==
             "gemm e4m3fn*e4m3fn->e5m2 nt scale=tensor,tensor also=amax");
  BOOST_TEST((epilogue_dtype(spec) == Dtype::bf16));
  BOOST_TEST((epilogue_dtype(std::get<GemmSpec>(parse("gemm e4m3fn*e4m3fn->f32 bias"))) == Dtype::f32));
  const auto codes = std::get<GemmSpec>(parse("gemm e4m3fn*e4m3fn->e4m3fn bias"));
  BOOST_TEST((epilogue_dtype(codes) == Dtype::bf16 && bias_dtype(codes) == Dtype::bf16));

  std::set<std::size_t> hashes;
  for (const char* const end : {"", " c=f32", " c=bf16", " c=f16", " epilogue=x+1", " epilogue=x+2", " also=amax",
                                " epilogue=x+1 also=preactivation", " epilogue=x+1 also=preactivation,amax"}) {
    const KernelSpec one = parse(std::string("gemm e4m3fn*e4m3fn->bf16") + end);
    BOOST_TEST((parse(print(one)) == one));
    hashes.insert(hash_value(one));
  }
  BOOST_TEST(hashes.size() == 9U);
}

BOOST_AUTO_TEST_CASE(impossible_epilogues_of_a_gemm) {
  const auto error = [](const std::string& end) { return message_of([&] { parse("gemm " + end); }); };
  const auto holds = [](const std::string& message, const std::string& part) {
    BOOST_TEST(message.find(part) != std::string::npos, message);
  };
  holds(error("e4m3fn*e4m3fn->bf16 c=e5m2"), "c is e5m2, but must be one of f32, bf16, f16");
  holds(error("e4m3fn*e4m3fn->bf16 also=preactivation"),
        "preactivation is set, but there is no pointwise expression: the output is what it would be");
  holds(error("e4m3fn*e4m3fn->bf16 also=codes"),
        "\"codes\" in \"also=codes\" is not an output; expected preactivation or amax");
  holds(error("e4m3fn*e4m3fn->bf16 also=amax,amax"), "\"also=amax,amax\" asks for amax a second time");
  holds(error("e4m3fn*e4m3fn->bf16 epilogue=silu(x"), "silu(x");
  holds(error("bf16*bf16->e4m3fn"), "out is e4m3fn, but must be bf16 (as the operands are) or f32");
}

BOOST_AUTO_TEST_CASE(impossible_kernels_of_a_gemm) {
  const auto error = [](const std::string& end) { return message_of([&] { parse("gemm " + end); }); };
  const auto holds = [](const std::string& message, const std::string& part) {
    BOOST_TEST(message.find(part) != std::string::npos, message);
  };
  holds(error("e4m3fn*e4m3fn->bf16 kernel=cutlass"),
        "\"cutlass\" in \"kernel=cutlass\" is no kernel; expected automatic, cublaslt, sm90, mma or simt");
  for (const char* const tiling :
       {"", "128x256", "128x256:2x1:4", "128:256:2x1:4:pingpong", "-128x256:2x1:4:pingpong", "128x256:2x1:4:pong",
        "128x256x2x1:4:pingpong", "128x256:2x1:4:streamk", "128x256:1x1:4:cooperative:split"}) {
    const std::string line = std::string("e4m3fn*e4m3fn->bf16 kernel=sm90:") + tiling + ":";
    holds(error(line), "is no tiling; expected one such as 128x256:2x1:4:cooperative or 64x128:1x1:8:pingpong");
  }
  holds(error("e4m3fnuz*e4m3fn->bf16 kernel=sm90"),
        "a is e4m3fnuz and b is e4m3fn, but kernel sm90 multiplies e4m3fn and e5m2, or two operands of bf16 or of f16, "
        "only: leave kernel out");
  holds(error("f32*f32->f32 kernel=sm90"), "a is f32 and b is f32, but kernel sm90 multiplies");
  holds(error("bf16*bf16->bf16 tn kernel=sm90 staged=a"),
        "staged is set, but kernel sm90 reads bf16 as it is stored: leave staged out");
  holds(error("bf16*bf16->bf16 tn kernel=sm90:256x256:1x1:2:cooperative"), "sums in each thread");
  holds(error("e4m3fn*e4m3fn->bf16 kernel=simt:128x256:2x1:4:cooperative"),
        "tiling is 128x256:2x1:4:cooperative, but kernel is simt: sm90 and mma alone have one");
  for (const char* const tiling : {"", "128x64", "64x64x", "128x128:1x1:2:cooperative"}) {
    holds(error(std::string("e4m3fn*e4m3fn->bf16 kernel=mma:") + tiling),
          "is no tiling of mma; expected 128x128 or 64x64");
  }
  holds(error("f32*f32->f32 kernel=mma"), "a is f32, but kernel mma multiplies FP8, bf16 and f16 only");
  GemmSpec untold;
  untold.kernel = GemmKernel::mma;
  untold.tiling = GemmTiling{.m = 64, .n = 64, .stages = 3};
  holds(message_of([&] { validate(untold); }), "tiling is 64x64:1x1:3:cooperative, but kernel mma has 128x128 and");
  const auto tiling_error = [&](const std::string& tiling, bool fast) {
    return error("e4m3fn*e4m3fn->bf16 " + std::string(fast ? "fast " : "") + "kernel=sm90:" + tiling);
  };
  holds(tiling_error("160x128:1x1:4:cooperative", true),
        "tiling has a tile of 160 rows, but cooperative takes 64, 128, 192 or 256");
  holds(tiling_error("64x192:1x1:4:cooperative", true),
        "a tile of 64 rows, whose 192 columns cooperative shares out: it takes 128 or 256");
  holds(tiling_error("128x128:1x1:6:pingpong:streamk", true),
        "stream-K, but that takes cooperative tiles and a cluster of 1x1");
  holds(tiling_error("128x128:2x1:6:cooperative:streamk", true), "that takes cooperative tiles and a cluster of 1x1");
  BOOST_TEST(tiling_error("64x256:1x1:5:cooperative", false) == "no error");
  holds(tiling_error("96x256:1x1:4:pingpong", true), "but pingpong takes a multiple of 64 up to 256");
  holds(tiling_error("128x320:1x1:4:cooperative", true),
        "a tile of 320 columns, but it must be 64, 128, 160, 192 or 256");
  holds(error("e4m3fn*e4m3fn->e4m3fn kernel=sm90:128x160:1x1:5:cooperative"),
        "tiling has a tile of 160 columns, but an output of FP8 or f32 takes a multiple of 64");
  holds(tiling_error("256x160:1x1:4:cooperative:streamk", true),
        "tiling has a tile of 160 columns, but stream-K takes a multiple of 64");
  holds(tiling_error("64x160:1x1:4:cooperative", true),
        "a tile of 64 rows, whose 160 columns cooperative shares out: it takes 128 or 256");
  holds(error("bf16*bf16->bf16 nn kernel=sm90:128x160:1x1:5:pingpong"),
        "tiling has a tile of 160 columns, but b in rows across k takes a multiple of 64");
  holds(error("e4m3fn*e4m3fn->bf16 scale=1x128,128x128 kernel=sm90:128x160:1x1:4:cooperative"),
        "tiling has a tile of 160 columns, but with scale_inv of groups it must be 64 or 128");
  holds(tiling_error("128x256:2x2:4:cooperative", true), "a cluster of 2x2, but it must be 1x1, 2x1 or 1x2");
  holds(tiling_error("128x256:1x1:1:cooperative", true), "1 stage, but there must be 2 to 16");
  holds(tiling_error("128x256:1x1:5:cooperative", true), "bytes of shared memory, but a block has 232448");
  holds(tiling_error("128x256:1x1:4:pingpong", true),
        "256 sums in each thread, but its registers hold 192: take a smaller tile");
  holds(tiling_error("128x256:1x1:4:cooperative", false),
        "256 sums in each thread, but its registers hold 192: set fast, which needs fewer, or take a smaller tile");
  // Where `fast` does not help, the message does not advise it, and another reason comes first.
  holds(tiling_error("256x256:1x1:3:cooperative", false),
        "384 sums in each thread, but its registers hold 192: take a smaller tile");
  const std::string wide = "kernel=sm90:256x160:1x1:4:cooperative";
  holds(error("e4m3fn*e4m3fn->bf16 " + wide),
        "240 sums in each thread, but its registers hold 192: set fast, which needs fewer, or take a smaller tile");
  holds(error("e4m3fn*e4m3fn->f32 " + wide),
        "tiling has a tile of 160 columns, but an output of FP8 or f32 takes a multiple of 64");
  holds(error("e4m3fn*e4m3fn->bf16 tn " + wide),
        "tiling has a tile of 160 columns, but b in rows across k takes a multiple of 64");
  holds(error("e4m3fn*e4m3fn->bf16 scale=1x128,128x128 " + wide),
        "tiling has a tile of 160 columns, but with scale_inv of groups it must be 64 or 128");
  holds(error("e4m3fn*e4m3fn->bf16 scale=1x128,128x128 kernel=sm90:256x128:1x1:4:pingpong"),
        "320 sums in each thread, but its registers hold 192: take a smaller tile");
  const std::string stages = "kernel=sm90:64x64:1x1:13:pingpong";
  BOOST_TEST(error("e4m3fn*e4m3fn->bf16 " + stages) == "no error");
  holds(error("e4m3fn*e4m3fn->bf16 scale=1x128,128x128 " + stages),
        "bytes of shared memory with its scale_inv of groups, but a block has 232448: fewer stages or a smaller tile");
  for (const char* const number : {"", "1.5", "3:4", "99999999999"}) {
    holds(error(std::string("bf16*bf16->bf16 kernel=cublaslt:") + number), "is no algorithm of cuBLASLt; expected");
  }
  holds(error("bf16*bf16->bf16 kernel=cublaslt:x"),
        "\"x\" in \"kernel=cublaslt:x\" is no algorithm of cuBLASLt; expected a number from 0 to 7");
  holds(error("bf16*bf16->bf16 kernel=cublaslt:8"), "algorithm is 8, but must be 0 to 7");
  holds(error("bf16*bf16->bf16 kernel=cublaslt:-1"), "algorithm is -1, but must be 0 to 7");
  holds(message_of([&] { validate(GemmSpec{.algorithm = 2}); }),
        "kernel=automatic:2: algorithm is 2, but kernel is automatic: cublaslt alone has algorithms");
  GemmSpec unknown;
  unknown.kernel = static_cast<GemmKernel>(9);
  holds(message_of([&] { validate(unknown); }),
        "kernel is 9, which is not valid; it must be automatic, cublaslt, sm90, mma or simt");
}

BOOST_AUTO_TEST_SUITE_END()
