// Runs templates/gemm/gemm_mma.cuh on the host, thread by thread, and compares it with float64: what its lanes load,
// decode, swizzle, multiply (with a warp's fragments as the PTX ISA lays them out) and store, for both tiles and all
// formats, layouts, kinds of scale_inv, pitches and addresses. The parameters come from the runtime's own code.
#include "templates/emulator.h"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "support/compare.h"
#include "support/reference.h"
#include "support/run_case.h"

#include "gemm/gemm_mma.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_mma_emulated)

namespace {

constexpr MmaTiling kSmall{64, 64};
constexpr MmaTiling kLarge{128, 128};

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream{*cpu};
  InputMaker maker;
  GemmReference reference;

  template <class A, class B, class Out, MmaTiling T, bool Grouped = false>
  void check(const char* line, const Shape& shape, Input input = Input::normal, Placement placement = {}) {
    check<A, B, Out, T, Grouped>({.spec = parse(line), .shape = shape, .input = input, .placement = placement});
  }

  template <class A, class B, class Out, MmaTiling T, bool Grouped>
  void check(const Case& c) {
    const GemmSpec& spec = std::get<GemmSpec>(c.spec);
    const SharedMatrices inputs = maker.inputs(c);
    PlacedCase placed(c, inputs, *cpu, stream);
    const GemmTensors tensors{.a = placed.tensor("a"),
                              .b = placed.tensor("b"),
                              .scale_inv_a = placed.tensor("scale_inv_a"),
                              .scale_inv_b = placed.tensor("scale_inv_b"),
                              .bias = placed.tensor("bias"),
                              .out = placed.tensor("out")};
    const MatmulSize sizes = gemm_size(spec, tensors);
    emulator::launch(gemm_mma<A, B, Out, GemmMmaConfig{.tiling = T, .group_factors = Grouped}>,
                     mma_blocks(T, sizes.m, sizes.n), mma_threads(T), cuda::gemm_mma_params(spec, tensors, sizes),
                     mma_shared_bytes(T));
    const Matrices outputs = placed.outputs(stream);
    std::string fault = damage(outputs);
    if (fault.empty()) {
      const Expected expected = reference(spec, c.shape, inputs, c.input == Input::integers);
      fault = value_difference("out", expected, outputs.at("out"));
    }
    BOOST_TEST(fault.empty(), name(c) << ": " << fault);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(emulated, Fixture)

// With small integers only one result is right, and only the right elements add up to it.
BOOST_AUTO_TEST_CASE(whole_tiles) {
  check<e4m3fn, e5m2, f32, kSmall>("gemm e4m3fn*e5m2->f32", {64, 64, 64}, Input::integers);
  check<f16, f16, f32, kSmall>("gemm f16*f16->f32", {64, 64, 64}, Input::integers);
  check<bf16, bf16, bf16, kLarge>("gemm bf16*bf16->bf16", {128, 128, 64}, Input::integers);
  check<e4m3fnuz, e5m2fnuz, f32, kLarge>("gemm e4m3fnuz*e5m2fnuz->f32", {128, 256, 192}, Input::integers);
}

BOOST_AUTO_TEST_CASE(tails) {
  check<e4m3fn, e4m3fn, f32, kSmall>("gemm e4m3fn*e4m3fn->f32 scale=row,row bias", {1, 1, 1});
  check<e5m2, e4m3fnuz, bf16, kSmall>("gemm e5m2*e4m3fnuz->bf16 scale=row,tensor bias", {7, 70, 100});
  check<e5m2fnuz, e5m2, f16, kSmall>("gemm e5m2fnuz*e5m2->f16 scale=tensor,row", {100, 17, 129});
  check<e4m3fn, e5m2fnuz, f32, kLarge>("gemm e4m3fn*e5m2fnuz->f32 scale=row,row bias", {129, 100, 127});
  check<f16, f16, f16, kLarge>("gemm f16*f16->f16 bias", {130, 129, 65});
  check<bf16, bf16, f32, kSmall>("gemm bf16*bf16->f32 bias", {65, 66, 200});
}

BOOST_AUTO_TEST_CASE(no_k) {
  check<e4m3fn, e4m3fn, bf16, kSmall>("gemm e4m3fn*e4m3fn->bf16 scale=row,row bias", {5, 7, 0});
  check<bf16, bf16, f32, kLarge>("gemm bf16*bf16->f32", {5, 7, 0});
  check<e4m3fn, e4m3fn, bf16, kSmall, true>("gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128 bias", {5, 7, 0});
}

// Rows start at multiples of 16 bytes, of 4 bytes, or anywhere, with gaps between them.
BOOST_AUTO_TEST_CASE(placements) {
  for (const Placement placement : {Placement{16, 16}, Placement{0, 4}, Placement{12, 8}, Placement{3, 0},
                                    Placement{1, 1}, Placement{2, 2}, Placement{17, 3}}) {
    check<e4m3fn, e4m3fnuz, bf16, kSmall>("gemm e4m3fn*e4m3fnuz->bf16 bias", {66, 60, 80}, Input::integers, placement);
    check<bf16, bf16, f32, kSmall>("gemm bf16*bf16->f32", {18, 65, 80}, Input::integers, placement);
    check<f16, f16, f16, kSmall>("gemm f16*f16->f16 nn", {19, 60, 81}, Input::integers, placement);
  }
}

BOOST_AUTO_TEST_CASE(layouts) {
  for (const char* const line : {"gemm bf16*bf16->f32 nn", "gemm bf16*bf16->f32 tt", "gemm bf16*bf16->f32 tn bias"}) {
    check<bf16, bf16, f32, kSmall>(line, {70, 81, 100}, Input::integers);
    check<bf16, bf16, f32, kLarge>(line, {70, 81, 100});
  }
  check<bf16, bf16, f32, kSmall>("gemm bf16*bf16->f32 tt", {1, 1, 70}, Input::integers);
}

// Codes may be contiguous along k or along the rows.
BOOST_AUTO_TEST_CASE(layouts_of_codes) {
  check<e4m3fn, e5m2, f32, kSmall>("gemm e4m3fn*e5m2->f32 tn scale=row,tensor", {70, 81, 100}, Input::integers);
  check<e4m3fnuz, e4m3fn, bf16, kLarge>("gemm e4m3fnuz*e4m3fn->bf16 nn scale=row,row", {70, 81, 100});
  check<e4m3fn, e4m3fn, f32, kSmall, true>("gemm e4m3fn*e4m3fn->f32 tt scale=1x128,128x128", {20, 131, 200});
}

// bf16 or f16 with each format; every code has a value in both.
BOOST_AUTO_TEST_CASE(one_operand_of_high_precision) {
  check<bf16, e4m3fn, f32, kSmall>("gemm bf16*e4m3fn->f32 scale=tensor,row", {70, 81, 100}, Input::integers);
  check<bf16, e4m3fn, bf16, kLarge>("gemm bf16*e4m3fn->bf16 scale=tensor,row bias", {70, 81, 100});
  check<e4m3fnuz, bf16, f32, kSmall>("gemm e4m3fnuz*bf16->f32 scale=row,tensor bias", {33, 70, 129});
  check<e5m2, bf16, f32, kLarge>("gemm e5m2*bf16->f32 tn scale=tensor,tensor", {33, 70, 129});
  check<f16, e5m2fnuz, f16, kSmall>("gemm f16*e5m2fnuz->f16 scale=tensor,row", {33, 70, 129});
  for (const Input input : {Input::nan, Input::inf, Input::subnormal}) {
    check<bf16, e5m2, f32, kSmall>("gemm bf16*e5m2->f32", {17, 20, 70}, input);
    check<f16, e4m3fn, f32, kSmall>("gemm f16*e4m3fn->f32", {17, 20, 70}, input);
  }
}

BOOST_AUTO_TEST_CASE(groups) {
  check<e4m3fn, e4m3fn, f32, kSmall, true>("gemm e4m3fn*e4m3fn->f32 scale=1x128,128x128", {70, 131, 300});
  check<e4m3fn, e4m3fn, f32, kLarge, true>("gemm e4m3fn*e4m3fn->f32 scale=1x128,1x128 bias", {70, 131, 256});
  check<e4m3fnuz, e5m2, bf16, kSmall, true>("gemm e4m3fnuz*e5m2->bf16 scale=1x128,1x128", {5, 7, 33});
  check<e5m2, e5m2fnuz, f16, kLarge, true>("gemm e5m2*e5m2fnuz->f16 scale=1x128,128x128 bias", {130, 140, 200},
                                           Input::integers);
}

// scale_inv stored with a row for each group: for one operand, and for both.
BOOST_AUTO_TEST_CASE(factors_by_group) {
  const auto check_both = [&](std::int64_t k, Input input, bool a, bool b) {
    check<e4m3fn, e4m3fn, f32, kSmall, true>({.spec = parse("gemm e4m3fn*e4m3fn->f32 scale=1x128,1x128"),
                                              .shape = {7, 67, k},
                                              .input = input,
                                              .a_by_group = a,
                                              .b_by_group = b});
    check<e5m2, e4m3fnuz, f32, kLarge, true>({.spec = parse("gemm e5m2*e4m3fnuz->f32 scale=1x128,128x128 bias"),
                                              .shape = {67, 261, k},
                                              .input = input,
                                              .a_by_group = a,
                                              .b_by_group = b});
  };
  for (const std::int64_t k : {1, 128, 129, 300}) check_both(k, Input::normal, true, true);
  check_both(300, Input::integers, true, false);
  check_both(300, Input::integers, false, true);
}

// NaN and Inf reach the outputs to which they belong, and no others.
BOOST_AUTO_TEST_CASE(inputs) {
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::subnormal}) {
    check<e4m3fnuz, e4m3fn, f32, kSmall>("gemm e4m3fnuz*e4m3fn->f32", {70, 67, 70}, input);
    check<e5m2, e5m2fnuz, f32, kSmall>("gemm e5m2*e5m2fnuz->f32", {67, 70, 70}, input);
    check<bf16, bf16, f32, kSmall>("gemm bf16*bf16->f32", {67, 70, 70}, input);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
