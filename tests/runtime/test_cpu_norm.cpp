// The CPU's norms: values against float64 (support/norm_reference.h), codes against the cast of the values, the
// backward pass against finite differences of the forward pass; and a cast with an expression of the statistics gives
// the same values.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/cpu_cases.h"
#include "support/norm_reference.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cpu_norm)

namespace {

struct Fixture : CpuCasesOfCi {
  // Computes the values of a case, whatever else it writes.
  GuardedMatrix values_of(const NormSpec& spec, Case c) {
    c.spec = NormSpec{.kind = spec.kind, .in = spec.in, .affine = spec.affine, .result = true};
    return run(c, maker.inputs(c), *backend, stream).at("result");
  }
};

template <class Check>
void each(std::string& fault, const Matrices& outputs, const char* what, const Check& check) {
  const auto found = outputs.find(what);
  if (fault.empty() && found != outputs.end()) fault = check(found->second);
}

// Computes the codes of the values with the reference of casts.
std::string cast_difference(const NormSpec& spec, const SharedMatrices& inputs, const GuardedMatrix& values,
                            const Matrices& outputs) {
  const CastSpec cast{.in = spec.in, .out = *spec.out, .scale = spec.scale, .pow2 = spec.pow2, .source = spec.source};
  SharedMatrices of_cast{{"input", std::make_shared<const GuardedMatrix>(values)}};
  if (spec.source == ScaleSource::given) of_cast["scales"] = inputs.at("scale");
  const Matrices expected = cast_reference(cast, of_cast);
  std::string fault;
  for (const char* const what : {"codes", "scale_inv", "amax"}) {
    each(fault, outputs, what, [&](const GuardedMatrix& m) { return bit_difference(what, expected.at(what), m); });
  }
  return fault;
}

int ordered(std::uint32_t code) {
  const int magnitude = static_cast<int>(code & 0x7fU);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

// Are the codes within one step of float64's?
std::string code_steps(const NormSpec& spec, const Expected& values, const GuardedMatrix& codes) {
  const CastSpec cast{.in = spec.in, .out = *spec.out, .pow2 = spec.pow2};
  std::vector<int> expected;
  for (std::int64_t r = 0; r < values.rows; ++r) {
    double amax = 0;
    for (std::int64_t c = 0; c < values.cols; ++c) amax = std::fmax(amax, std::fabs(values.values[values.index(r, c)]));
    const auto scale = static_cast<double>(scale_reference(cast, amax));
    for (std::int64_t c = 0; c < values.cols; ++c) {
      expected.push_back(
          ordered(encode_reference(*spec.out, static_cast<float>(values.values[values.index(r, c)] * scale))));
    }
  }
  return difference(
      "codes", values.rows, values.cols, codes,
      [&](std::int64_t r, std::int64_t c) {
        return std::abs(expected[values.index(r, c)] - ordered(codes.bits(r, c))) <= 1;
      },
      [&](std::int64_t r, std::int64_t c) { return fmt::format("code {} +- 1", expected[values.index(r, c)]); });
}

BOOST_FIXTURE_TEST_SUITE(cpu_norm, Fixture)

BOOST_AUTO_TEST_CASE(forward_is_within_its_rounding_error) {
  run_all<NormSpec>([&](const NormSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
    const NormReference expected = norm_reference(spec, inputs, kNormEps);
    std::string fault;
    each(fault, outputs, "mean", [&](const auto& m) { return bounded_difference("mean", expected.mean, m); });
    each(fault, outputs, "rstd", [&](const auto& m) { return bounded_difference("rstd", expected.rstd, m); });
    each(fault, outputs, "result", [&](const auto& m) { return bounded_difference("result", expected.values, m); });
    if (spec.out && fault.empty()) fault = cast_difference(spec, inputs, values_of(spec, c), outputs);
    const bool dynamic = spec.out && spec.source == ScaleSource::dynamic && !spec.pow2;
    if (dynamic && fault.empty() && c.input == Input::normal) {
      fault = code_steps(spec, expected.values, outputs.at("codes"));
    }
    return fault;
  });
}

BOOST_AUTO_TEST_CASE(backward_is_within_its_rounding_error) {
  run_all<NormBackwardSpec>(
      [&](const NormBackwardSpec& spec, const Case&, const SharedMatrices& inputs, const Matrices& outputs) {
        const NormBackwardReference expected = norm_backward_reference(spec, inputs);
        std::string fault = bounded_difference("grad_input", expected.grad_input, outputs.at("grad_input"));
        each(fault, outputs, "grad_gamma",
             [&](const auto& m) { return bounded_difference("grad_gamma", expected.grad_gamma, m); });
        each(fault, outputs, "grad_beta",
             [&](const auto& m) { return bounded_difference("grad_beta", expected.grad_beta, m); });
        return fault;
      });
}

// Central differences of sum(weight * forward) in float64: checks that the backward formulas are the derivative.
BOOST_AUTO_TEST_CASE(backward_is_the_derivative_of_forward) {
  constexpr double kStep = 1e-5;
  constexpr float kEps = 0.125F;  // large enough to matter
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const NormSpec forward{.kind = kind, .in = Dtype::f32, .affine = true, .result = true, .stats = true};
    const Case c{.spec = forward, .shape = {6, 19}};
    const SharedMatrices inputs = maker.inputs(c);
    const auto value = [&](std::int64_t r, std::int64_t i) { return inputs.at("input")->value(r, i); };
    const auto gamma = [&](std::int64_t i) { return inputs.at("gamma")->value(0, i); };
    const auto weight = [](std::int64_t r, std::int64_t i) { return std::sin(static_cast<double>(3 * r + 7 * i)); };
    // The loss of row r after moving its element `at`.
    const auto loss = [&](std::int64_t r, std::int64_t at, double move) {
      std::vector<double> x;
      double mean = 0;
      double square = 0;
      for (std::int64_t i = 0; i < 19; ++i) x.push_back(value(r, i) + (i == at ? move : 0.0));
      for (const double e : x) mean += kind == NormKind::layer ? e / 19 : 0.0;
      for (const double e : x) square += (e - mean) * (e - mean) / 19;
      double total = 0;
      for (std::int64_t i = 0; i < 19; ++i) {
        total += weight(r, i) * gamma(i) * (x[static_cast<std::size_t>(i)] - mean) /
                 std::sqrt(square + static_cast<double>(kEps));
      }
      return total;
    };

    std::vector<float> x(6 * 19), grad(6 * 19), grad_input(6 * 19), scale_inv(19), terms(19), result(6 * 19), mean(6),
        rstd(6), grad_gamma(19), grad_beta(19);
    for (std::int64_t i = 0; i < 6 * 19; ++i) {
      x[static_cast<std::size_t>(i)] = static_cast<float>(value(i / 19, i % 19));
      grad[static_cast<std::size_t>(i)] = static_cast<float>(weight(i / 19, i % 19));
    }
    for (std::int64_t i = 0; i < 19; ++i) scale_inv[static_cast<std::size_t>(i)] = static_cast<float>(gamma(i));
    const bool layer = kind == NormKind::layer;
    const auto all = [](std::vector<float>& v, std::int64_t rows, std::int64_t cols) {
      return matrix(v.data(), Dtype::f32, rows, cols, {});
    };
    backend->norm(forward,
                  {.input = all(x, 6, 19),
                   .gamma = all(scale_inv, 1, 19),
                   .beta = layer ? all(terms, 1, 19) : Tensor{},
                   .result = all(result, 6, 19),
                   .mean = layer ? all(mean, 1, 6) : Tensor{},
                   .rstd = all(rstd, 1, 6),
                   .eps = kEps},
                  stream);
    backend->norm_backward({.kind = kind, .in = Dtype::f32, .affine = true},
                           {.grad_output = all(grad, 6, 19),
                            .input = all(x, 6, 19),
                            .gamma = all(scale_inv, 1, 19),
                            .mean = layer ? all(mean, 1, 6) : Tensor{},
                            .rstd = all(rstd, 1, 6),
                            .grad_input = all(grad_input, 6, 19),
                            .grad_gamma = all(grad_gamma, 1, 19),
                            .grad_beta = layer ? all(grad_beta, 1, 19) : Tensor{}},
                           stream);
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t i = 0; i < 19; ++i) {
        const double expected = (loss(r, i, kStep) - loss(r, i, -kStep)) / (2 * kStep);
        BOOST_TEST(std::fabs(static_cast<double>(grad_input[static_cast<std::size_t>(r * 19 + i)]) - expected) < 2e-6,
                   "grad_input " << r << ", " << i);
      }
    }
    // The value is linear in gamma and beta: the sums of weight * xhat and of weight.
    for (std::int64_t i = 0; i < 19; ++i) {
      double of_gamma = 0;
      double of_beta = 0;
      for (std::int64_t r = 0; r < 6; ++r) {
        of_gamma += weight(r, i) * static_cast<double>(result[static_cast<std::size_t>(r * 19 + i)]) / gamma(i);
        of_beta += weight(r, i);
      }
      BOOST_TEST(std::fabs(static_cast<double>(grad_gamma[static_cast<std::size_t>(i)]) - of_gamma) < 1e-4);
      if (layer) BOOST_TEST(std::fabs(static_cast<double>(grad_beta[static_cast<std::size_t>(i)]) - of_beta) < 1e-5);
    }
  }
}

