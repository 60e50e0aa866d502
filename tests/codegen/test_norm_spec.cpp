// The specs of norms: how they print and parse, and every refusal. test_kernel_spec.cpp tests what holds for every
// spec.
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/util/error.h"
#include "support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_norm_spec)

using namespace ingot;
using namespace ingot::test;

namespace {

// Every combination of field values, valid or not.
std::vector<KernelSpec> all_combinations() {
  std::vector<Dtype> dtypes(kHighPrecisionDtypes.begin(), kHighPrecisionDtypes.end());
  dtypes.insert(dtypes.end(), kFp8Dtypes.begin(), kFp8Dtypes.end());
  std::vector<std::optional<Dtype>> outs(dtypes.begin(), dtypes.end());
  outs.emplace_back();
  const std::vector scales{
      kTensorwise, kRowwise, kColumnwise, kRowGroups, kColumnGroups, kBlocks, ScaleGranularity{1, 64}};
  std::vector<KernelSpec> specs;
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const Dtype in : dtypes) {
      for (const Dtype sums : dtypes) {
        for (const bool affine : {false, true}) {
          for (const bool zero_centred : {false, true}) {
            specs.push_back(
                NormBackwardSpec{.kind = kind, .in = in, .affine = affine, .sums = sums, .zero_centred = zero_centred});
          }
        }
      }
      for (const auto out : outs) {
        for (const auto scale : scales) {
          for (unsigned flags = 0; flags < 32; ++flags) {
            specs.push_back(NormSpec{.kind = kind,
                                     .in = in,
                                     .out = out,
                                     .affine = (flags & 1U) != 0,
                                     .scale = scale,
                                     .source = (flags & 2U) != 0 ? ScaleSource::given : ScaleSource::dynamic,
                                     .pow2 = (flags & 4U) != 0,
                                     .result = (flags & 8U) != 0,
                                     .stats = (flags & 16U) != 0});
          }
        }
      }
    }
  }
  return specs;
}

}  // namespace

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(NormSpec{.out = Dtype::e4m3fn}) == "norm layer bf16->e4m3fn scale=row out=codes");
  BOOST_TEST(print(NormSpec{.kind = NormKind::rms, .in = Dtype::f32, .affine = true, .result = true, .stats = true}) ==
             "norm rms f32 affine out=result,stats");
  BOOST_TEST(print(NormSpec{.kind = NormKind::rms,
                            .in = Dtype::f16,
                            .out = Dtype::e5m2,
                            .affine = true,
                            .pow2 = true,
                            .result = true,
                            .stats = true}) == "norm rms f16->e5m2 affine scale=row out=codes,result,stats pow2");
  BOOST_TEST(print(NormSpec{.out = Dtype::e4m3fnuz, .scale = kTensorwise, .source = ScaleSource::given}) ==
             "norm layer bf16->e4m3fnuz scale=tensor out=codes given");
  BOOST_TEST(print(NormSpec{.stats = true}) == "norm layer bf16 out=stats");
  BOOST_TEST(print(NormSpec{.kind = NormKind::rms, .out = Dtype::e4m3fn, .cols = 16384}) ==
             "norm rms bf16->e4m3fn scale=row out=codes cols=16384");
  BOOST_TEST(print(NormBackwardSpec{}) == "norm_backward layer bf16");
  BOOST_TEST(print(NormBackwardSpec{.kind = NormKind::rms, .in = Dtype::f16, .affine = true, .sums = Dtype::f16}) ==
             "norm_backward rms f16 affine sums=f16");
  BOOST_TEST(print(NormBackwardSpec{.affine = true}) == "norm_backward layer bf16 affine sums=f32");
  BOOST_TEST(print(NormBackwardSpec{.affine = true, .zero_centred = true}) ==
             "norm_backward layer bf16 affine zero_centred sums=f32");
}

