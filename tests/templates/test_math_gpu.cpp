// math.cuh on the GPU: Reproducible gives the host's bits, and Fast's errors are within their bounds. The inputs are
// all bf16, a few million f32 and the corners.
#include "support/gpu_test.h"

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/kernel.h"
#include "tests/templates/math_checks.h"
#include "tests/templates/math_kernels.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_math_gpu)

namespace {

std::vector<float> make_inputs() {
  std::vector<float> inputs = checks::corners();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) inputs.push_back(float_from_bits(bits << 16));
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 1009) {
    inputs.push_back(float_from_bits(static_cast<std::uint32_t>(bits)));
  }
  return inputs;
}

// y is x in another order, so that distant values are paired.
std::vector<float> shuffled(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[(i * 1000003) % x.size()];
  return y;
}

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);
  std::vector<float> x;
  std::vector<float> y = shuffled(x);
  std::size_t bytes = x.size() * sizeof(float);
  Buffer device_x{backend, bytes};
  Buffer device_y{backend, bytes};
  Buffer device_out{backend, bytes};

  explicit Fixture(std::vector<float> inputs = make_inputs()) : x(std::move(inputs)) {
    BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
    BOOST_REQUIRE_MESSAGE(context.compiler() != nullptr, "this test needs NVRTC");
    backend.device_api().copy_from_host(device_x.data(), x.data(), bytes, stream);
    backend.device_api().copy_from_host(device_y.data(), y.data(), bytes, stream);
  }

  std::vector<float> apply(const std::string& expression) {
    const CurrentContext current(*driver, context.device().index);
    const Target target = driver->device_target(context.device().index);
    const Kernel kernel(*driver, context.compiler()->compile(checks::math_kernel(expression), target));
    std::vector<float> out(x.size(), float_from_bits(0xa5a5a5a5U));
    backend.device_api().copy_from_host(device_out.data(), out.data(), bytes, stream);
    const auto count = static_cast<unsigned>(x.size());
    const checks::MathParams params{static_cast<const float*>(device_x.data()),
                                    static_cast<const float*>(device_y.data()), static_cast<float*>(device_out.data()),
                                    count};
    kernel.launch(stream.handle(), {.grid_x = ceil_div(count, checks::kMathThreads), .block = checks::kMathThreads},
                  params);
    backend.device_api().copy_to_host(out.data(), device_out.data(), bytes, stream);
    return out;
  }

  template <class Expected>
  void expect_bits(const std::string& expression, const Expected& expected) {
    const std::vector<float> actual = apply(expression);
    std::size_t differences = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint32_t bits = checks::stored_bits(expected(x[i], y[i]));
      if (float_bits(actual[i]) == bits) continue;
      if (differences++ != 0) continue;
      BOOST_TEST(float_bits(actual[i]) == bits, expression << " of x = " << std::hexfloat << x[i] << ", y = " << y[i]
                                                           << ": GPU " << actual[i] << ", host "
                                                           << float_from_bits(bits));
    }
    BOOST_TEST(differences == 0U, expression << ": " << differences << " of " << x.size() << " differ");
  }
};

bool subnormal(float x) { return x != 0.0F && std::fabs(x) < 0x1p-126F; }

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(reproducible_gives_the_hosts_bits) {
  for (const auto& f : checks::kFunctions) {
    const std::string name = f.name;
    expect_bits(name + "<Reproducible16>(x)", [&](float a, float) { return f.grade16(a); });
    expect_bits(name + "<Reproducible32>(x)", [&](float a, float) { return f.grade32(a); });
  }
  using namespace ingot::math;
  expect_bits("divide<Reproducible16>(x, y)", [](float a, float b) { return divide<Reproducible16>(a, b); });
  expect_bits("divide<Reproducible32>(x, y)", [](float a, float b) { return divide<Reproducible32>(a, b); });
}

BOOST_AUTO_TEST_CASE(exact_functions_give_the_hosts_bits) {
  using namespace ingot::math;
  expect_bits("maximum(x, y)", [](float a, float b) { return maximum(a, b); });
  expect_bits("minimum(x, y)", [](float a, float b) { return minimum(a, b); });
  expect_bits("maximum(x * 0.0F, y * 0.0F)", [](float a, float b) { return maximum(a * 0.0F, b * 0.0F); });
  expect_bits("minimum(x * 0.0F, y * 0.0F)", [](float a, float b) { return minimum(a * 0.0F, b * 0.0F); });
  expect_bits("sign(x)", [](float a, float) { return sign(a); });
  expect_bits("step(x)", [](float a, float) { return step(a); });
  expect_bits("absolute(x)", [](float a, float) { return absolute(a); });
  expect_bits("saturated_multiply_add(x, y, 0.5F)",
              [](float a, float b) { return saturated_multiply_add(a, b, 0.5F); });
}

