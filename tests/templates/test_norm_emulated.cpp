// Runs the norms' kernels on the host, thread by thread, and compares them with the CPU backend: the same bits, for
// rows that stay in registers and rows that do not, wherever the matrices are. (tests/runtime/test_cpu_norm.cpp
// compares the CPU backend with float64.)
#include "templates/emulator.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cases.h"
#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/fixed_set.h"
#include "support/run_case.h"

#include "cast/column_sum.cuh"
#include "norm/norm_backward.cuh"
#include "norm/norm_backward_wide.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_rows_full.cuh"
#include "norm/norm_rows_wide.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_norm_emulated)

namespace {

template <class Kind>
constexpr NormKind kKindOf = is_same<Kind, LayerNorm> ? NormKind::layer : NormKind::rms;

// Several rows per block and one; around the ends of a thread's 8 columns; rows that do not fit the registers; lengths
// that are not multiples of 8.
std::vector<Case> cases_of_shapes(const KernelSpec& spec) {
  std::vector<Case> cases;
  for (const Shape shape : {Shape{1, 1}, Shape{3, 17}, Shape{9, 24}, Shape{130, 256}, Shape{5, 1016}, Shape{5, 1032},
                            Shape{3, 4096}, Shape{3, 4104}, Shape{3, 8184}, Shape{5, 8192}, Shape{2, 8200},
                            Shape{5, 11008}, Shape{5, 16384}, Shape{2, 16392}, Shape{1, 33333}}) {
    cases.push_back({.spec = spec, .shape = shape});
  }
  for (const Placement placement : kPlacements) {
    cases.push_back({.spec = spec, .shape = {70, 264}, .placement = placement});
  }
  cases.push_back({.spec = spec, .shape = {1, 1024}, .placement = {.padding = 3}});
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
    cases.push_back({.spec = spec, .shape = {37, 131}, .input = input});
    cases.push_back({.spec = spec, .shape = {33, 512}, .input = input});
  }
  return cases;
}

struct Fixture {
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream stream{*cpu};
  InputMaker maker;

  static constexpr std::uint32_t kOneOf = 6;  // the part of each list of cases that CI runs

  // `launch` runs the kernels on the tensors of a case.
  template <class Launch>
  void check(const KernelSpec& spec, const std::vector<Case>& cases, const Launch& launch) {
    std::vector<NamedCase> named;
    for (const Case& c : cases) named.emplace_back().name = name(c);
    for (const std::size_t i : FixedSet(kOneOf).of(named)) {
      const Case& c = cases[i];
      const SharedMatrices inputs = maker.inputs(c);
      PlacedCase placed(c, inputs, *cpu, stream);
      launch(placed);
      const Matrices expected = run(c, inputs, *cpu, stream);
      const Matrices outputs = placed.outputs(stream);
      std::string fault = damage(outputs);
      for (const auto& [what, matrix] : outputs) {
        if (fault.empty()) fault = bit_difference(what, expected.at(what), matrix);
      }
      BOOST_TEST(fault.empty(), name(c) << ": " << fault);
    }
    BOOST_TEST(!cases.empty(), print(spec));
  }

  static float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

