// WeightOnlyLinear on CUDA: layers have the CPU's bits, results agree with float64 within rounding, rows are
// independent of each other with batch_invariant, and a graph can replay the layer. Several processes can share the
// kinds of layers (support/share.h).
#include "support/gpu_test.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "nn/counting_backend.h"
#include "nn/weight_only_case.h"
#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_weight_only_gpu)

namespace {

// One context for the program, so that a kernel is compiled once.
Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Backend& backend = context().backend();
  Stream stream{backend};
  std::unique_ptr<Backend> cpu = make_cpu_backend(Share::of_arguments().threads());
  Stream cpu_stream{*cpu};
};

// The usual scale for each dtype, and the usual dtype for each scale, in both layouts.
// tests/runtime/test_dequant_matmul_gpu.cpp covers every pair. Only this process' share: a kind is in the same share in
// every test, because its tests use the same kernels.
std::vector<WeightOnlyOptions> kinds() {
  const Share share = Share::of_arguments();
  std::size_t index = 0;
  std::vector<WeightOnlyOptions> some;
  for (const WeightOnlyOptions& options : every_kind_of_weight()) {
    const bool usual_scale = is_sub_byte(options.dtype) ? options.mx : options.scale == kRowwise;
    if ((usual_scale || options.dtype == Dtype::e4m3fn) && share.has(index++)) some.push_back(options);
  }
  return some;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(agrees_with_float64) {
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const WeightOnlyOptions& options : kinds()) {
    for (const auto& [m, n, k] : {Sizes{1, 64, 256}, Sizes{3, 70, 133}, Sizes{100, 256, 512}}) {
      const HostCodes codes = random_codes(options.dtype, n, k, 1);
      const WeightScales scales = random_scales(options, n, k, 2, false);
      const WeightOnlyLinear linear = layer_of(codes, scales, options, backend, stream);
      const Matrix w = values_of(codes, scales, options);
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
        BOOST_TEST_CONTEXT(test::print(options) << ", " << m << " x " << n << " x " << k << ", " << name(dtype)) {
          const Matrix x = Random(3).normal(m, k, dtype, dtype == Dtype::f16 ? 0x1p-12 : 1.0);
          const Matrix bias = Random(4).normal(1, n, dtype);
          const DeviceMatrix x_on(x, dtype, backend, stream), bias_on(bias, dtype, backend, stream);
          check_within(forward_of(linear, x_on, dtype, backend, stream, bias_on).read(stream),
                       expected_gemm(x, w, &bias, dtype), "y");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(quantized_to_the_cpus_bits) {
  for (WeightOnlyOptions options : kinds()) {
    if (options.mx && (options.dtype == Dtype::e4m3fnuz || options.dtype == Dtype::e5m2fnuz)) continue;
    for (const std::int64_t k : {256, 133}) {
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        BOOST_TEST_CONTEXT(test::print(options) << " of " << name(dtype) << ", K " << k) {
          const Matrix w = Random(5).normal(70, k, dtype, 0.02);
          const DeviceMatrix there(w, dtype, backend, stream, k + 3), here(w, dtype, *cpu, cpu_stream, k + 3);
          const WeightOnlyState a = WeightOnlyLinear::quantize(backend, there, options, stream).state(stream);
          const WeightOnlyState b = WeightOnlyLinear::quantize(*cpu, here, options, cpu_stream).state(cpu_stream);
          BOOST_TEST((a.scale == b.scale));
          // Bits after a row's last code do not belong to any code.
          if (is_packed(options.layout) || k * bits_of(options.dtype) % 8 == 0) BOOST_TEST((a.weight == b.weight));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(states_come_back) {
  for (const WeightOnlyOptions& options : kinds()) {
    const std::int64_t n = 70, k = 133;
    const HostCodes codes = random_codes(options.dtype, n, k, 1);
    const WeightScales scales = random_scales(options, n, k, 2, false);
    const WeightOnlyState state = layer_of(codes, scales, options, backend, stream).state(stream);
    const WeightOnlyState again = WeightOnlyLinear::from_state(backend, state, stream).state(stream);
    BOOST_TEST((again.weight == state.weight), test::print(options));
    BOOST_TEST((again.scale == state.scale), test::print(options));
    for (const WeightLayout layout : kWeightLayouts) {
      WeightOnlyOptions wanted = options;
      wanted.layout = layout;
      const WeightOnlyState changed =
          WeightOnlyLinear::from_state(backend, state, stream).with_layout(layout, stream).state(stream);
      const WeightOnlyState made = layer_of(codes, scales, wanted, backend, stream).state(stream);
      if (is_packed(layout) || k * bits_of(options.dtype) % 8 == 0) {
        BOOST_TEST((changed.weight == made.weight), test::print(options) << " to " << name(layout));
      }
      BOOST_TEST((changed.scale == made.scale), test::print(options) << " to " << name(layout));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_same_call_gives_the_same_bits) {
  for (const WeightOnlyOptions& options : kinds()) {
    const std::int64_t n = 256, k = 1024;
    const WeightOnlyLinear linear = layer_of(random_codes(options.dtype, n, k, 1),
                                             random_scales(options, n, k, 2, false), options, backend, stream);
    for (const std::int64_t m : {1, 16, 64}) {
      const DeviceMatrix x(Random(3).normal(m, k, Dtype::bf16), Dtype::bf16, backend, stream);
      const std::vector<std::uint8_t> first = forward_of(linear, x, Dtype::bf16, backend, stream).bytes(stream);
      for (int call = 0; call < 3; ++call) {
        BOOST_TEST((forward_of(linear, x, Dtype::bf16, backend, stream).bytes(stream) == first), test::print(options)
                                                                                                     << ", M " << m);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_how_many_there_are) {
  for (WeightOnlyOptions options : kinds()) {
    options.batch_invariant = true;
    const std::int64_t n = 320, k = 1024, most = 256;
    const WeightOnlyLinear linear = layer_of(random_codes(options.dtype, n, k, 1),
                                             random_scales(options, n, k, 2, false), options, backend, stream);
    const Matrix all = Random(3).normal(most, k, Dtype::bf16);
    const DeviceMatrix all_on(all, Dtype::bf16, backend, stream);
    const std::vector<std::uint8_t> expected = forward_of(linear, all_on, Dtype::bf16, backend, stream).bytes(stream);
    for (const std::int64_t m : {1, 2, 3, 8, 16, 17, 64, 100}) {
      const DeviceMatrix some({m, k, {all.values.begin(), all.values.begin() + m * k}}, Dtype::bf16, backend, stream);
      const std::vector<std::uint8_t> y = forward_of(linear, some, Dtype::bf16, backend, stream).bytes(stream);
      BOOST_TEST((std::equal(y.begin(), y.end(), expected.begin())),
                 test::print(options) << ": of " << m << " rows differ from those of " << most);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_captured_call_replays_to_the_same_bits) {
  std::string problem;
  const std::unique_ptr<Driver> driver = Driver::open(problem);
  BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
  for (const WeightOnlyOptions& options : kinds()) {
    for (const std::int64_t m : {1, 17, 100}) {
      BOOST_TEST_CONTEXT(test::print(options) << ", M " << m) {
        const std::int64_t n = 320, k = 1024;
        CountingBackend counting(backend, &stream);
        const WeightOnlyLinear linear = layer_of(random_codes(options.dtype, n, k, 1),
                                                 random_scales(options, n, k, 2, false), options, counting, stream);
        DeviceMatrix x(Random(3).normal(m, k, Dtype::bf16), Dtype::bf16, backend, stream);
        DeviceMatrix y = DeviceMatrix::poisoned(m, n, Dtype::bf16, backend, stream);
        const int before = counting.allocations;
        const auto step = [&] { linear.forward(x, y, stream); };
        step();
        const std::vector<std::uint8_t> eager = y.bytes(stream);
        Graph graph(stream, step);
        BOOST_TEST(counting.allocations == before);
        for (int replay = 0; replay < 3; ++replay) {
          y.poison(stream);
          graph.replay(stream);
          BOOST_TEST((y.bytes(stream) == eager), "replay " << replay << " differs from the call itself");
        }
        // The graph reads the tensors, not their values at capture.
        x.write(Random(4).normal(m, k, Dtype::bf16), stream);
        y.poison(stream);
        graph.replay(stream);
        const std::vector<std::uint8_t> replayed = y.bytes(stream);
        y.poison(stream);
        step();
        BOOST_TEST((replayed == y.bytes(stream)));
        BOOST_TEST((replayed != eager));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