BOOST_AUTO_TEST_CASE(words_in_any_order_and_words_left_out) {
  const KernelSpec spec = NormSpec{.kind = NormKind::rms, .out = Dtype::e4m3fn, .affine = true, .stats = true};
  for (const char* const line :
       {"norm rms bf16->e4m3fn affine scale=row out=codes,stats", "norm rms bf16->e4m3fn out=stats,codes affine",
        " norm  rms bf16 -> e4m3fn out = codes , stats  scale= row affine"}) {
    BOOST_TEST((parse(line) == spec), line);
  }
  BOOST_TEST((parse("norm layer bf16->e5m2") == KernelSpec(NormSpec{.out = Dtype::e5m2})));
  BOOST_TEST((parse("norm_backward rms f32 affine") ==
              KernelSpec(NormBackwardSpec{.kind = NormKind::rms, .in = Dtype::f32, .affine = true})));
}

// 0.1.0 wrote lines that name kernels for wider rows and for other norms; they are the specs without one now.
BOOST_AUTO_TEST_CASE(columns_of_kernels_that_are_gone) {
  const auto printed = [](const char* line) { return print(parse(line)); };
  constexpr const char* kCodes = "norm rms bf16->e4m3fn affine scale=row out=codes";
  BOOST_TEST(printed("norm rms bf16->e4m3fn affine scale=row out=codes cols=20480") == kCodes);
  BOOST_TEST(printed("norm rms bf16->e4m3fn affine scale=row out=codes cols=65536") == kCodes);
  BOOST_TEST(printed("norm rms bf16->e4m3fn affine scale=row out=codes cols=12288") ==
             std::string(kCodes) + " cols=12288");
  BOOST_TEST(printed("norm rms bf16->e4m3fn affine scale=row out=codes cols=1024") ==
             std::string(kCodes) + " cols=1024");
  for (const char* const cols : {"12288", "16384", "40960"}) {
    BOOST_TEST(printed((std::string("norm rms bf16 out=result cols=") + cols).c_str()) == "norm rms bf16 out=result");
    BOOST_TEST(printed((std::string("norm layer f32->e5m2 out=codes cols=") + cols).c_str()) ==
               "norm layer f32->e5m2 scale=row out=codes");
  }
}

BOOST_AUTO_TEST_CASE(parse_errors_quote_the_wrong_word) {
  BOOST_TEST(parse_error("norm") ==
             "\"norm\" must be followed by layer or rms and <in>-><out> or <in>, such as bf16->e4m3fn");
  BOOST_TEST(parse_error("norm layer") ==
             "\"norm\" must be followed by layer or rms and <in>-><out> or <in>, such as bf16->e4m3fn");
  BOOST_TEST(parse_error("norm_backward rms") ==
             "\"norm_backward\" must be followed by layer or rms and <in>, such as bf16");
  BOOST_TEST(parse_error("norm batch bf16") == "\"batch\" is no kind of norm; expected layer or rms");
  BOOST_TEST(parse_error("norm_backward bf16 rms") == "\"bf16\" is no kind of norm_backward; expected layer or rms");

  const std::string dtypes = "is no dtype; expected f32, bf16, f16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz";
  BOOST_TEST(parse_error("norm rms bf17->e4m3fn") == "\"bf17\" " + dtypes);
  BOOST_TEST(parse_error("norm rms bf16->") == "\"\" " + dtypes);
  BOOST_TEST(parse_error("norm_backward rms bf16->f32") == "\"bf16->f32\" " + dtypes);
  BOOST_TEST(parse_error("norm_backward rms bf16 affine sums=f31") == "\"f31\" " + dtypes);
  BOOST_TEST(parse_error("norm rms bf16->e5m2 scale=rows") ==
             "\"rows\" is no granularity; expected tensor, row, col or <rows>x<cols>");

  BOOST_TEST(
      parse_error("norm rms bf16 out=result fast") ==
      "\"fast\" is no word of norm; expected affine, scale=<granularity>, out=codes,result,stats, given, pow2 or "
      "cols=<columns>");
  BOOST_TEST(parse_error("norm rms bf16 out=result cols=many") ==
             "\"many\" in \"cols=many\" is no number of columns; expected one such as 16384");
  BOOST_TEST(parse_error("norm rms bf16 out=result cols=20480 cols=20480") ==
             "\"cols=20480\" gives cols a second time");
  BOOST_TEST(parse_error("norm_backward rms bf16 out=result") ==
             "\"out=result\" is no word of norm_backward; expected affine, zero_centred or sums=<dtype>");
  for (const char* const list : {"out=results", "out=result,result", "out=", "out=result,", "out=codes,codes"}) {
    BOOST_TEST(parse_error(std::string("norm rms bf16->e4m3fn ") + list) ==
               "\"" + std::string(list) + "\" must list codes, result and stats at most once");
  }
  BOOST_TEST(parse_error("norm rms bf16 out=codes") ==
             "\"out=codes\" lists codes, but \"bf16\" gives no dtype for them");
  BOOST_TEST(parse_error("norm rms bf16->e4m3fn out=result") ==
             "\"out=result\" lists no codes, but \"bf16->e4m3fn\" gives a dtype for them");

  BOOST_TEST(parse_error("norm rms bf16 affine out=result affine") == "\"affine\" gives affine a second time");
  BOOST_TEST(parse_error("norm rms bf16 out=result out=result") == "\"out=result\" gives out a second time");
  BOOST_TEST(parse_error("norm rms bf16->e5m2 pow2 pow2") == "\"pow2\" gives pow2 a second time");
  BOOST_TEST(parse_error("norm rms bf16->e5m2 given scale=tensor given") == "\"given\" gives given a second time");
  BOOST_TEST(parse_error("norm rms bf16->e5m2 scale=row scale=row") == "\"scale=row\" gives scale a second time");
  BOOST_TEST(parse_error("norm_backward rms bf16 affine sums=f32 sums=bf16") ==
             "\"sums=bf16\" gives sums a second time");
}