  template <class In, class Kind, bool Affine, class Codes, bool Given, bool Result>
  void check_forward(bool stats, bool pow2) {
    NormSpec spec{.kind = kKindOf<Kind>,
                  .in = kDtypeOf<In>,
                  .affine = Affine,
                  .source = Given ? ScaleSource::given : ScaleSource::dynamic,
                  .pow2 = pow2,
                  .result = Result,
                  .stats = stats};
    if constexpr (!is_same<Codes, NoCodes>) spec.out = kDtypeOf<Codes>;
    if (Given) spec.scale = kTensorwise;
    std::vector<Case> cases = cases_of_shapes(spec);
    cases.push_back({.spec = spec, .shape = {3, 0}});
    if (Given) cases.push_back({.spec = spec, .shape = {0, 16}});
    constexpr NormRowsConfig kConfig{.affine = Affine, .given_scale = Given, .result = Result};
    // With slots wherever there may be some, and without where there may be none.
    constexpr bool kAlways = NormRowsLaunch::always_slots(!is_same<Codes, NoCodes>, Result, kCentred<Kind>);
    for (const bool slots : {false, true}) {
      if (sizeof(In) == 2 ? !slots && kAlways : slots) continue;
      check(spec, cases, [&](PlacedCase& placed) {
        NormRowsParams params = params_of(placed, pow2);
        const bool vectors = in_vectors<NormRow<In, Kind, Codes, kConfig>>(params);
        params.slot_rows = slots && vectors && params.cols <= NormRowsLaunch::kMaxCols ? 1 : 0;
        params.one_turn = NormRowsLaunch::one_turn(params.cols, sizeof(In), vectors, params.slot_rows);
        emulator::launch(norm_rows<In, Kind, Codes, kConfig>, rows_shape(params), params);
      });
    }
    // Rows that are read again in each pass.
    check(spec, wide_cases(spec, {{9, 16392}, {1, 65536}, {2, 20480}}), [&](PlacedCase& placed) {
      const NormRowsParams params = params_of(placed, pow2);
      emulator::launch(norm_rows<In, Kind, Codes, kConfig>, rows_shape(params), params);
    });
    // Rows that fill their threads, and rows of one vec8 less or more.
    if constexpr (sizeof(In) == 2 && !is_same<Codes, NoCodes> && !Result && Affine && !Given) {
      check_full<In, Kind, Codes, kConfig, 1024>(spec, {{1, 1024}, {37, 1024}}, pow2);
      check_full<In, Kind, Codes, kConfig, 2048>(spec, {{1, 2048}, {27, 2048}}, pow2);
      check_full<In, Kind, Codes, kConfig, 4096>(spec, {{1, 4096}, {15, 4096}}, pow2);
      check_full<In, Kind, Codes, kConfig, 8192>(spec, {{1, 8192}, {10, 8192}}, pow2);
    }
    // Rows that a pair of blocks shares, around the ends of both numbers of groups of columns.
    if constexpr (sizeof(In) == 2 && !is_same<Codes, NoCodes> && !Result) {
      check_wide<In, Kind, Codes, kConfig, 3>(spec, {{2, 8200}, {9, 12288}}, pow2);
      check_wide<In, Kind, Codes, kConfig, 4>(spec, {{9, 12296}, {1, 13824}, {2, 16384}}, pow2);
    }
  }

