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

#include "cast/cast_rows_columns.cuh"
#include "cast/cast_stack.cuh"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
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

// Rows and the maxima of their columns, by more and fewer blocks than matrices.
template <class Source, class Out>
void check_rows_columns(const std::string& line) {
  using Launch = CastRowsColumnsLaunch;
  const auto spec = std::get<CastSpec>(parse(line));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const StackCase& shape : {StackCase{.matrices = 3, .rows = 13, .cols = 1032, .padding = 8},
                                 {.matrices = 7, .rows = 3, .cols = 264},
                                 {.matrices = 1, .rows = 9, .cols = 2048},
                                 {.matrices = 5, .rows = 4, .cols = 16}}) {
    StackCase c = shape;
    c.spec = spec;
    const GuardedMatrix input = stack_input(c);
    PlacedStack placed(c, input, *backend, stream);
    const CastTensors& tensors = placed.tensors();
    const u32 threads = Launch::threads(c.cols, sizeof(typename Source::Value));
    const u32 shared_bytes = Launch::shared_bytes(threads, sizeof(typename Source::In), sizeof(typename Source::Value));
    for (const i64 resident : {2, 5, 1000}) {
      placed.reset(stream);
      auto* const maxima = static_cast<float*>(tensors.found_amax.data);
      std::fill(maxima, maxima + tensors.found_amax.cols, 0.0F);
      const CastRowsColumnsParams params = cuda::rows_columns_params(spec, tensors, resident);
      const i64 grid = Launch::grid(tensors.input.rows, params.rows_per_block);
      emulator::launch(cast_rows_columns<Source, Out>, grid, threads, params, shared_bytes);
      BOOST_TEST(stack_difference(cast_one_by_one(c, input), placed.outputs(stream)) == "",
                 describe(c) << " by " << grid << " blocks");
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_with_maxima_of_columns) {
  check_rows_columns<ValueSource<bf16>, e4m3fn>("cast bf16->e4m3fn scale=row out=codes,amax:col stacked");
  check_rows_columns<ValueSource<f32>, e5m2>("cast f32->e5m2 scale=row out=codes,amax:col pow2 stacked");
  check_rows_columns<RoundedSource<f32, f16>, e4m3fnuz>(
      "cast f32->e4m3fnuz scale=row out=codes,amax:col rounded=f16 stacked");
}
// As the CPU reference: NaN is the largest, whatever its bits are.
BOOST_AUTO_TEST_CASE(rows_with_nan_and_inf) {
  using Launch = CastRowsColumnsLaunch;
  const auto spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row out=codes,amax:col stacked"));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const StackCase c{.spec = spec, .matrices = 2, .rows = 5, .cols = 16};
  GuardedMatrix input = stack_input(c);
  input.set_bits(1, 3, 0xffc1);  // a negative NaN with a payload
  input.set_bits(2, 3, 0x7f80);  // Inf
  input.set_bits(7, 9, 0xff80);
  PlacedStack placed(c, input, *backend, stream);
  const CastTensors& tensors = placed.tensors();
  backend->cast(spec, tensors, stream);
  const auto expected = placed.outputs(stream);
  placed.reset(stream);
  std::fill_n(static_cast<float*>(tensors.found_amax.data), tensors.found_amax.cols, 0.0F);
  const CastRowsColumnsParams params = cuda::rows_columns_params(spec, tensors, 2);
  emulator::launch(cast_rows_columns<ValueSource<bf16>, e4m3fn>, 2, 32, params, Launch::shared_bytes(32, 2, 2));
  BOOST_TEST(stack_difference(expected, placed.outputs(stream)) == "");
}
BOOST_AUTO_TEST_CASE(maxima_of_columns_alone) {
  const auto spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row out=codes,amax:col stacked"));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const StackCase c{.spec = spec, .matrices = 3, .rows = 130, .cols = 51, .padding = 3, .offset = 1};
  const GuardedMatrix input = stack_input(c);
  const PlacedStack placed(c, input, *backend, stream);
  const Tensor& maxima = placed.tensors().found_amax;
  std::fill_n(static_cast<float*>(maxima.data), maxima.cols, 0.0F);
  const CastStackParams params = cuda::stack_params(spec, placed.tensors(), nullptr);
  emulator::launch(cast_stack_maxima<ValueSource<bf16>, CastConfig{.transposed = kColumnScale}>,
                   c.matrices * params.tiles, CastTilesLaunch::kThreads, params);
  const auto only = [](const std::map<std::string, GuardedMatrix>& all) {
    return std::map<std::string, GuardedMatrix>{{"found_amax", all.at("found_amax")}};
  };
  BOOST_TEST(stack_difference(only(cast_one_by_one(c, input)), only(placed.outputs(stream))) == "");
}
// No first pass, and maxima of the caller's.
template <class Source, class Out, CastConfig C>
void check_known(const std::string& line) {
  const auto spec = std::get<CastSpec>(parse(line));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const StackCase c{.spec = spec, .matrices = 3, .rows = 130, .cols = 264, .padding = 8, .known = true};
  const GuardedMatrix input = stack_input(c);
  const PlacedStack placed(c, input, *backend, stream);
  const CastStackParams params = cuda::stack_params(spec, placed.tensors(), nullptr);
  emulator::launch(cast_stack<Source, Out, C>, c.matrices * params.tiles, CastTilesLaunch::kThreads, params);
  BOOST_TEST(stack_difference(cast_one_by_one(c, input), placed.outputs(stream)) == "", describe(c));
}
BOOST_AUTO_TEST_CASE(known_maxima) {
  check_known<ValueSource<bf16>, e4m3fn, CastConfig{.transposed = kColumnScale}>(
      "cast bf16->e4m3fn scale=col out=transposed stacked");
  check_known<ValueSource<bf16>, e4m3fn, CastConfig{.codes = kTensorScale, .transposed = kTensorScale}>(
      "cast bf16->e4m3fn scale=tensor out=codes,transposed stacked");
}
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
