// In the reproducible precisions, the GPU computes the same bits as PointwiseProgram.
#include "support/gpu_test.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/kernel.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_pointwise_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  Buffer sent(const std::vector<float>& values) {
    Buffer buffer(backend, values.size() * sizeof(float));
    backend.device_api().copy_from_host(buffer.data(), values.data(), buffer.bytes(), stream);
    return buffer;
  }

  // The outputs of every expression, one after the other.
  std::vector<float> on_gpu(const std::vector<Pointwise>& expressions, PointwisePrecision precision,
                            const std::vector<float>& x, const std::vector<std::vector<float>>& inputs) {
    std::vector<float> out(expressions.size() * x.size(), std::numeric_limits<float>::infinity());
    const Buffer x_there = sent(x);
    const Buffer out_there = sent(out);
    std::vector<Buffer> inputs_there;
    PointwiseKernelParams params{static_cast<const float*>(x_there.data()),
                                 {},
                                 static_cast<float*>(out_there.data()),
                                 static_cast<unsigned>(x.size())};
    for (std::size_t k = 0; k < kMaxPointwiseInputs; ++k) {
      inputs_there.push_back(sent(inputs[k]));
      params.a[k] = static_cast<const float*>(inputs_there.back().data());
    }
    const Kernel& kernel = context.cache().get(kernel_of(expressions, precision));
    kernel.launch(stream.handle(), {.grid_x = (params.count + 127) / 128, .block = 128}, params);
    backend.device_api().copy_to_host(out.data(), out_there.data(), out.size() * sizeof(float), stream);
    return out;
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(same_bits_as_the_cpu) {
  constexpr std::size_t kCount = 100000;
  const std::vector<Pointwise> expressions = many_expressions();
  const std::vector<float> x = mixed_values(0, kCount);
  std::vector<std::vector<float>> inputs;
  for (std::uint64_t seed = 1; seed <= kMaxPointwiseInputs; ++seed) inputs.push_back(mixed_values(seed, kCount));
  for (const auto precision : {PointwisePrecision::reproducible16, PointwisePrecision::reproducible32}) {
    const std::vector<float> got = on_gpu(expressions, precision, x, inputs);
    for (std::size_t e = 0; e < expressions.size(); ++e) {
      std::vector<PointwiseValues> operands;
      for (std::size_t k = 0; k < expressions[e].inputs().size(); ++k) operands.push_back({inputs[k].data(), false});
      std::vector<float> expected(kCount);
      PointwiseProgram(expressions[e], precision).run(kCount, x.data(), operands, expected.data());
      std::size_t differ = 0;
      std::size_t first = kCount;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (bits(got[e * kCount + i]) == bits(expected[i])) continue;
        if (++differ == 1) first = i;
      }
      BOOST_TEST(differ == 0U, differ << " of " << kCount << " elements differ, the first at x[" << first
                                      << "] = " << x[first % kCount] << ": " << got[e * kCount + first % kCount]
                                      << ", expected " << expected[first % kCount] << ": " << expressions[e]);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
