// cast_stats on the CPU reference against float64: every ci case of tests/cases.h, counts exactly and sums within the
// rounding of f64; and after real casts whose saturated and flushed values are known.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "support/cpu_cases.h"
#include "support/function_ref.h"
#include "support/reference.h"
#include "support/refused.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_stats)

namespace {

CastStats stats_of(const GuardedMatrix& words) {
  CastStats stats;
  std::memcpy(&stats, words.element(0, 0), sizeof(stats));
  return stats;
}

// Computes the statistics element by element, from the definitions in cast_tensors.h.
CastStats stats_reference(const CastStatsSpec& spec, const SharedMatrices& inputs) {
  const GuardedMatrix& input = *inputs.at("input");
  CastStats stats;
  double smallest = std::numeric_limits<double>::infinity();
  double smallest_scale_inv = smallest;
  bool nan_scale_inv = false;
  for (std::int64_t r = 0; r < input.rows(); ++r) {
    for (std::int64_t c = 0; c < input.cols(); ++c) {
      const double x = input.value(r, c);
      stats.nan_count += std::isnan(x) ? 1 : 0;
      stats.inf_count += std::isinf(x) ? 1 : 0;
      if (std::isnan(x)) stats.amax = std::numeric_limits<float>::quiet_NaN();
      if (std::fabs(x) > static_cast<double>(stats.amax)) stats.amax = static_cast<float>(std::fabs(x));
      if (x != 0 && std::fabs(x) < smallest) smallest = std::fabs(x);
      double restored = x;
      if (spec.out) {
        constexpr double kLargest[] = {448, 57344, 240, 57344};
        const double largest = kLargest[static_cast<int>(*spec.out) - static_cast<int>(Dtype::e4m3fn)];
        const double code = spec.transposed ? inputs.at("codes")->value(c, r) : inputs.at("codes")->value(r, c);
        const double factor = inputs.at("scale_inv")->value(0, extent_of(spec.scale, input.cols(), r, c));
        nan_scale_inv = nan_scale_inv || std::isnan(factor);
        if (factor < smallest_scale_inv) smallest_scale_inv = factor;
        if (factor > static_cast<double>(stats.largest_scale_inv)) stats.largest_scale_inv = static_cast<float>(factor);
        restored = code * factor;
        if (std::isfinite(x)) {
          stats.saturated += std::fabs(x) > largest * factor * (1 + 0x1p-22) ? 1 : 0;
          stats.flushed += x != 0 && code == 0 ? 1 : 0;
          stats.spoiled += !std::isfinite(code) || !std::isfinite(factor) ? 1 : 0;
        }
        if (!std::isfinite(code) || !std::isfinite(factor)) continue;
      }
      if (!std::isfinite(x)) continue;
      stats.sum_of_squares += x * x;
      stats.sum_of_squared_errors += (x - restored) * (x - restored);
    }
  }
  if (std::isfinite(smallest)) stats.smallest = static_cast<float>(smallest);
  stats.smallest_scale_inv = static_cast<float>(smallest_scale_inv);
  if (smallest_scale_inv > static_cast<double>(stats.largest_scale_inv)) {  // no scale_inv is a number
    stats.smallest_scale_inv = nan_scale_inv ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
  }
  if (nan_scale_inv) stats.largest_scale_inv = std::numeric_limits<float>::quiet_NaN();
  return stats;
}

std::string difference(const CastStats& expected, const CastStats& actual) {
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  const auto near = [](double a, double b) { return std::fabs(a - b) <= 1e-9 * std::fabs(a); };
  const auto fault = [](const char* what, auto wanted, auto got) {
    return fmt::format("{}: expected {}, got {}", what, wanted, got);
  };
  const CastStats& e = expected;
  const CastStats& a = actual;
  if (e.nan_count != a.nan_count) return fault("nan_count", e.nan_count, a.nan_count);
  if (e.inf_count != a.inf_count) return fault("inf_count", e.inf_count, a.inf_count);
  if (e.saturated != a.saturated) return fault("saturated", e.saturated, a.saturated);
  if (e.flushed != a.flushed) return fault("flushed", e.flushed, a.flushed);
  if (e.spoiled != a.spoiled) return fault("spoiled", e.spoiled, a.spoiled);
  if (!near(e.sum_of_squares, a.sum_of_squares)) return fault("sum_of_squares", e.sum_of_squares, a.sum_of_squares);
  if (!near(e.sum_of_squared_errors, a.sum_of_squared_errors)) {
    return fault("sum_of_squared_errors", e.sum_of_squared_errors, a.sum_of_squared_errors);
  }
  if (!same(double{e.amax}, double{a.amax})) return fault("amax", e.amax, a.amax);
  if (!same(double{e.smallest}, double{a.smallest})) return fault("smallest", e.smallest, a.smallest);
  if (!same(double{e.smallest_scale_inv}, double{a.smallest_scale_inv})) {
    return fault("smallest_scale_inv", e.smallest_scale_inv, a.smallest_scale_inv);
  }
  if (!same(double{e.largest_scale_inv}, double{a.largest_scale_inv})) {
    return fault("largest_scale_inv", e.largest_scale_inv, a.largest_scale_inv);
  }
  return {};
}

using Fixture = CpuCases;

BOOST_FIXTURE_TEST_CASE(every_case_is_as_float64_has_it, Fixture) {
  CastStats seen;
  run_all<CastStatsSpec>(
      [&](const CastStatsSpec& spec, const Case&, const SharedMatrices& inputs, const Matrices& outputs) {
        const CastStats expected = stats_reference(spec, inputs);
        seen.saturated += expected.saturated;
        seen.flushed += expected.flushed;
        seen.spoiled += expected.spoiled;
        seen.nan_count += expected.nan_count;
        seen.inf_count += expected.inf_count;
        return difference(expected, stats_of(outputs.at("stats")));
      });
  // Checks that the cases have something to count.
  for (const std::uint64_t count : {seen.saturated, seen.flushed, seen.spoiled, seen.nan_count, seen.inf_count}) {
    BOOST_TEST(count > 300U);
  }
}

struct RealCast : Fixture {
  // Casts a matrix of bf16 bits and returns the statistics.
  CastStats of(const std::vector<float>& values, std::int64_t cols, const char* line, float given = 0) {
    const auto spec = std::get<CastSpec>(parse(line));
    const auto rows = static_cast<std::int64_t>(values.size()) / cols;
    GuardedMatrix x(spec.in, rows, cols);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      x.set_bits(i / cols, i % cols, encode_input(spec.in, values[static_cast<std::size_t>(i)]));
    }
    const Device cpu = backend->device();
    std::vector<std::uint8_t> codes(values.size());
    std::vector<float> scale_inv(static_cast<std::size_t>(scale_count(spec.scale, rows, cols)));
    std::vector<float> scales(scale_inv.size(), given);
    std::vector<float> amax(scale_inv.size());
    const auto count = static_cast<std::int64_t>(scale_inv.size());
    const Tensor input = x.view(x.bytes().data(), cpu);
    CastTensors tensors{.input = input, .scale_inv = vector(scale_inv.data(), Dtype::f32, count, cpu)};
    (spec.transposed ? tensors.transposed : tensors.codes) =
        matrix(codes.data(), spec.out, spec.transposed ? cols : rows, spec.transposed ? rows : cols, cpu);
    if (given != 0) {
      tensors.scales = vector(scales.data(), Dtype::f32, count, cpu);
      tensors.amax = vector(amax.data(), Dtype::f32, count, cpu);
    }
    backend->cast(spec, tensors, stream);
    CastStats stats;
    backend->cast_stats({.in = spec.in, .out = spec.out, .scale = spec.scale, .transposed = spec.transposed},
                        {.input = input,
                         .codes = spec.transposed ? tensors.transposed : tensors.codes,
                         .scale_inv = tensors.scale_inv,
                         .stats = vector(&stats, Dtype::f32, kCastStatsWords, cpu)},
                        stream);
    return stats;
  }
};

