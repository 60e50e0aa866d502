// Runs the kernels of quantize_mx and float_quantize on the host, thread by thread, and compares them with the CPU
// backend: the same bits, wherever the matrices are. (tests/runtime/test_quantize_mx.cpp and test_float_quantize.cpp
// compare the CPU backend with float64.)
#include "templates/emulator.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>

#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/quantize_case.h"

#include "quantize/float_quantize.cuh"
#include "quantize/quantize_mx.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_quantize_emulated)

namespace {

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream stream{*cpu};

  // most_down: fewer blocks than there are rows of tiles, so that blocks take several.
  template <class In, class Out>
  void check_mx(i64 most_down = Vec8Tiles::kMaxBlocksDown) {
    const MxQuantizeSpec spec{.in = kDtypeOf<In>, .out = kDtypeOf<Out>};
    for (const MxCase& c : mx_cases()) {
      if (c.shape.rows == 0 || c.shape.cols == 0) continue;
      const GuardedMatrix input = mx_input(spec.in, c.shape, c.input, c.at);
      PlacedMx placed(spec.out, input, c.at, *cpu, stream);
      const MxQuantizeTensors& t = placed.tensors;
      const auto grid = QuantizeMxLaunch::grid(c.shape.rows, c.shape.cols, sizeof(In));
      emulator::launch(quantize_mx<In, Out>,
                       {.grid = grid.x, .grid_y = std::min(grid.y, most_down), .threads = QuantizeMxLaunch::kThreads},
                       QuantizeMxParams{.input = t.input.data,
                                        .rows = c.shape.rows,
                                        .cols = c.shape.cols,
                                        .input_stride = t.input.row_stride,
                                        .codes = static_cast<u8*>(t.codes.data),
                                        .codes_row_bytes = row_bytes(spec.out, t.codes.row_stride),
                                        .scales = static_cast<u8*>(t.scales.data),
                                        .scales_stride = t.scales.row_stride,
                                        .across_log2 = QuantizeMxLaunch::across_log2(c.shape.cols)});
      const std::string fault = mx_difference(run_mx(spec, input, c.at, *cpu, stream), placed.outputs(stream));
      BOOST_CHECK_MESSAGE(fault.empty(), name(spec, c) << ": " << fault);
    }
  }

  template <class In, int kExponentBits, int kMantissaBits>
  void check_float() {
    const FloatQuantizeSpec spec{.in = kDtypeOf<In>, .exponent_bits = kExponentBits, .mantissa_bits = kMantissaBits};
    for (const MxCase& c : mx_cases()) {
      if (c.shape.rows == 0 || c.shape.cols == 0) continue;
      GuardedMatrix matrix = mx_input(spec.in, c.shape, c.input, c.at);
      const GuardedMatrix expected = run_float(spec, matrix, {}, true, *cpu, stream);
      const Tensor view = matrix.view(matrix.bytes().data(), {});  // in place
      const auto grid = ElementwiseLaunch::grid(view.rows, view.cols, sizeof(In));
      emulator::launch(
          float_quantize<In, FloatQuantizeConfig{.exponent_bits = kExponentBits, .mantissa_bits = kMantissaBits}>,
          {.grid = grid.x, .grid_y = grid.y, .threads = ElementwiseLaunch::kThreads},
          ElementwiseParams{.source = {.input = view.data,
                                       .rows = view.rows,
                                       .cols = view.cols,
                                       .input_stride = view.row_stride,
                                       .operands = {}},
                            .output = view.data,
                            .output_stride = view.row_stride,
                            .across_log2 = ElementwiseLaunch::across_log2(view.cols)});
      const std::string fault = bit_difference("output", expected, matrix) + matrix.damage();
      BOOST_CHECK_MESSAGE(fault.empty(), name(spec, c) << ": " << fault);
    }
  }
};

BOOST_FIXTURE_TEST_SUITE(quantize_emulated, Fixture)

BOOST_AUTO_TEST_CASE(mx_fp8) { check_mx<bf16, e4m3fn>(); }
BOOST_AUTO_TEST_CASE(mx_fp8_of_f32) { check_mx<f32, e5m2>(); }
BOOST_AUTO_TEST_CASE(mx_fp6) { check_mx<bf16, e3m2fn>(); }
BOOST_AUTO_TEST_CASE(mx_fp6_of_f16) { check_mx<f16, e2m3fn>(1); }
BOOST_AUTO_TEST_CASE(mx_fp6_of_f32) { check_mx<f32, e3m2fn>(); }
BOOST_AUTO_TEST_CASE(mx_fp4) { check_mx<bf16, e2m1fn>(2); }
BOOST_AUTO_TEST_CASE(mx_fp4_of_f32) { check_mx<f32, e2m1fn>(); }

BOOST_AUTO_TEST_CASE(float_e4m3) { check_float<bf16, 4, 3>(); }
BOOST_AUTO_TEST_CASE(float_e3m2_of_f16) { check_float<f16, 3, 2>(); }
BOOST_AUTO_TEST_CASE(float_e1m6_of_f32) { check_float<f32, 1, 6>(); }
BOOST_AUTO_TEST_CASE(float_e7m0_of_f32) { check_float<f32, 7, 0>(); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
