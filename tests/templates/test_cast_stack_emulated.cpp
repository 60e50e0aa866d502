// Runs the kernels of stacked matrices on the host, thread by thread, with the parameters that the CUDA backend gives
// them, and compares them with casts of each matrix by itself on the CPU.
#include "templates/emulator.h"

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cast/cuda_cast_stack.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "support/cast_stack_case.h"
#include "templates/cast_outputs.h"

#include "cast/cast_stack.cuh"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_cast_stack_emulated)

namespace {

using namespace ingot;
using namespace ingot::test;

// C: the outputs, where they come from and how; Maxima: what the first pass finds.
template <class Source, class Out, CastConfig C, CastConfig Maxima = CastConfig{}>
void check(const std::string& line) {
  const auto spec = std::get<CastSpec>(parse(line));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const StackCase& shape : {StackCase{.matrices = 3, .rows = 130, .cols = 264, .padding = 8},
                                 {.matrices = 4, .rows = 77, .cols = 51, .padding = 3, .offset = 1},
                                 {.matrices = 1, .rows = 128, .cols = 128},
                                 {.matrices = 5, .rows = 32, .cols = 16}}) {
    StackCase c = shape;
    c.spec = spec;
    const GuardedMatrix input = stack_input(c);
    const PlacedStack placed(c, input, *backend, stream);
    const CastTensors& tensors = placed.tensors();
    std::vector<float> maxima(static_cast<std::size_t>(cuda::stacked_maxima(spec, tensors)));
    const bool first = C.given_scales ? false : !maxima.empty();
    BOOST_TEST(first == (Maxima.codes.written || Maxima.transposed.written));
    const CastStackParams params = cuda::stack_params(spec, tensors, first ? maxima.data() : nullptr);
    const i64 grid = c.matrices * params.tiles;
    if constexpr (Maxima.codes.written || Maxima.transposed.written) {
      emulator::launch(cast_stack_maxima<Source, Maxima>, grid, CastTilesLaunch::kThreads, params);
    }
    emulator::launch(cast_stack<Source, Out, C>, grid, CastTilesLaunch::kThreads, params);
    BOOST_TEST(stack_difference(cast_one_by_one(c, input), placed.outputs(stream)) == "", describe(c));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(tensorwise) {
  check<ValueSource<bf16>, e4m3fn, CastConfig{.codes = kTensorScale, .transposed = kTensorScale},
        CastConfig{.codes = kTensorScale}>("cast bf16->e4m3fn scale=tensor out=codes,transposed stacked");
}
BOOST_AUTO_TEST_CASE(rows_and_columns) {
  check<ValueSource<f16>, e5m2, CastConfig{.codes = kRowScale, .transposed = kColumnScale, .unaligned = true},
        CastConfig{.codes = kRowScale, .transposed = kColumnScale}>(
      "cast f16->e5m2 scale=row+col out=codes,transposed stacked pow2");
}
BOOST_AUTO_TEST_CASE(blocks) {
  check<ValueSource<f32>, e4m3fn, CastConfig{.codes = kBlockScale, .transposed = kBlockScale}>(
      "cast f32->e4m3fn scale=128x128 out=codes,transposed stacked");
}
BOOST_AUTO_TEST_CASE(transposed_columns_of_rounded_values) {
  check<RoundedSource<f32, bf16>, e5m2fnuz, CastConfig{.transposed = kColumnScale},
        CastConfig{.transposed = kColumnScale}>("cast f32->e5m2fnuz scale=col out=transposed rounded=bf16 stacked");
}
BOOST_AUTO_TEST_CASE(groups_and_one_of_each) {
  check<ValueSource<bf16>, e4m3fn, CastConfig{.codes = kRowGroupScale, .transposed = kTensorScale},
        CastConfig{.transposed = kTensorScale}>("cast bf16->e4m3fn scale=1x128+tensor out=codes,transposed stacked");
}
BOOST_AUTO_TEST_CASE(given_scales) {
  check<ValueSource<bf16>, e4m3fn,
        CastConfig{.codes = kRowScale, .transposed = kColumnScale, .given_scales = true, .unaligned = true}>(
      "cast bf16->e4m3fn scale=row+col out=codes,transposed given stacked");
}

BOOST_AUTO_TEST_SUITE_END()
