// Tensors past 2^31 elements on the CPU. Compares outputs in the first, middle and last rows and columns. Needs 9 GB of
// memory.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <memory>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cpu_backend_nightly)

namespace {

// A few rows or columns of a dimension; the last ones are past 2^31 elements.
std::vector<std::int64_t> samples(std::int64_t size) { return {0, 1, size / 2, size - 2, size - 1}; }

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;

  static Tensor view(const GuardedMatrix& matrix) {
    return matrix.view(const_cast<std::byte*>(matrix.bytes().data()), {});  // inputs are only read
  }

  // Runs in place: copies of these tensors would not fit into memory everywhere.
  Matrices run_in_place(const Case& c, const SharedMatrices& inputs) {
    const GuardedMatrix& input = *inputs.at("input");
    const auto given = [&](const char* what) { return inputs.contains(what) ? view(*inputs.at(what)) : Tensor{}; };
    Matrices outputs = poisoned_outputs(c);
    const auto output = [&](const char* what) { return outputs.contains(what) ? view(outputs.at(what)) : Tensor{}; };
    if (const auto* const spec = std::get_if<AmaxSpec>(&c.spec)) {
      backend->amax(*spec, {.input = view(input), .amax = output("amax")}, stream);
    } else if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) {
      backend->cast(*cast,
                    {.input = view(input),
                     .codes = output("codes"),
                     .transposed = output("transposed"),
                     .scale_inv = output("scale_inv"),
                     .transposed_scale_inv = output("transposed_scale_inv"),
                     .scales = given("scales"),
                     .amax = output("amax"),
                     .transposed_scales = given("transposed_scales"),
                     .transposed_amax = output("transposed_amax")},
                    stream);
    } else if (const auto* const norm = std::get_if<NormSpec>(&c.spec)) {
      backend->norm(*norm,
                    {.input = view(input),
                     .gamma = given("gamma"),
                     .codes = output("codes"),
                     .scale_inv = output("scale_inv"),
                     .eps = kNormEps},
                    stream);
    } else if (const auto* const elementwise = std::get_if<ElementwiseSpec>(&c.spec)) {
      backend->elementwise(*elementwise,
                           {.input = view(input), .inputs = {given("inputs[0]")}, .output = output("output")}, stream);
    } else {
      backend->column_sum(std::get<ColumnSumSpec>(c.spec), {.input = view(input), .sum = output("sum")}, stream);
    }
    return outputs;
  }

  // Checks each sampled row as a separate matrix.
  void check_norm(const NormSpec& spec, const SharedMatrices& inputs, const Matrices& outputs) {
    const GuardedMatrix& input = *inputs.at("input");
    for (const std::int64_t r : samples(input.rows())) {
      auto of_row = std::make_shared<GuardedMatrix>(spec.in, 1, input.cols());
      std::memcpy(of_row->element(0, 0), input.element(r, 0), input.row_bytes());
      SharedMatrices row_inputs = inputs;
      row_inputs["input"] = of_row;
      const Matrices expected = run({.spec = spec, .shape = {1, input.cols()}}, row_inputs, *backend, stream);
      const GuardedMatrix& codes = expected.at("codes");
      BOOST_TEST(std::memcmp(codes.element(0, 0), outputs.at("codes").element(r, 0), codes.row_bytes()) == 0,
                 "row " << r);
      BOOST_TEST(expected.at("scale_inv").bits(0, 0) == outputs.at("scale_inv").bits(0, r), "row " << r);
    }
  }
};

void check_amax(ScaleGranularity scale, const GuardedMatrix& input, const GuardedMatrix& amax) {
  BOOST_TEST(bit_difference("amax", amax_reference(scale, input), amax) == "");
}

// Compares one output on sampled rows; `code_at(r, c)` is what was written.
template <class CodeAt>
void check_codes(const CastSpec& spec, ScaleGranularity granularity, const SharedMatrices& inputs, const char* given,
                 const GuardedMatrix& scale_inv, const CodeAt& code_at) {
  const GuardedMatrix& input = *inputs.at("input");
  const auto found = inputs.find(given);
  const ScalesReference expected =
      scales_reference(spec, granularity, input, found == inputs.end() ? nullptr : found->second.get());
  BOOST_TEST(bit_difference("scale_inv", expected.scale_inv, scale_inv) == "");
  int faults = 0;
  for (const std::int64_t r : samples(input.rows())) {
    for (std::int64_t c = 0; c < input.cols() && faults < 10; ++c) {
      const double scale = expected.scales.value(0, extent_of(granularity, input.cols(), r, c));
      const std::uint32_t code =
          encode_reference(spec.out, static_cast<float>(input.value(r, c)) * static_cast<float>(scale));
      BOOST_CHECK_MESSAGE(code_at(r, c) == code,
                          "row " << r << ", col " << c << ": expected code " << code << ", got " << code_at(r, c));
      faults += code_at(r, c) == code ? 0 : 1;
    }
  }
}

void check_cast(const CastSpec& spec, const SharedMatrices& inputs, const Matrices& outputs) {
  if (spec.codes) {
    check_codes(spec, spec.scale, inputs, "scales", outputs.at("scale_inv"),
                [&](std::int64_t r, std::int64_t c) { return outputs.at("codes").bits(r, c); });
  }
  if (spec.transposed) {
    const bool own = spec.transposed_scale.has_value();
    check_codes(spec, spec.transposed_scale.value_or(spec.scale), inputs, own ? "transposed_scales" : "scales",
                outputs.at(own ? "transposed_scale_inv" : "scale_inv"),
                [&](std::int64_t r, std::int64_t c) { return outputs.at("transposed").bits(c, r); });
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

// Of x * r[row].
void check_elementwise(const SharedMatrices& inputs, const GuardedMatrix& output) {
  const GuardedMatrix& input = *inputs.at("input");
  int faults = 0;
  for (const std::int64_t r : samples(input.rows())) {
    for (std::int64_t c = 0; c < input.cols() && faults < 10; ++c) {
      const auto product = static_cast<float>(input.value(r, c) * inputs.at("inputs[0]")->value(0, r));
      const bool right = output.value(r, c) == round_reference(output.dtype(), static_cast<double>(product));
      BOOST_CHECK_MESSAGE(right, "row " << r << ", col " << c << ": got " << output.value(r, c));
      faults += right ? 0 : 1;
    }
  }
}

BOOST_FIXTURE_TEST_CASE(past_2_to_the_31_elements, Fixture) {
  int run_count = 0;
  for (const Case& c : cases(SizeClass::huge)) {
    BOOST_TEST_CONTEXT(name(c)) {
      const SharedMatrices inputs = maker.inputs(c);
      const std::shared_ptr<const GuardedMatrix> input = inputs.at("input");
      BOOST_REQUIRE(input->rows() * input->cols() > std::int64_t{1} << 31U);
      const Matrices outputs = run_in_place(c, inputs);
      BOOST_TEST(damage(outputs) == "");
      if (const auto* const amax = std::get_if<AmaxSpec>(&c.spec)) check_amax(amax->scale, *input, outputs.at("amax"));
      if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) check_cast(*cast, inputs, outputs);
      if (const auto* const sum = std::get_if<ColumnSumSpec>(&c.spec))
        check_column_sum(*sum, *input, outputs.at("sum"));
      if (std::holds_alternative<ElementwiseSpec>(c.spec)) check_elementwise(inputs, outputs.at("output"));
      if (const auto* const norm = std::get_if<NormSpec>(&c.spec)) check_norm(*norm, inputs, outputs);
      ++run_count;
    }
  }
  BOOST_TEST(run_count > 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
