// WeightOnlyLinear on the CPU reference: results against float64 over codes that the test decodes, quantize() and
// from_codes(), saved state and files, and every refusal.
#include "ingot/nn/weights/weight_only.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/weight_only_case.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_weight_only)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};

  WeightOnlyLinear layer(const HostCodes& codes, const WeightScales& scales, const WeightOnlyOptions& options) {
    return layer_of(codes, scales, options, *backend, stream);
  }
  // A small layer of random codes.
  WeightOnlyLinear layer(const WeightOnlyOptions& options, std::int64_t n = 7, std::int64_t k = 40) {
    return layer(random_codes(options.dtype, n, k, 1), random_scales(options, n, k, 2, false), options);
  }
  DeviceMatrix on_device(const Matrix& m, Dtype dtype, std::int64_t row_stride = 0) {
    return DeviceMatrix(m, dtype, *backend, stream, row_stride);
  }
  DeviceMatrix forward(const WeightOnlyLinear& linear, const DeviceMatrix& x, Dtype out, const Tensor& bias = {}) {
    return forward_of(linear, x, out, *backend, stream, bias);
  }
};

struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {3, 70, 133}, {17, 5, 96}, {2, 130, 260}};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(values, Fixture)

BOOST_AUTO_TEST_CASE(of_codes_in_every_format_and_scale) {
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    for (const auto& [m, n, k] : kSizes) {
      const HostCodes codes = random_codes(options.dtype, n, k, 1);
      const WeightScales scales = random_scales(options, n, k, 2, false);
      const WeightOnlyLinear linear = layer(codes, scales, options);
      BOOST_TEST(linear.out_features() == n);
      BOOST_TEST(linear.in_features() == k);
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
        // f16's range is small: sums of e5m2 values times activations around one would exceed it.
        const Matrix x = Random(3).normal(m, k, dtype, dtype == Dtype::f16 ? 0x1p-12 : 1.0);
        const Matrix bias = Random(4).normal(1, n, dtype);
        const DeviceMatrix x_on = on_device(x, dtype), bias_on = on_device(bias, dtype);
        const Matrix w = values_of(codes, scales, options);
        for (const Dtype out : {dtype, Dtype::f32}) {
          BOOST_TEST_CONTEXT(test::print(options)
                             << ", " << m << " x " << n << " x " << k << ", " << name(dtype) << " -> " << name(out)) {
            check_within(forward(linear, x_on, out).read(stream), expected_gemm(x, w, nullptr, out), "y");
            check_within(forward(linear, x_on, out, bias_on).read(stream), expected_gemm(x, w, &bias, out), "y + bias");
          }
        }
      }
    }
  }
}

// The codes of quantize() are those of a cast by the formula.
BOOST_AUTO_TEST_CASE(of_quantized_values_with_f32_scale_inv) {
  for (const Dtype dtype : kFp8Dtypes) {
    for (const ScaleGranularity scale : kWeightScales) {
      for (const bool pow2 : {false, true}) {
        for (const auto& [m, n, k] : kSizes) {
          for (const Dtype of : kHighPrecisionDtypes) {
            for (const std::int64_t gap : {0, 3}) {
              const WeightOnlyOptions options{.dtype = dtype, .scale = scale, .pow2 = pow2};
              BOOST_TEST_CONTEXT(test::print(options)
                                 << " of " << name(of) << ", " << n << " x " << k << ", gap " << gap) {
                const Matrix w = Random(5).normal(n, k, of, 0.02);
                const Matrix x = Random(6).normal(m, k, Dtype::bf16);
                const DeviceMatrix w_on = on_device(w, of, k + gap);
                const WeightOnlyLinear linear = WeightOnlyLinear::quantize(*backend, w_on, options, stream);
                const Matrix expected = fake_quantized(w, {.dtype = dtype, .granularity = scale, .pow2 = pow2});
                check_within(forward(linear, on_device(x, Dtype::bf16), Dtype::f32).read(stream),
                             expected_gemm(x, expected, nullptr, Dtype::f32), "y");
              }
            }
          }
        }
      }
    }
  }
}

