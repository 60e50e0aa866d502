// Runs the kernels of cast_stats.cuh on the host, thread by thread, and compares them with the CPU backend: the same
// bits, for whole and cut tiles, wherever the matrices are. (tests/runtime/test_cast_stats.cpp compares the CPU backend
// with float64.)
#include "templates/emulator.h"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/run_case.h"

#include "cast/cast_stats.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_stats_emulated)

namespace {

std::vector<Case> cases_of_shapes(const KernelSpec& spec) {
  std::vector<Case> cases;
  for (const Shape shape :
       {Shape{1, 1}, Shape{3, 17}, Shape{128, 128}, Shape{129, 264}, Shape{16, 1000}, Shape{300, 7}}) {
    cases.push_back({.spec = spec, .shape = shape});
  }
  for (const Placement placement : kPlacements) {
    cases.push_back({.spec = spec, .shape = {130, 136}, .placement = placement});
  }
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
    cases.push_back({.spec = spec, .shape = {37, 131}, .input = input});
  }
  return cases;
}

template <class In, class Out, bool Transposed>
void check(const char* line) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream(*cpu);
  InputMaker maker;
  const auto spec = std::get<CastStatsSpec>(parse(line));
  for (const Case& c : cases_of_shapes(spec)) {
    const SharedMatrices inputs = maker.inputs(c);
    PlacedCase placed(c, inputs, *cpu, stream);
    const Tensor& input = placed.tensor("input");
    const Tensor& codes = placed.tensor("codes");
    const i64 tiles = CastStatsLaunch::tiles(input.rows, input.cols);
    std::vector<CastStatsPart> parts(static_cast<std::size_t>(tiles));
    std::memset(parts.data(), 0xa5, parts.size() * sizeof(CastStatsPart));
    emulator::launch(cast_stats_tiles<In, Out, CastStatsConfig{.transposed = Transposed}>, tiles,
                     CastStatsLaunch::kThreads,
                     CastStatsParams{.input = input.data,
                                     .rows = input.rows,
                                     .cols = input.cols,
                                     .input_stride = input.row_stride,
                                     .codes = static_cast<const u8*>(codes.data),
                                     .codes_stride = codes.row_stride,
                                     .factors = static_cast<const float*>(placed.tensor("scale_inv").data),
                                     .steps = factor_steps(spec.scale.rows, spec.scale.cols, input.cols),
                                     .parts = parts.data()});
    emulator::launch(cast_stats_finish, 1, CastStatsLaunch::kThreads,
                     CastStatsFinishParams{.parts = parts.data(),
                                           .count = tiles,
                                           .result = static_cast<CastStatsResult*>(placed.tensor("stats").data)});
    const Matrices outputs = placed.outputs(stream);
    std::string fault = damage(outputs);
    if (fault.empty()) {
      fault = bit_difference("stats", run(c, inputs, *cpu, stream).at("stats"), outputs.at("stats"));
    }
    BOOST_TEST(fault.empty(), name(c) << ": " << fault);
  }
}

BOOST_AUTO_TEST_CASE(values_alone) { check<bf16, Uncast, false>("cast_stats bf16"); }
BOOST_AUTO_TEST_CASE(tensor) { check<bf16, e4m3fn, false>("cast_stats bf16->e4m3fn scale=tensor"); }
BOOST_AUTO_TEST_CASE(tensor_transposed) { check<f32, e5m2, true>("cast_stats f32->e5m2 scale=tensor transposed"); }
BOOST_AUTO_TEST_CASE(rows) { check<f16, e5m2fnuz, false>("cast_stats f16->e5m2fnuz scale=row"); }
BOOST_AUTO_TEST_CASE(columns_transposed) {
  check<bf16, e4m3fnuz, true>("cast_stats bf16->e4m3fnuz scale=col transposed");
}
BOOST_AUTO_TEST_CASE(row_groups_transposed) {
  check<bf16, e4m3fn, true>("cast_stats bf16->e4m3fn scale=1x128 transposed");
}
BOOST_AUTO_TEST_CASE(column_groups) { check<f32, e4m3fn, false>("cast_stats f32->e4m3fn scale=128x1"); }
BOOST_AUTO_TEST_CASE(blocks) { check<bf16, e5m2, false>("cast_stats bf16->e5m2 scale=128x128"); }

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
