// Elementwise expressions on the GPU: the same bits as a cast's `result`, also in place, and in consecutive calls.
// (test_backends_gpu.cpp compares them with the CPU.)
#include "support/gpu_test.h"

#include <memory>
#include <string>

#include "cases.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/elementwise_in_place.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_elementwise_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream{*cpu};
  InputMaker maker;
};

BOOST_FIXTURE_TEST_CASE(values_are_those_of_a_cast, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    for (const Shape shape : {Shape{37, 131}, Shape{300, 1000}}) {
      const Case c{.spec = any, .shape = shape};
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, cuda, stream);
      for (const SinglePass& pass : single_passes(std::get<ElementwiseSpec>(any), inputs)) {
        const Case cast{.spec = cast_of_values(pass.spec), .shape = shape};
        const std::string fault =
            bit_difference(pass.output, run(cast, pass.inputs, cuda, stream).at("result"), outputs.at(pass.output));
        BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      }
    }
  }
}

// Also fast ones, whose bits the CPU does not have.
BOOST_FIXTURE_TEST_CASE(two_expressions_give_what_two_passes_give, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.second) continue;
    std::vector<Case> all = in_place_cases(spec);
    all.push_back({.spec = spec, .shape = {4096, 4096}});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, cuda, stream);
      const std::string fault = damage(outputs) + difference_from_single_passes(c, inputs, outputs, cuda, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

// Also of NaN, and of outputs that are the inputs' own memory; and again where an amax is already.
BOOST_FIXTURE_TEST_CASE(the_amax_is_that_of_another_pass, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.amax) continue;
    std::vector<Case> all = in_place_cases(spec);
    for (const Shape shape : {Shape{37, 131}, Shape{300, 1000}}) {
      for (const Input input : {Input::nan, Input::inf, Input::zeros}) {
        all.push_back({.spec = spec, .shape = shape, .input = input});
      }
    }
    all.push_back({.spec = spec, .shape = {4096, 4096}});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, cuda, stream);
      std::string fault = damage(outputs) + amax_fault(c, outputs, cuda, stream);
      fault += bit_difference("amax", outputs.at("amax"), run_in_place(c, inputs, {}, cuda, stream, 3).at("amax"));
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

// test_backends_gpu.cpp compares the bits of small ones with the CPU's.
BOOST_FIXTURE_TEST_CASE(the_sums_of_rows_are_float64s, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.row_sum) continue;
    std::vector<Case> all = in_place_cases(spec);
    all.push_back({.spec = spec, .shape = {300, 1000}, .input = Input::nan});
    all.push_back({.spec = spec, .shape = {33, 14336}});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, cuda, stream);
      const std::string fault = damage(outputs) + sums_fault(c, inputs, outputs);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

// Also of rows whose maxima do not fit a block, and again where maxima are already.
BOOST_FIXTURE_TEST_CASE(the_maxima_are_those_of_other_passes, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    if (!spec.maxima) continue;
    std::vector<Case> all = maxima_cases(spec);
    for (const Shape shape :
         {Shape{4096, 2816}, Shape{4099, 4096}, Shape{301, 14336}, Shape{5, 24584}, Shape{2, 98312}}) {
      all.push_back({.spec = spec, .shape = shape});
    }
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      std::string fault = maxima_case_fault(c, inputs, cuda, stream);
      fault += maxima_fault(c, run_in_place(c, inputs, {}, cuda, stream, 3), cuda, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(outputs_may_be_matrices_that_are_read, Fixture) {
  for (const KernelSpec& any : elementwise_specs()) {
    const auto& spec = std::get<ElementwiseSpec>(any);
    std::vector<Case> all = in_place_cases(spec);
    all.push_back({.spec = spec, .shape = {4096, 4096}});
    all.push_back({.spec = spec, .shape = {3001, 1037}});
    for (const Case& c : all) {
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices expected = run(c, inputs, cuda, stream);
      for (const WrittenOver& over : choices_in_place(spec)) {
        const std::string fault = fault_in_place(c, inputs, over, expected, cuda, stream);
        BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      }
    }
  }
}

// Each call reads what the previous one wrote; without its wait it could overtake it.
BOOST_FIXTURE_TEST_CASE(calls_in_place_follow_each_other, Fixture) {
  for (const Shape shape : {Shape{8, 64}, Shape{37, 131}, Shape{1024, 2048}}) {
    const Case c{.spec = parse("elementwise bf16 of=x+0.5*max(gate-x,0.1)"), .shape = shape};
    const SharedMatrices inputs = maker.inputs(c);
    const WrittenOver over{{"output", "input"}};
    const std::string fault = bit_difference("input", run_in_place(c, inputs, over, *cpu, cpu_stream, 20).at("output"),
                                             run_in_place(c, inputs, over, cuda, stream, 20).at("output"));
    BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
