// The checks of operations' arguments: valid calls pass, and every refusal has its message. Operations that have their
// own checks have a test_check_<name>.cpp.
#include "ingot/runtime/core/check.h"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "support/fake_device.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check)

using namespace ingot;
using ingot::test::refused;

namespace {

constexpr Device kCpu{};
constexpr Device kGpu{DeviceType::cuda, 0};

// Memory that is never read: checks look only at addresses.
alignas(256) std::byte memory[1 << 16];
void* at(std::size_t offset) { return memory + offset; }

// Each test starts from a valid call and breaks one thing.
const CastSpec kCast{.in = Dtype::bf16, .out = Dtype::e4m3fn, .codes = true, .transposed = true};
CastTensors cast_tensors() {
  return {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
          .codes = matrix(at(1024), Dtype::e4m3fn, 4, 8, kCpu),
          .transposed = matrix(at(2048), Dtype::e4m3fn, 8, 4, kCpu),
          .scale_inv = vector(at(3072), Dtype::f32, 1, kCpu)};
}

const GemmSpec kGemm{.a = Dtype::e4m3fn, .b = Dtype::e5m2, .out = Dtype::bf16, .scale_a = kRowwise, .bias = true};
GemmTensors gemm_tensors() {
  return {.a = matrix(at(0), Dtype::e4m3fn, 4, 32, kCpu),
          .b = matrix(at(1024), Dtype::e5m2, 6, 32, kCpu),
          .scale_inv_a = vector(at(2048), Dtype::f32, 4, kCpu),
          .scale_inv_b = vector(at(3072), Dtype::f32, 1, kCpu),
          .bias = vector(at(4096), Dtype::bf16, 6, kCpu),
          .out = matrix(at(5120), Dtype::bf16, 4, 6, kCpu)};
}

std::string cast_message(test::FunctionRef<void(CastTensors&)> change, CastSpec spec = kCast) {
  CastTensors tensors = cast_tensors();
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument));
  return error.message;
}

std::string gemm_message(test::FunctionRef<void(GemmTensors&)> change, GemmSpec spec = kGemm) {
  GemmTensors tensors = gemm_tensors();
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument));
  return error.message;
}

const std::string kNothing = "nothing was thrown";
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(right_calls_pass) {
  BOOST_TEST(cast_message([](auto&) {}) == kNothing);
  BOOST_TEST(gemm_message([](auto&) {}) == kNothing);
  check(AmaxSpec{.in = Dtype::f32, .scale = kRowwise},
        {.input = matrix(at(0), Dtype::f32, 4, 8, kCpu), .amax = vector(at(1024), Dtype::f32, 4, kCpu)}, kCpu);
  check(ColumnSumSpec{.in = Dtype::bf16, .out = Dtype::f32},
        {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu), .sum = vector(at(1024), Dtype::f32, 8, kCpu)}, kCpu);
}

BOOST_AUTO_TEST_CASE(empty_tensors_pass_without_memory) {
  check(kCast,
        {.input = matrix(nullptr, Dtype::bf16, 0, 8, kCpu),
         .codes = matrix(nullptr, Dtype::e4m3fn, 0, 8, kCpu),
         .transposed = matrix(nullptr, Dtype::e4m3fn, 8, 0, kCpu),
         .scale_inv = vector(at(0), Dtype::f32, 1, kCpu)},
        kCpu);
  // Without rows there are no scales: the scale_inv may be a default Tensor.
  check(CastSpec{.scale = kRowwise},
        {.input = matrix(nullptr, Dtype::bf16, 0, 8, kCpu),
         .codes = matrix(nullptr, Dtype::e4m3fn, 0, 8, kCpu),
         .scale_inv = {}},
        kCpu);
  // K = 0: out is the bias, or zero.
  check(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16},
        {.a = matrix(nullptr, Dtype::bf16, 4, 0, kCpu),
         .b = matrix(nullptr, Dtype::bf16, 6, 0, kCpu),
         .out = matrix(at(0), Dtype::bf16, 4, 6, kCpu)},
        kCpu);
}

BOOST_AUTO_TEST_CASE(large_strided_and_oddly_placed_tensors_pass) {
  constexpr std::int64_t kRows = (std::int64_t{1} << 31) + 5;
  auto* const far = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);
  check(AmaxSpec{.in = Dtype::bf16},
        {.input = matrix(far, Dtype::bf16, kRows, 3, kCpu), .amax = vector(at(0), Dtype::f32, 1, kCpu)}, kCpu);
  BOOST_TEST(cast_message([](CastTensors& t) {
               t.input.data = at(2);  // the alignment of an element is enough
               t.input.row_stride = 9;
               t.codes.data = at(1025);
               t.codes.row_stride = 11;
             }) == kNothing);
}

BOOST_AUTO_TEST_CASE(dtypes_and_devices) {
  BOOST_TEST(cast_message([](CastTensors& t) { t.input.dtype = Dtype::f16; }) ==
             "cast input: is f16[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(cast_message([](CastTensors& t) { t.codes.dtype = Dtype::e5m2; }) ==
             "cast codes: is e5m2[4, 8] on cpu; the spec asks for e4m3fn");
  BOOST_TEST(cast_message([](CastTensors& t) { t.scale_inv.dtype = Dtype::bf16; }) ==
             "cast scale_inv: is bf16[1, 1] on cpu; the spec asks for f32");
  BOOST_TEST(cast_message([](CastTensors& t) { t.transposed.device = kGpu; }) ==
             "cast transposed: is e4m3fn[8, 4] on cuda:0; this backend works on cpu: copy it there");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.bias.dtype = Dtype::f32; }) ==
             "gemm bias: is f32[1, 6] on cpu; the spec asks for bf16");
  GemmTensors tensors = gemm_tensors();
  const auto error = refused([&] { check(kGemm, tensors, Device{DeviceType::cuda, 1}); });
  BOOST_TEST(error.message == "gemm a: is e4m3fn[4, 32] on cpu; this backend works on cuda:1: copy it there");
}

BOOST_AUTO_TEST_CASE(sizes_and_strides) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  BOOST_TEST(cast_message([](CastTensors& t) { t.input.rows = -4; }) ==
             "cast input: is bf16[-4, 8] on cpu; sizes and strides must not be negative");
  BOOST_TEST(
      cast_message([](CastTensors& t) { t.input.row_stride = 7; }) ==
      "cast input: is bf16[4, 8] on cpu, row stride 7; the row stride must be at least the number of columns, or "
      "rows overlap");
  BOOST_TEST(cast_message([](CastTensors& t) { t.input.row_stride = kMax / 2; }) ==
             "cast input: is bf16[4, 8] on cpu, row stride 4611686018427387903; no size or stride may be larger than "
             "281474976710656 (2^48)");
  BOOST_TEST(cast_message([](CastTensors& t) { t.input.rows = kMax, t.input.cols = 0; }) ==
             "cast input: is bf16[9223372036854775807, 0] on cpu, row stride 8; no size or stride may be larger than "
             "281474976710656 (2^48)");
  const std::string beyond =
      cast_message([](CastTensors& t) { t.input.data = reinterpret_cast<void*>(~std::uintptr_t{0} - 15U); });
  BOOST_TEST(contains(beyond,
                      "cast input: is bf16[4, 8] on cpu; 64 bytes from 0xfffffffffffffff0 end beyond the address "
                      "space"),
             beyond);
}

