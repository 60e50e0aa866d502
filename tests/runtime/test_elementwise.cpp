// Elementwise expressions on the CPU: within float64's bounds (support/pointwise_reference.h), and the same bits as a
// cast's `result`, also in place.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/jit/kernel.h"
#include "support/compare.h"
#include "support/cpu_cases.h"
#include "support/elementwise_in_place.h"
#include "support/expect_error.h"
#include "support/pointwise_reference.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_elementwise)

namespace {

BOOST_FIXTURE_TEST_SUITE(on_the_cpu, CpuCasesOfCi)

BOOST_AUTO_TEST_CASE(values_are_within_float64s_bounds_and_those_of_a_cast) {
  run_all<ElementwiseSpec>(
      [&](const ElementwiseSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
        std::string fault;
        for (const SinglePass& pass : single_passes(spec, inputs)) {
          const GuardedMatrix& values = outputs.at(pass.output);
          const CastSpec cast = cast_of_values(pass.spec);
          if (fault.empty()) fault = value_fault(cast, pass.inputs, values);
          const Matrices of_cast = run({.spec = cast, .shape = c.shape}, pass.inputs, *backend, stream);
          if (fault.empty()) fault = bit_difference(pass.output, of_cast.at("result"), values);
        }
        return fault;
      });
}

BOOST_AUTO_TEST_CASE(two_expressions_give_what_two_passes_give) {
  int run_count = 0;
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.second) continue;
    std::vector<Case> all = in_place_cases(spec);
    all.push_back({.spec = spec, .shape = {37, 131}, .input = Input::nan});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, *backend, stream);
      const std::string fault = damage(outputs) + difference_from_single_passes(c, inputs, outputs, *backend, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      ++run_count;
    }
  }
  BOOST_TEST(run_count > 40);
}

BOOST_AUTO_TEST_CASE(the_amax_is_that_of_another_pass) {
  int run_count = 0;
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.amax) continue;
    std::vector<Case> all = in_place_cases(spec);
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::equal, Input::subnormal}) {
      all.push_back({.spec = spec, .shape = {37, 131}, .input = input});
    }
    all.push_back({.spec = spec, .shape = {1481, 677}});  // in several threads
    for (const Case& c : all) {
      const Matrices outputs = run(c, maker.inputs(c), *backend, stream);
      const std::string fault = damage(outputs) + amax_fault(c, outputs, *backend, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      ++run_count;
    }
  }
  BOOST_TEST(run_count > 50);
}

BOOST_AUTO_TEST_CASE(the_sums_of_rows_are_float64s) {
  int run_count = 0;
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.row_sum) continue;
    std::vector<Case> all = in_place_cases(spec);
    all.push_back({.spec = spec, .shape = {37, 131}, .input = Input::nan});
    all.push_back({.spec = spec, .shape = {531, 677}});  // in several threads
    all.push_back({.spec = spec, .shape = {0, 8}});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, *backend, stream);
      std::string fault = damage(outputs) + sums_fault(c, inputs, outputs);
      if (c.input != Input::nan) {
        for (const WrittenOver& over : choices_in_place(spec)) {
          fault += fault_in_place(c, inputs, over, outputs, *backend, stream);
        }
      }
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      ++run_count;
    }
  }
  BOOST_TEST(run_count == 45);
}

// NaN is a maximum, too. Sums are the same with and without maxima.
BOOST_AUTO_TEST_CASE(the_maxima_are_those_of_other_passes) {
  int run_count = 0;
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.maxima) continue;
    for (const Case& c : maxima_cases(spec)) {
      const std::string fault = maxima_case_fault(c, maker.inputs(c), *backend, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      ++run_count;
    }
  }
  BOOST_TEST(run_count == 39);
}

