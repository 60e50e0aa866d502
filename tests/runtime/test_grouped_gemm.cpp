// The CPU reference of grouped GEMMs against float64, and every refusal of their tensors, by its message.
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "support/function_ref.h"
#include "support/grouped_along_k_case.h"
#include "support/grouped_gemm_case.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_grouped_gemm)

using namespace ingot;
using namespace ingot::test;

namespace {

GroupedGemmSpec spec_of(const std::string& line) { return std::get<GroupedGemmSpec>(parse("grouped_gemm " + line)); }

const std::vector<std::string> kLines{"e4m3fn*e4m3fn->bf16 nt scale=row,row fast",
                                      "e5m2*e4m3fn->f32 nt scale=row,row",
                                      "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor",
                                      "e4m3fn*e5m2->f16 nt scale=row,tensor",
                                      "bf16*bf16->bf16 nt",
                                      "f16*f16->f32 nt",
                                      "e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128",
                                      "e5m2*e4m3fn->f32 nt scale=1x128,1x128",
                                      "e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast",
                                      "e4m3fn*e5m2->f32 nt scale=tensor,tensor bias",
                                      "bf16*bf16->bf16 nt bias",
                                      "e4m3fn*e4m3fn->f16 nt scale=1x128,128x128 bias"};

// Experts without rows first, last and between; one row each; rows beyond the last expert's; one expert.
const std::vector<GroupedCase> kShapes{
    {.ends = balanced_ends(40, 4), .m = 40, .n = 24, .k = 48},
    {.ends = zipf_ends(61, 8), .m = 61, .n = 17, .k = 33},
    {.ends = {0, 0, 5, 5, 29, 29}, .m = 37, .n = 16, .k = 64, .out_padding = 3},
    {.ends = balanced_ends(9, 9), .m = 9, .n = 8, .k = 16, .in_padding = 5},
    {.ends = one_hot_ends(33, 5, 2), .m = 33, .n = 40, .k = 130},
    {.ends = {9, 9, 20}, .m = 21, .n = 130, .k = 400, .by_group = true},
    {.ends = {2, 0, 9, 5}, .m = 36, .n = 17, .k = 130, .out_padding = 1, .capacity = 9},
    {.ends = {0, 4}, .m = 8, .n = 130, .k = 144, .by_group = true, .capacity = 4},
    {.ends = {9, 9, 20}, .m = 21, .n = 130, .k = 400, .of_each = true},
    {.ends = {3, 5}, .m = 5, .n = 100, .k = 100, .by_group = true, .of_each = true},
    {.ends = {7}, .m = 7, .n = 5, .k = 1},
    {.ends = {0, 0, 0}, .m = 4, .n = 5, .k = 3},
    {.ends = {2, 3}, .m = 3, .n = 4, .k = 0}};

}  // namespace

BOOST_AUTO_TEST_CASE(has_float64s_results) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GroupedMaker maker;
  for (const std::string& line : kLines) {
    for (GroupedCase c : kShapes) {
      for (const bool exact : {true, false}) {
        c.spec = spec_of(line);
        c.exact = exact;
        const GroupedData data(c, maker);
        PlacedGrouped placed(data, *backend, stream);
        placed.enqueue(stream);
        BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_may_have_a_scale_for_each_expert) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GroupedMaker maker;
  for (GroupedCase c : kShapes) {
    if (c.by_group || c.of_each) continue;
    for (const char* const line :
         {"e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast", "e5m2*e4m3fn->f32 nt scale=tensor,row"}) {
      c.spec = spec_of(line);
      c.exact = c.each_a = true;
      const GroupedData data(c, maker);
      PlacedGrouped placed(data, *backend, stream);
      placed.enqueue(stream);
      BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
    }
  }
}

// What the tests compare with finds a row with another expert's scale_inv, a row too many, and a byte beyond a row.
BOOST_AUTO_TEST_CASE(wrong_results_are_seen) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GroupedMaker maker;
  const GroupedCase c{.spec = spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,tensor"),
                      .ends = {3, 7},
                      .m = 8,
                      .n = 6,
                      .k = 32,
                      .out_padding = 2};
  const GroupedData data(c, maker);
  PlacedGrouped placed(data, *backend, stream);
  const auto fault_with = [&](const Ends& ends) {
    placed.poison(stream);
    placed.set_ends(ends, stream);
    placed.enqueue(stream);
    return data.fault_of(placed.out(stream));
  };
  BOOST_TEST(fault_with({3, 7}) == "");
  BOOST_TEST(fault_with({4, 7}).starts_with("row 3 (expert 1, whose rows are 3 to 7), column 0: expected "));
  BOOST_TEST(fault_with({3, 6}).starts_with("row 6 (expert 1, whose rows are 3 to 7), column 0: expected "));
  BOOST_TEST(fault_with({3, 8}) == "row 7 was written, but no expert has it");
  GuardedMatrix out = placed.out(stream);
  out.element(2, 5)[2] = std::byte{1};
  BOOST_TEST(data.fault_of(out) == "byte 44 from the first element is outside of the matrix and was written");
}