// Norms with codes of any granularity come from a cast with an expression of the statistics: it must give the same
// values and, for rows, the same codes and scale_inv.
BOOST_AUTO_TEST_CASE(a_cast_with_an_expression_of_the_statistics_gives_the_same) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const bool affine : {false, true}) {
      for (const Dtype in : kHighPrecisionDtypes) {
        const bool layer = kind == NormKind::layer;
        const char* const text =
            layer    ? affine ? "(x - mean[row]) * rstd[row] * gamma[col] + beta[col]" : "(x - mean[row]) * rstd[row]"
            : affine ? "x * rstd[row] * gamma[col]"
                     : "x * rstd[row]";
        const NormSpec norm{
            .kind = kind, .in = in, .out = Dtype::e4m3fn, .affine = affine, .result = true, .stats = true};
        const CastSpec cast{.in = in, .scale = kRowwise, .pointwise = parse_pointwise(text), .result = true};
        for (const Input input : {Input::normal, Input::inf, Input::nan, Input::zeros}) {
          const Case c{.spec = norm, .shape = {37, 1001}, .input = input};
          PlacedCase placed(c, maker.inputs(c), *backend, stream);
          placed.enqueue(stream);
          const Matrices expected = placed.outputs(stream);
          placed.poison_all_but({"mean", "rstd"}, stream);
          CastTensors tensors{.input = placed.tensor("input"),
                              .codes = placed.tensor("codes"),
                              .scale_inv = placed.tensor("scale_inv"),
                              .result = placed.tensor("result")};
          for (std::size_t i = 0; i < cast.pointwise.inputs().size(); ++i) {
            tensors.inputs[i] = placed.tensor(cast.pointwise.inputs()[i].name);
          }
          backend->cast(cast, tensors, stream);
          for (const auto& [what, matrix] : placed.outputs(stream)) {
            const std::string fault = bit_difference(what, expected.at(what), matrix);
            BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_the_number_of_threads) {
  for (const char* const line :
       {"norm layer bf16->e4m3fn affine scale=row out=codes,result,stats",
        "norm rms f32->e5m2 scale=tensor out=codes given", "norm_backward layer bf16 affine sums=bf16"}) {
    const Case c{.spec = parse(line), .shape = {1481, 677}};
    const SharedMatrices inputs = maker.inputs(c);
    const auto run_with = [&](int threads) {
      const std::unique_ptr<Backend> one = make_cpu_backend(threads);
      Stream own(*one);
      return run(c, inputs, *one, own);
    };
    const Matrices expected = run_with(1);
    for (const auto& [what, matrix] : run_with(5)) {
      const std::string fault = bit_difference(what, expected.at(what), matrix);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_of_nothing_and_eps_of_nothing) {
  // No columns: mean 0 and rstd of eps.
  std::vector<float> mean(2, -1.0F);
  std::vector<float> rstd(2, -1.0F);
  backend->norm({.kind = NormKind::layer, .in = Dtype::f32, .stats = true},
                {.input = matrix(nullptr, Dtype::f32, 2, 0, {}),
                 .mean = vector(mean.data(), Dtype::f32, 2, {}),
                 .rstd = vector(rstd.data(), Dtype::f32, 2, {}),
                 .eps = 0.25F},
                stream);
  BOOST_TEST_CHECK(mean == std::vector<float>(2, 0.0F), boost::test_tools::per_element());
  BOOST_TEST_CHECK(rstd == std::vector<float>(2, 2.0F), boost::test_tools::per_element());

  // No rows: the gradients of gamma and beta are 0, and a given scale has its scale_inv.
  std::vector<float> gamma(3, 1.0F);
  std::vector<float> sums(3, -1.0F);
  backend->norm_backward({.kind = NormKind::rms, .in = Dtype::f32, .affine = true},
                         {.grad_output = matrix(nullptr, Dtype::f32, 0, 3, {}),
                          .input = matrix(nullptr, Dtype::f32, 0, 3, {}),
                          .gamma = vector(gamma.data(), Dtype::f32, 3, {}),
                          .rstd = {},
                          .grad_input = matrix(nullptr, Dtype::f32, 0, 3, {}),
                          .grad_gamma = vector(sums.data(), Dtype::f32, 3, {})},
                         stream);
  BOOST_TEST_CHECK(sums == std::vector<float>(3, 0.0F), boost::test_tools::per_element());
  float scale = 4.0F;
  float amax = 1.0F;
  float factor = -1.0F;
  backend->norm({.kind = NormKind::rms,
                 .in = Dtype::f32,
                 .out = Dtype::e4m3fn,
                 .scale = kTensorwise,
                 .source = ScaleSource::given},
                {.input = matrix(nullptr, Dtype::f32, 0, 3, {}),
                 .codes = matrix(nullptr, Dtype::e4m3fn, 0, 3, {}),
                 .scale_inv = vector(&factor, Dtype::f32, 1, {}),
                 .scale = vector(&scale, Dtype::f32, 1, {}),
                 .amax = vector(&amax, Dtype::f32, 1, {})},
                stream);
  BOOST_TEST(factor == 0.25F);
  BOOST_TEST(amax == 1.0F);

  // With eps = 0, a row of zeros has an rstd of Inf, and its values are NaN, like 0 * Inf.
  std::vector<float> x{0.0F, 0.0F, 3.0F, 4.0F};
  std::vector<float> result(4, -1.0F);
  backend->norm({.kind = NormKind::rms, .in = Dtype::f32, .result = true, .stats = true},
                {.input = matrix(x.data(), Dtype::f32, 2, 2, {}),
                 .result = matrix(result.data(), Dtype::f32, 2, 2, {}),
                 .rstd = vector(rstd.data(), Dtype::f32, 2, {}),
                 .eps = 0.0F},
                stream);
  BOOST_TEST(rstd[0] == std::numeric_limits<float>::infinity());
  BOOST_TEST(std::isnan(result[1]));
  BOOST_TEST(std::fabs(result[2] - 3.0F / std::sqrt(12.5F)) < 1e-6F);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