BOOST_AUTO_TEST_CASE(pointers) {
  BOOST_TEST(cast_message([](CastTensors& t) { t.input.data = nullptr; }) ==
             "cast input: is bf16[4, 8] on cpu; its data pointer is null; only an empty tensor may have none");
  BOOST_TEST(cast_message([](CastTensors& t) { t.codes.data = nullptr; }) ==
             "cast codes: is e4m3fn[4, 8] on cpu; its data pointer is null; only an empty tensor may have none");
  const std::string odd = cast_message([](CastTensors& t) { t.input.data = at(1); });
  BOOST_TEST(contains(odd, "cast input: is bf16[4, 8] on cpu; its data pointer 0x"), odd);
  BOOST_TEST(contains(odd, "is misaligned: it must be a multiple of 2 bytes, the size of an element"), odd);
  BOOST_TEST(contains(cast_message([](CastTensors& t) { t.scale_inv.data = at(3074); }), "a multiple of 4 bytes"));
}

BOOST_AUTO_TEST_CASE(shapes) {
  BOOST_TEST(cast_message([](CastTensors& t) { t.codes = matrix(at(1024), Dtype::e4m3fn, 8, 4, kCpu); }) ==
             "cast codes: is e4m3fn[8, 4] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(cast_message([](CastTensors& t) { t.transposed = matrix(at(2048), Dtype::e4m3fn, 4, 8, kCpu); }) ==
             "cast transposed: is e4m3fn[4, 8] on cpu; it must be [8, 4]: the input's shape, transposed");
  BOOST_TEST(
      gemm_message([](GemmTensors& t) { t.b = matrix(at(1024), Dtype::e5m2, 6, 16, kCpu); }) ==
      "gemm b: is e5m2[6, 16] on cpu; its K is 16 (b is [N, K]), but that of a, which is e4m3fn[4, 32] on cpu, is 32 "
      "(a is [M, K])");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.out = matrix(at(5120), Dtype::bf16, 6, 4, kCpu); }) ==
             "gemm out: is bf16[6, 4] on cpu; it must be [4, 6]: M of a, N of b");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.bias = vector(at(4096), Dtype::bf16, 4, kCpu); }) ==
             "gemm bias: is bf16[1, 4] on cpu; it must be [1, 6]: one for each of the N columns");

  const auto error = refused([] {
    check(ColumnSumSpec{.in = Dtype::bf16, .out = Dtype::f32},
          {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu), .sum = vector(at(1024), Dtype::f32, 4, kCpu)}, kCpu);
  });
  BOOST_TEST(error.message ==
             "column_sum sum: is f32[1, 4] on cpu; it must be [1, 8]: one for each column of the input");
}

// Each GEMM of a pair may run while the other does.
BOOST_AUTO_TEST_CASE(pairs_of_gemms) {
  const auto message = [](test::FunctionRef<void(GemmTensors & first, GemmTensors & second)> change) {
    GemmWork first{.spec = kGemm, .tensors = gemm_tensors()};
    GemmWork second = first;
    second.tensors.out = matrix(at(8192), Dtype::bf16, 4, 6, kCpu);
    change(first.tensors, second.tensors);
    const auto error = refused([&] { check(first, second, kCpu); });
    if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument));
    return error.message;
  };
  const std::string apart = " of the other GEMM of the pair, which is ";
  BOOST_TEST(message([](auto&, auto&) {}) == kNothing);  // both may read the same operands
  BOOST_TEST(message([](auto& first, auto& second) { second.out = first.out; }) ==
             "gemm out: is bf16[4, 6] on cpu; its memory overlaps that of gemm out" + apart +
                 "bf16[4, 6] on cpu; both may run at the same time");
  BOOST_TEST(message([](auto& first, auto& second) {
               first.a = matrix(at(8192), Dtype::e4m3fn, 4, 32, kCpu);
               second.a = matrix(at(0), Dtype::e4m3fn, 4, 32, kCpu);
             }) == "gemm out: is bf16[4, 6] on cpu; its memory overlaps that of gemm a" + apart +
                       "e4m3fn[4, 32] on cpu; both may run at the same time");
  BOOST_TEST(
      message([](auto& first, auto& second) { second.scale_inv_a = first.out; }).starts_with("gemm scale_inv_a: "));
  BOOST_TEST(message([](auto&, auto& second) { second.out = matrix(at(8192), Dtype::bf16, 6, 4, kCpu); }) ==
             "gemm out: is bf16[6, 4] on cpu; it must be [4, 6]: M of a, N of b");
}

BOOST_AUTO_TEST_CASE(relayouts) {
  const auto message = [](const Tensor& input, const Tensor& output, bool transposed) {
    return refused([&] { check(RelayoutSpec{.transposed = transposed}, {.input = input, .output = output}, kCpu); })
        .message;
  };
  const Tensor codes = matrix(at(0), Dtype::e5m2, 4, 8, kCpu);
  check(RelayoutSpec{.transposed = true}, {.input = codes, .output = matrix(at(1024), Dtype::e5m2, 8, 4, kCpu)}, kCpu);
  BOOST_TEST(message(codes, matrix(at(1024), Dtype::e5m2, 8, 4, kCpu), false) ==
             "relayout output: is e5m2[8, 4] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(message(codes, matrix(at(1024), Dtype::e4m3fn, 8, 4, kCpu), true) ==
             "relayout output: is e4m3fn[8, 4] on cpu; the spec asks for e5m2");
  BOOST_TEST(message(matrix(at(0), Dtype::bf16, 4, 8, kCpu), codes, false) ==
             "relayout input: is bf16[4, 8] on cpu; it must be of an FP8 dtype");
  BOOST_TEST(contains(message(codes, matrix(at(8), Dtype::e5m2, 8, 4, kCpu), true), "overlaps"));

  const auto stacked = [&](std::int64_t matrices, std::int64_t rows, std::int64_t cols) {
    const Tensor output = matrix(at(1024), Dtype::e5m2, rows, cols, kCpu);
    const RelayoutTensors tensors{.input = codes, .output = output, .matrices = matrices};
    return refused([&] { check(RelayoutSpec{.transposed = true}, tensors, kCpu); }).message;
  };
  BOOST_TEST(stacked(2, 8, 4) ==
             "relayout output: is e5m2[8, 4] on cpu; it must be [16, 2]: the transpose of each matrix, one after the "
             "other");
  for (const std::int64_t matrices : {0, 3}) {
    BOOST_TEST(stacked(matrices, 8, 4) == "relayout input: is e5m2[4, 8] on cpu; its rows are no " +
                                              std::to_string(matrices) + " matrices of one size");
  }
  check(RelayoutSpec{.transposed = true},
        {.input = codes, .output = matrix(at(1024), Dtype::e5m2, 16, 2, kCpu), .matrices = 2}, kCpu);
}