BOOST_FIXTURE_TEST_SUITE(after_a_cast, RealCast)

BOOST_AUTO_TEST_CASE(what_is_cut_off_and_what_is_flushed) {
  // With a scale of 1, e4m3fn has the values 448 and 2^-9; half of 2^-9 rounds to 0.
  const CastStats stats = of({448.0F, 512.0F, -1e4F, 0x1p-9F, 0x1p-10F, -0x1p-12F, 0.0F, 1.0F}, 4,
                             "cast f32->e4m3fn scale=tensor given", 1);
  BOOST_TEST(stats.saturated == 2U);
  BOOST_TEST(stats.flushed == 2U);
  BOOST_TEST(stats.spoiled == 0U);
  BOOST_TEST(stats.amax == 1e4F);
  BOOST_TEST(stats.smallest == 0x1p-12F);
  BOOST_TEST(stats.smallest_scale_inv == 1.0F);
  BOOST_TEST(stats.sum_of_squared_errors == 64.0 * 64 + 9552.0 * 9552 + 0x1p-20 + 0x1p-24);
}

// A dynamic scale covers the amax, however it and its scale_inv were rounded.
BOOST_AUTO_TEST_CASE(a_dynamic_scale_cuts_nothing_off) {
  for (const char* const line : {"cast f32->e4m3fn scale=row out=codes", "cast f32->e5m2 scale=row out=transposed",
                                 "cast f32->e4m3fnuz scale=1x128", "cast f32->e5m2fnuz scale=128x1 out=codes"}) {
    std::vector<float> values(3000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = random_normal(3, i) * (1.0F + static_cast<float>(i));
    const CastStats stats = of(values, 3, line);
    BOOST_TEST(stats.saturated == 0U, line);
    BOOST_TEST(stats.sum_of_squared_errors > 0.0);
    BOOST_TEST(stats.sum_of_squared_errors < 0.01 * stats.sum_of_squares);
    BOOST_TEST(stats.smallest_scale_inv < stats.largest_scale_inv);
  }
}

// An Inf makes its scale 0: values that share the scale are lost, others are not.
BOOST_AUTO_TEST_CASE(an_inf_spoils_its_extent) {
  const float inf = std::numeric_limits<float>::infinity();
  const CastStats stats = of({1, 2, inf, 3, 4, 5, 6, 7}, 4, "cast bf16->e4m3fn scale=row");
  BOOST_TEST(stats.inf_count == 1U);
  BOOST_TEST(stats.spoiled == 3U);
  BOOST_TEST(stats.amax == inf);
  BOOST_TEST(stats.sum_of_squares == 16.0 + 25 + 36 + 49);
  BOOST_TEST(stats.largest_scale_inv == inf);
  const CastStats broken =
      of({1, std::numeric_limits<float>::quiet_NaN(), 2, 3}, 2, "cast bf16->e4m3fn scale=tensor out=codes");
  BOOST_TEST(broken.nan_count == 1U);
  BOOST_TEST(broken.spoiled == 3U);
  BOOST_TEST(std::isnan(broken.amax));
  BOOST_TEST(broken.sum_of_squares == 0.0);
}

BOOST_AUTO_TEST_CASE(an_empty_tensor_has_zeros) {
  CastStats stats{.nan_count = 7, .amax = 3};
  backend->cast_stats({},
                      {.input = matrix(nullptr, Dtype::bf16, 0, 16, backend->device()),
                       .stats = vector(&stats, Dtype::f32, kCastStatsWords, backend->device())},
                      stream);
  BOOST_TEST((stats == CastStats{}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(arguments_that_do_not_fit) {
  alignas(16) static std::byte memory[4096];
  const Device cpu{};
  const CastStatsSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowGroups};
  const auto message = [&](test::FunctionRef<void(CastStatsSpec&, CastStatsTensors&)> change) {
    CastStatsSpec changed = spec;
    CastStatsTensors tensors{.input = matrix(memory, Dtype::bf16, 4, 130, cpu),
                             .codes = matrix(memory + 2048, Dtype::e4m3fn, 4, 130, cpu),
                             .scale_inv = vector(memory + 3072, Dtype::f32, 8, cpu),
                             .stats = vector(memory + 3584, Dtype::f32, kCastStatsWords, cpu)};
    change(changed, tensors);
    try {
      check(changed, tensors, cpu);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  BOOST_TEST(message([](auto&, auto&) {}) == "");
  BOOST_TEST(message([](auto& s, auto&) { s.transposed = true; }) ==
             "cast_stats codes: is e4m3fn[4, 130] on cpu; it must be [130, 4]: the input's shape, transposed");
  BOOST_TEST(message([](auto&, auto& t) { t.codes.dtype = Dtype::e5m2; }) ==
             "cast_stats codes: is e5m2[4, 130] on cpu; the spec asks for e4m3fn");
  BOOST_TEST(message([](auto& s, auto&) { s.scale = kRowwise; }) ==
             "cast_stats scale_inv: is f32[1, 8] on cpu; it must be [1, 4]: one for each row of the input");
  BOOST_TEST(
      message([](auto& s, auto&) { s = {}; }) ==
      "cast_stats codes: is e4m3fn[4, 130] on cpu; it must not be given (a default Tensor instead): the spec has "
      "no codes");
  BOOST_TEST(message([](auto&, auto& t) { t.stats.cols = 1; }) ==
             "cast_stats stats: is f32[1, 1] on cpu, row stride 18; it must be [1, 18]: the bytes of one CastStats");
  BOOST_TEST(
      message([](auto&, auto& t) { t.stats.data = memory + 3588; }) ==
      "cast_stats stats: is f32[1, 18] on cpu; it must start at a multiple of 8 bytes, as it holds integers of 64 "
      "bits");
  BOOST_TEST(
      message([](auto&, auto& t) { t.stats.data = memory + 3072; }) ==
      "cast_stats stats: is f32[1, 18] on cpu; its memory overlaps that of cast_stats scale_inv, which is f32[1, 8] "
      "on cpu; an output needs its own memory");
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
