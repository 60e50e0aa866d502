// The specs of pack_weight and dequant_matmul: how they print and parse, and every refusal.
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "support/spec_errors.h"

BOOST_AUTO_TEST_SUITE(test_dequant_spec)

using namespace ingot;
using namespace ingot::test;

namespace {

DequantMatmulSpec changed(void (*change)(DequantMatmulSpec&)) {
  DequantMatmulSpec spec;
  change(spec);
  return spec;
}

std::string refused(void (*change)(DequantMatmulSpec&)) {
  const DequantMatmulSpec spec = changed(change);
  const std::string subject = print(KernelSpec(spec)) + ": ";
  const std::string message = refusal(spec);
  return message.starts_with(subject) ? message.substr(subject.size()) : "(no subject) " + message;
}

constexpr DequantTiling kMmaTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .k_warps = 2};

std::string tiling_refusal(DequantKernel kernel, DequantTiling tiling) {
  DequantMatmulSpec spec;
  spec.kernel = kernel;
  return dequant_tiling_fault(spec, tiling);
}

std::string mma_refusal(void (*change)(DequantTiling&)) {
  DequantTiling tiling = kMmaTiling;
  change(tiling);
  return tiling_refusal(DequantKernel::mma, tiling);
}

std::string sm90_refusal(void (*change)(DequantTiling&)) {
  DequantTiling tiling;
  change(tiling);
  return tiling_refusal(DequantKernel::sm90, tiling);
}

}  // namespace

BOOST_AUTO_TEST_CASE(printed_form) {
  BOOST_TEST(print(PackWeightSpec{}) == "pack_weight e4m3fn");
  BOOST_TEST(print(PackWeightSpec{.weight = Dtype::e2m1fn, .unpack = true}) == "pack_weight e2m1fn unpack");
  BOOST_TEST(print(PackWeightSpec{.layout = WeightLayout::packed_f16, .unpack = true}) ==
             "pack_weight e4m3fn packed_f16 unpack");
  BOOST_TEST(print(DequantMatmulSpec{.x = Dtype::f16, .out = Dtype::f16, .layout = WeightLayout::packed_f16}) ==
             "dequant_matmul f16*e4m3fn->f16 packed_f16 scale=row");
  BOOST_TEST(print(DequantMatmulSpec{}) == "dequant_matmul bf16*e4m3fn->bf16 packed scale=row");
  BOOST_TEST(print(DequantMatmulSpec{.x = Dtype::f16,
                                     .weight = Dtype::e2m1fn,
                                     .out = Dtype::f32,
                                     .scale = kRowGroups32,
                                     .scale_inv = Dtype::e8m0fnu,
                                     .layout = WeightLayout::row_major,
                                     .bias = true,
                                     .pointwise = parse_pointwise("silu(x) * gate"),
                                     .batch_invariant = true,
                                     .kernel = DequantKernel::mma}) ==
             "dequant_matmul f16*e2m1fn->f32 row_major scale=1x32 factors=e8m0fnu bias epilogue=x*sigmoid(x)*gate "
             "batch_invariant kernel=mma");
  BOOST_TEST(print(DequantMatmulSpec{.kernel = DequantKernel::mma, .tiling = kMmaTiling}) ==
             "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=mma:16x64x128:3:1:2");
  BOOST_TEST(print(DequantMatmulSpec{.kernel = DequantKernel::sm90, .tiling = DequantTiling{.split = 2}}) ==
             "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:16x128x128:8:2:1");
  const DequantTiling wide{
      .wgmma = true, .tokens = 64, .rows = 256, .depth = 64, .stages = 4, .waves = 2, .multicast = 2, .blocks = 1};
  BOOST_TEST(print(DequantMatmulSpec{.kernel = DequantKernel::sm90, .tiling = wide}) ==
             "dequant_matmul bf16*e4m3fn->bf16 packed scale=row "
             "kernel=sm90:wgmma:64x256x64:4:1:1:waves2:multicast2");
  const DequantTiling cut{.tokens = 8, .rows = 128, .depth = 256, .stages = 2, .blocks = 2, .stream_k = true};
  BOOST_TEST(print(DequantMatmulSpec{.kernel = DequantKernel::sm90, .tiling = cut}) ==
             "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x128x256:2:1:1:blocks2:streamk");
}