BOOST_AUTO_TEST_CASE(elementwise_operations) {
  const ElementwiseSpec spec{.in = Dtype::bf16, .pointwise = parse_pointwise("x * gate + bias[col] - mean[row]")};
  const auto message = [&](test::FunctionRef<void(ElementwiseTensors&)> change, const ElementwiseSpec& of) {
    ElementwiseTensors tensors{
        .input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
        .inputs = {matrix(at(1024), Dtype::bf16, 4, 8, kCpu), vector(at(2048), Dtype::bf16, 8, kCpu),
                   vector(at(3072), Dtype::f32, 4, kCpu)},
        .output = matrix(at(4096), Dtype::bf16, 4, 8, kCpu)};
    change(tensors);
    const auto error = refused([&] { check(of, tensors, kCpu); });
    if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument));
    return error.message;
  };
  const auto of = [&](test::FunctionRef<void(ElementwiseTensors&)> change) { return message(change, spec); };
  BOOST_TEST(of([](auto&) {}) == kNothing);
  BOOST_TEST(of([](auto& t) { t.input = {}; }) == "elementwise input: is missing; it must be a matrix of bf16 on cpu");
  BOOST_TEST(of([](auto& t) { t.output = {}; }) ==
             "elementwise output: is missing; it must be bf16[4, 8]: the input's shape");
  BOOST_TEST(of([](auto& t) { t.output.rows = 3; }) ==
             "elementwise output: is bf16[3, 8] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(of([](auto& t) { t.output.dtype = Dtype::f32; }) ==
             "elementwise output: is f32[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(of([](auto& t) { t.inputs[0].cols = 7; }) ==
             "elementwise inputs[0] (gate): is bf16[4, 7] on cpu, row stride 8; it must be [4, 8]: the input's shape");
  BOOST_TEST(of([](auto& t) { t.inputs[1] = {}; }) ==
             "elementwise inputs[1] (bias): is missing; it must be bf16[1, 8]: one for each column of the input");
  BOOST_TEST(of([](auto& t) { t.inputs[2].dtype = Dtype::bf16; }) ==
             "elementwise inputs[2] (mean): is bf16[1, 4] on cpu; the spec asks for f32");
  BOOST_TEST(of([](auto& t) { t.inputs[3] = t.inputs[0]; }) ==
             "elementwise inputs[3]: is bf16[4, 8] on cpu; it must not be given (a default Tensor instead): the "
             "expression has no such input");

  const ElementwiseSpec wide{.pointwise = parse_pointwise("x * gate + bias[col:f32] - mean[row]")};
  BOOST_TEST(message([](auto& t) { t.inputs[1].dtype = Dtype::f32; }, wide) == kNothing);
  BOOST_TEST(message([](auto&) {}, wide) ==
             "elementwise inputs[1] (bias): is bf16[1, 8] on cpu; the spec asks for f32");
  BOOST_TEST(message([](auto& t) { t.inputs[1] = t.inputs[2]; }, wide) ==
             "elementwise inputs[1] (bias): is f32[1, 4] on cpu; it must be [1, 8]: one for each column of the input");

  // The output may be one of the matrices, or separate from all of them.
  BOOST_TEST(of([](auto& t) { t.output = t.input; }) == kNothing);
  BOOST_TEST(of([](auto& t) { t.output = t.inputs[0]; }) == kNothing);
  BOOST_TEST(of([](auto& t) { t.output = t.input = t.inputs[0]; }) == kNothing);
  const std::string in_between =
      ", which is bf16[4, 8] on cpu; the output may be that matrix itself, with the same address and row stride, or "
      "its own memory";
  BOOST_TEST(of([](auto& t) { t.output.data = at(2); }) ==
             "elementwise output: is bf16[4, 8] on cpu; its memory overlaps that of elementwise input" + in_between);
  BOOST_TEST(of([](auto& t) {
               t.output.data = at(1024);
               t.output.row_stride = 9;
             }) ==
             "elementwise output: is bf16[4, 8] on cpu, row stride 9; its memory overlaps that of elementwise "
             "inputs[0]" +
                 in_between);
  BOOST_TEST(of([](auto& t) { t.output.data = at(2048); }) ==
             "elementwise output: is bf16[4, 8] on cpu; its memory overlaps that of elementwise inputs[1], which is "
             "bf16[1, 8] on cpu; an output needs its own memory");
  BOOST_TEST(contains(of([](auto& t) { t.output.data = at(3080); }), "overlaps that of elementwise inputs[2]"));
  // A vector is not a matrix, even with equal sizes.
  BOOST_TEST(contains(message(
                          [](auto& t) {
                            t.input = matrix(at(0), Dtype::bf16, 1, 8, kCpu);
                            t.inputs = {vector(at(2048), Dtype::bf16, 8, kCpu)};
                            t.output = t.inputs[0];
                          },
                          {.pointwise = parse_pointwise("x * a[col]")}),
                      "its memory overlaps that of elementwise inputs[0]"));
  // Without x the input only gives the shape, with memory or without.
  const ElementwiseSpec without_x{.pointwise = parse_pointwise("gate * 2")};
  const auto shape_alone = [&](test::FunctionRef<void(ElementwiseTensors&)> change) {
    return message(
        [&](auto& t) {
          t.input.data = nullptr;
          t.inputs = {t.inputs[0]};
          change(t);
        },
        without_x);
  };
  BOOST_TEST(shape_alone([](auto&) {}) == kNothing);
  BOOST_TEST(shape_alone([](auto& t) { t.output = t.inputs[0]; }) == kNothing);
  BOOST_TEST(shape_alone([](auto& t) { t.input.dtype = Dtype::f32; }) ==
             "elementwise input: is f32[4, 8] on cpu; the spec asks for bf16");
  const auto error = refused([&] { check(ElementwiseSpec{}, {.input = {}, .output = {}}, kCpu); });
  BOOST_TEST((error.code == ErrorCode::invalid_spec));
}