// No rows, no columns: nothing is read or written, but the ends are checked.
BOOST_AUTO_TEST_CASE(empty_matrices_are_nothing) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GroupedMaker maker;
  const std::vector<GroupedCase> shapes{{.ends = {0, 0}, .m = 0, .n = 8, .k = 16},
                                        {.ends = {1, 2}, .m = 2, .n = 0, .k = 16}};
  for (const GroupedCase& c : shapes) {
    const GroupedData data(c, maker);
    PlacedGrouped placed(data, *backend, stream);
    placed.enqueue(stream);
    BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
  }
}

namespace {

const std::vector<std::string> kLinesAlongK{"e4m3fn*e4m3fn->bf16 nt scale=row,row fast along=k",
                                            "e5m2*e4m3fn->f32 nt scale=row,tensor along=k",
                                            "e4m3fn*e5m2->f16 nt scale=tensor,tensor along=k",
                                            "bf16*bf16->bf16 nt along=k",
                                            "f16*f16->f32 nt along=k",
                                            "bf16*bf16->f32 nt c=f32 along=k",
                                            "e4m3fn*e4m3fn->f32 nt scale=row,row c=f32 along=k",
                                            "e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128 along=k",
                                            "e5m2*e4m3fn->f32 nt scale=1x128,1x128 c=f32 along=k"};

// As kShapes, but for columns; and NaN in an expert's columns.
const std::vector<AlongKCase> kShapesAlongK{
    {.ends = balanced_ends(40, 4), .m = 24, .n = 16, .k = 40},
    {.ends = zipf_ends(261, 8), .m = 17, .n = 9, .k = 261, .of_nans = 1},
    {.ends = {0, 0, 5, 5, 29, 29}, .m = 8, .n = 11, .k = 37, .out_padding = 3},
    {.ends = balanced_ends(9, 9), .m = 3, .n = 8, .k = 9, .in_padding = 5},
    {.ends = one_hot_ends(333, 5, 2), .m = 5, .n = 4, .k = 333, .one_scale_inv = true, .of_nans = 2},
    {.ends = zipf_ends(1000, 512), .m = 2, .n = 3, .k = 1000},
    {.ends = {7}, .m = 5, .n = 6, .k = 7, .in_place = false, .beta = 0.5F},
    {.ends = {3, 3}, .m = 4, .n = 4, .k = 3, .beta = 0},
    {.ends = {0, 0, 0}, .m = 4, .n = 5, .k = 3},
    {.ends = {0, 0}, .m = 4, .n = 5, .k = 0, .beta = 2}};

}  // namespace

// out of experts without columns is 0, or what was there where sums are added to it, whatever their scale_inv are.
BOOST_AUTO_TEST_CASE(has_float64s_results_along_k) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  AlongKMaker maker;
  for (const std::string& line : kLinesAlongK) {
    for (AlongKCase c : kShapesAlongK) {
      for (const bool exact : {true, false}) {
        c.spec = spec_of(line);
        c.exact = exact;
        const AlongKData data(c, maker);
        PlacedAlongK placed(data, *backend, stream);
        placed.enqueue(stream);
        BOOST_TEST(data.fault_of(placed.out(stream)) == "", describe(c));
      }
    }
  }
}

