// The CPU reference against float64 (support/reference.h) on ci cases of tests/cases.h: amax and casts bit for
// bit, sums within their rounding error, and sums of small integers exactly. For a fused cast, float64 bounds the
// values (support/pointwise_reference.h), and codes and scales must be exactly those of the values.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/gemm/gemm_kernel.h"
#include "ingot/runtime/util/error.h"
#include "support/compare.h"
#include "support/cpu_cases.h"
#include "support/expect_error.h"
#include "support/pointwise_reference.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cpu_backend)

namespace {

BOOST_FIXTURE_TEST_SUITE(cpu_backend, CpuCasesOfCi)

BOOST_AUTO_TEST_CASE(amax_is_exact) {
  run_all<AmaxSpec>([](const AmaxSpec& spec, const Case&, const SharedMatrices& inputs, const Matrices& outputs) {
    return bit_difference("amax", amax_reference(spec.scale, *inputs.at("input")), outputs.at("amax"));
  });
}

BOOST_AUTO_TEST_CASE(cast_is_exact) {
  run_all<CastSpec>([&](const CastSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
    SharedMatrices cast_inputs = inputs;
    const GuardedMatrix& values = *(cast_inputs["input"] = own_values(spec, c, inputs, *backend, stream));
    std::string fault = spec.pointwise ? value_fault(spec, inputs, values) : std::string{};
    const Matrices expected = cast_reference(spec, cast_inputs);
    for (const auto& [what, matrix] : outputs) {
      if (!fault.empty()) break;
      fault = what == "result" ? rounding_fault(values, matrix)
              : what == "sum"  ? cast_sum_fault(*spec.sum, values, matrix)
                               : bit_difference(what, expected.at(what), matrix);
    }
    return fault;
  });
}

// On the CPU, fast math computes the most precise variant, which differs measurably from the usual one.
BOOST_AUTO_TEST_CASE(fast_math_is_near_the_reproducible_one) {
  int run_count = 0;
  for (const KernelSpec& any : fused_specs()) {
    CastSpec spec = std::get<CastSpec>(any);
    if (!spec.fast_math) continue;
    for (const Shape shape : {Shape{37, 131}, Shape{300, 264}}) {
      const Case fast{.spec = spec, .shape = shape};
      spec.fast_math = false;
      const Case usual{.spec = spec, .shape = shape};
      spec.fast_math = true;
      const SharedMatrices inputs = maker.inputs(fast);
      const Matrices expected = run(usual, inputs, *backend, stream);
      const std::string fault = fast_difference(expected, run(fast, inputs, *backend, stream));
      BOOST_CHECK_MESSAGE(fault.empty(), name(fast) << ": " << fault);
      ++run_count;
    }
  }
  BOOST_TEST(run_count > 0);
}

// The float64 bound is tight enough: for every fused spec, a value two rounding steps away is outside.
BOOST_AUTO_TEST_CASE(a_value_that_is_off_is_seen) {
  for (const KernelSpec& any : fused_specs()) {
    const CastSpec& spec = std::get<CastSpec>(any);
    if (!spec.pointwise) continue;
    const Case c{.spec = spec, .shape = {20, 30}};
    const SharedMatrices inputs = maker.inputs(c);
    GuardedMatrix values = *own_values(spec, c, inputs, *backend, stream);
    BOOST_TEST(value_fault(spec, inputs, values) == "");
    // At the largest value, nothing has cancelled.
    std::int64_t r = 0;
    std::int64_t col = 0;
    for (std::int64_t i = 0; i < 600; ++i) {
      if (std::fabs(values.value(i / 30, i % 30)) > std::fabs(values.value(r, col))) {
        r = i / 30;
        col = i % 30;
      }
    }
    const std::uint32_t step = values.dtype() == Dtype::f32 ? 1U << (spec.in == Dtype::f32 ? 8U : 12U) : 2U;
    values.set_bits(r, col, values.bits(r, col) - step);
    check_contains(value_fault(spec, inputs, values), {fmt::format("row {}, col {}", r, col)});
  }
}

BOOST_AUTO_TEST_CASE(a_fast_result_that_is_far_off_is_seen) {
  GuardedMatrix codes(Dtype::e4m3fn, 40, 100);
  for (std::int64_t i = 0; i < 4000; ++i) codes.set_bits(i / 100, i % 100, static_cast<std::uint32_t>(0x30 + i % 64));
  BOOST_TEST(fast_difference("codes", codes, codes, true) == "");
  GuardedMatrix near = codes;
  for (std::int64_t r = 0; r < 6; ++r) near.set_bits(r, 7, codes.bits(r, 7) + 1);
  BOOST_TEST(fast_difference("codes", codes, near, true) == "codes: 6 codes differ, but at most 5 may");
  BOOST_TEST(fast_difference("codes", codes, near, false) == "");
  near.set_bits(5, 7, codes.bits(5, 7));
  BOOST_TEST(fast_difference("codes", codes, near, true) == "");
  GuardedMatrix far = codes;
  far.set_bits(1, 3, codes.bits(1, 3) + 2);
  check_contains(fast_difference("codes", codes, far, false), {"codes: first at index 103 (row 1, col 3)"});
  far.set_bits(1, 3, 0x7f);
  check_contains(fast_difference("codes", codes, far, false), {"codes: first at index 103", "nan"});

  GuardedMatrix scale_inv(Dtype::f32, 1, 2);
  set_f32(scale_inv, 0, 1.0F);
  set_f32(scale_inv, 1, 1e-3F);
  GuardedMatrix other = scale_inv;
  set_f32(other, 0, 1.007F);
  BOOST_TEST(fast_difference("scale_inv", scale_inv, other, false) == "");
  set_f32(other, 1, 1.02e-3F);
  check_contains(fast_difference("scale_inv", scale_inv, other, false), {"scale_inv: first at index 1"});
  // All outputs at once: how many codes may differ depends on whether the scale_inv are equal.
  near.set_bits(5, 7, codes.bits(5, 7) + 1);
  BOOST_TEST(
      fast_difference({{"codes", codes}, {"scale_inv", scale_inv}}, {{"codes", near}, {"scale_inv", scale_inv}}) ==
      "codes: 6 codes differ, but at most 5 may");
  set_f32(other, 1, 1e-3F);
  BOOST_TEST(fast_difference({{"codes", codes}, {"scale_inv", scale_inv}}, {{"codes", near}, {"scale_inv", other}}) ==
             "");
}

BOOST_AUTO_TEST_CASE(a_pair_of_gemms_has_the_bits_of_both) {
  const Case first{.spec = parse("gemm bf16*bf16->bf16 nn"), .shape = {40, 24, 56}};
  const Case second{.spec = parse("gemm e4m3fn*e5m2->f32 nt scale=row,row c=f32"), .shape = {24, 56, 40}};
  PlacedCase a(first, maker.inputs(first), *backend, stream);
  PlacedCase b(second, maker.inputs(second), *backend, stream);
  a.enqueue(stream);
  b.enqueue(stream);
  const Matrices expected_a = a.outputs(stream);
  const Matrices expected_b = b.outputs(stream);
  a.poison(stream);
  b.poison(stream);
  BOOST_TEST(
      !backend->pairs({.spec = a.gemm().spec, .size = {40, 24, 56}}, {.spec = b.gemm().spec, .size = {24, 56, 40}}));
  backend->gemm_pair(a.gemm(), b.gemm(), stream);
  BOOST_TEST(bit_difference("first", expected_a.at("out"), a.outputs(stream).at("out")) == "");
  BOOST_TEST(bit_difference("second", expected_b.at("out"), b.outputs(stream).at("out")) == "");
}

BOOST_AUTO_TEST_CASE(relayout_moves_codes) {
  run_all<RelayoutSpec>(
      [](const RelayoutSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
        const GuardedMatrix& input = *inputs.at("input");
        const GuardedMatrix& output = outputs.at("output");
        for (std::int64_t r = 0; r < c.shape.rows; ++r) {
          for (std::int64_t col = 0; col < c.shape.cols; ++col) {
            if ((spec.transposed ? output.bits(col, r) : output.bits(r, col)) != input.bits(r, col)) {
              return "row " + std::to_string(r) + ", column " + std::to_string(col);
            }
          }
        }
        return std::string();
      });
}

BOOST_AUTO_TEST_CASE(relayout_transposes_each_of_stacked_matrices) {
  constexpr std::int64_t kMatrices = 3, kRows = 5, kCols = 7;
  std::array<std::uint8_t, kMatrices * kRows * kCols> in{}, out{};
  std::iota(in.begin(), in.end(), std::uint8_t{0});
  const Device cpu = backend->device();
  backend->relayout({.transposed = true},
                    {.input = matrix(in.data(), Dtype::e4m3fn, kMatrices * kRows, kCols, cpu),
                     .output = matrix(out.data(), Dtype::e4m3fn, kMatrices * kCols, kRows, cpu),
                     .matrices = kMatrices},
                    stream);
  for (std::int64_t m = 0; m < kMatrices; ++m) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        BOOST_TEST(out.at((m * kCols + c) * kRows + r) == in.at((m * kRows + r) * kCols + c));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(amax_history_is_exact) {
  run_all<AmaxHistorySpec>(
      [](const AmaxHistorySpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
        const Matrices expected = amax_history_reference(spec, inputs, slots_before(c));
        std::string fault;
        for (const auto& [what, matrix] : outputs) {
          if (fault.empty()) fault = bit_difference(what, expected.at(what), matrix);
        }
        return fault;
      });
}

BOOST_AUTO_TEST_CASE(amax_scales_are_exact) {
  run_all<AmaxScalesSpec>(
      [](const AmaxScalesSpec& spec, const Case&, const SharedMatrices& inputs, const Matrices& outputs) {
        const GuardedMatrix& amax = *inputs.at("amax");
        GuardedMatrix expected(Dtype::f32, 1, amax.cols());
        for (std::int64_t i = 0; i < amax.cols(); ++i) {
          set_f32(expected, i, scale_reference({.out = spec.out, .pow2 = spec.pow2}, std::fabs(amax.value(0, i))));
        }
        return bit_difference("scale", expected, outputs.at("scale"));
      });
}

// The other slots of the same arrays stay unchanged.
BOOST_AUTO_TEST_CASE(amax_history_of_some_of_the_slots) {
  const Case all{.spec = AmaxHistorySpec{}, .shape = {20, 5}};
  const SharedMatrices inputs = maker.inputs(all);
  PlacedCase placed(all, inputs, *backend, stream);
  const auto part = [&](const char* what) {
    Tensor tensor = placed.tensor(what);
    const bool rows = tensor.rows != 1;
    tensor.data = static_cast<float*>(tensor.data) + 3 * (rows ? tensor.row_stride : 1);
    (rows ? tensor.rows : tensor.cols) = 7;
    return tensor;
  };
  backend->amax_history({},
                        {.amax = part("amax"),
                         .history = part("history"),
                         .scale = part("scale"),
                         .limits = part("limits"),
                         .pow2 = part("pow2")},
                        stream);
  const Matrices before = slots_before(all);
  const Matrices after = amax_history_reference({}, inputs, before);
  const Matrices outputs = placed.outputs(stream);
  for (std::int64_t i = 0; i < 20; ++i) {
    const Matrices& expected = i >= 3 && i < 10 ? after : before;
    BOOST_TEST(outputs.at("amax").bits(0, i) == expected.at("amax").bits(0, i), "slot " << i);
    BOOST_TEST(outputs.at("scale").bits(0, i) == expected.at("scale").bits(0, i), "slot " << i);
    for (std::int64_t step = 0; step < 5; ++step) {
      BOOST_TEST(outputs.at("history").bits(i, step) == expected.at("history").bits(i, step), "slot " << i);
    }
  }
}

BOOST_AUTO_TEST_CASE(column_sum_is_within_its_rounding_error) {
  run_all<ColumnSumSpec>(
      [](const ColumnSumSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
        return value_difference("sum", column_sum_reference(spec, *inputs.at("input"), c.input == Input::integers),
                                outputs.at("sum"));
      });
}

BOOST_AUTO_TEST_CASE(gemm_is_within_its_rounding_error) {
  GemmReference reference;
  run_all<GemmSpec>([&](const GemmSpec& spec, const Case& c, const SharedMatrices& inputs, const Matrices& outputs) {
    return value_difference("out", reference(spec, c.shape, inputs, c.input == Input::integers), outputs.at("out"));
  });
}

// The order of a GEMM's sums is part of the contract: ascending k, with products and sums rounded to f32 one by one.
// This test also shows that the compiler has not contracted them to FMAs.
BOOST_AUTO_TEST_CASE(gemm_sums_in_ascending_k) {
  for (const KernelSpec& any : all_valid_specs()) {
    const GemmSpec* const spec = std::get_if<GemmSpec>(&any);
    if (spec == nullptr || !typical(*spec) || has_group_scale_inv(*spec)) continue;
    const Case c{.spec = *spec, .shape = {19, 35, 1100}};
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, *backend, stream);
    const GemmOperands operands = gemm_operands(*spec, c.shape, inputs);
    Expected expected{.rows = c.shape.rows, .cols = c.shape.cols};
    for (std::int64_t m = 0; m < c.shape.rows; ++m) {
      for (std::int64_t n = 0; n < c.shape.cols; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < c.shape.inner; ++k) {
          const volatile float product =
              static_cast<float>(operands.a[static_cast<std::size_t>(m * c.shape.inner + k)]) *
              static_cast<float>(operands.b[static_cast<std::size_t>(k * c.shape.cols + n)]);
          sum = sum + product;
        }
        float value = sum * static_cast<float>(scale_inv_of(inputs, "scale_inv_a", spec->scale_a, m));
        value = value * static_cast<float>(scale_inv_of(inputs, "scale_inv_b", spec->scale_b, n));
        const volatile float scaled = value;
        if (spec->bias) value = scaled + static_cast<float>(inputs.at("bias")->value(0, n));
        expected.values.push_back(round_reference(spec->out, static_cast<double>(value)));
        expected.bounds.push_back(0.0);
      }
    }
    const std::string fault = value_difference("out", expected, outputs.at("out"));
    BOOST_REQUIRE_MESSAGE(fault.empty(), name(c) << ": " << fault);
  }
}