BOOST_AUTO_TEST_CASE(elementwise_operations_with_an_amax) {
  const auto spec = std::get<ElementwiseSpec>(parse("elementwise bf16 of=x+bias[col] second=-x amax"));
  const auto of = [&](const Tensor& amax) {
    return refused([&] {
             check(spec,
                   {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
                    .inputs = {vector(at(2048), Dtype::bf16, 8, kCpu)},
                    .output = matrix(at(3072), Dtype::bf16, 4, 8, kCpu),
                    .second = matrix(at(4096), Dtype::bf16, 4, 8, kCpu),
                    .amax = amax},
                   kCpu);
           })
        .message;
  };
  const auto one = [](std::size_t place) { return vector(at(place), Dtype::f32, 1, kCpu); };
  BOOST_TEST(of(one(5120)) == kNothing);
  BOOST_TEST(of({}) == "elementwise amax: is missing; it must be f32[1, 1]: one for all outputs");
  BOOST_TEST(of(vector(at(5120), Dtype::f32, 2, kCpu)) ==
             "elementwise amax: is f32[1, 2] on cpu; it must be [1, 1]: one for all outputs");
  BOOST_TEST(of(vector(at(5120), Dtype::bf16, 1, kCpu)) ==
             "elementwise amax: is bf16[1, 1] on cpu; the spec asks for f32");
  for (const auto& [place, other] : {std::pair{0, "input"}, {2048, "inputs[0]"}, {3072, "output"}, {4096, "second"}}) {
    BOOST_TEST(
        contains(of(one(static_cast<std::size_t>(place))),
                 fmt::format("elementwise amax: is f32[1, 1] on cpu; its memory overlaps that of elementwise {}, "
                             "which is ",
                             other)));
  }
}

BOOST_AUTO_TEST_CASE(elementwise_operations_with_sums_of_rows) {
  const auto of = [&](const Tensor& sums, const char* line = "elementwise bf16 of=x+bias[col] row_sum=x") {
    return refused([&] {
             check(std::get<ElementwiseSpec>(parse(line)),
                   {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
                    .inputs = {vector(at(2048), Dtype::bf16, 8, kCpu)},
                    .output = matrix(at(3072), Dtype::bf16, 4, 8, kCpu),
                    .sums = sums},
                   kCpu);
           })
        .message;
  };
  BOOST_TEST(of(vector(at(5120), Dtype::f32, 4, kCpu)) == kNothing);
  BOOST_TEST(of({}) == "elementwise sums: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(of(vector(at(5120), Dtype::f32, 8, kCpu)) ==
             "elementwise sums: is f32[1, 8] on cpu; it must be [1, 4]: one for each row of the input");
  BOOST_TEST(contains(of(vector(at(3072), Dtype::f32, 4, kCpu)), "its memory overlaps that of elementwise output"));
  BOOST_TEST(contains(of(vector(at(0), Dtype::f32, 4, kCpu)), "its memory overlaps that of elementwise input"));
  BOOST_TEST(of(vector(at(5120), Dtype::f32, 4, kCpu), "elementwise bf16 of=x+bias[col]") ==
             "elementwise sums: is f32[1, 4] on cpu; it must not be given (a default Tensor instead): the spec has no "
             "row_sum");
}

BOOST_AUTO_TEST_CASE(elementwise_operations_with_maxima) {
  const auto floats = [](std::size_t place, std::int64_t count) { return vector(at(place), Dtype::f32, count, kCpu); };
  const auto of = [&](const Tensor& rows, const Tensor& columns, const char* words = "second=-x row_sum=x maxima") {
    const auto spec = std::get<ElementwiseSpec>(parse(fmt::format("elementwise bf16 of=x {}", words)));
    ElementwiseTensors tensors{.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
                               .output = matrix(at(3072), Dtype::bf16, 4, 8, kCpu),
                               .row_amax = rows,
                               .column_amax = columns};
    if (spec.second) tensors.second = matrix(at(4096), Dtype::bf16, 4, 8, kCpu);
    if (spec.row_sum) tensors.sums = floats(6144, 4);
    return refused([&] { check(spec, tensors, kCpu); }).message;
  };
  BOOST_TEST(of(floats(5120, 4), floats(5632, 16)) == kNothing);
  BOOST_TEST(of(floats(5120, 4), floats(5632, 8), "maxima") == kNothing);
  BOOST_TEST(of({}, floats(5632, 16)) ==
             "elementwise row_amax: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(of(floats(5120, 4), floats(5632, 8)) ==
             "elementwise column_amax: is f32[1, 8] on cpu; it must be [1, 16]: one for each column of output, then of "
             "second");
  BOOST_TEST(of(floats(5120, 4), floats(5632, 16), "maxima") ==
             "elementwise column_amax: is f32[1, 16] on cpu; it must be [1, 8]: one for each column of the output");
  BOOST_TEST(
      of(floats(5120, 4), {}, "row_sum=x") ==
      "elementwise row_amax: is f32[1, 4] on cpu; it must not be given (a default Tensor instead): the spec does "
      "not ask for maxima");
  BOOST_TEST(contains(of(floats(5120, 4), floats(5124, 16)), "its memory overlaps that of elementwise row_amax"));
  BOOST_TEST(contains(of(floats(6144, 4), floats(5632, 16)), "its memory overlaps that of elementwise sums"));
  BOOST_TEST(contains(of(floats(5120, 4), floats(4096, 16)), "its memory overlaps that of elementwise second"));
  BOOST_TEST(contains(of(floats(0, 4), floats(5632, 16)), "its memory overlaps that of elementwise input"));
}

