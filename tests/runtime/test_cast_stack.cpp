// Casts of stacked matrices: what is refused, and that each has the bits of a cast by itself.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/cast_stack_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_stack)

BOOST_AUTO_TEST_CASE(each_matrix_is_cast_as_by_itself) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const StackCase& c : stack_cases()) {
    const GuardedMatrix input = stack_input(c);
    const PlacedStack placed(c, input, *backend, stream);
    backend->cast(c.spec, placed.tensors(), stream);
    BOOST_TEST(stack_difference(cast_one_by_one(c, input), placed.outputs(stream)) == "", describe(c));
  }
}

// Twice the amax is half the scale.
BOOST_AUTO_TEST_CASE(scales_are_made_of_known_maxima) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const CastSpec& spec : stacked_specs_with_known_maxima()) {
    const StackCase c{.spec = spec, .matrices = 3, .rows = 5, .cols = 7, .known = true};
    const PlacedStack placed(c, stack_input(c), *backend, stream);
    const auto scale_inv = [&] {
      backend->cast(spec, placed.tensors(), stream);
      return placed.outputs(stream).at("scale_inv");
    };
    const GuardedMatrix before = scale_inv();
    const Tensor& known = placed.tensors().known_amax;
    for (std::int64_t i = 0; i < known.cols; ++i) static_cast<float*>(known.data)[i] *= 2;
    const GuardedMatrix after = scale_inv();
    for (std::int64_t i = 0; i < known.cols; ++i) BOOST_TEST(after.value(0, i) == 2 * before.value(0, i), print(spec));
  }
}

namespace {

struct Fixture {
  DryRun dry{gpu_named("h200")};
  Backend& backend = dry.backend();
  Stream stream{backend};
  StackCase c{
      .spec = {.codes = true, .transposed = true, .stacked = true}, .matrices = 3, .rows = 4, .cols = 8, .padding = 8};

  std::string refusal(const std::function<void(CastSpec&, CastTensors&)>& change,
                      ErrorCode code = ErrorCode::invalid_argument) {
    const PlacedStack placed(c, stack_input(c), backend, stream);
    CastSpec spec = c.spec;
    CastTensors tensors = placed.tensors();
    change(spec, tensors);
    return error_of([&] { backend.cast(spec, tensors, stream); }, code);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(refusals, Fixture)

BOOST_AUTO_TEST_CASE(numbers_of_matrices) {
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.matrices = 5; }),
                 {"cast matrices: is 5; the cast input is bf16[12, 8] on cuda:0, row stride 16, whose rows are not "
                  "those of 5 matrices of one size: give it a multiple of 5"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.matrices = 0; }),
                 {"cast matrices: is 0; the cast input is bf16[12, 8]", "0 matrices of one size: give it none"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.matrices = -3; }),
                 {"cast matrices: is -3; it must be 0 or more"});
  check_contains(refusal([](CastSpec& spec, CastTensors&) { spec.stacked = false; }),
                 {"cast matrices: is 3; the spec casts one: set stacked for more"});
  check_contains(refusal([](CastSpec&, CastTensors& t) {
                   t.input.rows = 0;
                   t.input.cols = t.input.row_stride = std::int64_t{1} << 48;
                   t.matrices = std::int64_t{1} << 20;
                 }),
                 {"cast matrices: is 1048576", "that many columns in all overflow 64 bits"});
}

BOOST_AUTO_TEST_CASE(shapes_of_outputs) {
  check_contains(
      refusal([](CastSpec&, CastTensors& t) { t.transposed.rows = 8; }),
      {"cast transposed: is e4m3fn[8, 4]", "it must be [24, 4]: the transpose of each matrix, one after the other"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed = {}; }),
                 {"cast transposed: is missing; it must be e4m3fn[24, 4]"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.codes.rows = 4; }),
                 {"cast codes: is e4m3fn[4, 8]", "it must be [12, 8]: the input's shape"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed.data = t.codes.data; }),
                 {"cast transposed", "its memory overlaps that of cast codes"});
}

BOOST_AUTO_TEST_CASE(numbers_of_scales) {
  const auto one = [](Tensor& values) { values.cols = values.row_stride = 1; };
  check_contains(
      refusal([&](CastSpec&, CastTensors& t) { one(t.scale_inv); }),
      {"cast scale_inv: is f32[1, 1]", "it must be [1, 3]: of each of 3 matrices of 4 x 8, one for the whole matrix"});
  c.spec.scale = kRowwise;
  c.spec.transposed_scale = kColumnwise;
  check_contains(refusal([&](CastSpec&, CastTensors& t) { one(t.scale_inv); }),
                 {"it must be [1, 12]: of each of 3 matrices of 4 x 8, one for each row"});
  check_contains(
      refusal([&](CastSpec&, CastTensors& t) { one(t.transposed_scale_inv); }),
      {"cast transposed_scale_inv", "it must be [1, 24]: of each of 3 matrices of 4 x 8, one for each column"});
  // By group they are of one matrix.
  c.spec.scale = kRowGroups;
  c.cols = 300;
  check_contains(
      refusal([&](CastSpec&, CastTensors& t) {
        t.scale_inv.rows = 3;
        t.scale_inv.cols = t.scale_inv.row_stride = 12;
      }),
      {"cast scale_inv: is f32[3, 12]",
       "it must be [1, 36]: of each of 3 matrices of 4 x 300, one for each group of 128 in a row, row by row"});
}