// What the tests compare with finds a column too many or too few, another expert's scale_inv, and a sum that was not
// added.
BOOST_AUTO_TEST_CASE(wrong_results_along_k_are_seen) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  AlongKMaker maker;
  const AlongKCase c{.spec = spec_of("e4m3fn*e4m3fn->f32 nt scale=row,tensor c=f32 along=k"),
                     .ends = {30, 70},
                     .m = 6,
                     .n = 5,
                     .k = 80,
                     .out_padding = 2};
  const AlongKData data(c, maker);
  PlacedAlongK placed(data, *backend, stream);
  const auto fault_with = [&](const Ends& ends) {
    placed.reset(stream);
    placed.set_ends(ends, stream);
    placed.enqueue(stream);
    return data.fault_of(placed.out(stream));
  };
  BOOST_TEST(fault_with({30, 70}) == "");
  BOOST_TEST(fault_with({31, 70}).starts_with("expert 0 (whose columns are 0 to 30), row 0, column 0: expected "));
  BOOST_TEST(fault_with({30, 69}).starts_with("expert 1 (whose columns are 30 to 70), row 0, column 0: expected "));
  BOOST_TEST(fault_with({30, 71}).ends_with("nan)"));
  BOOST_TEST(fault_with({30, 70}) == "");
  placed.enqueue(stream);  // added a second time
  BOOST_TEST(data.fault_of(placed.out(stream)).starts_with("expert 0 (whose columns are 0 to 30), row 0, column 0: "));
  GuardedMatrix out = placed.out(stream);
  out.element(2, 4)[5] = std::byte{1};
  BOOST_TEST(data.fault_of(out).ends_with("is outside of the matrix and was written"));
}

namespace {

constexpr Device kCpu{};

// Memory that is never read: checks look only at addresses, but at the ends' values.
alignas(256) std::byte memory[1 << 14];
void* at(std::size_t offset) { return memory + offset; }

constexpr std::int64_t kM = 9;
constexpr std::int64_t kN = 6;
constexpr std::int64_t kK = 32;
constexpr std::int64_t kExperts = 3;

GroupedGemmTensors right_tensors(const std::vector<std::int32_t>& ends) {
  return {.a = matrix(at(0), Dtype::e4m3fn, kM, kK, kCpu),
          .b = matrix(at(1024), Dtype::e4m3fn, kExperts * kN, kK, kCpu),
          .ends = {.data = ends.data(), .experts = static_cast<std::int64_t>(ends.size()), .device = kCpu},
          .scale_inv_a = vector(at(4096), Dtype::f32, kM, kCpu),
          .scale_inv_b = vector(at(5120), Dtype::f32, kExperts * kN, kCpu),
          .out = matrix(at(6144), Dtype::bf16, kM, kN, kCpu)};
}

// "<subject> <message>"
std::string message(test::FunctionRef<void(GroupedGemmTensors&)> change, Device device = kCpu,
                    const std::vector<std::int32_t>& ends = {2, 2, 9},
                    const std::string& line = "e4m3fn*e4m3fn->bf16 nt scale=row,row") {
  GroupedGemmTensors tensors = right_tensors(ends);
  change(tensors);
  const auto error = refused([&] { check(spec_of(line), tensors, device); });
  if (!error.threw) return "nothing was thrown";
  BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}

std::string ends_message(const std::vector<std::int32_t>& ends) {
  return message([](auto&) {}, kCpu, ends);
}

}  // namespace

