// Casts of experts' rows, whose blocks of 128 begin with each expert's first: that they have the bits of casts of each
// expert's rows by themselves, and what is refused.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "support/cast_experts_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_experts)

BOOST_AUTO_TEST_CASE(blocks_begin_with_each_experts_first_row) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const ExpertsCastCase& c : experts_cast_cases()) {
    const ExpertsCastInputs inputs(c);
    const PlacedExpertsCast placed(c, inputs, *backend, stream);
    backend->cast(c.spec, placed.tensors(), stream);
    BOOST_TEST(experts_difference(expected_of_experts(c, inputs), placed.outputs(stream)) == "", describe(c));
  }
}

namespace {

struct Fixture {
  DryRun dry{gpu_named("h200")};
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  ExpertsCastCase c{.spec = experts_cast_specs().front(), .ends = {5, 5, 9}, .rows = 9, .cols = 8};

  std::string refusal(Backend& backend, const std::function<void(CastSpec&, CastTensors&)>& change,
                      ErrorCode code = ErrorCode::invalid_argument) {
    Stream stream(backend);
    const PlacedExpertsCast placed(c, ExpertsCastInputs(c), backend, stream);
    CastSpec spec = c.spec;
    CastTensors tensors = placed.tensors();
    change(spec, tensors);
    return error_of([&] { backend.cast(spec, tensors, stream); }, code);
  }
  std::string refusal(const std::function<void(CastSpec&, CastTensors&)>& change,
                      ErrorCode code = ErrorCode::invalid_argument) {
    return refusal(dry.backend(), change, code);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(refusals, Fixture)

BOOST_AUTO_TEST_CASE(ends) {
  const auto nothing = [](CastSpec&, CastTensors&) {};
  c.ends = {5, 4, 9};
  check_contains(refusal(*cpu, nothing),
                 {"cast ends: say that expert 1 ends at row 4, but the one before ends at row 5: ends must not "
                  "decrease"});
  c.ends = {5, 5, 10};
  check_contains(refusal(*cpu, nothing), {"cast ends: say that expert 2 ends at row 10, but the cast has 9 rows"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.ends = {}; }),
                 {"cast ends: are of 0 experts, but there must be 1 to 512"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.ends.data = nullptr; }),
                 {"cast ends: have a null data pointer; they must be int32, one for each expert"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.ends.device = {}; }),
                 {"cast ends: are on cpu; this backend works on cuda:0: copy them there"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.ends.capacity = 3; }),
                 {"cast ends: have a capacity, but the rows of a cast follow each other: leave it out"});
  check_contains(refusal([](CastSpec& spec, CastTensors&) { spec.experts = false; }),
                 {"cast ends: must not be given (default ExpertEnds instead): the spec has no experts"});
}

// Four slots of 9 rows by three experts.
BOOST_AUTO_TEST_CASE(shapes_of_outputs) {
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed.cols = 9; }),
                 {"cast transposed: is e4m3fn[8, 9]",
                  "it must be [8, 512]: the columns of the input, 128 for each slot of the experts"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed_scale_inv.cols = 24; }),
                 {"cast transposed_scale_inv: is f32[1, 24]",
                  "it must be [1, 32]: one for each group of 128 in a column of the slots"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.scale_inv.data = const_cast<std::int32_t*>(t.ends.data); }),
                 {"cast scale_inv", "its memory overlaps that of cast ends, which is u8[1, 12]"});
}

BOOST_AUTO_TEST_CASE(given_scales) {
  c.spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=tensor out=codes,transposed given experts"));
  for (Tensor CastTensors::*const each : {&CastTensors::scales, &CastTensors::amax, &CastTensors::scale_inv}) {
    check_contains(refusal([&](CastSpec&, CastTensors& t) { (t.*each).cols = 1; }),
                   {"is f32[1, 1]", "it must be [1, 3]: one for each expert"});
  }
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed.cols = 8; }),
                 {"cast transposed: is e4m3fn[8, 8]", "it must be [8, 9]: the input's shape, transposed"});
}

BOOST_AUTO_TEST_CASE(specs) {
  const auto expect = [&](const std::string& words, const std::string& fault) {
    check_contains(error_of([&] { validate(parse("cast bf16->e4m3fn " + words)); }, ErrorCode::invalid_spec),
                   {"experts is set, but " + fault});
  };
  const std::string blocks = "scale=1x128+128x1 out=codes,transposed";
  const std::string scales =
      "its scales are not 1x128+128x1, or 128x1 of transposed codes alone: other casts have no "
      "blocks along the rows, and know no experts";
  expect("scale=row+col out=codes,transposed experts", scales);
  expect("scale=1x128 out=codes experts", scales);
  expect("scale=128x1 out=codes,transposed experts", scales);
  expect("scale=128x128 out=codes,transposed experts", scales);
  expect(blocks + ",sum:f32 experts", "experts' rows have no column sums: cast without them");
  const std::string each = "given scales are not one for each expert: set scale=tensor";
  expect(blocks + " given experts", each);
  expect("scale=row out=codes,transposed given experts", each);
  expect("scale=tensor+row out=codes,transposed given experts", each);
  expect(blocks + " list experts", "the matrices of a list have no experts: leave one of them out");
  expect(blocks + " stacked experts", "stacked matrices have no experts: leave one of them out");
  for (const CastSpec& spec : experts_cast_specs()) {
    BOOST_TEST((parse(print(spec)) == KernelSpec(spec)), print(spec));
    CastSpec other = spec;
    other.experts = false;
    BOOST_TEST(hash_value(spec) != hash_value(other));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_CASE(one_launch, Fixture) {
  Backend& backend = dry.backend();
  Stream stream(backend);
  for (const ExpertsCastCase& each : experts_cast_cases()) {
    const PlacedExpertsCast placed(each, ExpertsCastInputs(each), backend, stream);
    const std::int64_t before = backend.device_api().launches();
    backend.cast(each.spec, placed.tensors(), stream);
    const bool launches = each.cols != 0 || each.spec.source == ScaleSource::given;
    BOOST_TEST(backend.device_api().launches() - before == (launches ? 1 : 0), describe(each));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