BOOST_AUTO_TEST_CASE(elementwise_operations_of_two_expressions) {
  const ElementwiseSpec spec{
      .in = Dtype::bf16, .pointwise = parse_pointwise("gate * 2"), .second = parse_pointwise("x * gate + bias[col]")};
  const auto of = [&](test::FunctionRef<void(ElementwiseTensors&)> change) {
    ElementwiseTensors tensors{
        .input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
        .inputs = {matrix(at(1024), Dtype::bf16, 4, 8, kCpu), vector(at(2048), Dtype::bf16, 8, kCpu)},
        .output = matrix(at(3072), Dtype::bf16, 4, 8, kCpu),
        .second = matrix(at(4096), Dtype::bf16, 4, 8, kCpu)};
    change(tensors);
    return refused([&] { check(spec, tensors, kCpu); }).message;
  };
  BOOST_TEST(of([](auto&) {}) == kNothing);
  // x is read by the second expression alone, and so is bias.
  BOOST_TEST(of([](auto& t) { t.input.data = nullptr; }) ==
             "elementwise input: is bf16[4, 8] on cpu; its data pointer is null; only an empty tensor may have none");
  BOOST_TEST(of([](auto& t) { t.inputs[1] = {}; }) ==
             "elementwise inputs[1] (bias): is missing; it must be bf16[1, 8]: one for each column of the input");
  BOOST_TEST(of([](auto& t) { t.inputs[2] = t.inputs[0]; }) ==
             "elementwise inputs[2]: is bf16[4, 8] on cpu; it must not be given (a default Tensor instead): the "
             "expressions have no such input");
  BOOST_TEST(of([](auto& t) { t.second = {}; }) ==
             "elementwise second: is missing; it must be bf16[4, 8]: the input's shape");
  BOOST_TEST(of([](auto& t) { t.second.cols = 7; }) ==
             "elementwise second: is bf16[4, 7] on cpu, row stride 8; it must be [4, 8]: the input's shape");
  BOOST_TEST(of([](auto& t) { t.second.dtype = Dtype::f16; }) ==
             "elementwise second: is f16[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(
      of([](auto& t) { t.amax = vector(at(5120), Dtype::f32, 1, kCpu); }) ==
      "elementwise amax: is f32[1, 1] on cpu; it must not be given (a default Tensor instead): the spec does not "
      "ask for this output");

  // Each output may be one of the matrices that are read, but the two may not be the same one.
  BOOST_TEST(of([](auto& t) { t.second = t.input; }) == kNothing);
  BOOST_TEST(of([](auto& t) { t.second = t.inputs[0]; }) == kNothing);
  BOOST_TEST(of([](auto& t) {
               t.output = t.inputs[0];
               t.second = t.input;
             }) == kNothing);
  BOOST_TEST(of([](auto& t) { t.second.data = at(1026); }) ==
             "elementwise second: is bf16[4, 8] on cpu; its memory overlaps that of elementwise inputs[0], which is "
             "bf16[4, 8] on cpu; the output may be that matrix itself, with the same address and row stride, or its "
             "own memory");
  BOOST_TEST(of([](auto& t) { t.second.data = at(2048); }) ==
             "elementwise second: is bf16[4, 8] on cpu; its memory overlaps that of elementwise inputs[1], which is "
             "bf16[1, 8] on cpu; an output needs its own memory");
  const std::string each_other =
      "its memory overlaps that of elementwise output, which is bf16[4, 8] on cpu; an output needs its own memory";
  BOOST_TEST(of([](auto& t) { t.second = t.output; }) == "elementwise second: is bf16[4, 8] on cpu; " + each_other);
  BOOST_TEST(of([](auto& t) { t.second = t.output = t.input; }) ==
             "elementwise second: is bf16[4, 8] on cpu; " + each_other);
  BOOST_TEST(of([](auto& t) { t.output.data = at(4098); }) ==
             "elementwise second: is bf16[4, 8] on cpu; " + each_other);

  // Different columns of one matrix, in either order; but not with a column in common, or with another row stride.
  const auto columns = [&](std::size_t first, std::size_t second, std::int64_t stride, std::int64_t second_stride) {
    return of([&](auto& t) {
      t.output = matrix(at(8192 + 2 * first), Dtype::bf16, 4, 8, kCpu);
      t.second = matrix(at(8192 + 2 * second), Dtype::bf16, 4, 8, kCpu);
      t.output.row_stride = stride;
      t.second.row_stride = second_stride;
    });
  };
  BOOST_TEST(columns(0, 8, 16, 16) == kNothing);
  BOOST_TEST(columns(8, 0, 16, 16) == kNothing);
  BOOST_TEST(columns(3, 11 + 20, 20, 20) == kNothing);
  for (const std::string& refusal : {columns(0, 7, 16, 16), columns(0, 8, 15, 15), columns(9, 0, 16, 16),
                                     columns(8, 0, 15, 15), columns(0, 8, 16, 24), columns(0, 16, 16, 16)}) {
    BOOST_TEST(contains(refusal, "elementwise second: is bf16[4, 8] on cpu, row stride "));
    BOOST_TEST(contains(refusal, "overlaps that of elementwise output"));
  }

  ElementwiseTensors single{.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
                            .output = matrix(at(1024), Dtype::bf16, 4, 8, kCpu),
                            .second = matrix(at(2048), Dtype::bf16, 4, 8, kCpu)};
  BOOST_TEST(refused([&] { check(ElementwiseSpec{.pointwise = parse_pointwise("x")}, single, kCpu); }).message ==
             "elementwise second: is bf16[4, 8] on cpu; it must not be given (a default Tensor instead): the spec has "
             "no second expression");
}

BOOST_AUTO_TEST_CASE(layouts_say_where_m_n_and_k_are) {
  const GemmSpec spec{.a = Dtype::bf16,
                      .b = Dtype::bf16,
                      .out = Dtype::bf16,
                      .layout_a = Layout::mn_major,
                      .layout_b = Layout::mn_major};
  GemmTensors tensors{.a = matrix(at(0), Dtype::bf16, 5, 3, kCpu),
                      .b = matrix(at(1024), Dtype::bf16, 5, 7, kCpu),
                      .out = matrix(at(2048), Dtype::bf16, 3, 7, kCpu)};
  check(spec, tensors, kCpu);
  const MatmulSize shape = gemm_size(spec, tensors);
  BOOST_TEST(shape.m == 3);
  BOOST_TEST(shape.n == 7);
  BOOST_TEST(shape.k == 5);
  tensors.b.rows = 4;
  BOOST_TEST(
      refused([&] { check(spec, tensors, kCpu); }).message ==
      "gemm b: is bf16[4, 7] on cpu; its K is 4 (b is [K, N]), but that of a, which is bf16[5, 3] on cpu, is 5 (a is "
      "[K, M])");
}

