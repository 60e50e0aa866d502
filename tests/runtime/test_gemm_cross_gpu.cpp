// The whole cross product of GEMMs (support/gemm_cross.h) on a GPU. Each GEMM runs by the library's own choice, by both
// tensor-core kernels of the library and by cuBLASLt, as far as they take it. Every element of every output is compared
// with float64 (support/gemm_checker.h), exactly if the inputs are small integers; nothing may be written around the
// outputs; and a second run over other poison must give the same bits.
//
// With `-- 3/8` as last arguments, runs only that share of the groups of cells (support/share.h). Most of the time goes
// to compiling: some two thousand kernels, two hundred per process if ten run at once.
//
// Suites for --run_test: small_checker (the GPU's float64 against the CPU's), cross.
#include "support/gpu_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/warm_up.h"
#include "support/gemm_cross.h"
#include "support/gemm_cross_run.h"
#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_cross_gpu)

namespace {

// Tuning records would change what the library chooses.
ContextOptions options() {
  ContextOptions made = cuda_options();
  made.tuning = Tuning::off;
  return made;
}

Context& context() {
  static Context one(options());
  return one;
}

// Runs a cell by each kernel that takes it.
void run_product(Cross& cross, const CrossCell& cell, const std::vector<GemmSpec>& kernels, const CrossShape& shape,
                 Target target) {
  CrossRun run{.cell = &cell, .spec = cell.spec, .shape = shape, .input = cross_input(cell, shape)};
  const GemmTensors tensors = cross.tensors(run, cross.first_verdict(), 0);
  const MatmulSize size = gemm_size(cell.spec, tensors);
  if (choice_is_compiled(cell, kernels, tensors, size, target)) cross.enqueue(run);
  for (const GemmSpec& kernel : kernels) {
    if (kernel.kernel == GemmKernel::sm90 && sm90_refusal(kernel, tensors, size, target) != nullptr) continue;
    run.spec = kernel;
    cross.enqueue(run);
  }
  if (cublaslt_refusal(cell.spec, tensors, size, target, kCrossCublaslt) == nullptr) {
    run.spec = cell.spec;
    run.spec.kernel = GemmKernel::cublaslt;
    cross.enqueue(run);
  }
}

// ---- the checker itself -------------------------------------------------------------------------------------------

template <class Value>
std::vector<Value> fetch(Cross& cross, const void* from, std::size_t count) {
  std::vector<Value> values(count);
  cross.gpu().backend().device_api().copy_to_host(values.data(), from, count * sizeof(Value), cross.gpu().stream());
  return values;
}

// A tensor's elements as float64, by the formats' definitions.
std::vector<double> values_of(Cross& cross, const Tensor& tensor) {
  const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
  const auto bytes = fetch<std::byte>(
      cross, tensor.data, static_cast<std::size_t>((tensor.rows - 1) * tensor.row_stride + tensor.cols) * size);
  std::vector<double> values;
  for (std::int64_t r = 0; r < tensor.rows; ++r) {
    for (std::int64_t c = 0; c < tensor.cols; ++c) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + static_cast<std::size_t>(r * tensor.row_stride + c) * size, size);
      values.push_back(decode_reference(tensor.dtype, bits));
    }
  }
  return values;
}

struct CpuProduct {
  std::vector<double> sums;
  std::vector<double> magnitudes;
  std::vector<double> preactivations;
  std::vector<double> values;
};

CpuProduct on_cpu(Cross& cross, const CrossRun& run, const GemmTensors& t) {
  const GemmSpec& spec = run.spec;
  const auto [m, n, k] = run.shape.shape;
  const std::vector<double> a = values_of(cross, t.a);
  const std::vector<double> b = values_of(cross, t.b);
  const bool fp8 = is_fp8(spec.a);
  const std::vector<double> scale_inv_a = fp8 ? values_of(cross, t.scale_inv_a) : std::vector<double>{1.0};
  const std::vector<double> scale_inv_b = fp8 ? values_of(cross, t.scale_inv_b) : std::vector<double>{1.0};
  const bool grouped = has_group_scale_inv(spec);
  const auto factor = [](const std::vector<double>& all, ScaleGranularity scale, std::int64_t r, std::int64_t l,
                         std::int64_t depth) {
    if (scale == kTensorwise) return all[0];
    if (scale == kRowwise) return all[static_cast<std::size_t>(r)];
    return all[static_cast<std::size_t>(r / scale.rows * ((depth + 127) / 128) + l / 128)];
  };
  std::vector<std::vector<double>> beside;
  for (const Tensor& tensor : {t.bias, t.c, t.inputs[0], t.inputs[1]}) {
    beside.push_back(tensor.data == nullptr ? std::vector<double>{} : values_of(cross, tensor));
  }
  CpuProduct product;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        double term = a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(j * k + l)];
        if (grouped) term *= factor(scale_inv_a, spec.scale_a, i, l, k) * factor(scale_inv_b, spec.scale_b, j, l, k);
        sum += term;
        magnitude += std::fabs(term);
      }
      product.sums.push_back(sum);
      product.magnitudes.push_back(magnitude);
      if (!grouped) sum *= factor(scale_inv_a, spec.scale_a, i, 0, k) * factor(scale_inv_b, spec.scale_b, j, 0, k);
      const auto at = static_cast<std::size_t>(i * n + j);
      double x = sum;
      if (!beside[0].empty()) x += beside[0][static_cast<std::size_t>(j)];
      if (!beside[1].empty()) x += static_cast<double>(kCrossBeta) * beside[1][at];
      product.preactivations.push_back(x);
      std::vector<double> inputs;
      const auto kinds = spec.epilogue.pointwise.inputs();
      for (std::size_t input = 0; input < kinds.size(); ++input) {
        const std::vector<double>& from = beside[2 + input];
        inputs.push_back(kinds[input].kind == PointwiseInput::Kind::matrix   ? from[at]
                         : kinds[input].kind == PointwiseInput::Kind::column ? from[static_cast<std::size_t>(j)]
                                                                             : from[static_cast<std::size_t>(i)]);
      }
      product.values.push_back(evaluate(spec.epilogue.pointwise, x, inputs) *
                               (is_fp8(spec.out) ? static_cast<double>(kScale) : 1.0));
    }
  }
  return product;
}

