// Runs the kernels of casts and column sums of experts' rows on the host, thread by thread, and compares them with
// plain casts of each expert's rows on the CPU, or with sums in the order that the template says.
#include "templates/emulator.h"

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "support/cast_experts_case.h"
#include "support/column_sum_experts_case.h"
#include "support/compare.h"
#include "templates/cast_outputs.h"

#include "cast/cast_experts.cuh"
#include "cast/column_sum_experts.cuh"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_cast_experts_emulated)

namespace {

using namespace ingot;
using namespace ingot::test;

constexpr CastConfig kBoth{.codes = kRowGroupScale, .transposed = kColumnGroupScale};
constexpr CastConfig kTransposed{.transposed = kColumnGroupScale};

template <class Source, class Out, CastConfig C>
void launch(const CastSpec& spec, const CastTensors& tensors) {
  const CastExpertsParams params = cuda::experts_params(spec, tensors);
  emulator::launch(cast_experts<Source, Out, C>,
                   CastExpertsLaunch::grid(params.all.source.rows, params.all.source.cols, params.experts.experts),
                   CastTilesLaunch::kThreads, params);
}

template <class Source, class Out, CastConfig C>
void check(const std::string& line) {
  const auto spec = std::get<CastSpec>(parse(line + " experts"));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const std::vector<ExpertsCastCase> cases{
      {.spec = spec, .ends = {0, 5, 6, 6, 134, 263, 263}, .rows = 300, .cols = 136, .of = 40, .padding = 8},
      {.spec = spec,
       .ends = {127, 255, 256},
       .rows = 256,
       .cols = 51,
       .of = 130,
       .padding = 3,
       .offset = 1,
       .by_group = true},
      {.spec = spec, .ends = zipf_ends(400, 300), .rows = 400, .cols = 8, .of = 1, .with_nan = true},
      {.spec = spec, .ends = {0, 0}, .rows = 0, .cols = 136, .of = 70},
      {.spec = spec, .ends = {0, 0}, .rows = 3, .cols = 8, .of = 1}};
  for (const ExpertsCastCase& c : cases) {
    const ExpertsCastInputs inputs(c);
    const PlacedExpertsCast placed(c, inputs, *backend, stream);
    launch<Source, Out, C>(spec, placed.tensors());
    BOOST_TEST(experts_difference(expected_of_experts(c, inputs), placed.outputs(stream)) == "", describe(c));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(codes_and_transposed) {
  check<ValueSource<bf16>, e4m3fn, kBoth>("cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed");
}
BOOST_AUTO_TEST_CASE(transposed_alone) {
  check<ValueSource<f16>, e5m2, kTransposed>("cast f16->e5m2 scale=128x1 out=transposed pow2");
}
BOOST_AUTO_TEST_CASE(gathered_rows) {
  check<GatheredSource<bf16>, e4m3fn, kBoth>("cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed gathered");
  check<GatheredSource<f32>, e4m3fn, kTransposed>("cast f32->e4m3fn scale=128x1 out=transposed gathered");
}

BOOST_AUTO_TEST_CASE(given_scales) {
  constexpr CastConfig kGiven{
      .codes = kTensorScale, .transposed = kTensorScale, .given_scales = true, .unaligned = true};
  constexpr CastConfig kGivenTransposed{.transposed = kTensorScale, .given_scales = true, .unaligned = true};
  check<ValueSource<bf16>, e4m3fn, kGiven>("cast bf16->e4m3fn scale=tensor out=codes,transposed given");
  check<ValueSource<f16>, e5m2, kGivenTransposed>("cast f16->e5m2 scale=tensor out=transposed given");
  check<GatheredSource<f32>, e4m3fn, kGiven>("cast f32->e4m3fn scale=tensor out=codes,transposed given gathered");
  check<GatheredSource<bf16>, e4m3fn, CastConfig{.codes = kTensorScale, .given_scales = true, .unaligned = true}>(
      "cast bf16->e4m3fn scale=tensor out=codes given gathered");
}

// What device memory holds decides nothing but which rows an expert has.
BOOST_AUTO_TEST_CASE(ends_may_be_wrong) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const ExpertsCastCase c{
      .spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed experts")),
      .ends = {40, 90, 130, 200},
      .rows = 200,
      .cols = 24};
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  const ExpertsCastInputs inputs(c);
  PlacedExpertsCast placed(c, inputs, *backend, stream);
  for (const Ends& ends :
       {Ends{90, 40, 130, 200}, {-5, 40, kMost, 7}, {kMost, kMost, kMost, kMost}, {-1, -1, -1, -1}, {200, 0, 200, 0}}) {
    placed.set_ends(ends, stream);
    launch<ValueSource<bf16>, e4m3fn, kBoth>(c.spec, placed.tensors());
    for (const auto& [name, matrix] : placed.outputs(stream)) BOOST_TEST(matrix.damage() == "", name);
  }
}

namespace {

template <class In, class Out>
void launch_sums(const ColumnSumTensors& tensors) {
  const Tensor& input = tensors.input;
  const i64 experts = tensors.ends.experts;
  const i64 rows = tensors.row_index ? tensors.row_index->rows : input.rows;
  std::vector<float> partials(static_cast<std::size_t>(ExpertSlots::count(rows, experts) * input.cols),
                              std::numeric_limits<float>::quiet_NaN());
  const ExpertRowsParams of = cuda::expert_rows_params(tensors.ends, rows);
  if (rows != 0) {
    emulator::launch(column_sum_experts_partials<In>,
                     ColumnSumExpertsLaunch::grid(rows, input.cols, experts, sizeof(In)),
                     ColumnSumExpertsLaunch::kThreads,
                     ColumnSumExpertsParams{.input = input.data,
                                            .cols = input.cols,
                                            .input_stride = input.row_stride,
                                            .index = tensors.row_index ? tensors.row_index->data : nullptr,
                                            .last_row = input.rows - 1,
                                            .experts = of,
                                            .partials = partials.data()});
  }
  emulator::launch(column_sum_experts_finish<Out>, ColumnSumExpertsLaunch::finish_grid(input.cols, experts),
                   ColumnSumExpertsLaunch::kFinishThreads,
                   ColumnSumExpertsFinishParams{
                       .partials = partials.data(), .cols = input.cols, .experts = of, .sum = tensors.sum.data});
}

template <class In, class Out>
void check_sums(Dtype in, Dtype out) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const ExpertsSumCase& c : experts_sum_cases()) {
    if (c.spec.in != in || c.spec.out != out) continue;
    PlacedExpertsSum placed(c, *backend, stream);
    launch_sums<In, Out>(placed.tensors());
    const GuardedMatrix sum = placed.sum(stream);
    BOOST_TEST(bit_difference("sum", placed.expected(), sum) == "", describe(c));
    BOOST_TEST(sum.damage() == "", describe(c));
    if (c.rows < 200) continue;
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    Ends wrong(c.ends.size(), -1);
    wrong[0] = kMost;
    placed.set_ends(wrong, stream);
    launch_sums<In, Out>(placed.tensors());
    BOOST_TEST(placed.sum(stream).damage() == "", describe(c));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(column_sums) {
  check_sums<bf16, bf16>(Dtype::bf16, Dtype::bf16);
  check_sums<f16, f32>(Dtype::f16, Dtype::f32);
  check_sums<f32, f32>(Dtype::f32, Dtype::f32);
}

BOOST_AUTO_TEST_SUITE_END()
