// Casts whose amax is known already have the bits of those that look for it, on the GPU, also directly after the kernel
// that writes what they cast.
#include "support/gpu_test.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "support/known_amax.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_known_amax_gpu)

BOOST_AUTO_TEST_CASE(gives_the_bits_of_a_cast_that_looks_for_it) {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  InputMaker maker;
  for (const CastSpec& spec : casts_that_take_an_amax()) {
    std::vector<Case> all = known_amax_cases(spec);
    all.push_back({.spec = spec, .shape = {4096, 4096}});
    all.push_back({.spec = spec, .shape = {3001, 1037}});
    for (const Case& c : all) {
      const std::string fault = known_amax_fault(c, maker.inputs(c), cuda, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

// In turn with two inputs: a cast that does not wait would read the values of the other one.
BOOST_AUTO_TEST_CASE(follows_the_kernel_that_finds_the_amax) {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  ThreadPool pool{0};
  const auto write = std::get<ElementwiseSpec>(parse("elementwise bf16 of=\"abs(x)\" amax"));
  const auto cast = std::get<CastSpec>(parse("cast bf16->e5m2 scale=tensor out=codes,transposed"));
  for (const Shape shape : {Shape{8192, 8192}, Shape{512, 256}, Shape{100, 77}}) {
    const std::int64_t rows = shape.rows;
    const std::int64_t cols = shape.cols;
    const OwnedTensor values(cuda, Dtype::bf16, rows, cols);
    const OwnedTensor amax(cuda, Dtype::f32, 1, 1);
    const OwnedTensor codes(cuda, Dtype::e5m2, rows, cols);
    const OwnedTensor transposed(cuda, Dtype::e5m2, cols, rows);
    const OwnedTensor scale_inv(cuda, Dtype::f32, 1, 1);
    std::vector<OwnedTensor> inputs;
    for (const std::uint64_t seed : {1, 2}) {
      GuardedMatrix host(Dtype::bf16, rows, cols);
      fill(host, Input::normal, seed, pool);
      inputs.emplace_back(cuda, Dtype::bf16, rows, cols);
      cuda.device_api().copy_from_host(inputs.back().view().data, host.element(0, 0),
                                       static_cast<std::size_t>(rows) * host.row_bytes(), stream);
    }
    const auto cast_with = [&](const Tensor& known) {
      cuda.cast(
          cast,
          {.input = values, .codes = codes, .transposed = transposed, .scale_inv = scale_inv, .known_amax = known},
          stream);
      const auto bytes = static_cast<std::size_t>(rows * cols);
      std::vector<std::byte> found(2 * bytes + sizeof(float));
      cuda.device_api().copy_to_host(found.data(), codes.view().data, bytes, stream);
      cuda.device_api().copy_to_host(found.data() + bytes, transposed.view().data, bytes, stream);
      cuda.device_api().copy_to_host(found.data() + 2 * bytes, scale_inv.view().data, sizeof(float), stream);
      return found;
    };
    for (int turn = 0; turn < 8; ++turn) {
      cuda.elementwise(write, {.input = inputs[turn % 2], .output = values, .amax = amax}, stream);
      const std::vector<std::byte> directly_after = cast_with(amax);
      BOOST_TEST((directly_after == cast_with({})), "turn " << turn << " of " << rows << " x " << cols);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
