// Layers on inputs of 2, 3 and 4 dimensions, with and without a bias, meet torchao's quality thresholds with every
// recipe and dtype.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <utility>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/flattened.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/cpu_backend.h"
#include "nn/linear_case.h"

BOOST_AUTO_TEST_SUITE(test_flattened)

using namespace ingot;
using namespace ingot::test;

BOOST_AUTO_TEST_CASE(the_last_dimension_is_the_columns) {
  float value = 0;
  const auto shape = [&](std::initializer_list<std::int64_t> sizes) {
    const Tensor t = flattened(&value, Dtype::f32, sizes, {});
    return std::pair{t.rows, t.cols};
  };
  BOOST_TEST((shape({5}) == std::pair<std::int64_t, std::int64_t>{1, 5}));
  BOOST_TEST((shape({3, 5}) == std::pair<std::int64_t, std::int64_t>{3, 5}));
  BOOST_TEST((shape({2, 3, 5}) == std::pair<std::int64_t, std::int64_t>{6, 5}));
  BOOST_TEST((shape({4, 0, 3, 5}) == std::pair<std::int64_t, std::int64_t>{0, 5}));
  const auto refusal = [](std::initializer_list<std::int64_t> sizes) -> std::string {
    try {
      static_cast<void>(flattened(nullptr, Dtype::f32, sizes, {}));
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  BOOST_TEST(refusal({}) == "flattened: has no sizes: give one or more");
  BOOST_TEST(refusal({2, -1}) == "flattened: has a negative size");
}

BOOST_AUTO_TEST_CASE(quality_of_inputs_of_more_dimensions) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Stream stream(*backend);
  constexpr std::int64_t kIn = 16, kOut = 32;
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const bool bias : {true, false}) {
        for (const std::initializer_list<std::int64_t>& sizes : {std::initializer_list<std::int64_t>{16, kIn},
                                                                 {2, 16, kIn},
                                                                 {3, 2, 16, kIn},
                                                                 {13, kIn},
                                                                 {3, 7, kIn},
                                                                 {2, 3, 5, kIn}}) {
          const std::int64_t tokens = flattened(nullptr, dtype, sizes, {}).rows;
          BOOST_TEST_CONTEXT(recipe.name << " " << name(dtype) << " bias=" << bias << " tokens=" << tokens) {
            const Dtype bias_dtype = bias_dtype_of(recipe.config, dtype);
            const HostInputs host = make_inputs({tokens, kIn, kOut}, dtype, bias_dtype, 7);
            const LinearCase device(host, dtype, bias_dtype, *backend, stream);
            DelayedScaling scales(*backend);
            Float8Linear linear(*backend, {kIn, kOut, bias}, recipe.config, {.delayed = &scales});
            LinearForward forward = device.forward(bias);
            forward.input = flattened(device.input.view().data, dtype, sizes, backend->device());
            linear.forward(forward, stream);
            linear.backward(device.backward(bias), stream);
            const LinearConfig plain = high_precision();
            const Matrix* const added = bias ? &host.bias : nullptr;
            BOOST_TEST(sqnr(expected_output(plain, host.input, host.weight, added, dtype).value,
                            device.output.read(stream)) >= 18.0);
            BOOST_TEST(sqnr(expected_grad_input(plain, host.grad_output, host.weight, dtype).value,
                            device.grad_input.read(stream)) >= 17.0);
            BOOST_TEST(sqnr(expected_grad_weight(plain, host.grad_output, host.input, dtype).value,
                            device.grad_weight.read(stream)) >= 17.0);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
