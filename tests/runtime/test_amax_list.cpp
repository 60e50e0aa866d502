// Lists of maxima on the CPU: their refusals, and that each has the maxima of its matrix.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/jit/recorder.h"
#include "support/amax_list_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_amax_list)

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  AmaxSpec spec{.scale = kRowwise, .second_scale = kTensorwise};
  ListedAmax listed{spec, stream};

  std::string refusal(const AmaxSpec& which, const std::vector<AmaxTensors>& tensors,
                      ErrorCode code = ErrorCode::invalid_argument) {
    return error_of([&] { backend->make_amax_list(which, tensors, stream); }, code);
  }
};

BOOST_FIXTURE_TEST_SUITE(amax_list, Fixture)

BOOST_AUTO_TEST_CASE(maxima_are_those_of_the_elements) {
  for (const AmaxSpec& one : amax_list_specs())
    BOOST_TEST(amax_list_difference(one, *backend, stream) == "", print(one));
}

BOOST_AUTO_TEST_CASE(an_empty_list_runs) { backend->make_amax_list(spec, {}, stream)->run(stream); }

BOOST_AUTO_TEST_CASE(a_single_call_refuses_the_spec_of_a_list) {
  check_contains(
      error_of([&] { backend->amax({.list = true}, listed.tensors[0], stream); }, ErrorCode::invalid_argument),
      {"amax bf16 scale=tensor list", "this is the spec of a list: make one with make_amax_list()"});
}

BOOST_AUTO_TEST_CASE(what_is_missing_or_too_much_is_named) {
  std::vector<AmaxTensors> tensors = listed.tensors;
  tensors[1].second_amax = {};
  check_contains(refusal(spec, tensors), {"amax 1 of 8 of a list", "amax second_amax", "is missing"});
  check_contains(refusal({.scale = kRowwise}, listed.tensors),
                 {"amax 0 of 8 of a list", "amax second_amax", "the spec has no second_scale"});
  tensors = listed.tensors;
  tensors[3].input.dtype = Dtype::f16;
  check_contains(refusal(spec, tensors), {"amax 3 of 8 of a list", "amax input", "the spec asks for bf16"});
  check_contains(refusal({.list = true, .second_scale = kTensorwise}, {}, ErrorCode::invalid_spec), {"as scale is"});
}

BOOST_AUTO_TEST_CASE(maxima_overlap_nothing) {
  std::vector<AmaxTensors> tensors = listed.tensors;
  tensors[4].second_amax.data = tensors[0].amax.data;
  check_contains(refusal(spec, tensors),
                 {"second_amax of amax 4", "its memory overlaps that of the amax of amax 0", "its own memory"});
  tensors = listed.tensors;
  tensors[3].second_amax.data = tensors[3].input.data;
  check_contains(refusal(spec, tensors), {"amax 3 of 8 of a list", "overlaps that of amax input"});
}

BOOST_AUTO_TEST_CASE(a_list_is_recorded_as_a_list_alone) {
  Recorder recorder;
  const std::unique_ptr<Backend> recorded = make_cpu_backend(1, &recorder);
  Stream its_stream(*recorded);
  const ListedAmax one(spec, its_stream);
  recorded->make_amax_list(spec, one.tensors, its_stream)->run(its_stream);
  AmaxSpec of_list = spec;
  of_list.list = true;
  BOOST_TEST((recorder.recording().kernels() == std::vector<KernelSpec>{of_list}));
}

BOOST_AUTO_TEST_CASE(another_backends_stream_is_refused) {
  const std::unique_ptr<Backend> second = make_cpu_backend();
  Stream foreign(*second);
  const auto list = backend->make_amax_list(spec, listed.tensors, stream);
  check_contains(error_of([&] { list->run(foreign); }, ErrorCode::invalid_argument),
                 {"belongs to another Context's backend"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