BOOST_AUTO_TEST_CASE(wrong_ends_are_told) {
  BOOST_TEST(ends_message({2, 2, 9}) == "nothing was thrown");
  BOOST_TEST(ends_message({0, 0, 0}) == "nothing was thrown");
  BOOST_TEST(ends_message({2, 1, 9}) ==
             "grouped_gemm ends: say that expert 1 ends at row 1, but the one before ends at row 2: ends must not "
             "decrease");
  BOOST_TEST(ends_message({-1, 1, 9}) ==
             "grouped_gemm ends: say that expert 0 ends at row -1, but its first is row 0: ends must not decrease");
  BOOST_TEST(ends_message({2, 10, 10}) == "grouped_gemm ends: say that expert 1 ends at row 10, but a has 9 rows");
  BOOST_TEST(message([](auto& t) { t.ends.experts = 0; }) ==
             "grouped_gemm ends: are of 0 experts, but there must be 1 to 512");
  BOOST_TEST(message([](auto& t) { t.ends.experts = 513; }) ==
             "grouped_gemm ends: are of 513 experts, but there must be 1 to 512");
  BOOST_TEST(message([](auto& t) { t.ends.data = nullptr; }) ==
             "grouped_gemm ends: have a null data pointer; they must be int32, one for each expert");
  BOOST_TEST(message([](auto& t) {
               t.ends.device = {DeviceType::cuda, 0};
             }) == "grouped_gemm ends: are on cuda:0; this backend works on cpu: copy them there");
  const std::string odd = message([](auto& t) { t.ends.data = reinterpret_cast<const std::int32_t*>(at(5)); });
  BOOST_TEST(odd.ends_with("that is misaligned: it must be a multiple of 4 bytes"), odd);
}

BOOST_AUTO_TEST_CASE(wrong_counts_are_told) {
  const auto counts_message = [](const std::vector<std::int32_t>& counts, std::int64_t capacity = 3) {
    return message([&](auto& t) { t.ends.capacity = capacity; }, kCpu, counts);
  };
  BOOST_TEST(counts_message({3, 0, 2}) == "nothing was thrown");
  BOOST_TEST(counts_message({3, 4, 2}) ==
             "grouped_gemm counts: say that expert 1 has 4 rows, but it has room for 0 to 3");
  BOOST_TEST(counts_message({3, 0, -1}) ==
             "grouped_gemm counts: say that expert 2 has -1 rows, but it has room for 0 to 3");
  BOOST_TEST(counts_message({1, 1, 1}, -3) == "grouped_gemm counts: have a capacity of -3 rows");
  const std::string rows =
      "grouped_gemm a: is e4m3fn[9, 32] on cpu; its rows must be those of 3 experts with room for ";
  BOOST_TEST(counts_message({1, 1, 1}, 2) == rows + "2 each");
  BOOST_TEST(counts_message({1, 1, 1}, 9) == rows + "9 each");
  BOOST_TEST(counts_message({0, 0, 0}, 0) == rows + "0 each");
}

