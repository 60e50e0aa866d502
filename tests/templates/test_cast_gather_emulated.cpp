// Runs the kernels of casts of gathered rows on the host, thread by thread, with the parameters that the CUDA backend
// gives them, and compares them with plain casts of copies of the rows on the CPU.
#include "templates/emulator.h"

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "support/cast_gather_case.h"
#include "templates/cast_outputs.h"

#include "cast/amax.cuh"
#include "cast/cast_gathered_rows.cuh"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_cast_gather_emulated)

namespace {

using namespace ingot;
using namespace ingot::test;

// Both passes. The first finds all maxima in one kernel: which kernel does is not this test's subject.
template <class In, class Out, CastConfig C>
void run(const CastSpec& spec, const CastTensors& tensors, u32 tiles_per_block) {
  const Tensor& input = tensors.input;
  std::vector<float> maxima(static_cast<std::size_t>(1 + input.rows + input.cols));
  auto* const bits = reinterpret_cast<u32*>(maxima.data());
  const SourceParams source = cuda::source_of(tensors);
  emulator::launch(
      amax_tiles<ValueSource<In>, AmaxTilesConfig{.tensor = true, .rows = true, .columns = true}>,
      AmaxTilesLaunch::grid(source.rows, source.cols, 2), AmaxTilesLaunch::kThreads,
      AmaxTilesParams{.source = source, .tensor = bits, .rows = bits + 1, .columns = bits + 1 + input.rows});
  CastTilesParams params = cuda::tiles_params(spec, tensors);
  const auto give = [&](ScaleGranularity scale, CastOutput& output) {
    output.from = maxima.data() + (scale == kTensorwise ? 0 : scale == kRowwise ? 1 : 1 + input.rows);
  };
  give(spec.scale, params.codes);
  give(spec.transposed_scale.value_or(spec.scale), params.transposed);
  params.tiles_per_block = tiles_per_block;
  emulator::launch(cast_tiles<GatheredSource<In>, Out, C>,
                   CastTilesLaunch::grid(params.source.rows, params.source.cols, tiles_per_block),
                   CastTilesLaunch::kThreads, params);
}

template <class In, class Out, CastConfig C>
void check(const std::string& line) {
  const auto spec = std::get<CastSpec>(parse(line + " gathered"));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const GatherCase& shape : {GatherCase{.of = 40, .rows = 300, .cols = 264, .padding = 8},
                                  {.of = 130, .rows = 77, .cols = 51, .padding = 3, .offset = 1},
                                  {.of = 3, .rows = 128, .cols = 128},
                                  {.of = 70, .rows = 0, .cols = 136},
                                  {.of = 1, .rows = 260, .cols = 16}}) {
    GatherCase c = shape;
    c.spec = spec;
    const GuardedMatrix input = gather_input(c);
    const std::vector<std::int32_t> index = gather_index(c);
    for (u32 tiles = 1; tiles <= (C.unaligned ? CastTilesLaunch::kMaxTilesPerBlock : 1); ++tiles) {
      const PlacedGather placed(c, input, index, *backend, stream);
      run<In, Out, C>(spec, placed.tensors(), tiles);
      BOOST_TEST(gather_difference(cast_of_copies(c, input, index), placed.outputs(stream)) == "", describe(c));
    }
  }
}

// The rowwise cast, by cast_rows or, where each row has one block, by cast_rows_wide.
template <class In, class Out>
void run_rows(const CastSpec& spec, const CastTensors& tensors, bool wide) {
  const i64 cols = tensors.input.cols;
  const u32 threads_log2 = CastRowsLaunch::threads_log2(cols, sizeof(In));
  const CastRowsParams params{.source = cuda::gathered_source_of(tensors),
                              .codes = tensors.codes.data,
                              .factors = static_cast<float*>(tensors.scale_inv.data),
                              .result = nullptr,
                              .codes_stride = tensors.codes.row_stride,
                              .result_stride = 0,
                              .maxima = nullptr,
                              .threads_log2 = threads_log2,
                              .pow2 = spec.pow2};
  if (!wide) {
    return emulator::launch(cast_rows<GatheredSource<In>, Out, CastRowsConfig{}>,
                            CastRowsLaunch::grid(params.source.rows, threads_log2),
                            CastRowsLaunch::threads(threads_log2), params);
  }
  const CastRowsWideShape shape = CastRowsWideLaunch::shape({.rows = params.source.rows,
                                                             .cols = cols,
                                                             .value_bytes = sizeof(In),
                                                             .computed = false,
                                                             .many_inputs = false,
                                                             .block_shared = 227 << 10,
                                                             .multiprocessors = 1,
                                                             .clusters = false});
  BOOST_REQUIRE(shape.blocks == 1U);
  emulator::launch(cast_rows_wide<GatheredSource<In>, Out, CastRowsConfig{}>,
                   {.grid = params.source.rows * shape.blocks,
                    .threads = shape.threads,
                    .cluster = shape.blocks,
                    .shared_bytes = shape.shared_bytes},
                   params);
}

