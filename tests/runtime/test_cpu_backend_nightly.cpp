// Tensors past 2^31 elements on the CPU: outputs compared on the first, middle and last rows and columns. 9 GB of
// memory.
#define BOOST_TEST_MODULE cpu_backend_nightly
#include <boost/test/included/unit_test.hpp>

#include <memory>

#include "cases.h"
#include "ingot/runtime/cpu/cpu_backend.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {
namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;

  static Tensor view(const GuardedMatrix& matrix) {
    return matrix.view(const_cast<std::byte*>(matrix.bytes().data()), {});  // inputs are only read
  }

  // In place: copies of these tensors would not fit on every machine.
  Matrices run_in_place(const Case& c, const GuardedMatrix& input) {
    Matrices outputs = poisoned_outputs(c);
    const auto output = [&](const char* what) { return outputs.contains(what) ? view(outputs.at(what)) : Tensor{}; };
    if (const auto* const spec = std::get_if<AmaxSpec>(&c.spec)) {
      backend->amax(*spec, {.input = view(input), .amax = output("amax")}, stream);
    } else if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) {
      backend->cast(*cast,
                    {.input = view(input),
                     .codes = output("codes"),
                     .transposed = output("transposed"),
                     .factors = output("factors")},
                    stream);
    } else {
      backend->column_sum(std::get<ColumnSumSpec>(c.spec), {.input = view(input), .sum = output("sum")}, stream);
    }
    return outputs;
  }
};

// A few rows or columns of a dimension, the last ones past 2^31 elements.
std::vector<std::int64_t> samples(std::int64_t size) { return {0, 1, size / 2, size - 2, size - 1}; }

void check_amax(ScaleGranularity scale, const GuardedMatrix& input, const GuardedMatrix& amax) {
  if (scale == kTensorwise) {
    BOOST_TEST(amax.value(0, 0) == static_cast<double>(kLastOfNormal));
    return;
  }
  for (const std::int64_t r : samples(input.rows())) BOOST_TEST(amax.value(0, r) == amax_of_rows(input, r, r + 1));
}

void check_cast(const CastSpec& spec, const GuardedMatrix& input, const Matrices& outputs) {
  int faults = 0;
  for (const std::int64_t r : samples(input.rows())) {
    const double amax = spec.scale == kTensorwise ? static_cast<double>(kLastOfNormal) : amax_of_rows(input, r, r + 1);
    const float scale = scale_reference(spec, amax);
    BOOST_TEST(outputs.at("factors").value(0, spec.scale == kTensorwise ? 0 : r) == static_cast<double>(1.0F / scale));
    for (std::int64_t c = 0; c < input.cols() && faults < 10; ++c) {
      const std::uint32_t expected = encode_reference(spec.out, static_cast<float>(input.value(r, c)) * scale);
      const bool same = outputs.at("codes").bits(r, c) == expected && outputs.at("transposed").bits(c, r) == expected;
      BOOST_CHECK_MESSAGE(same, "row " << r << ", col " << c << ": expected code " << expected << ", got "
                                       << outputs.at("codes").bits(r, c) << " and transposed "
                                       << outputs.at("transposed").bits(c, r));
      faults += same ? 0 : 1;
    }
  }
}

void check_column_sum(const ColumnSumSpec& spec, const GuardedMatrix& input, const GuardedMatrix& sum) {
  for (const std::int64_t c : samples(input.cols())) {
    double expected = 0;
    double magnitude = 0;
    for (std::int64_t r = 0; r < input.rows(); ++r) {
      expected += input.value(r, c);
      magnitude += std::fabs(input.value(r, c));
    }
    BOOST_TEST(std::fabs(sum.value(0, c) - expected) <= sum_bound(spec.out, 1024, expected, magnitude));
  }
}

BOOST_FIXTURE_TEST_CASE(past_2_to_the_31_elements, Fixture) {
  int run_count = 0;
  for (const Case& c : cases(SizeClass::huge)) {
    BOOST_TEST_CONTEXT(name(c)) {
      const std::shared_ptr<const GuardedMatrix> input = maker.inputs(c).at("input");
      BOOST_REQUIRE(input->rows() * input->cols() > std::int64_t{1} << 31U);
      const Matrices outputs = run_in_place(c, *input);
      BOOST_TEST(damage(outputs) == "");
      if (const auto* const amax = std::get_if<AmaxSpec>(&c.spec)) check_amax(amax->scale, *input, outputs.at("amax"));
      if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) check_cast(*cast, *input, outputs);
      if (const auto* const sum = std::get_if<ColumnSumSpec>(&c.spec))
        check_column_sum(*sum, *input, outputs.at("sum"));
      ++run_count;
    }
  }
  BOOST_TEST(run_count > 0);
}

}  // namespace
}  // namespace ingot::test