BOOST_AUTO_TEST_CASE(wrong_tensors_are_told) {
  BOOST_TEST(message([](auto& t) { t.b.cols = 16; }) ==
             "grouped_gemm b: is e4m3fn[18, 16] on cpu, row stride 32; its K is 16, but that of a, which is "
             "e4m3fn[9, 32] on cpu, is 32");
  BOOST_TEST(message([](auto& t) { t.b.rows = 17; }) ==
             "grouped_gemm b: is e4m3fn[17, 32] on cpu; its rows must be those of 3 experts, N for each of them");
  BOOST_TEST(message([](auto& t) { t.b.rows = 21; }) ==
             "grouped_gemm out: is bf16[9, 6] on cpu; it must be [9, 7]: M of a, and b's rows divided by the number of "
             "experts");
  BOOST_TEST(message([](auto& t) { t.out.rows = 8; }) ==
             "grouped_gemm out: is bf16[8, 6] on cpu; it must be [9, 6]: M of a, and b's rows divided by the number of "
             "experts");
  BOOST_TEST(message([](auto& t) { t.a.dtype = Dtype::e5m2; }) ==
             "grouped_gemm a: is e5m2[9, 32] on cpu; the spec asks for e4m3fn");
  BOOST_TEST(message([](auto& t) { t.scale_inv_a.cols = 1; }) ==
             "grouped_gemm scale_inv_a: is f32[1, 1] on cpu, row stride 9; it must be [1, 9]: one for each of a's M "
             "rows");
  BOOST_TEST(message([](auto& t) { t.scale_inv_b = vector(at(5120), Dtype::f32, kExperts, kCpu); }) ==
             "grouped_gemm scale_inv_b: is f32[1, 3] on cpu; it must be [1, 18]: one for each of b's experts * N rows");
  const std::string tensorwise = "e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor";
  BOOST_TEST(message([](auto& t) { t.scale_inv_a.cols = 1; }, kCpu, {2, 2, 9}, tensorwise) ==
             "grouped_gemm scale_inv_b: is f32[1, 18] on cpu; it must be [1, 3]: one for each expert");
  BOOST_TEST(message([](auto&) {}, kCpu, {2, 2, 9}, tensorwise) ==
             "grouped_gemm scale_inv_a: is f32[1, 9] on cpu; it must be [1, 3]: one for each expert, or one for all of "
             "them");
  const auto to_bf16 = [](auto& t) {
    t.a = matrix(at(0), Dtype::bf16, kM, kK, kCpu);
    t.b = matrix(at(1024), Dtype::bf16, kExperts * kN, kK, kCpu);
  };
  BOOST_TEST(message(to_bf16, kCpu, {2, 2, 9}, "bf16*bf16->bf16 nt") ==
             "grouped_gemm scale_inv_a: is f32[1, 9] on cpu; it must not be given (a default Tensor instead): a "
             "high-precision operand has no scale_inv");
  BOOST_TEST(
      message([](auto& t) { t.bias = vector(at(8192), Dtype::bf16, kExperts * kN, kCpu); }) ==
      "grouped_gemm bias: is bf16[1, 18] on cpu; it must not be given (a default Tensor instead): the spec has no "
      "bias");
  BOOST_TEST(
      message([](auto& t) { t.bias = vector(at(8192), Dtype::bf16, kN, kCpu); }, kCpu, {2, 2, 9},
              "e4m3fn*e4m3fn->bf16 nt scale=row,row bias") ==
      "grouped_gemm bias: is bf16[1, 6] on cpu; it must be [1, 18]: one for each of the N columns of each expert");
  const std::string blocks = "e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128";
  BOOST_TEST(
      message([](auto& t) { t.a.rows = t.out.rows = 8; }, kCpu, {2, 2, 8}, blocks) ==
      "grouped_gemm scale_inv_a: is f32[1, 9] on cpu; it must be [1, 8]: one for each group of 128 along K, row by "
      "row");
  BOOST_TEST(
      message([](auto&) {}, kCpu, {2, 2, 9}, blocks) ==
      "grouped_gemm scale_inv_b: is f32[1, 18] on cpu; it must be [1, 3]: one for each block of 128 x 128 of each "
      "expert, row by row");
  BOOST_TEST(message([](auto& t) { t.scale_inv_b.cols = 3; }, kCpu, {2, 2, 9}, blocks) == "nothing was thrown");
  BOOST_TEST(message([](auto& t) { t.out.data = t.a.data; }) ==
             "grouped_gemm out: is bf16[9, 6] on cpu; its memory overlaps that of grouped_gemm a, which is "
             "e4m3fn[9, 32] on cpu; an output needs its own memory");
  BOOST_TEST(
      message([](auto& t) { t.ends.data = static_cast<const std::int32_t*>(t.out.data); }) ==
      "grouped_gemm out: is bf16[9, 6] on cpu; its memory overlaps that of grouped_gemm ends, which is u8[1, 12] "
      "on cpu; an output needs its own memory");
}

namespace {

// a is [9, 32] and b is [6, 32] here.
std::string message_along_k(test::FunctionRef<void(GroupedGemmTensors&)> change,
                            const std::vector<std::int32_t>& ends = {2, 2, 32},
                            const std::string& line = "e4m3fn*e4m3fn->f32 nt scale=row,row c=f32 along=k") {
  const auto change_all = [&](GroupedGemmTensors& t) {
    t.b.rows = kN;
    t.scale_inv_a = vector(at(4096), Dtype::f32, kExperts * kM, kCpu);
    t.out = t.c = matrix(at(6144), Dtype::f32, kExperts * kM, kN, kCpu);
    change(t);
  };
  return message(change_all, kCpu, ends, line);
}

}  // namespace