BOOST_AUTO_TEST_CASE(scale_inv_and_amax) {
  BOOST_TEST(cast_message([](CastTensors& t) { t.scale_inv = {}; }) ==
             "cast scale_inv: is missing; it must be f32[1, 1]: one for the whole tensor");
  BOOST_TEST(cast_message([](CastTensors& t) { t.scale_inv.cols = t.scale_inv.row_stride = 4; }) ==
             "cast scale_inv: is f32[1, 4] on cpu; it must be [1, 1]: one for the whole tensor");
  CastSpec rowwise = kCast;
  rowwise.scale = kRowwise;
  BOOST_TEST(cast_message([](auto&) {}, rowwise) ==
             "cast scale_inv: is f32[1, 1] on cpu; it must be [1, 4]: one for each row of the input");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_a = {}; }) ==
             "gemm scale_inv_a: is missing; it must be f32[1, 4]: one for each of a's M rows");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_b = vector(at(3072), Dtype::f32, 6, kCpu); }) ==
             "gemm scale_inv_b: is f32[1, 6] on cpu; it must be [1, 1]: one for the whole tensor");
  // Groups of 128 along K = 32: one group per row of a; b's scale_inv may be of blocks or of rows too.
  GemmSpec grouped = kGemm;
  grouped.scale_a = kRowGroups;
  grouped.scale_b = kBlocks;
  BOOST_TEST(gemm_message([](auto&) {}, grouped) == kNothing);
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_a.cols = t.scale_inv_a.row_stride = 1; }, grouped) ==
             "gemm scale_inv_a: is f32[1, 1] on cpu; it must be [1, 4]: one for each group of 128 along K, row by row");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_b = vector(at(3072), Dtype::f32, 6, kCpu); }, grouped) ==
             "gemm scale_inv_b: is f32[1, 6] on cpu; it must be [1, 1]: one for each block of 128 x 128, row by row");
  grouped.scale_b = kRowGroups;
  BOOST_TEST(gemm_message([](auto&) {}, grouped) ==
             "gemm scale_inv_b: is f32[1, 1] on cpu; it must be [1, 6]: one for each group of 128 along K, row by row");
  // A column vector of scale_inv is not accepted as a row.
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_a = matrix(at(2048), Dtype::f32, 4, 1, kCpu); }) ==
             "gemm scale_inv_a: is f32[4, 1] on cpu; it must be [1, 4]: one for each of a's M rows");
  const auto error = refused([] {
    check(AmaxSpec{.in = Dtype::f32, .scale = kRowwise},
          {.input = matrix(at(0), Dtype::f32, 4, 8, kCpu), .amax = vector(at(1024), Dtype::f32, 1, kCpu)}, kCpu);
  });
  BOOST_TEST(error.message == "amax amax: is f32[1, 1] on cpu; it must be [1, 4]: one for each row of the input");
}

// K = 300 has three groups: their scale_inv are stored row by row, or in three rows with any stride.
BOOST_AUTO_TEST_CASE(scale_inv_of_groups) {
  const auto deep = [](ScaleGranularity scale_b, auto change) {
    GemmSpec spec = kGemm;
    spec.scale_a = kRowGroups;
    spec.scale_b = scale_b;
    return gemm_message(
        [&](GemmTensors& t) {
          t.a = matrix(at(0), Dtype::e4m3fn, 4, 300, kCpu);
          t.b = matrix(at(1200), Dtype::e5m2, 2, 300, kCpu);
          t.out = matrix(at(5120), Dtype::bf16, 4, 2, kCpu);
          t.bias = vector(at(4096), Dtype::bf16, 2, kCpu);
          t.scale_inv_a = vector(at(2048), Dtype::f32, 12, kCpu);
          t.scale_inv_b = vector(at(3072), Dtype::f32, scale_b == kBlocks ? 3 : 6, kCpu);
          change(t);
        },
        spec);
  };
  BOOST_TEST(deep(kBlocks, [](auto&) {}) == kNothing);
  BOOST_TEST(deep(kBlocks, [](GemmTensors& t) { t.scale_inv_a = matrix(at(2048), Dtype::f32, 3, 4, kCpu); }) ==
             kNothing);
  BOOST_TEST(deep(kBlocks, [](GemmTensors& t) { t.scale_inv_b = matrix(at(3072), Dtype::f32, 3, 1, kCpu); }) ==
             kNothing);
  BOOST_TEST(deep(kRowGroups, [](GemmTensors& t) {
               t.scale_inv_b = matrix(at(3072), Dtype::f32, 3, 2, kCpu);
               t.scale_inv_b.row_stride = 5;
             }) == kNothing);
  const std::string both =
      "it must be [1, 12]: one for each group of 128 along K, row by row, or [3, 4]: one row for each group of K";
  BOOST_TEST(deep(kBlocks, [](GemmTensors& t) { t.scale_inv_a = matrix(at(2048), Dtype::f32, 4, 3, kCpu); }) ==
             "gemm scale_inv_a: is f32[4, 3] on cpu; " + both);
  BOOST_TEST(deep(kBlocks, [](GemmTensors& t) { t.scale_inv_a = {}; }) ==
             "gemm scale_inv_a: is missing; it must be f32" + both.substr(std::string("it must be ").size()));
  BOOST_TEST(
      deep(kBlocks, [](GemmTensors& t) { t.scale_inv_b = vector(at(3072), Dtype::f32, 4, kCpu); }) ==
      "gemm scale_inv_b: is f32[1, 4] on cpu; it must be [1, 3]: one for each block of 128 x 128, row by row, or "
      "[3, 1]: one row for each group of K");
  BOOST_TEST(deep(kRowGroups,
                  [](GemmTensors& t) {
                    t.scale_inv_b = matrix(at(3072), Dtype::f32, 3, 2, kCpu);
                    t.scale_inv_b.row_stride = 1;
                  }) ==
             "gemm scale_inv_b: is f32[3, 2] on cpu, row stride 1; the row stride must be at least the number of "
             "columns, or rows overlap");
  BOOST_TEST(deep(kBlocks, [](GemmTensors& t) { t.scale_inv_a = matrix(at(2048), Dtype::bf16, 3, 4, kCpu); }) ==
             "gemm scale_inv_a: is bf16[3, 4] on cpu; the spec asks for f32");
  // With a large stride, the last of three rows reaches into the output.
  BOOST_TEST(contains(deep(kBlocks,
                           [](GemmTensors& t) {
                             t.scale_inv_a = matrix(at(2048), Dtype::f32, 3, 4, kCpu);
                             t.scale_inv_a.row_stride = 384;
                           }),
                      "overlaps that of gemm scale_inv_a"));
}

BOOST_AUTO_TEST_CASE(forgotten_tensors) {
  BOOST_TEST(cast_message([](CastTensors& t) { t.input = {}; }) ==
             "cast input: is missing; it must be a matrix of bf16 on cpu");
  BOOST_TEST(cast_message([](CastTensors& t) { t.codes = {}; }) ==
             "cast codes: is missing; it must be e4m3fn[4, 8]: the input's shape");
  BOOST_TEST(cast_message([](CastTensors& t) { t.transposed = {}; }) ==
             "cast transposed: is missing; it must be e4m3fn[8, 4]: the input's shape, transposed");
  CastSpec with_result = kCast;
  with_result.result = true;
  with_result.pointwise = parse_pointwise("exp(x)");
  BOOST_TEST(cast_message([](auto&) {}, with_result) ==
             "cast result: is missing; it must be bf16[4, 8]: the input's shape");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.a = {}; }) ==
             "gemm a: is missing; it must be a matrix of e4m3fn on cpu");
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.out = {}; }) ==
             "gemm out: is missing; it must be bf16[4, 6]: M of a, N of b");
  // A default Tensor is f32, a dtype that may be requested too.
  const auto error = refused([] {
    check(CastSpec{.in = Dtype::f32, .pointwise = parse_pointwise("exp(x)"), .result = true},
          {.input = matrix(at(0), Dtype::f32, 4, 8, kCpu),
           .codes = matrix(at(1024), Dtype::e4m3fn, 4, 8, kCpu),
           .scale_inv = vector(at(2048), Dtype::f32, 1, kCpu)},
          kCpu);
  });
  BOOST_TEST(error.message == "cast result: is missing; it must be f32[4, 8]: the input's shape");
}

