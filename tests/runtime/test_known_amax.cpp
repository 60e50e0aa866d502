// Casts whose amax is known already: on the CPU they have the bits of casts that look for it; on a GPU, by a dry run,
// they have no pass that looks for it.
#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/jit/kernel.h"
#include "support/cpu_cases.h"
#include "support/expect_error.h"
#include "support/known_amax.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_known_amax)

namespace {

struct Passes : LaunchHook {
  void before(const Stream&) override {}
  void after(const KernelSpec&, Pass pass, const Stream&) override { all.push_back(pass); }
  std::vector<Pass> all{};
};

std::vector<Pass> launched(const char* line, Shape shape, bool known) {
  DryRun dry(gpu_named("h200"));
  Stream stream(dry.backend());
  InputMaker maker;
  const Case c{.spec = parse(line), .shape = shape};
  SharedMatrices inputs = maker.inputs(c);
  const auto ones = [](std::int64_t count) {
    GuardedMatrix matrix(Dtype::f32, 1, count);
    for (std::int64_t i = 0; i < count; ++i) matrix.set_bits(0, i, 0x3f800000U);
    return std::make_shared<const GuardedMatrix>(std::move(matrix));
  };
  const auto& spec = std::get<CastSpec>(c.spec);
  if (known) inputs["known_amax"] = ones(scale_count(spec.scale, shape.rows, shape.cols));
  if (known && spec.transposed_scale) inputs["known_transposed_amax"] = ones(shape.cols);
  PlacedCase placed(c, inputs, dry.backend(), stream);
  Passes passes;
  dry.backend().device_api().set_launch_hook(&passes);
  placed.enqueue(stream);
  dry.backend().device_api().set_launch_hook(nullptr);
  return passes.all;
}

std::string refusal_of(const char* line, const Tensor& known, const Tensor& known_transposed = {}) {
  const auto spec = std::get<CastSpec>(parse(line));
  alignas(16) static std::array<float, 4096> memory;
  const auto at = [&](std::size_t place, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    return matrix(&memory.at(place), dtype, rows, cols, {});
  };
  CastTensors tensors{.input = at(0, Dtype::bf16, 4, 8),
                      .codes = at(256, Dtype::e4m3fn, 4, 8),
                      .scale_inv = at(512, Dtype::f32, 1, scale_count(spec.scale, 4, 8)),
                      .known_amax = known,
                      .known_transposed_amax = known_transposed};
  if (spec.transposed) tensors.transposed = at(768, Dtype::e4m3fn, 8, 4);
  if (spec.transposed_scale) tensors.transposed_scale_inv = at(1024, Dtype::f32, 1, 8);
  if (spec.source == ScaleSource::given) tensors.scales = at(1280, Dtype::f32, 1, 1);
  if (spec.source == ScaleSource::given) tensors.amax = at(1536, Dtype::f32, 1, 1);
  return error_of([&] { check(spec, tensors, Device{}); }, ErrorCode::invalid_argument);
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(gives_the_bits_of_a_cast_that_looks_for_it, CpuCases) {
  for (const CastSpec& spec : casts_that_take_an_amax()) {
    for (const Case& c : known_amax_cases(spec)) {
      const std::string fault = known_amax_fault(c, maker.inputs(c), *backend, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

// Twice the amax is half the scale.
BOOST_FIXTURE_TEST_CASE(is_what_the_scale_is_made_of, CpuCases) {
  const Case c{.spec = parse("cast bf16->e4m3fn scale=tensor out=codes"), .shape = {3, 5}};
  SharedMatrices inputs = maker.inputs(c);
  for (const float amax : {0.5F, 1.0F, 448.0F}) {
    inputs["known_amax"] = one_float(float_bits(amax));
    BOOST_TEST(run(c, inputs, *backend, stream).at("scale_inv").value(0, 0) == 1.0F / (448.0F / amax));
  }
}

BOOST_AUTO_TEST_CASE(saves_the_pass_that_looks_for_it) {
  const char* const both = "cast bf16->e5m2 scale=tensor out=codes,transposed";
  BOOST_TEST((launched(both, {4096, 4096}, false) == std::vector{Pass::first, Pass::main}));
  BOOST_TEST((launched(both, {4096, 4096}, true) == std::vector{Pass::main}));
  BOOST_TEST((launched(both, {256, 512}, false) == std::vector{Pass::whole}));
  BOOST_TEST((launched(both, {256, 512}, true) == std::vector{Pass::main}));
  BOOST_TEST((launched(both, {4096, 4095}, true) == std::vector{Pass::unaligned}));
  const char* const costly = "cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed,sum:f32";
  BOOST_TEST((launched(costly, {4096, 4096}, true) == std::vector{Pass::main, Pass::finish}));
  const char* const two = "cast bf16->e5m2 scale=row+col out=codes,transposed";
  BOOST_TEST((launched(two, {4096, 4096}, false) == std::vector{Pass::first, Pass::main}));
  BOOST_TEST((launched(two, {4096, 4096}, true) == std::vector{Pass::main}));
  BOOST_TEST((launched(two, {256, 512}, true) == std::vector{Pass::main}));
}

BOOST_AUTO_TEST_CASE(is_taken_by_casts_with_one_dynamic_scale) {
  std::array<float, 2> values{1, 1};
  const Tensor one = vector(values.data(), Dtype::f32, 1, {});
  for (const char* const line :
       {"cast bf16->e4m3fn scale=tensor out=codes given", "cast bf16->e4m3fn scale=row out=codes",
        "cast bf16->e4m3fn scale=col out=codes", "cast bf16->e4m3fn scale=tensor+col out=codes,transposed",
        "cast bf16->e4m3fn scale=128x128 out=codes"}) {
    BOOST_TEST(refusal_of(line, one) ==
                   "cast known_amax: is f32[1, 1] on cpu; it must not be given (a default Tensor instead): lists, "
                   "gathered rows, "
                   "given scales, casts that find it and other granularities do not take it",
               line);
  }
  const char* const takes = "cast bf16->e4m3fn scale=tensor out=codes";
  check_contains(refusal_of(takes, vector(values.data(), Dtype::f32, 2, {})), {"cast known_amax: is f32[1, 2] on cpu"});
  check_contains(refusal_of(takes, vector(values.data(), Dtype::bf16, 1, {})),
                 {"cast known_amax: is bf16[1, 1] on cpu; the spec asks for f32"});
}

// Those of rows and of columns are given together.
BOOST_AUTO_TEST_CASE(is_taken_by_casts_with_scales_of_rows_and_columns) {
  std::array<float, 8> values{};
  const auto floats = [&](std::int64_t count) { return vector(values.data(), Dtype::f32, count, {}); };
  const char* const takes = "cast bf16->e4m3fn scale=row+col out=codes,transposed";
  BOOST_TEST(refusal_of(takes, floats(4), floats(8)) == "nothing thrown");
  BOOST_TEST(refusal_of(takes, floats(4)) ==
             "cast known_transposed_amax: is missing; it must be f32[1, 8]: one for each column of the input");
  BOOST_TEST(refusal_of(takes, {}, floats(8)) ==
             "cast known_amax: is missing; it must be f32[1, 4]: one for each row of the input");
  check_contains(refusal_of(takes, floats(4), floats(7)), {"cast known_transposed_amax: is f32[1, 7] on cpu"});
  for (const char* const line :
       {"cast bf16->e4m3fn scale=tensor out=codes", "cast bf16->e4m3fn scale=row out=codes,transposed",
        "cast bf16->e4m3fn scale=col+row out=codes,transposed"}) {
    BOOST_TEST(
        refusal_of(line, {}, floats(8)) ==
            "cast known_transposed_amax: is f32[1, 8] on cpu; it must not be given (a default Tensor instead): "
            "only casts of one matrix to codes with scales of rows, and transposed codes with scales of columns, "
            "take it",
        line);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