// With scale_inv of groups: sums each 128 of k separately, then total = total + sum * (scale_inv_a * scale_inv_b).
BOOST_AUTO_TEST_CASE(gemm_sums_groups_of_k) {
  for (const char* const line :
       {"gemm e4m3fn*e5m2->f32 scale=1x128,128x128", "gemm e4m3fn*e5m2->f32 scale=1x128,1x128"}) {
    const auto spec = std::get<GemmSpec>(parse(line));
    const Case c{.spec = spec, .shape = {19, 300, 1100}};
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, *backend, stream);
    const GemmOperands operands = gemm_operands(spec, c.shape, inputs);
    Expected expected{.rows = c.shape.rows, .cols = c.shape.cols};
    for (std::int64_t m = 0; m < c.shape.rows; ++m) {
      for (std::int64_t n = 0; n < c.shape.cols; ++n) {
        float total = 0;
        for (std::int64_t first = 0; first < c.shape.inner; first += 128) {
          float sum = 0;
          for (std::int64_t k = first; k < std::min(c.shape.inner, first + 128); ++k) {
            const volatile float product =
                static_cast<float>(operands.a[static_cast<std::size_t>(m * c.shape.inner + k)]) *
                static_cast<float>(operands.b[static_cast<std::size_t>(k * c.shape.cols + n)]);
            sum = sum + product;
          }
          const auto scale_inv_a =
              static_cast<float>(inputs.at("scale_inv_a")->value(0, extent_of(spec.scale_a, c.shape.inner, m, first)));
          const auto scale_inv_b =
              static_cast<float>(inputs.at("scale_inv_b")->value(0, extent_of(spec.scale_b, c.shape.inner, n, first)));
          const volatile float scaled = sum * (scale_inv_a * scale_inv_b);
          total = total + scaled;
        }
        expected.values.push_back(static_cast<double>(total));
        expected.bounds.push_back(0.0);
      }
    }
    const std::string fault = value_difference("out", expected, outputs.at("out"));
    BOOST_REQUIRE_MESSAGE(fault.empty(), name(c) << ": " << fault);
  }
}