  // Wide rows with padding, and with numbers that are none.
  static std::vector<Case> wide_cases(const NormSpec& spec, const std::vector<Shape>& shapes) {
    std::vector<Case> cases;
    for (const Shape shape : shapes) cases.push_back({.spec = spec, .shape = shape});
    const Shape two{2, shapes.back().cols - 1536};
    cases.push_back({.spec = spec, .shape = two, .placement = {.padding = 8}});
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      cases.push_back({.spec = spec, .shape = two, .input = input});
    }
    return cases;
  }

  // As on a GPU of one multiprocessor: with more than one row, the last turn has rows for some groups of threads only.
  template <class In, class Kind, class Codes, NormRowsConfig kConfig, i64 kCols>
  void check_full(NormSpec spec, const std::vector<Shape>& shapes, bool pow2) {
    spec.cols = kCols;
    std::vector<Case> cases;
    for (const Shape shape : shapes) {
      cases.push_back({.spec = spec, .shape = shape});
      cases.push_back({.spec = spec, .shape = shape, .placement = {.padding = 8}});
    }
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      cases.push_back({.spec = spec, .shape = shapes.back(), .input = input});
    }
    check(spec, cases, [&](PlacedCase& placed) {
      const NormRowsParams params = params_of(placed, pow2);
      emulator::launch(norm_rows_full<In, Kind, Codes, kConfig, kCols>,
                       {.grid = NormRowsFullLaunch::grid(params.rows, kCols, 1),
                        .threads = NormRowsLaunch::threads(kCols),
                        .shared_bytes = NormRowsLaunch::slot_bytes(kCols)},
                       params);
    });
  }

  // Two pairs of blocks, so that one takes up to five rows.
  template <class In, class Kind, class Codes, NormRowsConfig kConfig, u32 kVec8s>
  void check_wide(NormSpec spec, const std::vector<Shape>& shapes, bool pow2) {
    spec.cols = static_cast<std::int32_t>(kVec8s * NormRowsWideLaunch::kColsPerStep);
    check(spec, wide_cases(spec, shapes), [&](PlacedCase& placed) {
      const NormRowsParams params = params_of(placed, pow2);
      const u32 rows = NormRowsWideSlots::rows(kConfig.affine, kCentred<Kind>, 0);
      emulator::launch(norm_rows_wide<In, Kind, Codes, kConfig, kVec8s>,
                       {.grid = std::min<i64>(params.rows, 2) * NormRowsWideLaunch::kBlocks,
                        .threads = NormRowsWideLaunch::kThreads,
                        .cluster = NormRowsWideLaunch::kBlocks,
                        .shared_bytes = NormRowsWideSlots::bytes(kVec8s, rows)},
                       params);
    });
  }

  // As on a GPU of one multiprocessor, so that a block takes several rows.
  static emulator::Shape rows_shape(const NormRowsParams& params) {
    constexpr i64 kMultiprocessors = 1;
    const bool slots = params.slot_rows != 0;
    return {.grid = NormRowsLaunch::grid(params.rows, params.cols, slots, kMultiprocessors),
            .threads = NormRowsLaunch::threads(params.cols),
            .shared_bytes = slots ? NormRowsLaunch::slot_bytes(params.cols) : 0};
  }

  // As the host finds it out: the strides of a single row do not count.
  template <class Row>
  static bool in_vectors(NormRowsParams params) {
    if (params.rows <= 1) params.input_stride = params.result_stride = params.codes_stride = 0;
    return Row::vectors(params) && params.cols % kVec8 == 0;
  }

  static NormRowsParams params_of(PlacedCase& placed, bool pow2) {
    const Tensor input = placed.tensor("input");
    return {.input = input.data,
            .rows = input.rows,
            .cols = input.cols,
            .input_stride = input.row_stride,
            .gamma = placed.tensor("gamma").data,
            .beta = placed.tensor("beta").data,
            .eps = kNormEps,
            .inverse_cols = inverse_cols(input.cols),
            .mean = floats(placed.tensor("mean")),
            .rstd = floats(placed.tensor("rstd")),
            .result = placed.tensor("result").data,
            .result_stride = placed.tensor("result").row_stride,
            .codes = placed.tensor("codes").data,
            .codes_stride = placed.tensor("codes").row_stride,
            .factors = floats(placed.tensor("scale_inv")),
            .scale = floats(placed.tensor("scale")),
            .amax = static_cast<u32*>(placed.tensor("amax").data),
            .threads_log2 = NormRowsLaunch::threads_log2(input.cols),
            .slot_rows = 0,
            .pow2 = pow2,
            .one_turn = false};
  }

  template <class In, class Kind, bool Affine, class Sum, bool ZeroCentred = false>
  void check_backward() {
    const NormBackwardSpec spec{.kind = kKindOf<Kind>,
                                .in = kDtypeOf<In>,
                                .affine = Affine,
                                .sums = kDtypeOf<Sum>,
                                .zero_centred = ZeroCentred};
    std::vector<Case> cases = cases_of_shapes(spec);
    // Each group walks two rows: one group of threads in a block, 16 of them.
    cases.push_back({.spec = spec, .shape = {133, 4104}});
    cases.push_back({.spec = spec, .shape = {2120, 24}});
    if (!Affine) {  // three rows: of one group of threads and, among them, of several
      cases.push_back({.spec = spec, .shape = {529, 4104}});
      cases.push_back({.spec = spec, .shape = {9000, 24}});
    }
    cases.push_back({.spec = spec, .shape = {9, 8195}});
    // Rows that stay in registers though they cannot be read in vectors, all or at their end: of one group and several.
    for (const Shape shape : {Shape{37, 513}, Shape{9, 1111}, Shape{2, 8191}}) {
      cases.push_back({.spec = spec, .shape = shape});
    }
    cases.push_back({.spec = spec, .shape = {9, 1111}, .placement = {.padding = 1}});
    cases.push_back({.spec = spec, .shape = {9, 1112}, .placement = {.padding = 3, .offset = 1}});
    static constexpr NormBackwardConfig kConfig{.affine = Affine, .zero_centred = ZeroCentred};
    // The short way where each group of threads has one row, and the way that any number of rows takes.
    for (const bool may_be_short : {true, false}) {
      check(spec, cases, [&](PlacedCase& placed) {
        backward<Kind, Affine, Sum>(placed, [&](NormBackwardParams params, i64) {
          params.one_row = may_be_short && NormBackwardLaunch::one_row(params.division, params.cols, Affine, sizeof(In),
                                                                       in_vectors<In>(params));
          emulator::launch(norm_backward<In, Kind, kConfig>, backward_shape<In, Kind, Affine>(params), params);
        });
      });
      if (Affine || sizeof(In) != 2) break;  // these have no short way
    }
    check_backward_slots<In, Kind, Affine, Sum, kConfig>(spec);
    // Several chunks. Of 133 rows, a chunk has two.
    cases.clear();
    for (const Shape shape : {Shape{9, 8200}, Shape{2, 12288}, Shape{3, 13824}, Shape{1, 16384}}) {
      cases.push_back({.spec = spec, .shape = shape});
    }
    cases.push_back({.spec = spec, .shape = {2, 9216}, .placement = {.padding = 8}});
    if (std::is_same_v<Sum, bf16>) cases.push_back({.spec = spec, .shape = {133, 8200}});
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      cases.push_back({.spec = spec, .shape = {2, 9216}, .input = input});
    }
    check(spec, cases, [&](PlacedCase& placed) {
      backward<Kind, Affine, Sum>(placed, [](const NormBackwardParams& params, i64 chunks) {
        constexpr u32 kBlocks = NormBackwardWideLaunch::kBlocks;
        emulator::launch(norm_backward_wide<In, Kind, kConfig>,
                         {.grid = (Affine ? chunks : std::min<i64>(params.rows, 2)) * kBlocks,
                          .threads = NormBackwardWideLaunch::threads(params.cols),
                          .cluster = kBlocks,
                          .shared_bytes = NormBackwardWideLaunch::shared_bytes(kCentred<Kind>)},
                         params);
      });
    });
  }

  // Rows that stay in shared memory, two of them in a block or one: around the ends of each number of groups of columns
  // per thread, and longer ones, which do not. Of the most rows, a block has three.
  template <class In, class Kind, bool Affine, class Sum, NormBackwardConfig kConfig>
  void check_backward_slots(const NormBackwardSpec& spec) {
    std::vector<Case> cases;
    for (const Shape shape : {Shape{2, 8200}, Shape{3, 11008}, Shape{2, 12288}, Shape{5, 13824}, Shape{2, 16384},
                              Shape{5, 18944}, Shape{1, 28672}, Shape{1, 28680}, Shape{2, 53256}}) {
      cases.push_back({.spec = spec, .shape = shape});
    }
    cases.push_back({.spec = spec, .shape = {2, 9216}, .placement = {.padding = 8}});
    if (sizeof(In) == 2 && (!Affine || std::is_same_v<Sum, bf16>)) {
      cases.push_back({.spec = spec, .shape = {Affine ? 270 : 530, 8200}});
    }
    for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread}) {
      cases.push_back({.spec = spec, .shape = {2, 9216}, .input = input});
    }
    for (const u32 block_shared : {u32{227} << 10U, u32{99} << 10U}) {
      check(spec, cases, [&](PlacedCase& placed) {
        backward<Kind, Affine, Sum>(placed, [&](NormBackwardParams params, i64) {
          params.slot_rows =
              NormBackwardLaunch::slot_rows(params.cols, Affine, kCentred<Kind>, sizeof(In), block_shared);
          emulator::launch(norm_backward<In, Kind, kConfig>, backward_shape<In, Kind, Affine>(params), params);
        });
      });
      if (sizeof(In) != 2) return;  // they never stay there
    }
  }

  // As the host finds it out: the stride of a single row does not count.
  template <class In>
  static bool in_vectors(const NormBackwardParams& p) {
    const auto aligned = [&](const void* data, i64 stride) {
      return vector_aligned<In>(data, p.rows <= 1 ? 0 : stride);
    };
    return p.cols % kVec8 == 0 && aligned(p.input, p.input_stride) && aligned(p.grad_output, p.grad_output_stride) &&
           aligned(p.grad_input, p.grad_input_stride);
  }

  template <class In, class Kind, bool Affine>
  static emulator::Shape backward_shape(const NormBackwardParams& params) {
    using Launch = NormBackwardLaunch;
    return {.grid = Launch::grid(params.rows, params.cols, Affine),
            .threads = Launch::threads(params.cols, Affine),
            .shared_bytes = Launch::shared_bytes(params.cols, Affine, kCentred<Kind>, sizeof(In), params.slot_rows)};
  }

  // `launch` runs the main pass.
  template <class Kind, bool Affine, class Sum, class Launch>
  static void backward(PlacedCase& placed, const Launch& launch) {
    const Tensor input = placed.tensor("input");
    const i64 cols = input.cols;
    const i64 chunks = NormBackwardLaunch::chunks(input.rows, cols);
    const i64 sums = !Affine ? 0 : kCentred<Kind> ? 2 * cols : cols;
    GuardedMatrix partials(Dtype::f32, chunks, sums);
    const Tensor left = partials.view(partials.bytes().data(), {});
    launch(NormBackwardParams{.grad_output = placed.tensor("grad_output").data,
                              .input = input.data,
                              .gamma = placed.tensor("gamma").data,
                              .mean = floats(placed.tensor("mean")),
                              .rstd = floats(placed.tensor("rstd")),
                              .grad_input = placed.tensor("grad_input").data,
                              .partials = floats(left),
                              .rows = input.rows,
                              .cols = cols,
                              .grad_output_stride = placed.tensor("grad_output").row_stride,
                              .input_stride = input.row_stride,
                              .grad_input_stride = placed.tensor("grad_input").row_stride,
                              .inverse_cols = inverse_cols(cols),
                              .division = NormBackwardLaunch::division(input.rows, cols, Affine),
                              .one_row = false,
                              .slot_rows = 0},
           chunks);
    BOOST_TEST(partials.damage() == "");
    if (!Affine) return;
    emulator::launch(column_sum_finish<Sum>, ColumnSumFinishLaunch::grid(sums), ColumnSumFinishLaunch::kThreads,
                     ColumnSumFinishParams{.partials = floats(left),
                                           .chunks = chunks,
                                           .cols = sums,
                                           .sum = placed.tensor("grad_gamma").data,
                                           .sum_cols = cols,
                                           .other_sum = placed.tensor("grad_beta").data});
  }
};

