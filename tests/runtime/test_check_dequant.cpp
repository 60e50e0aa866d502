// Every refusal of pack_weight's and dequant_matmul's arguments, by its message. test_check.cpp tests what holds for
// tensors of any operation (strides, null, alignment).
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <string>

#include "ingot/runtime/dequant/dequant_operations.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check_dequant)

using namespace ingot;
using ingot::test::refused;

namespace {

constexpr Device kCpu{};
constexpr Device kGpu{DeviceType::cuda, 0};

// Memory that is never read: checks look only at addresses.
alignas(256) std::byte memory[1 << 17];
void* at(std::size_t offset) { return memory + offset; }

const std::string kNothing = "nothing was thrown";
const std::string kAbsent = "it must not be given (a default Tensor instead): ";

constexpr std::int64_t kM = 3;
constexpr std::int64_t kN = 70;
constexpr std::int64_t kK = 100;
const std::int64_t kPackedBytes = packed_weight_bytes(Dtype::e4m3fn, kN, kK);

template <class Spec, class Tensors>
std::string message(const Spec& spec, Tensors tensors, test::FunctionRef<void(Tensors&)> change) {
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}

PackWeightTensors pack_tensors() {
  return {.codes = matrix(at(0), Dtype::e4m3fn, kN, kK, kCpu),
          .packed = vector(at(1 << 14), Dtype::u8, kPackedBytes, kCpu)};
}
std::string pack_message(test::FunctionRef<void(PackWeightTensors&)> change, const PackWeightSpec& spec = {}) {
  return message(spec, pack_tensors(), change);
}

const DequantMatmulSpec kRows{.layout = WeightLayout::row_major, .bias = true};
const DequantMatmulSpec kPacked{};
DequantMatmulTensors rows_tensors() {
  return {.x = matrix(at(0), Dtype::bf16, kM, kK, kCpu),
          .weight = matrix(at(1 << 14), Dtype::e4m3fn, kN, kK, kCpu),
          .scale_inv = vector(at(1 << 15), Dtype::f32, kN, kCpu),
          .bias = vector(at((1 << 15) + 1024), Dtype::bf16, kN, kCpu),
          .out = matrix(at((1 << 15) + 2048), Dtype::bf16, kM, kN, kCpu)};
}
DequantMatmulTensors packed_tensors() {
  DequantMatmulTensors tensors = rows_tensors();
  tensors.weight = vector(at(1 << 16), Dtype::u8, kPackedBytes, kCpu);
  tensors.bias = {};
  return tensors;
}
std::string rows_message(test::FunctionRef<void(DequantMatmulTensors&)> change, const DequantMatmulSpec& spec = kRows) {
  return message(spec, rows_tensors(), change);
}
std::string packed_message(test::FunctionRef<void(DequantMatmulTensors&)> change,
                           const DequantMatmulSpec& spec = kPacked) {
  return message(spec, packed_tensors(), change);
}

}  // namespace

BOOST_AUTO_TEST_CASE(right_calls_pass) {
  BOOST_TEST(pack_message([](auto&) {}) == kNothing);
  BOOST_TEST(pack_message([](auto&) {}, {.unpack = true}) == kNothing);
  BOOST_TEST(rows_message([](auto&) {}) == kNothing);
  BOOST_TEST(packed_message([](auto&) {}) == kNothing);
  // No tokens, no rows, no K.
  BOOST_TEST(packed_message([](auto& t) {
               t.x = matrix(nullptr, Dtype::bf16, 0, kK, kCpu);
               t.out = matrix(nullptr, Dtype::bf16, 0, kN, kCpu);
             }) == kNothing);
  check(DequantMatmulSpec{.scale = kRowGroups, .layout = WeightLayout::row_major},
        {.x = matrix(nullptr, Dtype::bf16, 2, 0, kCpu),
         .weight = matrix(nullptr, Dtype::e4m3fn, 5, 0, kCpu),
         .scale_inv = {},
         .out = matrix(at(0), Dtype::bf16, 2, 5, kCpu)},
        kCpu);
  check(PackWeightSpec{}, {.codes = matrix(nullptr, Dtype::e4m3fn, 0, 5, kCpu), .packed = {}}, kCpu);
}