BOOST_AUTO_TEST_CASE(inputs_of_an_expression_are_named_as_it_does) {
  CastSpec spec = kCast;
  spec.pointwise = parse_pointwise("x * gate + bias[col]");
  const auto change = [](const std::function<void(CastTensors&)>& then) {
    return [then](CastTensors& t) {
      t.inputs[0] = matrix(at(4096), Dtype::bf16, 4, 8, kCpu);
      t.inputs[1] = vector(at(5120), Dtype::bf16, 8, kCpu);
      then(t);
    };
  };
  BOOST_TEST(cast_message(change([](auto&) {}), spec) == kNothing);
  BOOST_TEST(cast_message(change([](CastTensors& t) { t.inputs[0] = {}; }), spec) ==
             "cast inputs[0] (gate): is missing; it must be bf16[4, 8]: the input's shape");
  BOOST_TEST(cast_message(change([](CastTensors& t) { t.inputs[0].rows = 2; }), spec) ==
             "cast inputs[0] (gate): is bf16[2, 8] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(cast_message(change([](CastTensors& t) { t.inputs[1].dtype = Dtype::f16; }), spec) ==
             "cast inputs[1] (bias): is f16[1, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(cast_message(change([](CastTensors& t) { t.inputs[2] = t.inputs[0]; }), spec) ==
             "cast inputs[2]: is bf16[4, 8] on cpu; it must not be given (a default Tensor instead): the expression "
             "has no such input");
}

BOOST_AUTO_TEST_CASE(what_the_spec_does_not_ask_for_is_refused) {
  CastSpec codes_only = kCast;
  codes_only.transposed = false;
  BOOST_TEST(
      cast_message([](auto&) {}, codes_only) ==
      "cast transposed: is e4m3fn[8, 4] on cpu; it must not be given (a default Tensor instead): the spec does not "
      "ask for this output");
  CastSpec transposed_only = kCast;
  transposed_only.codes = false;
  BOOST_TEST(contains(cast_message([](auto&) {}, transposed_only),
                      "cast codes: is e4m3fn[4, 8] on cpu; it must not be given"));
  GemmSpec no_bias = kGemm;
  no_bias.bias = false;
  BOOST_TEST(gemm_message([](auto&) {}, no_bias) ==
             "gemm bias: is bf16[1, 6] on cpu; it must not be given (a default Tensor instead): the spec has no bias");
  const auto error = refused([] {
    check(GemmSpec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16},
          {.a = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
           .b = matrix(at(1024), Dtype::bf16, 6, 8, kCpu),
           .scale_inv_a = vector(at(2048), Dtype::f32, 1, kCpu),
           .out = matrix(at(3072), Dtype::bf16, 4, 6, kCpu)},
          kCpu);
  });
  BOOST_TEST(error.message ==
             "gemm scale_inv_a: is f32[1, 1] on cpu; it must not be given (a default Tensor instead): a "
             "high-precision operand has no scale_inv");
}

BOOST_AUTO_TEST_CASE(outputs_overlap_nothing) {
  BOOST_TEST(
      cast_message([](CastTensors& t) { t.codes.data = at(63); }) ==
      "cast codes: is e4m3fn[4, 8] on cpu; its memory overlaps that of cast input, which is bf16[4, 8] on cpu; an "
      "output needs its own memory");
  BOOST_TEST(cast_message([](CastTensors& t) { t.codes.data = at(64); }) == kNothing);
  BOOST_TEST(
      cast_message([](CastTensors& t) { t.transposed.data = at(1024 + 31); }) ==
      "cast transposed: is e4m3fn[8, 4] on cpu; its memory overlaps that of cast codes, which is e4m3fn[4, 8] on "
      "cpu; an output needs its own memory");
  BOOST_TEST(contains(cast_message([](CastTensors& t) { t.scale_inv.data = at(2048); }),
                      "cast scale_inv: is f32[1, 1] on cpu; its memory overlaps that of cast transposed"));
  // Rows of one tensor inside the gaps of the other count as overlap, because the memory ranges meet.
  BOOST_TEST(contains(cast_message([](CastTensors& t) { t.input.row_stride = 600; }),
                      "cast codes: is e4m3fn[4, 8] on cpu; its memory overlaps that of cast input"));
  for (void* data : {at(0), at(1024), at(2048), at(3072), at(4096)}) {
    const std::string message = gemm_message([&](GemmTensors& t) { t.out.data = data; });
    BOOST_TEST(contains(message, "gemm out: is bf16[4, 6] on cpu; its memory overlaps that of gemm "), message);
  }
  // Inputs may share memory.
  BOOST_TEST(gemm_message([](GemmTensors& t) { t.scale_inv_b.data = t.scale_inv_a.data; }) == kNothing);
}