BOOST_FIXTURE_TEST_SUITE(norm_emulated, Fixture)

BOOST_AUTO_TEST_CASE(layer_everything) { check_forward<bf16, LayerNorm, true, e4m3fn, false, true>(true, false); }
BOOST_AUTO_TEST_CASE(rms_codes) { check_forward<bf16, RmsNorm, true, e4m3fn, false, false>(false, true); }
BOOST_AUTO_TEST_CASE(layer_codes) { check_forward<f16, LayerNorm, true, e5m2, false, false>(true, false); }
BOOST_AUTO_TEST_CASE(rms_given) { check_forward<f16, RmsNorm, true, e5m2, true, true>(true, false); }
BOOST_AUTO_TEST_CASE(layer_given_f32) { check_forward<f32, LayerNorm, false, e4m3fnuz, true, false>(false, false); }
BOOST_AUTO_TEST_CASE(layer_result_f32) { check_forward<f32, LayerNorm, true, NoCodes, false, true>(false, false); }
BOOST_AUTO_TEST_CASE(layer_statistics) { check_forward<bf16, LayerNorm, false, NoCodes, false, false>(true, false); }
BOOST_AUTO_TEST_CASE(rms_statistics_f16) { check_forward<f16, RmsNorm, false, NoCodes, false, false>(true, false); }