BOOST_AUTO_TEST_CASE(wrong_tensors_along_k_are_told) {
  const std::string tensorwise = "e4m3fn*e4m3fn->f32 nt scale=tensor,tensor c=f32 along=k";
  BOOST_TEST(message_along_k([](auto&) {}) == "nothing was thrown");
  BOOST_TEST(
      message_along_k([](auto&) {}, {2, 1, 32}) ==
      "grouped_gemm ends: say that expert 1 ends at column 1, but the one before ends at column 2: ends must not "
      "decrease");
  BOOST_TEST(message_along_k([](auto&) {}, {2, 2, 33}) ==
             "grouped_gemm ends: say that expert 2 ends at column 33, but a has 32 columns");
  BOOST_TEST(message_along_k([](auto& t) { t.ends.capacity = 3; }) ==
             "grouped_gemm counts: have a capacity, but along K experts follow each other: leave it out");
  BOOST_TEST(message_along_k([](auto& t) { t.b.cols = 16; }) ==
             "grouped_gemm b: is e4m3fn[6, 16] on cpu, row stride 32; its K is 16, but that of a, which is "
             "e4m3fn[9, 32] on cpu, is 32");
  BOOST_TEST(message_along_k([](auto& t) { t.out.rows = 9; }) ==
             "grouped_gemm out: is f32[9, 6] on cpu; it must be [27, 6]: M of a for each expert, and N of b");
  BOOST_TEST(message_along_k([](auto& t) { t.scale_inv_a.cols = 8; }) ==
             "grouped_gemm scale_inv_a: is f32[1, 8] on cpu, row stride 27; it must be [1, 27]: one for each of a's M "
             "rows, of each expert or of all together");
  BOOST_TEST(message_along_k([](auto& t) { t.scale_inv_b.cols = 5; }) ==
             "grouped_gemm scale_inv_b: is f32[1, 5] on cpu, row stride 18; it must be [1, 18]: one for each of b's N "
             "rows, of each expert or of all together");
  BOOST_TEST(
      message_along_k([](auto& t) { t.scale_inv_b.cols = 1; }, {2, 2, 32}, tensorwise) ==
      "grouped_gemm scale_inv_a: is f32[1, 27] on cpu; it must be [1, 3]: one for each expert, or one for all of "
      "them");
  const auto set_tensorwise = [](auto& t) {
    t.scale_inv_a.cols = kExperts;
    t.scale_inv_b.cols = 1;
  };
  BOOST_TEST(message_along_k(set_tensorwise, {2, 2, 32}, tensorwise) == "nothing was thrown");
  BOOST_TEST(message_along_k([](auto& t) { t.c.rows = 9; }) ==
             "grouped_gemm c: is f32[9, 6] on cpu; it must be [27, 6]: the shape of out");
  BOOST_TEST(message_along_k([](auto& t) { t.c.data = at(6148); }) ==
             "grouped_gemm out: is f32[27, 6] on cpu; its memory overlaps that of grouped_gemm c, which is "
             "f32[27, 6] on cpu; an output needs its own memory");
  BOOST_TEST(
      message_along_k([](auto&) {}, {2, 2, 32}, "e4m3fn*e4m3fn->f32 nt scale=row,row along=k") ==
      "grouped_gemm c: is f32[27, 6] on cpu; it must not be given (a default Tensor instead): the spec adds no c");
  BOOST_TEST(
      message([](auto& t) { t.c = t.out; }) ==
      "grouped_gemm c: is bf16[9, 6] on cpu; it must not be given (a default Tensor instead): the spec adds no c");
  BOOST_TEST(message_along_k([](auto&) {}, {2, 2, 32}, "bf16*bf16->f32 nt c=f32 along=k") ==
             "grouped_gemm a: is e4m3fn[9, 32] on cpu; the spec asks for bf16");
}