BOOST_AUTO_TEST_CASE(known_and_found_maxima) {
  const auto knows = [](CastSpec&, CastTensors& t) {
    t.known_amax = t.scale_inv;
    t.known_amax.cols = t.known_amax.row_stride = 2;
  };
  check_contains(refusal(knows), {"cast known_amax: is f32[1, 2]",
                                  "it must be [1, 3]: of each of 3 matrices of 4 x 8, one for the whole matrix"});
  c.spec.scale = kColumnwise;
  check_contains(refusal(knows), {"it must be [1, 24]: of each of 3 matrices of 4 x 8, one for each column"});
  c.spec.scale = kRowwise;
  check_contains(refusal(knows), {"cast known_amax",
                                  "lists, gathered rows, given scales, casts that find it and other granularities "
                                  "do not take it"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.found_amax = t.scale_inv; }),
                 {"cast found_amax", "must not be given", "the spec does not ask for this output"});
  c.spec.transposed = false;
  c.spec.found_amax = kColumnwise;
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.found_amax = {}; }),
                 {"cast found_amax: is missing; it must be f32[1, 24]"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.found_amax = t.scale_inv; }),
                 {"cast found_amax: is f32[1, 12]",
                  "it must be [1, 24]: of each of 3 matrices of 4 x 8, one for each "
                  "column"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.found_amax.data = t.scale_inv.data; }),
                 {"cast found_amax", "its memory overlaps that of cast scale_inv"});
}

BOOST_AUTO_TEST_CASE(specs) {
  check_contains(refusal([](CastSpec& spec, CastTensors&) { spec.list = true; }, ErrorCode::invalid_spec),
                 {"list stacked: stacked is set, but the matrices of a list are tensors of their own"});
  check_contains(refusal([](CastSpec& spec, CastTensors&) { spec.sum = Dtype::f32; }, ErrorCode::invalid_spec),
                 {"stacked is set, but stacked matrices have no column sums: cast each of them alone"});
  const CastSpec spec = c.spec;
  check_contains(error_of([&] { backend.make_cast_list(spec, {}, stream); }, ErrorCode::invalid_spec),
                 {"stacked is set, but the matrices of a list are tensors of their own: leave one of them out"});
}

BOOST_AUTO_TEST_SUITE_END()

// A launch for each pass, whatever the number of matrices; what goes along the rows is one launch.
BOOST_FIXTURE_TEST_CASE(launches, Fixture) {
  c = {.matrices = 6, .rows = 96, .cols = 128};
  const auto launches_of = [&](const char* words, bool known = false) {
    c.known = known;
    c.spec = std::get<CastSpec>(parse(std::string("cast bf16->e4m3fn stacked ") + words));
    const PlacedStack placed(c, stack_input(c), backend, stream);
    const auto run = [&] { backend.cast(c.spec, placed.tensors(), stream); };
    const std::int64_t before = backend.device_api().launches();
    run();
    const std::int64_t launched = backend.device_api().launches() - before;
    const Graph graph(stream, run);
    BOOST_TEST(backend.device_api().launches() - before == 2 * launched, words);
    return launched;
  };
  BOOST_TEST(launches_of("scale=tensor out=codes,transposed") == 2);
  BOOST_TEST(launches_of("scale=row+col out=codes,transposed") == 2);
  BOOST_TEST(launches_of("scale=128x128 out=codes,transposed") == 1);
  BOOST_TEST(launches_of("scale=tensor out=codes given") == 1);
  BOOST_TEST(launches_of("scale=row out=codes") == 1);
  BOOST_TEST(launches_of("scale=1x128 out=codes") == 1);
  BOOST_TEST(launches_of("scale=row out=codes,amax:col") == 1);
  BOOST_TEST(launches_of("scale=tensor out=codes,amax:tensor") == 2);
  BOOST_TEST(launches_of("scale=col out=transposed") == 2);
  BOOST_TEST(launches_of("scale=col out=transposed", true) == 1);
  BOOST_TEST(launches_of("scale=tensor out=codes,transposed", true) == 1);
  c.padding = 3;
  BOOST_TEST(launches_of("scale=row out=codes,amax:col") == 2);
  c.padding = 0;
  c.rows = 16;
  c.cols = 24584;
  BOOST_TEST(launches_of("scale=row out=codes,amax:col") == 2);
}

// The sizes of one launch: 16777217 matrices of 128 tiles.
BOOST_FIXTURE_TEST_CASE(more_tiles_than_a_launch_has_blocks, Fixture) {
  c = {.spec = c.spec, .matrices = 1, .rows = 0, .cols = 128};
  c.spec.source = ScaleSource::given;
  c.spec.scale = kColumnwise;
  c.cols = 128 * 128;
  check_contains(refusal([](CastSpec&, CastTensors& t) {
                   constexpr std::int64_t kMatrices = 16777217;
                   t.matrices = kMatrices;
                   t.transposed.rows *= kMatrices;
                   std::uintptr_t place = std::uintptr_t{1} << 46;
                   for (Tensor* const values : {&t.scale_inv, &t.scales, &t.amax}) {
                     values->cols = values->row_stride = 16384 * kMatrices;
                     values->data = reinterpret_cast<void*>(place);
                     place *= 2;
                   }
                 }),
                 {"the tensors need 2147483776 blocks", "2147483647"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