// Squares that underflow make rstd infinite where eps is 0, and what is past the end of a row must not become NaN.
BOOST_AUTO_TEST_CASE(padding_does_not_touch_the_amax) {
  constexpr NormRowsConfig kConfig{.affine = true, .given_scale = true, .result = false};
  for (const i64 cols : {17, 131}) {
    const std::vector<bf16> input(static_cast<std::size_t>(cols), from_float<bf16>(1e-30F));
    const std::vector<bf16> gamma(static_cast<std::size_t>(cols), from_float<bf16>(1.0F));
    std::vector<e4m3fn> codes(static_cast<std::size_t>(cols));
    const float scale = 1.0F;
    float factor = 0.0F;
    u32 amax = 0;
    NormRowsParams params{};
    params.input = input.data();
    params.rows = 1;
    params.cols = cols;
    params.input_stride = cols;
    params.gamma = gamma.data();
    params.inverse_cols = inverse_cols(cols);
    params.codes = codes.data();
    params.codes_stride = cols;
    params.factors = &factor;
    params.scale = &scale;
    params.amax = &amax;
    params.threads_log2 = NormRowsLaunch::threads_log2(cols);
    emulator::launch(norm_rows<bf16, RmsNorm, e4m3fn, kConfig>, rows_shape(params), params);
    BOOST_TEST(amax == float_bits(std::numeric_limits<float>::infinity()));
  }
}

BOOST_AUTO_TEST_CASE(backward_layer) { check_backward<bf16, LayerNorm, true, f32>(); }
BOOST_AUTO_TEST_CASE(backward_rms) { check_backward<bf16, RmsNorm, true, bf16>(); }
BOOST_AUTO_TEST_CASE(backward_zero_centred) { check_backward<bf16, LayerNorm, true, f32, true>(); }
BOOST_AUTO_TEST_CASE(backward_rms_zero_centred_f32) { check_backward<f32, RmsNorm, true, f32, true>(); }
BOOST_AUTO_TEST_CASE(backward_layer_f32) { check_backward<f32, LayerNorm, true, f32>(); }
BOOST_AUTO_TEST_CASE(backward_layer_plain) { check_backward<f16, LayerNorm, false, f32>(); }
BOOST_AUTO_TEST_CASE(backward_rms_plain) { check_backward<bf16, RmsNorm, false, f32>(); }
BOOST_AUTO_TEST_CASE(backward_rms_plain_f32) { check_backward<f32, RmsNorm, false, f32>(); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
