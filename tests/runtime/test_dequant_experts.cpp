// dequant_matmul of experts on the CPU reference, against float64, and every refusal of its tensors, by its message.
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "support/dequant_experts_case.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_dequant_experts)

using namespace ingot;
using namespace ingot::test;

namespace {

struct OnCpu {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};

  void check(const DequantExpertsCase& c) {
    const DequantExpertsData data(c);
    PlacedDequantExperts placed(data, *backend, stream);
    placed.enqueue(stream);
    BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
  }
};

// Experts without rows first, last and between; one row each; rows beyond the last expert's; one expert; counts.
std::vector<DequantExpertsCase> shapes() {
  return {{.ends = balanced_ends(9, 9), .m = 9, .n = 70, .k = 33},
          {.ends = zipf_ends(41, 6), .m = 41, .n = 17, .k = 130, .placement = {.x_padding = 3, .out_padding = 2}},
          {.ends = {0, 0, 5, 5, 9, 9}, .m = 12, .n = 64, .k = 64, .faulty = true},
          {.ends = {2, 0, 9, 5}, .m = 36, .n = 17, .k = 130, .capacity = 9},
          {.ends = {7}, .m = 7, .n = 5, .k = 1},
          {.ends = {0, 0, 0}, .m = 4, .n = 5, .k = 3},
          {.ends = {2, 3}, .m = 3, .n = 4, .k = 0},
          {.ends = {0, 0}, .m = 0, .n = 8, .k = 16},
          {.ends = {1, 2}, .m = 2, .n = 0, .k = 16}};
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(has_float64s_results, OnCpu) {
  std::size_t turn = 0;
  for (const Dtype weight : kWeightDtypes) {
    for (const DequantScale& scale : kDequantScales) {
      for (DequantExpertsCase c : shapes()) {
        ++turn;
        const Dtype x = kDequantActivations[turn % 2];
        c.spec = {.x = x,
                  .weight = weight,
                  .out = turn % 3 == 0 ? Dtype::f32 : x,
                  .scale = scale.scale,
                  .scale_inv = scale.scale_inv,
                  .layout = static_cast<WeightLayout>(turn / 2 % 3),
                  .bias = turn % 5 < 2,
                  .experts = true};
        check(c);
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(as_many_experts_as_there_may_be, OnCpu) {
  check({.ends = zipf_ends(700, 512), .m = 700, .n = 5, .k = 8});
}

// What the tests compare with finds a row with another expert's weight, and a row too many.
BOOST_FIXTURE_TEST_CASE(wrong_results_are_seen, OnCpu) {
  const DequantExpertsCase c{.ends = {3, 7}, .m = 8, .n = 6, .k = 32};
  const DequantExpertsData data(c);
  PlacedDequantExperts placed(data, *backend, stream);
  const auto fault_with = [&](const Ends& ends) {
    placed.poison(stream);
    placed.set_ends(ends, stream);
    placed.enqueue(stream);
    return data.fault_of(placed.out(stream));
  };
  BOOST_TEST(fault_with({3, 7}) == "");
  BOOST_TEST(fault_with({4, 7}).starts_with("expert 1: out(3, 0) is "));
  BOOST_TEST(fault_with({3, 6}).starts_with("expert 1: out(6, 0) is "));
  BOOST_TEST(fault_with({3, 8}) == "row 7 was written, but no expert has it");
}

namespace {

constexpr Device kCpu{};

// Memory that is never read: checks look only at addresses, but at the ends' values.
alignas(256) std::byte memory[1 << 17];
void* at(std::size_t offset) { return memory + offset; }

constexpr std::int64_t kM = 9;
constexpr std::int64_t kN = 70;
constexpr std::int64_t kK = 40;
constexpr std::int64_t kExperts = 3;
const std::int64_t kBytes = packed_weight_bytes(Dtype::e4m3fn, kN, kK);
const std::vector<std::int32_t> kEnds{2, 2, 9};

using Change = test::FunctionRef<void(DequantMatmulTensors&)>;

DequantMatmulTensors right_tensors(const DequantMatmulSpec& spec) {
  DequantMatmulTensors tensors{.x = matrix(at(0), Dtype::bf16, kM, kK, kCpu),
                               .weight = is_packed(spec.layout)
                                             ? vector(at(1 << 14), Dtype::u8, kExperts * kBytes, kCpu)
                                             : matrix(at(1 << 14), Dtype::e4m3fn, kExperts * kN, kK, kCpu),
                               .scale_inv = vector(at(1 << 16), Dtype::f32, kExperts * kN, kCpu),
                               .out = matrix(at((1 << 16) + 8192), Dtype::bf16, kM, kN, kCpu),
                               .ends = {.data = kEnds.data(), .experts = kExperts, .device = kCpu}};
  if (spec.bias) tensors.bias = vector(at((1 << 16) + 4096), Dtype::bf16, kExperts * kN, kCpu);
  return tensors;
}

// "<subject> <message>"
std::string message(Change change, const DequantMatmulSpec& spec = spec_of_experts()) {
  DequantMatmulTensors tensors = right_tensors(spec);
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (!error.threw) return "nothing was thrown";
  BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}

std::string ends_message(const std::vector<std::int32_t>& ends, std::optional<std::int64_t> capacity = {}) {
  return message([&](auto& t) {
    t.ends.data = ends.data();
    t.ends.capacity = capacity;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(wrong_ends_are_told) {
  BOOST_TEST(ends_message(kEnds) == "nothing was thrown");
  BOOST_TEST(ends_message({2, 1, 9}) ==
             "dequant_matmul ends: say that expert 1 ends at row 1, but the one before ends at row 2: ends must not "
             "decrease");
  BOOST_TEST(ends_message({2, 10, 10}) == "dequant_matmul ends: say that expert 1 ends at row 10, but x has 9 rows");
  BOOST_TEST(ends_message({3, 0, 2}, 3) == "nothing was thrown");
  BOOST_TEST(ends_message({3, 4, 2}, 3) ==
             "dequant_matmul counts: say that expert 1 has 4 rows, but it has room for 0 to 3");
  BOOST_TEST(ends_message({1, 1, 1}, 2) ==
             "dequant_matmul x: is bf16[9, 40] on cpu; its rows must be those of 3 experts with room for 2 each");
  BOOST_TEST(message([](auto& t) { t.ends = {}; }) ==
             "dequant_matmul ends: are of 0 experts, but there must be 1 to 512");
  BOOST_TEST(message([](auto& t) { t.ends.device = {.type = DeviceType::cuda, .index = 0}; }) ==
             "dequant_matmul ends: are on cuda:0; this backend works on cpu: copy them there");
  BOOST_TEST(message([](auto& t) {
               t.ends.capacity = 3;
               t.ends.device = {.type = DeviceType::cuda, .index = 0};
             }) == "dequant_matmul counts: are on cuda:0; this backend works on cpu: copy them there");
  BOOST_TEST(message([](auto& t) { t.ends.experts = 513; }) ==
             "dequant_matmul ends: are of 513 experts, but there must be 1 to 512");
  BOOST_TEST(message([](auto&) {}, {.experts = false}) ==
             "dequant_matmul ends: are given, but the spec has no experts: name experts in the spec, or leave the ends "
             "out");
}

BOOST_AUTO_TEST_CASE(wrong_tensors_are_told) {
  const std::string of_all = std::to_string(kExperts * kBytes);
  BOOST_TEST(message([](auto& t) { t.weight = vector(t.weight.data, Dtype::u8, kBytes, kCpu); }) ==
             "dequant_matmul weight: is u8[1, " + std::to_string(kBytes) + "] on cpu; it must be [1, " + of_all +
                 "]: the bytes of 3 experts' e4m3fn[70, 40] in version 3 of the packed layouts; it was packed for "
                 "other sizes, of another dtype, or by another version");
  BOOST_TEST(message([](auto& t) { t.scale_inv.cols = kN; }) ==
             "dequant_matmul scale_inv: is f32[1, 70] on cpu, row stride 210; it must be [1, 210]: one for each of the "
             "experts' N rows");
  BOOST_TEST(message([](auto&) {}, {.scale = kTensorwise, .experts = true}) ==
             "dequant_matmul scale_inv: is f32[1, 210] on cpu; it must be [1, 3]: one for each expert");
  BOOST_TEST(message([](auto&) {}, {.scale = kBlocks, .experts = true}) ==
             "dequant_matmul scale_inv: is f32[1, 210] on cpu; it must be [1, 3]: one for each block of 128 x 128 of "
             "each expert, row by row");
  BOOST_TEST(message([](auto& t) { t.bias.cols = kN; }, {.bias = true, .experts = true}) ==
             "dequant_matmul bias: is bf16[1, 70] on cpu, row stride 210; it must be [1, 210]: one for each of the N "
             "columns, of each expert");
  const DequantMatmulSpec rows{.layout = WeightLayout::row_major, .experts = true};
  BOOST_TEST(message([](auto&) {}, rows) == "nothing was thrown");
  BOOST_TEST(message([](auto& t) { t.weight.rows = 209; }, rows) ==
             "dequant_matmul weight: is e4m3fn[209, 40] on cpu; its rows must be those of 3 experts, N for each of "
             "them");
  BOOST_TEST(message([](auto& t) { t.weight.rows = 207; }, rows) ==
             "dequant_matmul out: is bf16[9, 70] on cpu; it must be [9, 69]: M of x, N of the weight");
}

// Ends are read, and so must not be where the output is.
BOOST_AUTO_TEST_CASE(overlapping_ends_are_told) {
  alignas(256) static std::int32_t ends[64] = {2, 2, 9};
  const std::string told = message([](auto& t) {
    t.ends.data = ends;
    t.out = matrix(ends, Dtype::bf16, 1, 64, kCpu);
    t.x = matrix(at(0), Dtype::bf16, 1, kK, kCpu);
    t.weight.cols = kExperts * packed_weight_bytes(Dtype::e4m3fn, 64, kK);
    t.scale_inv.cols = kExperts * 64;
  });
  BOOST_TEST(told.starts_with("dequant_matmul out: "), told);
  BOOST_TEST(told.find("dequant_matmul ends") != std::string::npos, told);
}

BOOST_AUTO_TEST_SUITE_END()