BOOST_AUTO_TEST_CASE(text_comes_back) {
  for (const PackWeightSpec& spec : valid_specs<PackWeightSpec>()) BOOST_TEST((parse(print(spec)) == KernelSpec(spec)));
  for (const char* const line :
       {"dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue=x*sigmoid(x) kernel=sm90:mma:16x128x128:8:2:1",
        "dequant_matmul f16*e2m1fn->f32 packed scale=1x32 factors=e8m0fnu batch_invariant",
        "dequant_matmul bf16*e3m2fn->bf16 row_major scale=128x128 kernel=mma:64x128x64:3:4:1",
        "dequant_matmul bf16*e4m3fn->bf16 packed scale=1x64 kernel=sm90:wgmma:32x256x64:4:1:1:waves2:multicast2",
        "dequant_matmul bf16*e2m1fn->bf16 packed scale=row kernel=sm90:mma:8x256x512:2:1:1:streamk",
        "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x128x256:2:1:1:blocks2:streamk",
        "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu bias experts",
        "dequant_matmul f16*e4m3fn->f16 row_major scale=row experts kernel=mma:16x64x128:3:1:2"}) {
    BOOST_TEST(print(parse(line)) == line);
  }
  BOOST_TEST((parse("dequant_matmul bf16 * e4m3fn -> bf16 kernel=mma scale=row bias packed") ==
              KernelSpec(DequantMatmulSpec{.bias = true, .kernel = DequantKernel::mma})));
}

BOOST_AUTO_TEST_CASE(all_are_valid_and_different) {
  std::set<std::string> lines;
  const auto specs = valid_specs<DequantMatmulSpec>();
  BOOST_TEST(specs.size() == 2U * 7U * (2U * 7U * 5U + 7U * 2U));
  for (const DequantMatmulSpec& spec : specs) {
    const std::string line = print(KernelSpec(spec));
    BOOST_TEST((parse(line) == KernelSpec(spec)), line);
    BOOST_TEST(lines.insert(line).second, line);
    BOOST_TEST(!generate(spec).text.empty());
  }
}