BOOST_AUTO_TEST_CASE(a_packed_weight_has_the_bytes_of_its_sizes) {
  BOOST_TEST(kPackedBytes == 128 * 128 + 512);
  BOOST_TEST(
      pack_message([](auto& t) { t.packed.cols -= 1; }) ==
      "pack_weight packed: is u8[1, 16895] on cpu, row stride 16896; it must be [1, 16896]: the bytes of "
      "e4m3fn[70, 100] in version 3 of the packed layouts; it was packed for other sizes, of another dtype, or by "
      "another version");
  BOOST_TEST(packed_message([](auto& t) { t.weight = vector(t.weight.data, Dtype::u8, 8448, kCpu); }) ==
             "dequant_matmul weight: is u8[1, 8448] on cpu; it must be [1, 16896]: the bytes of e4m3fn[70, 100] in "
             "version 3 of the packed layouts; it was packed for other sizes, of another dtype, or by another version");
  BOOST_TEST(packed_message([](auto& t) { t.weight = matrix(t.weight.data, Dtype::e4m3fn, kN, kK, kCpu); }) ==
             "dequant_matmul weight: is e4m3fn[70, 100] on cpu; the spec asks for u8");
  BOOST_TEST(packed_message([](auto& t) { t.weight = {}; }) ==
             "dequant_matmul weight: is missing; it must be u8[1, 16896]: the bytes of e4m3fn[70, 100] in version 3 of "
             "the packed layouts");
  BOOST_TEST(packed_message([](auto& t) { t.weight.device = kGpu; }) ==
             "dequant_matmul weight: is u8[1, 16896] on cuda:0; this backend works on cpu: copy it there");
  const std::string misaligned = packed_message([](auto& t) { t.weight.data = at((1 << 16) + 8); });
  BOOST_TEST(misaligned.find("is misaligned: a packed weight must start at a multiple of 16 bytes") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(rows_of_less_than_a_byte) {
  for (const auto& [dtype, unit] : {std::pair{Dtype::e2m1fn, "2"}, {Dtype::e2m3fn, "4"}, {Dtype::e3m2fn, "4"}}) {
    const std::string name_of(name(dtype));
    const DequantMatmulSpec spec{.weight = dtype, .layout = WeightLayout::row_major, .bias = true};
    BOOST_TEST(rows_message([&](auto& t) { t.weight = matrix(at(1 << 14), dtype, kN, kK, kCpu); }, spec) == kNothing);
    BOOST_TEST(rows_message(
                   [&](auto& t) {
                     t.weight = matrix(at(1 << 14), dtype, kN, kK, kCpu);
                     t.weight.row_stride = 101;
                   },
                   spec) == "dequant_matmul weight: is " + name_of +
                                "[70, 100] on cpu, row stride 101; the row stride must be a multiple of " + unit +
                                ", so that every row of " + name_of + " starts at a byte");
  }
}

BOOST_AUTO_TEST_CASE(a_packed_weight_is_no_rows) {
  BOOST_TEST(rows_message([](auto& t) { t.weight = vector(t.weight.data, Dtype::u8, kPackedBytes, kCpu); }) ==
             "dequant_matmul weight: is u8[1, 16896] on cpu; the spec says row_major, codes "
             "e4m3fn[N, K]; a packed weight's layout is packed or packed_f16");
}

BOOST_AUTO_TEST_CASE(shapes) {
  BOOST_TEST(rows_message([](auto& t) { t.out = matrix(t.out.data, Dtype::bf16, kM, kN - 1, kCpu); }) ==
             "dequant_matmul out: is bf16[3, 69] on cpu; it must be [3, 70]: M of x, N of the weight");
  BOOST_TEST(packed_message([](auto& t) { t.out = matrix(t.out.data, Dtype::bf16, kM + 1, kN, kCpu); }) ==
             "dequant_matmul out: is bf16[4, 70] on cpu; it must have 3 rows, as x has");
  BOOST_TEST(rows_message([](auto& t) { t.weight = matrix(t.weight.data, Dtype::e4m3fn, kN, kK + 1, kCpu); }) ==
             "dequant_matmul weight: is e4m3fn[70, 101] on cpu; its K is 101, but that of x, which is bf16[3, 100] "
             "on cpu, is 100");
  BOOST_TEST(rows_message([](auto& t) { t.bias.cols = t.bias.row_stride = 69; }) ==
             "dequant_matmul bias: is bf16[1, 69] on cpu; it must be [1, 70]: one for each of the N columns");
}

BOOST_AUTO_TEST_CASE(scale_inv_of_every_kind) {
  const auto of_scale = [](ScaleGranularity scale, Dtype scale_inv = Dtype::f32) {
    DequantMatmulSpec spec = kPacked;
    spec.scale = scale;
    spec.scale_inv = scale_inv;
    return packed_message([](auto& t) { t.scale_inv = vector(t.scale_inv.data, Dtype::f32, 7, kCpu); }, spec);
  };
  const std::string is = "dequant_matmul scale_inv: is f32[1, 7] on cpu; ";
  BOOST_TEST(of_scale(kTensorwise) == is + "it must be [1, 1]: one for the whole weight");
  BOOST_TEST(of_scale(kRowwise) == is + "it must be [1, 70]: one for each of the weight's N rows");
  BOOST_TEST(of_scale(kRowGroups) == is + "it must be [1, 70]: one for each group of 128 along K, row by row");
  BOOST_TEST(of_scale(kRowGroups64) == is + "it must be [1, 140]: one for each group of 64 along K, row by row");
  BOOST_TEST(of_scale(kRowGroups32) == is + "it must be [1, 280]: one for each group of 32 along K, row by row");
  BOOST_TEST(of_scale(kBlocks) == is + "it must be [1, 1]: one for each block of 128 x 128, row by row");
  BOOST_TEST(of_scale(kRowGroups32, Dtype::e8m0fnu) == is + "the spec asks for e8m0fnu");
  BOOST_TEST(packed_message([](auto& t) { t.scale_inv = {}; }) ==
             "dequant_matmul scale_inv: is missing; it must be f32[1, 70]: one for each of the weight's N rows");
}

BOOST_AUTO_TEST_CASE(dtypes_and_what_is_not_asked_for) {
  BOOST_TEST(packed_message([](auto& t) { t.x.dtype = Dtype::f16; }) ==
             "dequant_matmul x: is f16[3, 100] on cpu; the spec asks for bf16");
  BOOST_TEST(packed_message([](auto& t) { t.out.dtype = Dtype::f16; }) ==
             "dequant_matmul out: is f16[3, 70] on cpu; the spec asks for bf16");
  BOOST_TEST(rows_message([](auto& t) { t.weight.dtype = Dtype::e5m2; }) ==
             "dequant_matmul weight: is e5m2[70, 100] on cpu; the spec asks for e4m3fn");
  BOOST_TEST(rows_message([](auto& t) { t.bias.dtype = Dtype::f32; }) ==
             "dequant_matmul bias: is f32[1, 70] on cpu; the spec asks for bf16");
  BOOST_TEST(packed_message([](auto& t) { t.bias = vector(at(0), Dtype::bf16, kN, kCpu); }) ==
             "dequant_matmul bias: is bf16[1, 70] on cpu; " + kAbsent + "the spec has no bias");
  BOOST_TEST(packed_message([](auto& t) { t.inputs[1] = vector(at(0), Dtype::bf16, kN, kCpu); }) ==
             "dequant_matmul inputs[1]: is bf16[1, 70] on cpu; " + kAbsent + "the expression has no such input");
  BOOST_TEST(pack_message([](auto& t) { t.codes.dtype = Dtype::e5m2; }) ==
             "pack_weight codes: is e5m2[70, 100] on cpu; the spec asks for e4m3fn");
}

BOOST_AUTO_TEST_CASE(inputs_of_an_expression) {
  DequantMatmulSpec spec = kPacked;
  spec.pointwise = parse_pointwise("x * gate + shift[col] * scale[row]");
  const auto with = [&](test::FunctionRef<void(DequantMatmulTensors&)> change) {
    return packed_message(
        [&](auto& t) {
          t.inputs = {matrix(at(40000), Dtype::bf16, kM, kN, kCpu), vector(at(41000), Dtype::bf16, kN, kCpu),
                      vector(at(42000), Dtype::f32, kM, kCpu)};
          change(t);
        },
        spec);
  };
  BOOST_TEST(with([](auto&) {}) == kNothing);
  BOOST_TEST(with([](auto& t) { t.inputs[0].cols = 69; }) ==
             "dequant_matmul inputs[0] (gate): is bf16[3, 69] on cpu, row stride 70; it must be [3, 70]: M of x, N of "
             "the weight");
  BOOST_TEST(with([](auto& t) { t.inputs[1].dtype = Dtype::f32; }) ==
             "dequant_matmul inputs[1] (shift): is f32[1, 70] on cpu; the spec asks for bf16");
  BOOST_TEST(with([](auto& t) { t.inputs[2] = {}; }) ==
             "dequant_matmul inputs[2] (scale): is missing; it must be f32[1, 3]: one for each of the M rows");
}

BOOST_AUTO_TEST_CASE(outputs_have_their_own_memory) {
  BOOST_TEST(packed_message([](auto& t) { t.out.data = t.x.data; }) ==
             "dequant_matmul out: is bf16[3, 70] on cpu; its memory overlaps that of dequant_matmul x, which is "
             "bf16[3, 100] on cpu; an output needs its own memory");
  BOOST_TEST(pack_message([](auto& t) { t.codes.data = t.packed.data; }, {.unpack = true}) ==
             "pack_weight codes: is e4m3fn[70, 100] on cpu; its memory overlaps that of pack_weight packed, which is "
             "u8[1, 16896] on cpu; an output needs its own memory");
}

BOOST_AUTO_TEST_SUITE_END()