// On a GPU, by a dry run: a row's maxima of both outputs fit a block, or other kernels find them.
BOOST_AUTO_TEST_CASE(maxima_take_one_launch_or_three) {
  struct Launches : LaunchHook {
    void before(const Stream&) override {}
    void after(const KernelSpec& spec, Pass pass, const Stream&) override {
      all.push_back(print(spec) + (pass == Pass::first ? ", first" : ""));
    }
    std::vector<std::string> all{};
  };
  const auto launched = [&](const char* line, Shape shape) {
    DryRun dry(gpu_named("h200"));
    Stream dry_stream(dry.backend());
    const Case c{.spec = parse(line), .shape = shape};
    PlacedCase placed(c, maker.inputs(c), dry.backend(), dry_stream);
    Launches launches;
    dry.backend().device_api().set_launch_hook(&launches);
    placed.enqueue(dry_stream);
    dry.backend().device_api().set_launch_hook(nullptr);
    return launches.all;
  };
  const char* const pair = "elementwise bf16 of=x second=-x row_sum=x maxima";
  const std::vector<std::string> one{pair};
  const std::string search = "cast bf16->e4m3fn scale=row+col out=codes,transposed, first";
  const std::vector<std::string> three{"elementwise bf16 of=x second=-x row_sum=x", search, search};
  BOOST_TEST((launched(pair, {3, 24576}) == one));
  BOOST_TEST((launched(pair, {3, 24577}) == three));
  BOOST_TEST(launched("elementwise bf16 of=x maxima", {3, 49152}).size() == 1U);
  BOOST_TEST(launched("elementwise bf16 of=x maxima", {3, 49153}).size() == 2U);
  BOOST_TEST(launched(pair, {3, 0}).empty());
}

BOOST_AUTO_TEST_CASE(sums_of_rows_without_columns_are_zero) {
  std::array<float, 3> sums{1, 2, 3};
  backend->elementwise(std::get<ElementwiseSpec>(parse("elementwise f32 of=x row_sum=x+1")),
                       {.input = matrix(nullptr, Dtype::f32, 3, 0, {}),
                        .output = matrix(nullptr, Dtype::f32, 3, 0, {}),
                        .sums = vector(sums.data(), Dtype::f32, 3, {})},
                       stream);
  for (const float sum : sums) BOOST_TEST(float_bits(sum) == 0U);
}