BOOST_AUTO_TEST_CASE(generated_text) {
  BOOST_TEST(generate(parse("pack_weight e3m2fn unpack")).text ==
             "// pack_weight e3m2fn unpack\n#include \"dequant/pack_weight.cuh\"\n"
             "constexpr auto kKernel = &ingot::unpack_weight<ingot::e3m2fn, ingot::CodeLayout::packed>;\n");
  BOOST_TEST(generate(parse("pack_weight e4m3fn packed_f16")).text ==
             "// pack_weight e4m3fn packed_f16\n#include \"dequant/pack_weight.cuh\"\n"
             "constexpr auto kKernel = &ingot::pack_weight<ingot::e4m3fn, ingot::CodeLayout::packed_f16>;\n");
  // For codes smaller than a byte, both packed layouts use the same kernels.
  BOOST_TEST(generate(parse("pack_weight e3m2fn packed_f16 unpack")).text ==
             generate(parse("pack_weight e3m2fn unpack")).text);
  const std::string product = "dequant_matmul f16*e2m1fn->f16 scale=row kernel=mma:16x64x128:3:1:2";
  BOOST_TEST(generate(parse(product + " packed_f16")).text == generate(parse(product + " packed")).text);
  // The split, the bias and batch_invariant are kernel parameters.
  const std::string text =
      "// dequant_matmul bf16*e4m3fn->f32 row_major scale=1x64 kernel=mma:16x64x128:3:1:2\n"
      "#include \"dequant/dequant_mma.cuh\"\n"
      "constexpr auto kKernel = &ingot::dequant_mma<ingot::e4m3fn, ingot::bf16, ingot::f32, "
      "ingot::DequantMmaConfig{.layout = ingot::CodeLayout::row_major, .factors = {.scale = {.rows = 1, .cols = 64}, "
      ".e8m0 = false, .into_codes = false}, .tiling = {.tokens = 16, .rows = 64, .k_warps = 2}, .experts = false}>;\n";
  BOOST_TEST(generate(parse("dequant_matmul bf16*e4m3fn->f32 row_major scale=1x64 bias batch_invariant "
                            "kernel=mma:16x64x128:3:4:2"))
                 .text == text);
  const std::string sm90 = generate(parse("dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu bias "
                                          "epilogue=x*gate kernel=sm90:wgmma:32x256x64:4:2:1:waves2"))
                               .text;
  BOOST_TEST(
      sm90.find(
          "// dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu epilogue=x*gate "
          "kernel=sm90:wgmma:32x256x64:4:2:1:waves2\n#include \"dequant/dequant_sm90.cuh\"\nnamespace ingot {\n") ==
      0U);
  BOOST_TEST(
      sm90.find(
          "constexpr auto kKernel = &ingot::dequant_sm90<ingot::e2m1fn, ingot::f16, ingot::f16, "
          "ingot::DequantSm90Config{.layout = ingot::CodeLayout::packed, .factors = {.scale = {.rows = 1, .cols = 32}, "
          ".e8m0 = true, .into_codes = false}, .tiling = {.tokens = 32, .groups = 2, .waves = 2, .depth = 64, .stages "
          "= 4, .split = 2, .multicast = 1, .wgmma = true, .blocks_per_sm = 1, .k_warps = 1, .stream_k = false, "
          ".experts = false}}, "
          "ingot::Epilogue<ingot::NoMatrix, ingot::Fused, ingot::f16>>;\n") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(hashes_tell_specs_apart) {
  std::set<std::size_t> hashes;
  for (const DequantMatmulSpec& spec : valid_specs<DequantMatmulSpec>()) {
    BOOST_TEST(hash_value(spec) == hash_value(KernelSpec(spec)));
    hashes.insert(hash_value(spec));
  }
  BOOST_TEST(hashes.size() == valid_specs<DequantMatmulSpec>().size());
}

BOOST_AUTO_TEST_CASE(refusals) {
  BOOST_TEST(refusal(PackWeightSpec{.weight = Dtype::bf16}) ==
             "pack_weight bf16: weight is bf16, but must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e3m2fn, e2m3fn, "
             "e2m1fn");
  BOOST_TEST(refusal(PackWeightSpec{.layout = static_cast<WeightLayout>(7)}) ==
             "pack_weight e4m3fn unknown_layout: layout is not a packed one; it must be packed or packed_f16");
  BOOST_TEST(refusal(PackWeightSpec{.layout = WeightLayout::row_major}) ==
             "pack_weight e4m3fn row_major: layout is not a packed one; it must be packed or packed_f16");
  BOOST_TEST(refused([](auto& s) { s.x = Dtype::f32; }) == "x is f32, but must be one of bf16, f16");
  BOOST_TEST(refused([](auto& s) { s.weight = Dtype::e8m0fnu; }) ==
             "weight is e8m0fnu, but must be one of e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e3m2fn, e2m3fn, e2m1fn");
  BOOST_TEST(refused([](auto& s) { s.out = Dtype::f16; }) == "out is f16, but must be bf16, as x is, or f32");
  BOOST_TEST(refused([](auto& s) { s.scale = kColumnwise; }) ==
             "scale is col, but must be tensor, row, 1x128, 1x64, 1x32 or 128x128");
  BOOST_TEST(refused([](auto& s) { s.scale_inv = Dtype::bf16; }) == "factors is bf16, but must be f32 or e8m0fnu");
  BOOST_TEST(refused([](auto& s) { s.scale_inv = Dtype::e8m0fnu; }) ==
             "factors is e8m0fnu and scale is row, but MX's factors are of groups of 32: write scale=1x32, or factors "
             "of f32");
  BOOST_TEST(refused([](auto& s) { s.layout = static_cast<WeightLayout>(7); }) ==
             "layout is 7, which is not valid; it must be packed, packed_f16 or row_major");
  BOOST_TEST(refused([](auto& s) { s.kernel = static_cast<DequantKernel>(7); }) ==
             "kernel is 7, which is not valid; it must be automatic, sm90 or mma");
  BOOST_TEST(refused([](auto& s) { s.pointwise = parse_pointwise("x * f[col:f32]"); }) ==
             "epilogue reads f[col:f32], but vectors along the columns are of bf16 here: write f[col]");
  BOOST_TEST(refused([](auto& s) { s.tiling = DequantTiling{}; }) ==
             "tiling is mma:16x128x128:8:1:1, but kernel is automatic: name the kernel that it is of");
  BOOST_TEST(refused([](auto& s) {
               s.kernel = DequantKernel::sm90;
               s.layout = WeightLayout::row_major;
             }) == "layout is row_major, but kernel sm90 reads packed weights: pack the weight, or leave kernel out");
  BOOST_TEST(refused([](auto& s) {
               s.kernel = DequantKernel::mma;
               s.tiling = DequantTiling{.stages = 4};
             }).starts_with("tiling has "));
  BOOST_TEST(refused([](auto& s) {
               s.kernel = DequantKernel::sm90;
               s.batch_invariant = true;
               s.tiling = DequantTiling{.rows = 128, .depth = 128, .stages = 4, .stream_k = true};
             }) ==
             "tiling has stream-K, whose cuts depend on the number of tokens, but batch_invariant is asked for: "
             "leave one of the two out");
  BOOST_TEST(refused([](auto& s) { s.experts = true, s.pointwise = parse_pointwise("silu(x)"); }) ==
             "it has an epilogue, but matmuls of experts have none");
  BOOST_TEST(refused([](auto& s) { s.experts = true, s.batch_invariant = true; }) ==
             "batch_invariant is asked for, but the tiling of matmuls of experts follows from the number of rows: "
             "leave one of the two out");
  BOOST_TEST(refused([](auto& s) {
               s.kernel = DequantKernel::mma;
               s.experts = true;
               s.tiling = DequantTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .split = 2, .k_warps = 2};
             }) == "tiling has a split of 2, but blocks of kernel mma do not share the K of experts: take 1");
  BOOST_TEST(refused([](auto& s) {
               s.kernel = DequantKernel::sm90;
               s.experts = true;
               s.tiling = DequantTiling{.rows = 128, .depth = 128, .stages = 4, .stream_k = true};
             }) == "tiling has stream-K, but where tiles of experts are is known on the device only");
}

BOOST_AUTO_TEST_CASE(tilings_of_mma) {
  BOOST_TEST(mma_refusal([](auto&) {}) == "");
  BOOST_TEST(mma_refusal([](auto& t) { t.wgmma = true; }) == "instruction wgmma, but kernel mma has mma.sync only");
  BOOST_TEST(mma_refusal([](auto& t) { t.tokens = 12; }) == "12 tokens, but kernel mma takes 8, 16, 32 or 64");
  BOOST_TEST(mma_refusal([](auto& t) { t.rows = 96; }) == "96 rows, but kernel mma takes 64 or 128");
  BOOST_TEST(mma_refusal([](auto& t) { t.k_warps = 3; }) == "3 units along K, but kernel mma takes 1, 2 or 4");
  BOOST_TEST(mma_refusal([](auto& t) {
               t.rows = 128;
               t.k_warps = 4;
             }) == "128 rows and 4 units along K, but a block of kernel mma has 16 warps of 16 rows at most");
  BOOST_TEST(mma_refusal([](auto& t) { t.depth = 64; }) ==
             "a depth of 64, but in kernel mma it is 64 for each unit along K: 128");
  BOOST_TEST(mma_refusal([](auto& t) { t.stages = 4; }) == "4 stages, but kernel mma has 3");
  BOOST_TEST(mma_refusal([](auto& t) { t.split = 65; }) == "a split of 65, but it must be 1 to 64");
  BOOST_TEST(mma_refusal([](auto& t) { t.waves = 2; }) ==
             "waves, multicast, blocks or stream-K, which kernel mma has not");
  BOOST_TEST(mma_refusal([](auto& t) { t.stream_k = true; }) ==
             "waves, multicast, blocks or stream-K, which kernel mma has not");
  BOOST_TEST(mma_refusal([](auto& t) {
               t.tokens = 64;
               t.depth = 256;
               t.k_warps = 4;
             }) ==
             "64 tokens, 64 rows and 4 units along K, but with 64 tokens a block has 8 warps at most: its registers "
             "hold no more sums");
}

BOOST_AUTO_TEST_CASE(tilings_of_sm90) {
  BOOST_TEST(sm90_refusal([](auto&) {}) == "");
  BOOST_TEST(sm90_refusal([](auto& t) { t.k_warps = 3; }) ==
             "3 units along K, but kernel sm90 has 1, 2 or 4 with mma, and 1 with wgmma");
  BOOST_TEST(sm90_refusal([](auto& t) { t.rows = 100; }) ==
             "100 rows in 1 wave and 1 unit along K, but it must be 1 to 4 warpgroups of 64 rows, times 1 to 4 waves");
  BOOST_TEST(sm90_refusal([](auto& t) { t.stages = 30; }) ==
             "30 stages, but shared memory has no room for that many: take 10 or fewer");
  BOOST_TEST(sm90_refusal([](auto& t) { t.stream_k = true; }) == "");
  const std::string_view kCut =
      "stream-K, but that takes blocks and warps that share neither K nor x: split 1, no multicast, one unit along K";
  BOOST_TEST(sm90_refusal([](auto& t) { t.stream_k = true, t.split = 2; }) == kCut);
  BOOST_TEST(sm90_refusal([](auto& t) { t.stream_k = true, t.multicast = 2; }) == kCut);
  BOOST_TEST(sm90_refusal([](auto& t) { t.stream_k = true, t.k_warps = 2; }) == kCut);
  BOOST_TEST(sm90_refusal([](auto& t) {
               t.tokens = 24;
             }).starts_with("mma:24x128x128:8:1:1, which kernel sm90 cannot be made of with such scale_inv: "));
}

BOOST_AUTO_TEST_CASE(parse_errors) {
  BOOST_TEST(parse_error("pack_weight") == "\"pack_weight\" must be followed by the weight's dtype, such as e4m3fn");
  BOOST_TEST(parse_error("pack_weight e4m3fn row_major") ==
             "\"row_major\" is no word of pack_weight; expected packed, packed_f16 or unpack");
  BOOST_TEST(parse_error("pack_weight e4m3fn packed packed_f16") == "\"packed_f16\" gives the layout a second time");
  BOOST_TEST(parse_error("pack_weight e4m3fn unpack unpack") == "\"unpack\" gives unpack a second time");
  BOOST_TEST(parse_error("pack_weight e4m4") ==
             "\"e4m4\" is no dtype; expected bf16, f16, f32, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e3m2fn, e2m3fn, e2m1fn "
             "or e8m0fnu");
  BOOST_TEST(parse_error("dequant_matmul") ==
             "\"dequant_matmul\" must be followed by <x>*<weight>-><out>, such as bf16*e4m3fn->bf16");
  BOOST_TEST(parse_error("dequant_matmul bf16->bf16") ==
             "\"bf16->bf16\" must be <x>*<weight>-><out>, such as bf16*e4m3fn->bf16");
  BOOST_TEST(parse_error("dequant_matmul bf16*e4m3fn->bf16 scale=big") ==
             "\"big\" is no granularity; expected tensor, row, 1x128, 1x64, 1x32 or 128x128");
  BOOST_TEST(parse_error("dequant_matmul bf16*e4m3fn->bf16 fast") ==
             "\"fast\" is no word of dequant_matmul; expected packed, packed_f16, row_major, scale=<granularity>, "
             "factors=<dtype>, "
             "bias, epilogue=<expression>, batch_invariant, experts or kernel=<kernel>");
  BOOST_TEST(parse_error("dequant_matmul bf16*e4m3fn->bf16 packed row_major") ==
             "\"row_major\" gives the layout a second time");
  BOOST_TEST(parse_error("dequant_matmul bf16*e4m3fn->bf16 kernel=simt") ==
             "\"simt\" is no kernel; expected automatic, sm90 or mma");
  BOOST_TEST(parse_error("dequant_matmul bf16*e4m3fn->bf16 kernel=mma:wgmma") ==
             "\"wgmma\" is no tiling of mma; expected one such as 16x64x128:3:1:2 (tokens x rows x depth, stages, "
             "split, units along K)");
  for (const char* const text : {"16x128x128:8:2:1", "mma:16x128x128:8:2", "mma:16x128x128:8:2:1:waves1",
                                 "mma:16x128x128:8:2:1:waves", "mma:-16x128x128:8:2:1"}) {
    BOOST_TEST(parse_error(std::string("dequant_matmul bf16*e4m3fn->bf16 kernel=sm90:") + text) ==
               "\"" + std::string(text) +
                   "\" is no tiling of sm90; expected one such as mma:16x128x128:8:2:1 (tokens x rows x depth, stages, "
                   "split, units along K; after it :waves2, :multicast2, :blocks2, :streamk)");
  }
}

BOOST_AUTO_TEST_CASE(bytes_of_packed_weights) {
  BOOST_TEST(packed_weight_bytes(Dtype::e4m3fn, 64, 128) == 64 * 128 + 64 * 4);
  BOOST_TEST(packed_weight_bytes(Dtype::e3m2fn, 65, 1) == 128 * 64 * 6 / 8 + 128 * 4);
  BOOST_TEST(packed_weight_bytes(Dtype::e2m1fn, 0, 64) == 0);
  // The largest sizes that a file can state.
  const std::int64_t most = std::int64_t{1} << 31U;
  BOOST_TEST(packed_weight_bytes(Dtype::e4m3fn, most, most) == (std::int64_t{1} << 62U) + (std::int64_t{1} << 33U));
}

BOOST_AUTO_TEST_SUITE_END()