BOOST_AUTO_TEST_CASE(validation_names_the_field_and_what_is_allowed) {
  const std::string high = "must be one of f32, bf16, f16";
  BOOST_TEST(refusal(NormSpec{.kind = static_cast<NormKind>(7), .result = true}) ==
             "norm unknown bf16 out=result: kind is 7, which is not valid; it must be layer or rms");
  const std::string columns =
      ", but must be 0, or 12288 or 16384 for codes alone of bf16 or f16, or 1024, 2048, 4096 or 8192 where they are "
      "affine and their scales dynamic";
  for (const std::int32_t cols : {-4096, 1, 8192, 40961, 69632}) {
    BOOST_TEST(refusal(NormSpec{.result = true, .cols = cols}) ==
               "norm layer bf16 out=result cols=" + std::to_string(cols) + ": cols is " + std::to_string(cols) +
                   columns);
  }
  for (const NormSpec& spec :
       {NormSpec{.result = true, .cols = 16384}, NormSpec{.out = Dtype::e5m2, .cols = 20480},
        NormSpec{.in = Dtype::f32, .out = Dtype::e5m2, .cols = 16384}, NormSpec{.out = Dtype::e5m2, .cols = 8192},
        NormSpec{.out = Dtype::e5m2, .affine = true, .cols = 8184},
        NormSpec{.out = Dtype::e5m2, .affine = true, .cols = 16383},
        NormSpec{.in = Dtype::f32, .out = Dtype::e5m2, .affine = true, .cols = 4096},
        NormSpec{
            .out = Dtype::e5m2, .affine = true, .scale = kTensorwise, .source = ScaleSource::given, .cols = 1024}}) {
    BOOST_TEST(refusal(spec) == print(spec) + ": cols is " + std::to_string(spec.cols) + columns);
  }
  BOOST_TEST(refusal(NormSpec{.in = Dtype::e5m2, .result = true}) ==
             "norm layer e5m2 out=result: in is e5m2, but " + high);
  BOOST_TEST(refusal(NormSpec{}) ==
             "norm layer bf16 out=nothing: nothing is written: set out (the dtype of the codes), result or stats");
  BOOST_TEST(refusal(NormSpec{.affine = true, .stats = true}) ==
             "norm layer bf16 affine out=stats: affine is set, but only stats are written, which do not depend on "
             "gamma and beta");
  BOOST_TEST(refusal(NormSpec{.out = Dtype::bf16}) ==
             "norm layer bf16->bf16 scale=row out=codes: out is bf16, but must be one of e4m3fn, e5m2, e4m3fnuz, "
             "e5m2fnuz");
  BOOST_TEST(refusal(NormSpec{.out = Dtype::e4m3fn, .scale = kTensorwise}) ==
             "norm layer bf16->e4m3fn scale=tensor out=codes: scale is tensor, but dynamic ones must be row: a norm "
             "sees one row at a time. Write the statistics and cast with an expression of them for any other");
  BOOST_TEST(
      refusal(NormSpec{.out = Dtype::e4m3fn, .source = static_cast<ScaleSource>(7)}) ==
      "norm layer bf16->e4m3fn scale=row out=codes: source is 7, which is not valid; it must be dynamic or given");
  BOOST_TEST(refusal(NormSpec{.out = Dtype::e4m3fn, .source = ScaleSource::given}) ==
             "norm layer bf16->e4m3fn scale=row out=codes given: scale is row, but a given one must be tensor");
  BOOST_TEST(
      refusal(NormSpec{.out = Dtype::e4m3fn, .scale = kTensorwise, .source = ScaleSource::given, .pow2 = true}) ==
      "norm layer bf16->e4m3fn scale=tensor out=codes given pow2: pow2 is set, but the scale is given: round it "
      "where it is made");
  const std::string no_codes = ": scale, given and pow2 are for codes, but out, their dtype, is not set";
  BOOST_TEST(refusal(NormSpec{.scale = kTensorwise, .result = true}) ==
             "norm layer bf16 scale=tensor out=result" + no_codes);
  BOOST_TEST(refusal(NormSpec{.source = ScaleSource::given, .result = true}) ==
             "norm layer bf16 out=result given" + no_codes);
  BOOST_TEST(refusal(NormSpec{.pow2 = true, .result = true}) == "norm layer bf16 out=result pow2" + no_codes);

  BOOST_TEST(refusal(NormBackwardSpec{.kind = static_cast<NormKind>(2)}) ==
             "norm_backward unknown bf16: kind is 2, which is not valid; it must be layer or rms");
  BOOST_TEST(refusal(NormBackwardSpec{.in = Dtype::e4m3fn}) == "norm_backward layer e4m3fn: in is e4m3fn, but " + high);
  BOOST_TEST(refusal(NormBackwardSpec{.zero_centred = true}) ==
             "norm_backward layer bf16 zero_centred: zero_centred is set, but without affine there is no gamma");
  BOOST_TEST(refusal(NormBackwardSpec{.sums = Dtype::bf16}) ==
             "norm_backward layer bf16 sums=bf16: sums is set, but without affine there are no gradients of gamma and "
             "beta");
  BOOST_TEST(refusal(NormBackwardSpec{.affine = true, .sums = Dtype::f16}) ==
             "norm_backward layer bf16 affine sums=f16: sums is f16, but must be f32 or bf16, as in is");
  BOOST_TEST(refusal(NormBackwardSpec{.in = Dtype::f32, .affine = true, .sums = Dtype::bf16}) ==
             "norm_backward layer f32 affine sums=bf16: sums is bf16, but must be f32");
}

BOOST_AUTO_TEST_CASE(all_valid_norms_are_listed) {
  std::set<std::string> listed;
  for (const KernelSpec& spec : all_valid_specs()) listed.insert(print(spec));
  std::size_t valid = 0;
  for (const KernelSpec& spec : all_combinations()) {
    const bool accepted = refusal(spec) == "no error";
    BOOST_TEST(accepted == (listed.count(print(spec)) == 1), spec);
    valid += accepted ? 1 : 0;
  }
  // For 2 kinds and 3 dtypes: 5 without codes (affine writes a result), and 4 formats x 3 kinds of scales x 8 with
  // codes. Backward: plain, and affine with either gamma and with sums of f32 or of the dtype.
  BOOST_TEST(valid == 6U * (5U + 4U * 3U * 8U) + 2U * (3U + 5U + 5U));
}

BOOST_AUTO_TEST_CASE(hashes_do_not_collide) {
  std::set<std::size_t> hashes;
  const std::vector<KernelSpec> specs = all_combinations();
  for (const KernelSpec& spec : specs) hashes.insert(hash_value(spec));
  BOOST_TEST(hashes.size() == specs.size());
}

BOOST_AUTO_TEST_SUITE_END()