// OCP MX 1.0, 6.3: the exponent of the largest of 32 values, minus the exponent of the format's largest value.
BOOST_AUTO_TEST_CASE(of_quantized_values_with_mx_scales) {
  const std::map<Dtype, int> largest_exponent{
      {Dtype::e4m3fn, 8}, {Dtype::e5m2, 15}, {Dtype::e3m2fn, 4}, {Dtype::e2m3fn, 2}, {Dtype::e2m1fn, 2}};
  for (const auto& [dtype, largest] : largest_exponent) {
    for (const auto& [m, n, k] : kSizes) {
      for (const WeightLayout layout : kWeightLayouts) {
        const WeightOnlyOptions options{.dtype = dtype, .mx = true, .layout = layout};
        BOOST_TEST_CONTEXT(test::print(options) << ", " << n << " x " << k) {
          const Matrix w = Random(5).normal(n, k, Dtype::bf16, 0.02);
          Matrix expected = zeros(n, k);
          for (std::int64_t r = 0; r < n; ++r) {
            for (std::int64_t first = 0; first < k; first += 32) {
              double amax = 0;
              const std::int64_t end = std::min(first + 32, k);
              for (std::int64_t c = first; c < end; ++c) amax = std::max(amax, std::abs(w.at(r, c)));
              const double factor = amax == 0 ? 0x1p-127 : std::ldexp(1.0, std::ilogb(amax) - largest);
              for (std::int64_t c = first; c < end; ++c) {
                expected.at(r, c) = decode_slowly(dtype, encode_weight_code(dtype, w.at(r, c) / factor)) * factor;
              }
            }
          }
          const WeightOnlyLinear linear =
              WeightOnlyLinear::quantize(*backend, on_device(w, Dtype::bf16), options, stream);
          BOOST_TEST(linear.options().scale.cols == 32);
          const Matrix x = Random(6).normal(m, k, Dtype::bf16);
          check_within(forward(linear, on_device(x, Dtype::bf16), Dtype::f32).read(stream),
                       expected_gemm(x, expected, nullptr, Dtype::f32), "y");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_epilogue_and_its_inputs) {
  const WeightOnlyOptions options{.epilogue = parse_pointwise("max(x, 0) * gate + shift[col] + each[row]")};
  const std::int64_t m = 5, n = 33, k = 64;
  const HostCodes codes = random_codes(options.dtype, n, k, 1);
  const WeightScales scales = random_scales(options, n, k, 2, false);
  const Matrix x = Random(3).normal(m, k, Dtype::bf16, 0x1p-6);
  const Matrix gate = Random(4).normal(m, n, Dtype::bf16), shift = Random(5).normal(1, n, Dtype::bf16);
  const Matrix each = Random(6).normal(1, m, Dtype::f32), bias = Random(7).normal(1, n, Dtype::bf16);
  const DeviceMatrix gate_on = on_device(gate, Dtype::bf16), shift_on = on_device(shift, Dtype::bf16);
  const DeviceMatrix each_on = on_device(each, Dtype::f32), bias_on = on_device(bias, Dtype::bf16);
  ExpectedMatrix expected = expected_gemm(x, values_of(codes, scales, options), &bias, Dtype::f32);
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      const double value = std::max(expected.value.at(r, c), 0.0) * gate.at(r, c) + shift.at(0, c) + each.at(0, r);
      const double slope = std::abs(gate.at(r, c)) + 1;
      expected.bound.at(r, c) = (expected.bound.at(r, c) + std::abs(expected.value.at(r, c)) * 0x1p-22) * slope +
                                (std::abs(shift.at(0, c)) + std::abs(each.at(0, r))) * 0x1p-22;
      expected.value.at(r, c) = value;
    }
  }
  const WeightOnlyLinear linear = layer(codes, scales, options);
  const DeviceMatrix y = DeviceMatrix::poisoned(m, n, Dtype::f32, *backend, stream);
  // In the order of the expression's inputs().
  const std::map<std::string, Tensor> by_name{
      {"gate", gate_on.view()}, {"shift", shift_on.view()}, {"each", each_on.view()}};
  WeightOnlyExtras extras{.bias = bias_on};
  std::size_t next = 0;
  for (const PointwiseInput& input : linear.options().epilogue.inputs()) extras.inputs[next++] = by_name.at(input.name);
  linear.forward(on_device(x, Dtype::bf16), y, stream, extras);
  check_within(y.read(stream), expected, "y");
}

// A NaN makes only its own column NaN; so does e5m2's Inf.
BOOST_AUTO_TEST_CASE(codes_that_are_not_finite) {
  for (const Dtype dtype : kFp8Dtypes) {
    for (const WeightLayout layout : kWeightLayouts) {
      const WeightOnlyOptions options{.dtype = dtype, .layout = layout};
      HostCodes codes = random_codes(dtype, 6, 50, 1);
      codes.codes[2 * 50 + 49] = dtype == Dtype::e4m3fnuz || dtype == Dtype::e5m2fnuz ? 0x80 : 0xff;
      if (dtype == Dtype::e5m2) codes.codes[4 * 50 + 7] = 0x7c;
      Matrix x = zeros(2, 50);
      std::fill(x.values.begin(), x.values.end(), 1.0);
      const Matrix y =
          forward(layer(codes, random_scales(options, 6, 50, 2, true), options), on_device(x, Dtype::bf16), Dtype::f32)
              .read(stream);
      for (std::int64_t m = 0; m < 2; ++m) {
        for (std::int64_t n = 0; n < 6; ++n) {
          BOOST_TEST_CONTEXT(test::print(options) << ", row " << n) {
            BOOST_TEST(std::isnan(y.at(m, n)) == (n == 2));
            BOOST_TEST(std::isinf(y.at(m, n)) == (dtype == Dtype::e5m2 && n == 4));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sizes_of_zero) {
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    for (const auto& [m, n, k] : {Sizes{0, 5, 32}, Sizes{3, 0, 32}, Sizes{3, 5, 0}}) {
      BOOST_TEST_CONTEXT(test::print(options) << ", " << m << " x " << n << " x " << k) {
        const WeightOnlyLinear linear = layer(options, n, k);
        const Matrix bias = Random(4).normal(1, n, Dtype::bf16);
        const DeviceMatrix bias_on = on_device(bias, Dtype::bf16);
        const Matrix y = forward(linear, on_device(zeros(m, k), Dtype::bf16), Dtype::bf16, bias_on).read(stream);
        for (std::int64_t r = 0; r < y.rows; ++r) {
          for (std::int64_t c = 0; c < y.cols; ++c) BOOST_TEST(y.at(r, c) == bias.at(0, c));
        }
        BOOST_TEST((linear.state(stream).weight ==
                    WeightOnlyLinear::from_state(*backend, linear.state(stream), stream).state(stream).weight));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_how_many_there_are) {
  for (WeightOnlyOptions options : every_kind_of_weight()) {
    options.batch_invariant = true;
    const WeightOnlyLinear linear = layer(options, 37, 200);
    const Matrix all = Random(3).normal(17, 200, Dtype::bf16, 0x1p-6);
    const Matrix expected = forward(linear, on_device(all, Dtype::bf16), Dtype::bf16).read(stream);
    for (std::int64_t m = 1; m < 17; ++m) {
      Matrix some{m, 200, {all.values.begin(), all.values.begin() + m * 200}};
      const Matrix y = forward(linear, on_device(some, Dtype::bf16), Dtype::bf16).read(stream);
      BOOST_TEST((std::equal(y.values.begin(), y.values.end(), expected.values.begin())),
                 test::print(options) << ": of " << m << " rows differ from those of 17");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- quality -------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(quality, Fixture)

// y against float64 with the original weight of normal values: what the formats' mantissas permit, less half a decibel.
BOOST_AUTO_TEST_CASE(sqnr_of_each_format) {
  const struct {
    WeightOnlyOptions options;
    double bar;
  } kBars[] = {
      {{.dtype = Dtype::e4m3fn, .scale = kTensorwise}, 31.0},
      {{.dtype = Dtype::e4m3fn}, 31.0},
      {{.dtype = Dtype::e4m3fn, .scale = kRowGroups}, 31.0},
      {{.dtype = Dtype::e4m3fn, .scale = kRowGroups32}, 31.0},
      {{.dtype = Dtype::e4m3fn, .scale = kBlocks}, 31.0},
      {{.dtype = Dtype::e4m3fn, .pow2 = true}, 31.0},
      {{.dtype = Dtype::e4m3fnuz}, 31.0},
      {{.dtype = Dtype::e5m2}, 25.0},
      {{.dtype = Dtype::e5m2fnuz}, 25.0},
      {{.dtype = Dtype::e4m3fn, .mx = true}, 30.0},
      {{.dtype = Dtype::e5m2, .mx = true}, 25.0},
      {{.dtype = Dtype::e3m2fn, .mx = true}, 25.0},
      {{.dtype = Dtype::e2m3fn, .mx = true}, 30.5},
      {{.dtype = Dtype::e2m1fn, .mx = true}, 18.3},
  };
  const std::int64_t m = 64, n = 256, k = 512;
  const Matrix w = Random(1).normal(n, k, Dtype::bf16, 0.02), x = Random(2).normal(m, k, Dtype::bf16);
  const Matrix exact = expected_gemm(x, w, nullptr, Dtype::f32).value;
  const DeviceMatrix w_on = on_device(w, Dtype::bf16), x_on = on_device(x, Dtype::bf16);
  for (const auto& [options, bar] : kBars) {
    const WeightOnlyLinear linear = WeightOnlyLinear::quantize(*backend, w_on, options, stream);
    const double found = sqnr(exact, forward(linear, x_on, Dtype::f32).read(stream));
    BOOST_TEST(found >= bar, test::print(options) << " has " << found << " dB, expected at least " << bar);
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- scales of checkpoints -----------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(checkpoints, Fixture)

// value = code * s equals value = code / (1 / s); with powers of two bit for bit.
BOOST_AUTO_TEST_CASE(both_conventions_give_the_same) {
  const std::int64_t n = 150, k = 300;
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    BOOST_TEST_CONTEXT(test::print(options)) {
      const HostCodes codes = random_codes(options.dtype, n, k, 1);
      const WeightScales scales = random_scales(options, n, k, 2, true);
      WeightScales inverse = scales;
      for (float& factor : inverse.scale_inv) factor = 1 / factor;
      for (std::uint8_t& power : inverse.powers) power = static_cast<std::uint8_t>(254 - power);
      const std::int64_t stride = (k + 7) / 8 * 8;
      const DeviceBytes on(rows_of_codes(codes, stride), *backend, stream);
      const DeviceBytes scales_on =
          options.mx ? DeviceBytes(inverse.powers, *backend, stream) : DeviceBytes(inverse.scale_inv, *backend, stream);
      const WeightOnlyLinear other = WeightOnlyLinear::from_codes(
          *backend, on.view(options.dtype, n, k, stride),
          scales_on.view(options.mx ? Dtype::e8m0fnu : Dtype::f32, scales.rows, scales.cols), ScaleConvention::quantize,
          options, stream);
      const WeightOnlyState a = layer(codes, scales, options).state(stream), b = other.state(stream);
      BOOST_TEST((a.scale == b.scale));
      // Bits after a row's last code do not belong to any code.
      if (is_packed(options.layout) || k * bits_of(options.dtype) % 8 == 0) BOOST_TEST((a.weight == b.weight));
    }
  }
}

BOOST_AUTO_TEST_CASE(layouts_are_changed) {
  const std::int64_t n = 150, k = 300;
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    const HostCodes codes = random_codes(options.dtype, n, k, 1);
    const WeightScales scales = random_scales(options, n, k, 2, false);
    const WeightOnlyLinear linear = layer(codes, scales, options);
    for (const WeightLayout layout : kWeightLayouts) {
      WeightOnlyOptions wanted = options;
      wanted.layout = layout;
      const WeightOnlyLinear changed = linear.with_layout(layout, stream);
      const WeightOnlyState a = changed.state(stream), b = layer(codes, scales, wanted).state(stream);
      BOOST_TEST((changed.options().layout == layout));
      BOOST_TEST((a.weight == b.weight), test::print(options) << " to " << name(layout));
      BOOST_TEST((a.scale == b.scale), test::print(options) << " to " << name(layout));
    }
  }
}

// For other numbers the factor is 1 / s, rounded once.
BOOST_AUTO_TEST_CASE(scales_are_divided_by_in_f32) {
  const HostCodes codes = random_codes(Dtype::e4m3fn, 3, 8, 1);
  const std::vector<float> scales{3.0F, 0.7F, 1e-3F};
  const DeviceBytes on(rows_of_codes(codes, 8), *backend, stream), scales_on(scales, *backend, stream);
  const WeightOnlyLinear linear = WeightOnlyLinear::from_codes(
      *backend, on.view(Dtype::e4m3fn, 3, 8), scales_on.view(Dtype::f32, 3, 1), ScaleConvention::quantize, {}, stream);
  const auto* const scale_inv = static_cast<const float*>(linear.scale_inv().data);
  for (std::size_t i = 0; i < scales.size(); ++i) BOOST_TEST(scale_inv[i] == 1.0F / scales[i]);
}

BOOST_AUTO_TEST_CASE(scales_of_other_dtypes_shapes_and_strides) {
  const std::int64_t n = 4, k = 256;
  const HostCodes codes = random_codes(Dtype::e4m3fn, n, k, 1);
  const DeviceBytes on(rows_of_codes(codes, k), *backend, stream);
  const auto scale_inv = [&](const WeightOnlyOptions& options, const Tensor& scales) {
    const WeightOnlyLinear linear = WeightOnlyLinear::from_codes(*backend, on.view(Dtype::e4m3fn, n, k), scales,
                                                                 ScaleConvention::dequantize, options, stream);
    const auto* const data = static_cast<const float*>(linear.scale_inv().data);
    return std::vector<float>(data, data + linear.scale_inv().cols);
  };
  const std::vector<float> rows{1, 2, 0.5F, 4}, groups{1, 2, 3, 4, 5, 6, 7, 8};
  for (const Dtype dtype : kHighPrecisionDtypes) {
    const DeviceMatrix as_column = on_device({4, 1, {1, 2, 0.5, 4}}, dtype);
    const DeviceMatrix apart = on_device({4, 1, {1, 2, 0.5, 4}}, dtype, 3);
    const DeviceMatrix as_row = on_device({1, 4, {1, 2, 0.5, 4}}, dtype);
    for (const DeviceMatrix* scales : {&as_column, &apart, &as_row}) {
      BOOST_TEST((scale_inv({}, *scales) == rows), name(dtype) << " " << describe(scales->view()));
    }
    const DeviceMatrix of_groups = on_device({4, 2, {1, 2, 3, 4, 5, 6, 7, 8}}, dtype, 5);
    BOOST_TEST((scale_inv({.scale = kRowGroups}, of_groups) == groups), name(dtype));
    const DeviceMatrix of_tensor = on_device({1, 1, {3}}, dtype);
    BOOST_TEST((scale_inv({.scale = kTensorwise}, of_tensor) == std::vector<float>{3}), name(dtype));
  }
  const DeviceBytes powers(std::vector<std::uint8_t>{127, 128, 126, 129}, *backend, stream);
  BOOST_TEST((scale_inv({}, powers.view(Dtype::e8m0fnu, 4, 1)) == rows));
  const DeviceBytes odd(std::vector<std::uint8_t>{0, 255, 254, 127}, *backend, stream);
  const std::vector<float> ends = scale_inv({}, odd.view(Dtype::e8m0fnu, 4, 1));
  BOOST_TEST(ends[0] == 0x1p-127F);
  BOOST_TEST(std::isnan(ends[1]));
  BOOST_TEST(ends[2] == 0x1p127F);
}

// Row strides with gaps, of whole bytes and of less.
BOOST_AUTO_TEST_CASE(codes_of_any_row_stride) {
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    const std::int64_t n = 9, k = 64;
    const HostCodes codes = random_codes(options.dtype, n, k, 1);
    const WeightScales scales = random_scales(options, n, k, 2, true);
    const DeviceBytes on(rows_of_codes(codes, k + 12), *backend, stream);
    const DeviceBytes scales_on =
        options.mx ? DeviceBytes(scales.powers, *backend, stream) : DeviceBytes(scales.scale_inv, *backend, stream);
    const WeightOnlyLinear apart =
        WeightOnlyLinear::from_codes(*backend, on.view(options.dtype, n, k, k + 12),
                                     scales_on.view(options.mx ? Dtype::e8m0fnu : Dtype::f32, scales.rows, scales.cols),
                                     ScaleConvention::dequantize, options, stream);
    BOOST_TEST((apart.state(stream).weight == layer(codes, scales, options).state(stream).weight),
               test::print(options));
  }
}

BOOST_AUTO_TEST_SUITE_END()

// ---- what is kept --------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(kept, Fixture)

BOOST_AUTO_TEST_CASE(files_give_back_the_same_bits) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "weights.safetensors";
  std::map<std::string, WeightOnlyState> states;
  int number = 0;
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    states["layers." + std::to_string(number++) + "."] = layer(options, 7, 83).state(stream);
  }
  states[""] = layer({}, 3, 5).state(stream);
  save_weight_only(file, states);
  const SafetensorsFile opened = SafetensorsFile::open(file);
  const Matrix x = Random(3).normal(2, 83, Dtype::bf16, 0x1p-6);
  const DeviceMatrix x_on = on_device(x, Dtype::bf16);
  for (const auto& [name, state] : states) {
    const WeightOnlyState loaded = load_weight_only(opened, name);
    BOOST_TEST_CONTEXT(name << test::print(state.options)) {
      BOOST_TEST((loaded.weight == state.weight));
      BOOST_TEST((loaded.scale == state.scale));
      BOOST_TEST(test::print(loaded.options) == test::print(state.options));
      BOOST_TEST(loaded.out_features == state.out_features);
      BOOST_TEST(loaded.in_features == state.in_features);
      const WeightOnlyLinear again = WeightOnlyLinear::from_state(*backend, loaded, stream);
      BOOST_TEST((again.state(stream).weight == state.weight));
      BOOST_TEST((again.state(stream).scale == state.scale));
      if (name.empty()) continue;
      const WeightOnlyLinear first = WeightOnlyLinear::from_state(*backend, state, stream);
      BOOST_TEST((forward(again, x_on, Dtype::bf16).bytes(stream) == forward(first, x_on, Dtype::bf16).bytes(stream)));
    }
  }
  BOOST_TEST(opened.metadata().at("format") == "pt");
  BOOST_TEST(opened.metadata().at("ingot.layout") == "packed");
  BOOST_TEST(opened.metadata().at("ingot.layout_version") == "3");
  BOOST_TEST(opened.metadata().at("ingot.scale") == "row");
}

// What other programs write and read: codes [N, K] with weight_scale.
BOOST_AUTO_TEST_CASE(rows_of_codes_are_stored_as_they_are) {
  const HostCodes codes = random_codes(Dtype::e4m3fn, 5, 83, 1);
  const WeightOnlyOptions options{.layout = WeightLayout::row_major};
  const WeightScales scales = random_scales(options, 5, 83, 2, false);
  const TemporaryDirectory directory;
  save_weight_only(directory.path() / "w.safetensors", {{"", layer(codes, scales, options).state(stream)}});
  const SafetensorsFile file = SafetensorsFile::open(directory.path() / "w.safetensors");
  BOOST_TEST(file.at("weight").type == "F8_E4M3");
  BOOST_TEST((file.at("weight").shape == std::vector<std::int64_t>{5, 83}));
  BOOST_TEST((file.at("weight_scale").shape == std::vector<std::int64_t>{5, 1}));
  const std::vector<std::byte> bytes = file.read(file.at("weight"));
  for (std::size_t i = 0; i < codes.codes.size(); ++i) BOOST_REQUIRE(std::to_integer<int>(bytes[i]) == codes.codes[i]);
}

BOOST_AUTO_TEST_CASE(bytes_of_weights) {
  // Packed: rows and K are padded to 64, and each row adds 4 bytes.
  BOOST_TEST(layer({}, 64, 128).weight_bytes() == 64U * 128 + 64 * 4 + 64 * 4);
  BOOST_TEST(layer({.dtype = Dtype::e3m2fn, .mx = true}, 64, 128).weight_bytes() == 64U * 96 + 64 * 4 + 64 * 4);
  BOOST_TEST(layer({.dtype = Dtype::e2m1fn, .mx = true, .layout = WeightLayout::row_major}, 7, 100).weight_bytes() ==
             7U * 50 + 7 * 4);
}

// A finished layer allocates nothing, and a call is a single operation.
BOOST_AUTO_TEST_CASE(forward_allocates_nothing) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  const Matrix w = Random(1).normal(48, 96, Dtype::bf16), x = Random(2).normal(5, 96, Dtype::bf16);
  const DeviceMatrix w_on(w, Dtype::bf16, counting, on), x_on(x, Dtype::bf16, counting, on);
  const DeviceMatrix y = DeviceMatrix::poisoned(5, 48, Dtype::bf16, counting, on);
  const WeightOnlyLinear linear = WeightOnlyLinear::quantize(counting, w_on, {}, on);
  counting.allocations = 0;
  counting.calls.clear();
  linear.forward(x_on, y, on);
  linear.forward(x_on, y, on);
  BOOST_TEST(counting.allocations == 0);
  BOOST_TEST(counting.calls.size() == 2U);
}

// Making a layer waits for the device. So a kernel may read the weight early: the kernel before it did not write it.
BOOST_AUTO_TEST_CASE(a_weight_is_there_when_the_layer_is_made) {
  for (const WeightLayout layout : kWeightLayouts) {
    CountingBackend counting(*backend, &stream);
    Stream on(counting);
    const DeviceMatrix w(Random(1).normal(48, 96, Dtype::bf16), Dtype::bf16, counting, on);
    const DeviceMatrix x(Random(2).normal(5, 96, Dtype::bf16), Dtype::bf16, counting, on);
    const DeviceMatrix y = DeviceMatrix::poisoned(5, 48, Dtype::bf16, counting, on);
    const WeightOnlyOptions options{.layout = layout};
    const WeightOnlyLinear linear = WeightOnlyLinear::quantize(counting, w, options, on);
    BOOST_TEST(counting.calls.size() > 0U);
    BOOST_TEST(counting.waited);
    linear.forward(x, y, on);
    BOOST_TEST(!counting.waited);
    BOOST_TEST(counting.constant_weight);

    layer_of(random_codes(options.dtype, 48, 96, 1), random_scales(options, 48, 96, 2, false), options, counting, on);
    BOOST_TEST(counting.waited);

    const WeightOnlyState state = linear.state(on);
    counting.waited = false;
    WeightOnlyLinear::from_state(counting, state, on);
    BOOST_TEST(counting.waited);
  }
}

BOOST_AUTO_TEST_CASE(a_layer_can_be_moved) {
  WeightOnlyLinear first = layer({}, 7, 40);
  const DeviceMatrix x = on_device(Random(3).normal(2, 40, Dtype::bf16), Dtype::bf16);
  const std::vector<std::uint8_t> before = forward(first, x, Dtype::bf16).bytes(stream);
  const WeightOnlyLinear second = std::move(first);
  BOOST_TEST((forward(second, x, Dtype::bf16).bytes(stream) == before));
}

BOOST_AUTO_TEST_SUITE_END()

// ---- refusals ------------------------------------------------------------------------------------------------------

BOOST_FIXTURE_TEST_SUITE(refusals, Fixture)

BOOST_AUTO_TEST_CASE(of_quantize) {
  const DeviceMatrix w = on_device(zeros(4, 32), Dtype::bf16);
  const auto with = [&](const WeightOnlyOptions& options) {
    return error_of([&] { WeightOnlyLinear::quantize(*backend, w, options, stream); }, ErrorCode::invalid_spec);
  };
  BOOST_TEST(with({.dtype = Dtype::e2m1fn}) ==
             "WeightOnlyOptions: quantize() makes e2m1fn only with MX scales: set mx, or give codes to from_codes()");
  check_contains(with({.scale = kColumnwise}), {"dequant_matmul", "col"});
  check_contains(with({.dtype = Dtype::bf16}), {"dequant_matmul", "bf16"});
  check_contains(with({.dtype = Dtype::e4m3fnuz, .mx = true}), {"e4m3fnuz"});
  Tensor codes = w.view();
  codes.dtype = Dtype::e4m3fn;
  BOOST_TEST(
      error_of([&] { WeightOnlyLinear::quantize(*backend, codes, {}, stream); }, ErrorCode::invalid_argument) ==
      "WeightOnlyLinear weight: is e4m3fn[4, 32] on cpu; it must be of f32, bf16 or f16; codes go to from_codes()");
  Tensor overlapping = w.view();
  overlapping.row_stride = 16;
  check_contains(
      error_of([&] { WeightOnlyLinear::quantize(*backend, overlapping, {}, stream); }, ErrorCode::invalid_argument),
      {"WeightOnlyLinear weight", "row stride"});
}

BOOST_AUTO_TEST_CASE(of_from_codes) {
  const DeviceBytes bytes(std::vector<std::uint8_t>(512), *backend, stream);
  const auto with = [&](const Tensor& codes, const Tensor& scales, const WeightOnlyOptions& options) {
    return error_of(
        [&] { WeightOnlyLinear::from_codes(*backend, codes, scales, ScaleConvention::dequantize, options, stream); },
        ErrorCode::invalid_argument);
  };
  const Tensor codes = bytes.view(Dtype::e4m3fn, 4, 64);
  BOOST_TEST(with(codes, bytes.view(Dtype::f32, 4, 1), {.dtype = Dtype::e5m2}) ==
             "WeightOnlyLinear codes: is e4m3fn[4, 64] on cpu; the options say e5m2: set dtype to what the codes are");
  BOOST_TEST(with(codes, bytes.view(Dtype::f32, 4, 1), {.scale = kRowGroups32}) ==
             "WeightOnlyLinear scales: is f32[4, 1] on cpu; a weight [4, 64] has 8 of them with scale 1x32: [4, 2]");
  BOOST_TEST(with(codes, bytes.view(Dtype::f32, 4, 2), {.mx = true}) ==
             "WeightOnlyLinear scales: is f32[4, 2] on cpu; mx scales are e8m0fnu; for scales of another dtype "
             "use scale=1x32 without mx");
  // Bytes of a file, without a format.
  BOOST_TEST(with(bytes.view(Dtype::u8, 4, 64), bytes.view(Dtype::f32, 4, 1), {}) ==
             "WeightOnlyLinear codes: is u8[4, 64] on cpu; the options say e4m3fn: if the bytes are such codes, give "
             "the tensor this dtype");
  BOOST_TEST(with(codes, bytes.view(Dtype::u8, 4, 2), {.mx = true}) ==
             "WeightOnlyLinear scales: is u8[4, 2] on cpu; mx scales are e8m0fnu: give a checkpoint's bytes this "
             "dtype");
  BOOST_TEST(with(codes, bytes.view(Dtype::e8m0fnu, 4, 1), {.mx = true}) ==
             "WeightOnlyLinear scales: is e8m0fnu[4, 1] on cpu; a weight [4, 64] has 8 of them with mx: [4, 2]");
  BOOST_TEST(with(codes, bytes.view(Dtype::e4m3fn, 4, 1), {}) ==
             "WeightOnlyLinear scales: is e4m3fn[4, 1] on cpu; they must be of f32, bf16, f16 or e8m0fnu");
  check_contains(with(codes, {}, {}), {"WeightOnlyLinear scales: ", "[4, 1]"});
  Tensor nowhere = bytes.view(Dtype::f32, 4, 1);
  nowhere.data = nullptr;
  check_contains(with(codes, nowhere, {}), {"WeightOnlyLinear scales: ", "null"});
  Tensor overlapping = codes;
  overlapping.row_stride = 8;
  check_contains(with(overlapping, bytes.view(Dtype::f32, 4, 1), {}), {"WeightOnlyLinear codes", "row stride"});
  for (const WeightLayout layout : kWeightLayouts) {
    const Tensor odd = bytes.view(Dtype::e2m1fn, 4, 33, 33);
    check_contains(with(odd, bytes.view(Dtype::f32, 4, 1), {.dtype = Dtype::e2m1fn, .layout = layout}),
                   {"row stride", "2"});
  }
}

BOOST_AUTO_TEST_CASE(of_forward) {
  const WeightOnlyLinear linear = layer({}, 7, 40);
  const DeviceBytes bytes(std::vector<std::uint8_t>(4096), *backend, stream);
  const DeviceBytes out(std::vector<std::uint8_t>(4096), *backend, stream);
  const auto with = [&](const Tensor& x, const Tensor& y, const WeightOnlyExtras& extras = {}) {
    return error_of([&] { linear.forward(x, y, stream, extras); }, ErrorCode::invalid_argument);
  };
  const Tensor x = bytes.view(Dtype::bf16, 3, 40), y = out.view(Dtype::bf16, 3, 7);
  BOOST_TEST(with(bytes.view(Dtype::f32, 3, 40), y) ==
             "WeightOnlyLinear x: is f32[3, 40] on cpu; it must be of bf16 or f16: cast it first");
  BOOST_TEST(with(bytes.view(Dtype::bf16, 3, 41), y) ==
             "WeightOnlyLinear x: is bf16[3, 41] on cpu; it must have 40 columns = in_features");
  BOOST_TEST(with(x, out.view(Dtype::f16, 3, 7)) ==
             "WeightOnlyLinear y: is f16[3, 7] on cpu; it must be of x's dtype, bf16, or f32");
  BOOST_TEST(with(x, out.view(Dtype::bf16, 3, 8)) ==
             "WeightOnlyLinear y: is bf16[3, 8] on cpu; it must be [3, 7]: x's rows, out_features");
  check_contains(with(x, out.view(Dtype::bf16, 2, 7)), {"is bf16[2, 7] on cpu; it must be [3, 7]"});
  check_contains(with(x, y, {.bias = out.view(Dtype::bf16, 1, 8)}), {"bias", "7"});
  check_contains(with(x, y, {.bias = out.view(Dtype::f32, 1, 7)}), {"bias", "bf16"});
  check_contains(with(x, bytes.view(Dtype::bf16, 3, 7)), {"overlap"});
}

BOOST_AUTO_TEST_CASE(of_states) {
  const WeightOnlyState good = layer({}, 7, 40).state(stream);
  const auto with = [&](const WeightOnlyState& state) {
    return error_of([&] { WeightOnlyLinear::from_state(*backend, state, stream); }, ErrorCode::invalid_argument);
  };
  WeightOnlyState bad = good;
  bad.weight.pop_back();
  BOOST_TEST(
      with(bad) ==
      "WeightOnlyState weight: has 4351 bytes, but a packed weight e4m3fn[7, 40] has 4352: the state is not one that "
      "state() returned");
  bad = good;
  bad.scale.resize(3);
  BOOST_TEST(
      with(bad) ==
      "WeightOnlyState scale: has 3 bytes, but a packed weight e4m3fn[7, 40] with scale row has 28: the state is "
      "not one that state() returned");
  bad = good;
  bad.options.layout = WeightLayout::row_major;
  check_contains(with(bad), {"has 4352 bytes, but a row_major weight e4m3fn[7, 40] has 280"});
  bad = good;
  bad.out_features = -1;
  BOOST_TEST(with(bad) ==
             "WeightOnlyState: is of a weight [-1, 40], a size that is negative or too large for any device");
  bad.out_features = std::int64_t{1} << 60U;
  check_contains(with(bad), {"a size that is negative or too large for any device"});
  bad.out_features = bad.in_features = std::int64_t{1} << 31U;
  BOOST_TEST(
      with(bad) ==
      "WeightOnlyState: is of a weight [2147483648, 2147483648], a size that is negative or too large for any device");
}

// The stored fault of each row must match its codes, because a GPU multiplies by it; otherwise GPU and CPU would
// disagree.
BOOST_AUTO_TEST_CASE(of_packed_bytes_that_contradict_themselves) {
  const auto with = [&](const WeightOnlyState& state) {
    return error_of([&] { WeightOnlyLinear::from_state(*backend, state, stream); }, ErrorCode::invalid_argument);
  };
  const auto set_fault = [](WeightOnlyState& state, std::size_t row, float fault) {  // of 128 padded rows
    std::memcpy(&state.weight[state.weight.size() - 4 * (128 - row)], &fault, sizeof fault);
  };
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    if (options.mx || options.scale != kRowwise || !is_packed(options.layout)) continue;
    const Dtype dtype = options.dtype;
    BOOST_TEST_CONTEXT(test::print(options)) {
      const std::int64_t n = 70, k = 100;
      HostCodes codes = random_codes(dtype, n, k, 1);
      const bool has_nan = !is_sub_byte(dtype);
      if (has_nan) {
        for (const std::int64_t row : {3, 11, 69}) {  // 3 and 11 in whole fragments, of both kinds of registers
          codes.codes[static_cast<std::size_t>(row * k + 5 * row / 4)] =
              dtype == Dtype::e4m3fnuz || dtype == Dtype::e5m2fnuz ? 0x80 : 0xff;
        }
      }
      const WeightOnlyState good = layer(codes, random_scales(options, n, k, 2, false), options).state(stream);
      BOOST_TEST(with(good) == "nothing thrown");
      for (const float fault : {2.0F, 0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        WeightOnlyState bad = good;
        set_fault(bad, 64, fault);
        check_contains(with(bad), {"WeightOnlyState weight: has ",
                                   " after its codes for the row 64, which has no NaN; expected 1: it is damaged, "
                                   "or was packed as another dtype or layout than the state says; pack the weight "
                                   "again, from its values or its codes"});
        bad = good;
        set_fault(bad, 127, fault);  // padding
        check_contains(with(bad), {"for the row 127, which has no NaN; expected 1"});
      }
      if (has_nan) {
        for (const std::size_t row : {3U, 11U, 69U}) {
          WeightOnlyState bad = good;
          set_fault(bad, row, 1);
          check_contains(with(bad),
                         {"has 1 after its codes for the row " + std::to_string(row), "which has a NaN; expected NaN"});
        }
      }
      WeightOnlyState bad = good;
      // The last of the codes is beyond both sizes.
      bad.weight[bad.weight.size() - 4 * 128 - 1] = std::byte{0x01};
      check_contains(with(bad), {"has nonzero codes in its padding, in the rows from 64 on"});
    }
  }
}

BOOST_AUTO_TEST_CASE(of_streams_that_are_capturing) {
  CountingBackend counting(*backend, &stream);
  Stream on(counting);
  counting.is_capturing = true;
  const Tensor weight = matrix(&counting, Dtype::bf16, 4, 32, counting.device());
  const Tensor codes = matrix(&counting, Dtype::e4m3fn, 4, 32, counting.device());
  const Tensor scales = matrix(&counting, Dtype::f32, 4, 1, counting.device());
  const WeightOnlyState state = layer({}, 4, 32).state(stream);
  const auto refusal = [](const auto& call) { return error_of(call, ErrorCode::invalid_argument); };
  for (const std::string& message :
       {refusal([&] { WeightOnlyLinear::quantize(counting, weight, {}, on); }),
        refusal([&] { WeightOnlyLinear::from_codes(counting, codes, scales, ScaleConvention::dequantize, {}, on); }),
        refusal([&] { WeightOnlyLinear::from_state(counting, state, on); })}) {
    BOOST_TEST(message ==
               "stream: is capturing a graph; make the layer before the capture, and capture only its forward()");
  }
  BOOST_TEST(counting.allocations == 0);
}

BOOST_AUTO_TEST_CASE(of_files) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "w.safetensors";
  const WeightOnlyState state = layer({}, 7, 40).state(stream);
  save_weight_only(path, {{"a.", state}});
  // Writes the file again with other metadata, or without some of it.
  const auto with = [&](std::map<std::string, std::string> changes, const std::string& name = "a.") {
    const SafetensorsFile first = SafetensorsFile::open(path);
    std::map<std::string, std::string> metadata = first.metadata();
    for (const auto& [key, value] : changes) {
      if (value.empty()) {
        metadata.erase(key);
      } else {
        metadata[key] = value;
      }
    }
    const std::vector<std::byte> weight = first.read(first.at("a.weight")),
                                 scale = first.read(first.at("a.weight_scale"));
    const std::filesystem::path other = directory.path() / "other.safetensors";
    const std::vector<TensorToStore> tensors{
        {"a.weight", first.at("a.weight").type, first.at("a.weight").shape, weight},
        {"a.weight_scale", "F32", {7, 1}, scale}};
    write_safetensors(other, tensors, metadata);
    const SafetensorsFile opened = SafetensorsFile::open(other);
    return error_of([&] { load_weight_only(opened, name); },
                    name == "a." ? ErrorCode::invalid_argument : ErrorCode::not_found);
  };
  check_contains(with({{"a.ingot.layout_version", "2"}}),
                 {"other.safetensors: the metadata \"a.ingot.layout_version\" is \"2\", but this library reads packed "
                  "weights of version 3: pack the weight again, from its values or its codes"});
  check_contains(with({{"a.ingot.layout", ""}}),
                 {"the metadata \"a.ingot.layout\" is missing: save_weight_only() did not write this weight; codes and "
                  "scales of other checkpoints go to WeightOnlyLinear::from_codes()"});
  check_contains(with({{"a.ingot.layout", "woven"}}), {"is \"woven\", but must be packed, packed_f16 or row_major"});
  check_contains(with({{"a.ingot.dtype", "e9m9"}}), {"is \"e9m9\", which is not a dtype"});
  for (const char* const dtype : {"u8", "f32", "e8m0fnu"}) {
    check_contains(with({{"a.ingot.dtype", dtype}}),
                   {"is \"" + std::string(dtype) +
                    "\", which a weight cannot have; it must be one of e4m3fn, e5m2, e4m3fnuz, "
                    "e5m2fnuz, e3m2fn, e2m3fn, e2m1fn"});
  }
  check_contains(with({{"a.ingot.dtype", "\x1b[2J"}}), {"is \"?[2J\", which is not a dtype"});
  check_contains(with({{"a.ingot.n", "2147483648"}, {"a.ingot.k", "2147483648"}}),
                 {"other.safetensors: the metadata \"a.ingot.n\" is of a weight [2147483648, 2147483648], a size that "
                  "is negative or too large for any device"});
  check_contains(with({{"a.ingot.scale", "knight"}}), {"is \"knight\", which is not a scale granularity"});
  for (const char* const size : {"-1", "7x", "99999999999", "seven"}) {
    check_contains(with({{"a.ingot.n", size}}), {"is \"" + std::string(size) + "\", but must be a size of 0 to 2^31"});
  }
  check_contains(with({{"a.ingot.k", "400"}}),
                 {"the tensor \"a.weight\" is U8 [4352], but according to the file's metadata it must be U8 [28928]"});
  check_contains(with({{"a.ingot.layout", "row_major"}}), {"is U8 [4352]", "must be F8_E4M3 [7, 40]"});
  check_contains(with({{"a.ingot.scale", "mx"}}), {"\"a.weight_scale\" is F32 [7, 1]", "must be F8_E8M0 [7, 2]"});
  check_contains(with({}, "a"),
                 {"other.safetensors: has no layer \"a\", which would be a tensor \"aweight\"; its layers: \"a.\""});
  check_contains(with({{"a.ingot.layout", ""}}, "b."), {"\"b.weight\"; save_weight_only() wrote none into it"});
  WeightOnlyState bad = state;
  bad.weight.pop_back();
  check_contains(error_of([&] { save_weight_only(path, {{"a.", bad}}); }, ErrorCode::invalid_argument), {"a.weight"});
  bad.out_features = bad.in_features = std::int64_t{1} << 31U;
  check_contains(error_of(
                     [&] {
                       save_weight_only(path, {{"a.", bad}});
                     },
                     ErrorCode::invalid_argument),
                 {"WeightOnlyState \"a.\": is of a weight [2147483648, 2147483648], a size that is negative or too "
                  "large for any device"});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