bool close(double a, double b, double error = 1e-12) { return std::fabs(a - b) <= error * (1 + std::fabs(a)); }

// Some cells of every kind: formats, scale_inv, outputs, epilogues.
std::vector<const CrossCell*> some_cells(const std::vector<CrossCell>& cells) {
  std::vector<const CrossCell*> some;
  for (std::size_t i = 0; i < cells.size(); i += 197) some.push_back(&cells[i]);
  for (std::size_t i = cells.size() - 40; i < cells.size(); i += 3) some.push_back(&cells[i]);
  return some;
}

// A slow kernel that takes any cell at a small size and sums in the reference's order.
CrossRun small_run(const CrossCell& cell, Input input) {
  CrossRun run{.cell = &cell, .spec = cell.spec, .input = input};
  run.shape = {.shape = {37, 29, 277}, .placement = {3, 1}, .turn = 1000 + cell.index, .whole = false};
  run.spec.kernel = GemmKernel::simt;
  return run;
}

struct CheckerFixture {
  Cross cross{context()};
  std::vector<CrossCell> cells = cross_cells();

  CheckerFixture() {
    std::vector<KernelSpec> specs;
    for (const CrossCell* const cell : some_cells(cells)) {
      GemmSpec simt = cell->spec;
      simt.kernel = GemmKernel::simt;
      specs.emplace_back(simt);
    }
    warm(context().cache(), specs, context().cache().target(), 0);
  }

  Verdict verdict(const CrossRun& run, const GemmTensors& tensors, long long only = -1, bool preactivation = false) {
    JudgeParams params = cross.judged(run, tensors, cross.first_verdict());
    params.only = only;
    params.only_preactivation = preactivation ? 1 : 0;
    cross.checker().judge(params);
    return fetch<Verdict>(cross, cross.first_verdict(), 1)[0];
  }
};

BOOST_FIXTURE_TEST_SUITE(small_checker, CheckerFixture)