BOOST_AUTO_TEST_CASE(fast_is_within_its_bounds) {
  for (const auto& f : checks::kFunctions) {
    const std::string name = f.name;
    const std::vector<float> actual = apply(name + "<Fast>(x)");
    checks::Worst worst;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (subnormal(x[i])) continue;
      const double exact = f.exact(static_cast<double>(x[i]));
      if (name == "log" && std::isfinite(exact) && std::isfinite(actual[i])) {
        worst.add(std::fabs(static_cast<double>(actual[i]) - exact) / std::max(1.0, std::fabs(exact)), x[i]);
      } else {
        checks::add_relative(worst, x[i], actual[i], exact, f.low);
      }
    }
    std::cout << "Fast " << name << ": " << worst.text() << "\n";
    BOOST_TEST(worst.error <= static_cast<double>(ingot::math::kRelativeErrorsFast.*f.bound),
               name << ": " << worst.text());
  }
  const std::vector<float> actual = apply("divide<Fast>(x, y)");
  checks::Worst worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (subnormal(x[i]) || !(std::fabs(y[i]) >= 0x1p-126F && std::fabs(y[i]) <= 0x1p125F)) continue;
    checks::add_relative(worst, x[i], actual[i], static_cast<double>(x[i]) / static_cast<double>(y[i]));
  }
  std::cout << "Fast divide: " << worst.text() << "\n";
  BOOST_TEST(worst.error <= static_cast<double>(ingot::math::kRelativeErrorsFast.divide), worst.text());
}

// The special function unit's approximation, refined, is IEEE 754's quotient for every significand, at both ends of the
// range and inside it.
BOOST_AUTO_TEST_CASE(positive_reciprocal_of_every_significand) {
  for (const std::uint32_t exponent : {1U, 127U, 128U, 252U, 253U}) {
    std::vector<float> inputs(1U << 23U);
    for (std::uint32_t i = 0; i < inputs.size(); ++i) inputs[i] = float_from_bits((exponent << 23U) | i);
    Fixture fixture(inputs);
    if (exponent == 253U) {
      fixture.expect_bits("positive_reciprocal(x)", [](float a, float) { return a == 0x1p126F ? 0x1p-126F : 0.0F; });
    } else {
      fixture.expect_bits("positive_reciprocal(x)", [](float a, float) { return 1.0F / a; });
    }
  }
}

// The limits on which activations rely, where no relative error is defined.
BOOST_AUTO_TEST_CASE(fast_saturates) {
  const std::vector<float> sigmoid = apply("sigmoid<Fast>(x)");
  const std::vector<float> tanh = apply("tanh<Fast>(x)");
  const std::vector<float> cdf = apply("normal_cdf<Fast>(x)");
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      BOOST_REQUIRE((std::isnan(sigmoid[i]) && std::isnan(tanh[i]) && std::isnan(cdf[i])));
      continue;
    }
    const bool fine = sigmoid[i] >= 0.0F && sigmoid[i] <= 1.0F && std::fabs(tanh[i]) <= 1.0F && cdf[i] >= 0.0F &&
                      cdf[i] <= 1.0F && (x[i] < 20.0F || (sigmoid[i] == 1.0F && tanh[i] == 1.0F && cdf[i] == 1.0F)) &&
                      (x[i] > -90.0F || (sigmoid[i] == 0.0F && tanh[i] == -1.0F && cdf[i] == 0.0F));
    BOOST_REQUIRE_MESSAGE(
        fine, "at " << x[i] << ": sigmoid " << sigmoid[i] << ", tanh " << tanh[i] << ", normal_cdf " << cdf[i]);
  }
}

// What a Fast kernel stores: at most 1 e4m3 code in 10^4 differs from the host functions' code.
BOOST_AUTO_TEST_CASE(fast_hardly_moves_codes) {
  const auto moved = [&](const std::string& expression, const auto& expected) {
    const std::vector<float> actual = apply(expression);
    std::size_t count = 0;
    std::size_t differ = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!(std::fabs(x[i]) >= 0x1p-8F && std::fabs(x[i]) < 8.0F)) continue;
      ++count;
      differ += encode<e4m3fn>(actual[i] * 37.3F).bits != encode<e4m3fn>(expected(x[i]) * 37.3F).bits;
    }
    std::cout << expression << ": " << differ << " of " << count << " codes differ\n";
    BOOST_TEST(differ * 10000 <= count, expression << ": " << differ << " of " << count);
  };
  using namespace ingot::math;
  moved("x * sigmoid<Fast>(x)", [](float a) { return a * sigmoid<Reproducible32>(a); });
  moved("x * normal_cdf<Fast>(x)", [](float a) { return a * normal_cdf<Reproducible32>(a); });
  moved("tanh<Fast>(x)", [](float a) { return ingot::math::tanh<Reproducible32>(a); });
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