// Of both outputs, rounded: 2049 becomes 2048 in f16. A call clears what was there.
BOOST_AUTO_TEST_CASE(the_amax_is_of_all_that_is_written) {
  const auto find = [&](const char* line, const std::vector<float>& x) {
    float amax = 1e30F;
    std::vector<std::uint16_t> half(x.size()), first(x.size()), second(x.size());
    std::ranges::transform(x, half.begin(), [](float value) { return from_float<f16>(value).bits; });
    const auto row = [](std::vector<std::uint16_t>& of) {
      return matrix(of.data(), Dtype::f16, 1, static_cast<std::int64_t>(of.size()), {});
    };
    const auto spec = std::get<ElementwiseSpec>(parse(line));
    ElementwiseTensors tensors{.input = row(half), .output = row(first), .amax = vector(&amax, Dtype::f32, 1, {})};
    if (spec.second) tensors.second = row(second);
    backend->elementwise(spec, tensors, stream);
    return amax;
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  BOOST_TEST(find("elementwise f16 of=x amax", {1, -3, 2}) == 3.0F);
  BOOST_TEST(find("elementwise f16 of=x*0.5 second=x amax", {1, -3, 2}) == 3.0F);
  BOOST_TEST(find("elementwise f16 of=x second=x*0.5 amax", {1, -3, 2}) == 3.0F);
  BOOST_TEST(find("elementwise f16 of=x+1 amax", {2048, 7}) == 2048.0F);
  BOOST_TEST(find("elementwise f16 of=x*x amax", {1, 1000}) == kInf);
  BOOST_TEST(float_bits(find("elementwise f16 of=-x amax", {0, 0})) == 0U);  // not that of -0
  BOOST_TEST(float_bits(find("elementwise f16 of=x second=1/x-1/x amax", {3, 0, 5})) == kF32Nan);
  BOOST_TEST(float_bits(find("elementwise f16 of=x amax", {})) == 0U);
}

// As the gradients of gate and up, which one layer computes together.
BOOST_AUTO_TEST_CASE(two_outputs_may_be_columns_of_one_matrix) {
  const auto spec = std::get<ElementwiseSpec>(parse("elementwise f32 of=x second=-x"));
  std::array<float, 6> x{1, 2, 3, 4, 5, 6};
  std::array<float, 16> outputs{};
  const auto columns = [&](std::size_t begin) {
    Tensor view = matrix(&outputs.at(begin), Dtype::f32, 2, 3, {});
    view.row_stride = 8;
    return view;
  };
  backend->elementwise(
      spec, {.input = matrix(x.data(), Dtype::f32, 2, 3, {}), .output = columns(1), .second = columns(4)}, stream);
  const std::array<float, 16> expected{0, 1, 2, 3, -1, -2, -3, 0, 0, 4, 5, 6, -4, -5, -6, 0};
  BOOST_TEST_CHECK(outputs == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_value_that_is_off_is_seen) {
  for (const KernelSpec& any : elementwise_specs()) {
    const Case c{.spec = any, .shape = {20, 30}};
    const SharedMatrices inputs = maker.inputs(c);
    GuardedMatrix values = run(c, inputs, *backend, stream).at("output");
    const SinglePass first = single_passes(std::get<ElementwiseSpec>(any), inputs).front();
    const CastSpec cast = cast_of_values(first.spec);
    BOOST_TEST(value_fault(cast, first.inputs, values) == "");
    values.set_bits(7, 9, values.bits(7, 9) ^ (values.dtype() == Dtype::f32 ? 0x00400000U : 0x0040U));
    check_contains(value_fault(cast, first.inputs, values), {"row 7, col 9"});
  }
}

BOOST_AUTO_TEST_CASE(outputs_may_be_matrices_that_are_read) {
  int run_count = 0;
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    for (const Case& c : in_place_cases(spec)) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices expected = run(c, inputs, *backend, stream);
      for (const WrittenOver& over : choices_in_place(spec)) {
        const std::string fault = fault_in_place(c, inputs, over, expected, *backend, stream);
        BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
        ++run_count;
      }
    }
  }
  BOOST_TEST(run_count > 50);
}

BOOST_AUTO_TEST_CASE(without_elements_there_is_nothing_to_do) {
  const auto spec = std::get<ElementwiseSpec>(parse("elementwise bf16 of=x*r[row]"));
  float row = 2.0F;
  backend->elementwise(spec,
                       {.input = matrix(nullptr, Dtype::bf16, 0, 5, {}),
                        .inputs = {Tensor{}},
                        .output = matrix(nullptr, Dtype::bf16, 0, 5, {})},
                       stream);
  backend->elementwise(spec,
                       {.input = matrix(nullptr, Dtype::bf16, 1, 0, {}),
                        .inputs = {vector(&row, Dtype::f32, 1, {})},
                        .output = matrix(nullptr, Dtype::bf16, 1, 0, {})},
                       stream);
}

BOOST_AUTO_TEST_CASE(values_do_not_depend_on_the_number_of_threads) {
  const Case c{.spec = parse("elementwise bf16 of=silu(x)*gate"), .shape = {1481, 677}};
  const SharedMatrices inputs = maker.inputs(c);
  const GuardedMatrix expected = run(c, inputs, *backend, stream).at("output");
  for (const int threads : {1, 7}) {
    const std::unique_ptr<Backend> other = make_cpu_backend(threads);
    Stream own(*other);
    BOOST_TEST(bit_difference("output", expected, run(c, inputs, *other, own).at("output")) == "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