BOOST_AUTO_TEST_CASE(has_the_cpus_float64) {
  for (const CrossCell* const cell : some_cells(cells)) {
    const CrossRun run = small_run(*cell, Input::normal);
    const auto [m, n, k] = run.shape.shape;
    BOOST_TEST_CONTEXT(name(run)) {
      cross.clear_verdicts();
      const GemmTensors tensors = cross.tensors(run, cross.first_verdict(), 0);
      const CpuProduct expected = on_cpu(cross, run, tensors);
      const Cross::Sums& sums = cross.sums(run, tensors);
      const auto count = static_cast<std::size_t>(m * n);
      const auto values = fetch<double>(cross, sums.values.data(), count);
      const auto magnitudes = fetch<double>(cross, sums.magnitudes.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        BOOST_REQUIRE_MESSAGE(close(expected.sums[i], values[i]), i);
        BOOST_REQUIRE_MESSAGE(close(expected.magnitudes[i], magnitudes[i]), i);
      }
      for (std::size_t i = 0; i < count; i += 71) {
        const double value = verdict(run, tensors, static_cast<long long>(i)).expected;
        // Constants of an expression are f32: gelu's is off by about 2e-8.
        BOOST_REQUIRE_MESSAGE(close(expected.values[i], value, 1e-6), i << ": " << expected.values[i] << ", " << value);
        if (!run.spec.epilogue.preactivation) continue;
        BOOST_REQUIRE(
            close(expected.preactivations[i], verdict(run, tensors, static_cast<long long>(i), true).expected));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(passes_what_is_right_and_nothing_else) {
  for (const CrossCell* const cell : some_cells(cells)) {
    const bool exact = kCrossEpilogues[cell->epilogue].exact;
    const CrossRun run = small_run(*cell, exact ? Input::integers : Input::normal);
    const auto [m, n, k] = run.shape.shape;
    BOOST_TEST_CONTEXT(name(run)) {
      cross.clear_verdicts();
      cross.twice(run, cross.first_verdict());
      const GemmTensors tensors = cross.tensors(run, cross.first_verdict(), 1);
      BOOST_TEST(Cross::fault_of(run, verdict(run, tensors)) == "");

      // Changes the last element's exponent: 0 becomes another number, and every number changes.
      const auto size = static_cast<std::size_t>(size_of(run.spec.out));
      const std::int64_t last = (m - 1) * tensors.out.row_stride + n - 1;
      auto* const at = static_cast<std::byte*>(tensors.out.data) + last * static_cast<std::int64_t>(size);
      std::uint32_t bits = 0;
      cross.gpu().backend().device_api().copy_to_host(&bits, at, size, cross.gpu().stream());
      const std::uint32_t right = bits;
      bits ^= 1U << (8 * size - 2);
      const auto write = [&](std::byte* to, std::uint32_t value, std::size_t count) {
        cross.gpu().backend().device_api().copy_from_host(to, &value, count, cross.gpu().stream());
      };
      write(at, bits, size);
      cross.clear_verdicts();
      const Verdict off = verdict(run, tensors);
      BOOST_TEST(off.out.wrong == 1U);
      BOOST_TEST(off.out.first == static_cast<unsigned long long>(m * n - 1));
      write(at, right, size);

      // A byte after the output, and one that differs from the first run's poison.
      write(at + size, 0, 1);
      cross.clear_verdicts();
      cross.checker().bytes(cross.out().compared(&cross.first_verdict()->out_bytes));
      Verdict found = fetch<Verdict>(cross, cross.first_verdict(), 1)[0];
      BOOST_TEST(found.out_bytes.damaged == 1U);
      BOOST_TEST(found.out_bytes.different == 0U);
      write(at, ~right, 1);
      cross.clear_verdicts();
      cross.checker().bytes(cross.out().compared(&cross.first_verdict()->out_bytes));
      found = fetch<Verdict>(cross, cross.first_verdict(), 1)[0];
      BOOST_TEST(found.out_bytes.different == 1U);
    }
  }
}

// The contents before the call must not count as a result.
BOOST_AUTO_TEST_CASE(unwritten_outputs_are_told) {
  for (const CrossCell* const cell : some_cells(cells)) {
    const CrossRun run = small_run(*cell, Input::normal);
    BOOST_TEST_CONTEXT(name(run)) {
      cross.clear_verdicts();
      static_cast<void>(cross.tensors(run, cross.first_verdict(), 1));
      cross.out().poison(kFirstPoison);
      cross.out().keep();
      cross.out().poison(kSecondPoison);
      cross.checker().bytes(cross.out().compared(&cross.first_verdict()->out_bytes));
      const Verdict found = fetch<Verdict>(cross, cross.first_verdict(), 1)[0];
      const auto size = static_cast<unsigned long long>(size_of(run.spec.out));
      BOOST_TEST(found.out_bytes.different == 37U * 29U * size);
      BOOST_TEST(found.out_bytes.damaged == 0U);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(cross)

BOOST_AUTO_TEST_CASE(every_cell) {
  const Share share = Share::of_arguments();
  const Target target = context().cache().target();
  std::vector<CrossCell> cells = cross_cells();
  std::erase_if(cells, [&](const CrossCell& cell) { return !share.has(cell.group); });
  BOOST_REQUIRE(!cells.empty());

  std::vector<std::vector<GemmSpec>> kernels;
  std::vector<KernelSpec> specs;
  for (const CrossCell& cell : cells) {
    kernels.push_back(cross_kernels(cell, target));
    specs.insert(specs.end(), kernels.back().begin(), kernels.back().end());
  }
  warm(context().cache(), specs, target, share.threads());
  const KernelCache::Stats before = context().cache().stats();

  // Cells with the same formats run the same GEMM one after the other and share its float64 sums.
  Cross cross(context());
  for (std::size_t begin = 0; begin < cells.size();) {
    std::size_t end = begin;
    while (end < cells.size() && cells[end].group == cells[begin].group) ++end;
    for (std::size_t diagonal = 0; diagonal < 9; ++diagonal) {
      for (const bool whole : {false, true}) {
        for (std::size_t j = 0; j < 9; ++j) {
          const CrossShape shape = cross_shape_on(diagonal, j, whole);
          for (std::size_t i = begin; i < end; ++i) {
            if (cross_diagonal(cells[i]) == diagonal) run_product(cross, cells[i], kernels[i], shape, target);
          }
        }
      }
    }
    begin = end;
  }
  cross.flush();
  const KernelCache::Stats after = context().cache().stats();
  std::cout << cells.size() << " cells, " << cross.runs() << " products, each twice:";
  for (const auto& [kernel, count] : cross.counts()) std::cout << " " << count << " by " << kernel << ",";
  std::cout << " " << before.compiled << " kernels compiled, " << before.loaded << " from the store, "
            << after.compiled - before.compiled << " compiled late\n";
  BOOST_TEST(cross.runs() >= 18 * cells.size());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