template <class In, class Out>
void check_rows(const std::string& line, const std::vector<GatherCase>& shapes, bool wide = false) {
  const auto spec = std::get<CastSpec>(parse(line + " gathered"));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (GatherCase c : shapes) {
    c.spec = spec;
    const GuardedMatrix input = gather_input(c);
    const std::vector<std::int32_t> index = gather_index(c);
    const PlacedGather placed(c, input, index, *backend, stream);
    run_rows<In, Out>(spec, placed.tensors(), wide);
    BOOST_TEST(gather_difference(cast_of_copies(c, input, index), placed.outputs(stream)) == "", describe(c));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_alone) {
  check_rows<bf16, e4m3fn>("cast bf16->e4m3fn scale=row out=codes",
                           {{.of = 40, .rows = 300, .cols = 264, .padding = 8},
                            {.of = 130, .rows = 77, .cols = 51, .padding = 3, .offset = 1},
                            {.of = 3, .rows = 5, .cols = 16400}});  // more than stay in registers
  check_rows<f32, e5m2>("cast f32->e5m2 scale=row out=codes pow2", {{.of = 1, .rows = 260, .cols = 16}});
}
BOOST_AUTO_TEST_CASE(wide_rows_alone) {
  const std::string line = "cast f16->e4m3fnuz scale=row out=codes";
  check_rows<f16, e4m3fnuz>(line, {{.of = 5, .rows = 9, .cols = 4104, .padding = 8}}, true);  // in registers
  check_rows<f16, e4m3fnuz>(line, {{.of = 3, .rows = 7, .cols = 18952}}, true);               // in shared memory
}

BOOST_AUTO_TEST_CASE(tensorwise) {
  check<bf16, e4m3fn, CastConfig{.codes = kTensorScale, .transposed = kTensorScale}>(
      "cast bf16->e4m3fn scale=tensor out=codes,transposed");
}
BOOST_AUTO_TEST_CASE(rows_and_columns) {
  check<bf16, e4m3fn, CastConfig{.codes = kRowScale, .transposed = kColumnScale}>(
      "cast bf16->e4m3fn scale=row+col out=codes,transposed");
}
BOOST_AUTO_TEST_CASE(rows_and_columns_of_any_alignment) {
  check<f16, e5m2, CastConfig{.codes = kRowScale, .transposed = kColumnScale, .unaligned = true}>(
      "cast f16->e5m2 scale=row+col out=codes,transposed pow2");
}
BOOST_AUTO_TEST_CASE(rows_for_both_of_f32) {
  check<f32, e4m3fn, CastConfig{.codes = kRowScale, .transposed = kRowScale}>(
      "cast f32->e4m3fn scale=row out=codes,transposed");
}
BOOST_AUTO_TEST_CASE(groups_of_any_alignment) {
  check<f16, e4m3fn, CastConfig{.codes = kRowGroupScale, .transposed = kColumnGroupScale, .unaligned = true}>(
      "cast f16->e4m3fn scale=1x128+128x1 out=codes,transposed");
}
BOOST_AUTO_TEST_CASE(transposed_columns_alone) {
  check<bf16, e5m2fnuz, CastConfig{.transposed = kColumnScale}>("cast bf16->e5m2fnuz scale=col out=transposed");
}

// Whatever is in the index, only the input is read: the sanitizers see it, and each row but the wrong ones is right.
BOOST_AUTO_TEST_CASE(an_index_may_be_wrong) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const GatherCase c{.spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row out=codes gathered")),
                     .of = 9,
                     .rows = 20,
                     .cols = 24};
  const GuardedMatrix input = gather_input(c);
  std::vector<std::int32_t> index = gather_index(c);
  const GatherOutputs right = cast_of_copies(c, input, index);
  index[2] = -1;
  index[3] = 9;
  index[8] = std::numeric_limits<std::int32_t>::max();
  index[9] = std::numeric_limits<std::int32_t>::min();
  const PlacedGather placed(c, input, index, *backend, stream);
  run_rows<bf16, e4m3fn>(c.spec, placed.tensors(), false);
  const GatherOutputs found = placed.outputs(stream);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    if (r == 2 || r == 3 || r == 8 || r == 9) continue;
    BOOST_TEST(found.at("scale_inv").bits(0, r) == right.at("scale_inv").bits(0, r), r);
    for (std::int64_t col = 0; col < c.cols; ++col) {
      BOOST_TEST(found.at("codes").bits(r, col) == right.at("codes").bits(r, col));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