// Of 300 rows by three experts: six slots, of which the operands have 768 columns.
BOOST_AUTO_TEST_CASE(wrong_slots_are_told) {
  const std::string line = "e4m3fn*e4m3fn->f32 nt scale=1x128,1x128 along=k";
  const auto of_slots = [&](test::FunctionRef<void(GroupedGemmTensors&)> change,
                            const std::vector<std::int32_t>& ends = {2, 2, 300}) {
    return message_along_k(
        [&](GroupedGemmTensors& t) {
          t.a = matrix(at(0), Dtype::e4m3fn, 2, 768, kCpu);
          t.b = matrix(at(2048), Dtype::e4m3fn, 1, 768, kCpu);
          t.scale_inv_a = matrix(at(4096), Dtype::f32, 6, 2, kCpu);
          t.scale_inv_b = vector(at(5120), Dtype::f32, 6, kCpu);
          t.out = matrix(at(6144), Dtype::f32, kExperts * 2, 1, kCpu);
          t.c = {};
          change(t);
        },
        ends, line);
  };
  BOOST_TEST(expert_slots(300, 3) == 6);
  BOOST_TEST(of_slots([](auto&) {}) == "nothing was thrown");
  BOOST_TEST(of_slots([](auto&) {}, {2, 2, 383}) == "nothing was thrown");
  BOOST_TEST(of_slots([](auto&) {}, {2, 2, 384}) ==
             "grouped_gemm ends: say that expert 2 ends at row 384, but a, in slots, has 383 rows");
  BOOST_TEST(
      of_slots([](auto& t) { t.a.cols = t.b.cols = 600; }) ==
      "grouped_gemm a: is e4m3fn[2, 600] on cpu, row stride 768; its columns must be slots of 128, as a cast of the "
      "rows of 3 experts writes them, 4 at least");
  BOOST_TEST(
      of_slots([](auto& t) { t.a.cols = t.b.cols = 384; }) ==
      "grouped_gemm a: is e4m3fn[2, 384] on cpu, row stride 768; its columns must be slots of 128, as a cast of the "
      "rows of 3 experts writes them, 4 at least");
  BOOST_TEST(
      of_slots([](auto& t) { t.scale_inv_a.rows = 4; }) ==
      "grouped_gemm scale_inv_a: is f32[4, 2] on cpu; it must be [1, 12]: one for each group of 128 along K, row "
      "by row, or [6, 2]: one row for each slot");
}

// Where the host does not see them, values are not checked.
BOOST_AUTO_TEST_CASE(a_gpus_ends_are_not_read) {
  const Device gpu{DeviceType::cuda, 0};
  const auto move = [&](GroupedGemmTensors& t) {
    for (Tensor* const tensor : {&t.a, &t.b, &t.scale_inv_a, &t.scale_inv_b, &t.out}) tensor->device = gpu;
    t.ends.device = gpu;
  };
  BOOST_TEST(message(move, gpu, {9, 2, 100}) == "nothing was thrown");
}

// The kernel counts rows of all experts' b, and of all outputs along K, in 32 bits; bytes it does not. Addresses are
// never read.
BOOST_AUTO_TEST_CASE(rows_beyond_32_bits_are_told) {
  DryRun dry(gpu_named("h200"));
  Stream stream(dry.backend());
  const Device gpu = dry.backend().device();
  const auto place = [&](int terabytes, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    return matrix(std::bit_cast<void*>(static_cast<std::uintptr_t>(terabytes) << 40U), dtype, rows, cols, gpu);
  };
  const auto told = [&](std::int64_t experts, std::int64_t rows, bool along_k) {
    const ExpertEnds ends{
        .data = static_cast<const std::int32_t*>(place(1, Dtype::u8, 1, 1).data), .experts = experts, .device = gpu};
    GroupedGemmTensors tensors{
        .a = place(2, Dtype::e4m3fn, along_k ? rows : 16, 64),
        .b = place(3, Dtype::e4m3fn, along_k ? 16 : experts * rows, 64),
        .ends = ends,
        .scale_inv_a = place(4, Dtype::f32, 1, 1),
        .scale_inv_b = place(5, Dtype::f32, 1, along_k ? 1 : experts),
        .out = along_k ? place(6, Dtype::f32, experts * rows, 16) : place(6, Dtype::f32, 16, rows)};
    const std::string line = "e4m3fn*e4m3fn->f32 nt scale=tensor,tensor fast";
    const auto error =
        refused([&] { dry.backend().grouped_gemm(spec_of(along_k ? line + " along=k" : line), tensors, stream); });
    return error.threw ? error.message : "nothing was thrown";
  };
  constexpr std::int64_t kRows = 1 << 22;
  for (const bool along_k : {false, true}) {
    BOOST_TEST(told(511, kRows, along_k) == "nothing was thrown");
    const std::string beyond = told(512, kRows, along_k);
    BOOST_TEST(
        beyond.ends_with(": kernel sm90 takes sizes below 2^31 and as many tiles; grouped GEMMs have no other kernel"),
        beyond);
  }
}

BOOST_AUTO_TEST_SUITE_END()