BOOST_AUTO_TEST_CASE(epilogues_of_a_gemm) {
  GemmSpec spec = kGemm;
  spec.epilogue = {.c = Dtype::f32,
                   .pointwise = parse_pointwise("silu(x) * gate + r[row] + w[col]"),
                   .preactivation = true,
                   .amax = true};
  const auto right = [](GemmTensors& t) {
    t.c = matrix(at(6144), Dtype::f32, 4, 6, kCpu);
    t.inputs = {matrix(at(7168), Dtype::bf16, 4, 6, kCpu), vector(at(8192), Dtype::f32, 4, kCpu),
                vector(at(9216), Dtype::bf16, 6, kCpu)};
    t.preactivation = matrix(at(10240), Dtype::bf16, 4, 6, kCpu);
    t.amax = vector(at(11264), Dtype::f32, 1, kCpu);
  };
  const auto message = [&](test::FunctionRef<void(GemmTensors&)> change) {
    return gemm_message(
        [&](GemmTensors& t) {
          right(t);
          change(t);
        },
        spec);
  };
  BOOST_TEST(message([](auto&) {}) == kNothing);
  BOOST_TEST(message([](GemmTensors& t) { t.c = {}; }) == "gemm c: is missing; it must be f32[4, 6]: M of a, N of b");
  BOOST_TEST(message([](GemmTensors& t) { t.c.rows = 3; }) ==
             "gemm c: is f32[3, 6] on cpu; it must be [4, 6]: M of a, N of b");
  BOOST_TEST(contains(message([](GemmTensors& t) { t.c.dtype = Dtype::bf16; }),
                      "gemm c: is bf16[4, 6] on cpu; the spec asks"));
  BOOST_TEST(contains(message([](GemmTensors& t) { t.inputs[0] = matrix(at(7168), Dtype::bf16, 4, 5, kCpu); }),
                      "gemm inputs[0] (gate): is bf16[4, 5] on cpu; it must be"));
  BOOST_TEST(message([](GemmTensors& t) { t.inputs[1].cols = t.inputs[1].row_stride = 6; }) ==
             "gemm inputs[1] (r): is f32[1, 6] on cpu; it must be [1, 4]: one for each of the M rows");
  BOOST_TEST(contains(message([](GemmTensors& t) { t.inputs[2].dtype = Dtype::f32; }),
                      "gemm inputs[2] (w): is f32[1, 6] on cpu; the spec asks for bf16"));
  BOOST_TEST(contains(message([](GemmTensors& t) { t.inputs[3] = t.inputs[2]; }),
                      "gemm inputs[3]: is bf16[1, 6] on cpu; it must not be given"));
  BOOST_TEST(message([](GemmTensors& t) { t.preactivation = {}; }) ==
             "gemm preactivation: is missing; it must be bf16[4, 6]: M of a, N of b");
  BOOST_TEST(contains(message([](GemmTensors& t) { t.amax = {}; }),
                      "gemm amax: is missing; it must be f32[1, 1]: one for the whole output"));
  BOOST_TEST(contains(message([](GemmTensors& t) { t.scale = t.amax; }),
                      "gemm scale: is f32[1, 1] on cpu; it must not be given"));
  BOOST_TEST(contains(message([](GemmTensors& t) { t.preactivation.data = t.out.data; }),
                      "gemm preactivation: is bf16[4, 6] on cpu; its memory overlaps that of gemm out"));
  BOOST_TEST(contains(gemm_message([&](GemmTensors& t) { t.amax = vector(at(11264), Dtype::f32, 1, kCpu); }),
                      "gemm amax: is f32[1, 1] on cpu; it must not be given"));

  // c may be the output itself, or not overlap it at all.
  spec.epilogue = {.c = Dtype::bf16};
  const auto in_place = [&](std::int64_t pitch, std::size_t offset) {
    return gemm_message(
        [&](GemmTensors& t) {
          t.c = matrix(at(5120 + offset), Dtype::bf16, 4, 6, kCpu);
          t.c.row_stride = pitch;
        },
        spec);
  };
  BOOST_TEST(in_place(6, 0) == kNothing);
  const std::string in_between =
      "; its memory overlaps that of gemm out, which is bf16[4, 6] on cpu; c may be the output itself, with the same "
      "address, dtype and row stride, or its own memory";
  BOOST_TEST(in_place(8, 0) == "gemm c: is bf16[4, 6] on cpu, row stride 8" + in_between);
  BOOST_TEST(in_place(6, 2) == "gemm c: is bf16[4, 6] on cpu" + in_between);

  GemmSpec codes = kGemm;
  codes.out = Dtype::e4m3fn;
  const auto coded = [&](test::FunctionRef<void(GemmTensors&)> change) {
    return gemm_message(
        [&](GemmTensors& t) {
          t.out = matrix(at(5120), Dtype::e4m3fn, 4, 6, kCpu);
          t.scale = vector(at(6144), Dtype::f32, 1, kCpu);
          t.scale_inv = vector(at(7168), Dtype::f32, 1, kCpu);
          change(t);
        },
        codes);
  };
  BOOST_TEST(coded([](auto&) {}) == kNothing);
  BOOST_TEST(contains(coded([](GemmTensors& t) { t.scale = {}; }), "gemm scale: is missing; it must be f32[1, 1]"));
  BOOST_TEST(
      contains(coded([](GemmTensors& t) { t.scale_inv = {}; }), "gemm scale_inv: is missing; it must be f32[1, 1]"));
  BOOST_TEST(contains(coded([](GemmTensors& t) { t.scale_inv = t.scale; }),
                      "gemm scale_inv: is f32[1, 1] on cpu; its memory overlaps that of gemm scale"));
}

BOOST_AUTO_TEST_CASE(overlap_of_two_tensors) {
  const Tensor four = matrix(at(16), Dtype::f32, 1, 4, kCpu);  // bytes 16 to 31
  BOOST_TEST(overlap(four, four));
  BOOST_TEST(overlap(four, matrix(at(31), Dtype::e5m2, 1, 1, kCpu)));
  BOOST_TEST(overlap(matrix(at(0), Dtype::e5m2, 1, 17, kCpu), four));
  BOOST_TEST(!overlap(four, matrix(at(32), Dtype::e5m2, 1, 1, kCpu)));
  BOOST_TEST(!overlap(matrix(at(0), Dtype::e5m2, 1, 16, kCpu), four));
  BOOST_TEST(!overlap(four, matrix(at(16), Dtype::f32, 0, 4, kCpu)));
  BOOST_TEST(!overlap(four, Tensor{}));
}

BOOST_AUTO_TEST_CASE(a_stream_of_another_backend) {
  test::FakeDevice one;
  test::FakeDevice other;
  const Stream stream(one);
  check_stream(stream, one);
  const auto error = refused([&] { check_stream(stream, other); });
  BOOST_TEST((error.code == ErrorCode::invalid_argument));
  BOOST_TEST(
      error.message ==
      "stream: belongs to another Context's backend (on cuda:2), not to this one (on cuda:2); make a Stream with "
      "this backend");
}

BOOST_AUTO_TEST_CASE(pointers_of_copies) {
  check_pointers("fill_zero", nullptr, nullptr, 0);
  check_pointers("copy_to_host", at(0), at(8), 8);
  BOOST_TEST(refused([] { check_pointers("copy_to_host", nullptr, at(8), 8); }).message ==
             "copy_to_host: 8 bytes to a null pointer; pass memory of at least that size");
  BOOST_TEST(refused([] { check_pointers("copy_from_host", at(8), nullptr, 3); }).message ==
             "copy_from_host: 3 bytes from a null pointer; pass memory of at least that size");
}

BOOST_AUTO_TEST_CASE(a_spec_that_cannot_exist_is_refused_first) {
  CastSpec spec = kCast;
  spec.out = Dtype::bf16;
  const auto error = refused([&] { check(spec, cast_tensors(), kCpu); });
  BOOST_TEST((error.code == ErrorCode::invalid_spec));
  BOOST_TEST(contains(error.message, "out is bf16"), error.message);
}

BOOST_AUTO_TEST_SUITE_END()