BOOST_AUTO_TEST_CASE(both_versions_of_the_inner_loop_agree) {
  constexpr std::int64_t kDepth = 173;
  constexpr std::int64_t kStride = cpu::kTileCols + 3;
  GuardedMatrix a(Dtype::f32, kDepth, cpu::kTileRows);
  GuardedMatrix b(Dtype::f32, kDepth, cpu::kTileCols);
  ThreadPool pool(1);
  fill(a, Input::normal, 1, pool);
  fill(b, Input::normal, 2, pool);
  const auto floats = [](const GuardedMatrix& matrix) { return reinterpret_cast<const float*>(matrix.element(0, 0)); };
  std::vector<float> chosen(cpu::kTileRows * kStride, 0.5F);
  std::vector<float> portable = chosen;
  cpu::multiply_tile(kDepth, floats(a), floats(b), chosen.data(), kStride);
  cpu::multiply_tile_portable(kDepth, floats(a), floats(b), portable.data(), kStride);
  BOOST_TEST_CHECK(chosen == portable, boost::test_tools::per_element());
  BOOST_TEST(chosen[0] != 0.5F);
  BOOST_TEST(chosen[cpu::kTileCols] == 0.5F);  // past the tile
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_the_number_of_threads) {
  const std::vector<Case> chosen{
      {.spec = parse("amax f32 scale=tensor"), .shape = {1481, 677}},
      {.spec = parse("cast bf16->e4m3fn scale=tensor out=codes,transposed"), .shape = {1481, 677}},
      {.spec = parse("cast f32->e5m2fnuz scale=row out=codes,transposed pow2"), .shape = {1481, 677}},
      {.spec = parse("gemm e4m3fn*e5m2->f32 nt scale=row,row bias"), .shape = {1600, 600, 700}},
      {.spec = parse("gemm f32*f32->f32 tn"), .shape = {1600, 600, 700}},
      {.spec = parse("cast bf16->e5m2 of=silu(x)*gate scale=col out=codes,result,sum:f32"), .shape = {1481, 677}},
      {.spec = parse("column_sum f16->f32"), .shape = {1481, 677}}};
  for (const Case& c : chosen) {
    const SharedMatrices inputs = maker.inputs(c);
    const auto run_with = [&](int threads) {
      const std::unique_ptr<Backend> one = make_cpu_backend(threads);
      Stream own(*one);
      return run(c, inputs, *one, own);
    };
    const Matrices expected = run_with(1);
    for (const int threads : {2, 7}) {
      for (const auto& [what, matrix] : run_with(threads)) {
        const std::string fault = bit_difference(what, expected.at(what), matrix);
        BOOST_CHECK_MESSAGE(fault.empty(), name(c) << " on " << threads << " threads: " << fault);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(many_threads_share_one_backend) {
  const Case c{.spec = parse("cast bf16->e4m3fn scale=row out=codes,transposed"), .shape = {993, 512}};
  const SharedMatrices inputs = maker.inputs(c);
  const Matrices expected = run(c, inputs, *backend, stream);
  std::vector<std::string> faults(8);
  std::vector<std::thread> threads;
  for (std::string& fault : faults) {
    threads.emplace_back([&] {
      Stream own(*backend);
      for (int i = 0; i < 10 && fault.empty(); ++i) {
        for (const auto& [what, matrix] : run(c, inputs, *backend, own))
          fault += bit_difference(what, expected.at(what), matrix);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) BOOST_TEST(fault == "");
}

BOOST_AUTO_TEST_CASE(empty_tensors_may_have_no_memory) {
  std::vector<float> factor(1, -1.0F);
  backend->cast(CastSpec{.in = Dtype::f32},
                {.input = matrix(nullptr, Dtype::f32, 0, 5, {}),
                 .codes = matrix(nullptr, Dtype::e4m3fn, 0, 5, {}),
                 .scale_inv = vector(factor.data(), Dtype::f32, 1, {})},
                stream);
  BOOST_TEST(factor[0] == 1.0F / static_cast<float>(448 / 1e-12));

  // K = 0: empty sums.
  std::vector<float> out(4, -1.0F);
  backend->gemm(GemmSpec{.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::f32},
                {.a = matrix(nullptr, Dtype::f32, 2, 0, {}),
                 .b = matrix(nullptr, Dtype::f32, 2, 0, {}),
                 .out = matrix(out.data(), Dtype::f32, 2, 2, {})},
                stream);
  BOOST_TEST_CHECK(out == std::vector<float>(4, 0.0F), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(arguments_are_checked_before_anything_is_written) {
  std::vector<float> memory(64, 1.0F);
  const Tensor input = matrix(memory.data(), Dtype::f32, 4, 4, {});
  const Tensor amax = vector(memory.data() + 32, Dtype::f32, 1, {});
  const AmaxSpec spec{.in = Dtype::f32};
  const auto refusal = [&](const AmaxTensors& tensors) {
    return error_of([&] { backend->amax(spec, tensors, stream); }, ErrorCode::invalid_argument);
  };

  Tensor wrong = input;
  wrong.data = nullptr;
  check_contains(refusal({.input = wrong, .amax = amax}), {"amax input", "null"});
  wrong = input;
  wrong.dtype = Dtype::bf16;
  check_contains(refusal({.input = wrong, .amax = amax}), {"amax input", "bf16", "f32"});
  wrong = input;
  wrong.device = {DeviceType::cuda, 0};
  check_contains(refusal({.input = wrong, .amax = amax}), {"amax input", "cuda:0", "works on cpu"});
  wrong = input;
  wrong.rows = -4;
  check_contains(refusal({.input = wrong, .amax = amax}), {"amax input", "-4"});
  wrong = input;
  wrong.rows = std::numeric_limits<std::int64_t>::max() / 2;
  check_contains(refusal({.input = wrong, .amax = amax}),
                 {"amax input", "no size or stride may be larger than 281474976710656 (2^48)"});
  wrong = input;
  wrong.data = reinterpret_cast<std::byte*>(memory.data()) + 1;
  check_contains(refusal({.input = wrong, .amax = amax}), {"amax input", "misaligned", "4 bytes"});
  check_contains(refusal({.input = input, .amax = vector(memory.data() + 3, Dtype::f32, 1, {})}),
                 {"amax amax", "overlaps", "amax input"});
  check_contains(refusal({.input = input, .amax = vector(memory.data() + 32, Dtype::f32, 2, {})}),
                 {"amax amax", "[1, 1]"});

  const std::string no_output =
      error_of([&] { backend->cast(CastSpec{.codes = false}, {.input = input, .scale_inv = amax}, stream); },
               ErrorCode::invalid_spec);
  check_contains(no_output, {"codes", "transposed"});
  const std::string other_k = error_of(
      [&] {
        backend->gemm(GemmSpec{.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::f32},
                      {.a = input,
                       .b = matrix(memory.data(), Dtype::f32, 4, 3, {}),
                       .out = matrix(memory.data() + 32, Dtype::f32, 4, 4, {})},
                      stream);
      },
      ErrorCode::invalid_argument);
  check_contains(other_k, {"gemm b", "K is 3", "is 4"});
  BOOST_TEST(std::ranges::count(memory, 1.0F) == 64);
}

BOOST_AUTO_TEST_CASE(memory_is_aligned_and_refused_in_words) {
  void* const data = backend->device_api().allocate(1);
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(data) % 256 == 0U);
  backend->device_api().release(data);
  BOOST_TEST(backend->device_api().allocate(0) == nullptr);
  backend->device_api().release(nullptr);
  const std::string refusal = error_of([&] { backend->device_api().allocate(std::numeric_limits<std::size_t>::max()); },
                                       ErrorCode::out_of_memory);
  check_contains(refusal, {"cpu memory", std::to_string(std::numeric_limits<std::size_t>::max()) + " bytes"});

  int word = 7;
  backend->device_api().fill_zero(&word, sizeof(word), stream);
  BOOST_TEST(word == 0);
  const int other = 5;
  backend->device_api().copy(&word, &other, sizeof(word), stream);
  BOOST_TEST(word == 5);
  backend->device_api().copy(nullptr, nullptr, 0, stream);
  backend->device_api().copy_from_host(nullptr, nullptr, 0, stream);
  const std::string null =
      error_of([&] { backend->device_api().copy_to_host(&word, nullptr, 4, stream); }, ErrorCode::invalid_argument);
  check_contains(null, {"copy_to_host", "4 bytes from a null pointer"});
}

BOOST_AUTO_TEST_CASE(it_is_the_cpu_and_launches_nothing) {
  BOOST_TEST(print(backend->device()) == "cpu");
  BOOST_TEST(backend->device_api().launches() == 0);
  BOOST_TEST(!backend->device_api().capturing(stream));
  BOOST_TEST(stream.handle() == nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(parallel_for_covers_the_range_once) {
  ThreadPool pool(4);
  BOOST_TEST(pool.threads() == 4);
  for (const std::int64_t count : {0, 1, 7, 1000}) {
    std::atomic<int> odd_ranges{0};
    std::vector<int> visits(static_cast<std::size_t>(count), 0);
    pool.parallel_for(count, 3, [&](std::int64_t begin, std::int64_t end) {
      if (begin % 3 != 0 || end != std::min(begin + 3, count)) ++odd_ranges;
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    BOOST_TEST(std::ranges::count(visits, 1) == count);
    BOOST_TEST(odd_ranges == 0);
  }
}

BOOST_AUTO_TEST_CASE(parallel_for_hands_on_an_exception) {
  ThreadPool pool(3);
  const auto fail = [](std::int64_t begin, std::int64_t) {
    if (begin == 40) throw std::runtime_error("range 40");
  };
  BOOST_CHECK_EXCEPTION(pool.parallel_for(100, 10, fail), std::runtime_error,
                        [](const std::runtime_error& error) { return std::string(error.what()) == "range 40"; });
  int after = 0;
  pool.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++after; });
  BOOST_TEST(after == 1);
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
