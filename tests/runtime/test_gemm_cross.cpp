// Tests the tools of test_gemm_cross_gpu.cpp without a GPU: the list of GEMMs in support/gemm_cross.h has every
// combination of kinds and sizes that it promises, and the kernels of support/gemm_checker.h compile.
#include "support/gemm_cross.h"

#include <boost/test/unit_test.hpp>
#include <iostream>
#include <map>
#include <set>
#include <tuple>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/context/context.h"
#include "support/gemm_checker.h"

BOOST_AUTO_TEST_SUITE(test_gemm_cross)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr Target kHopper{9, 0, true};

std::string sums_of(const GemmSpec& spec) {
  return print(spec.scale_a) + "," + print(spec.scale_b) + (spec.fast_accumulation ? " fast" : "");
}

std::string output_of(const GemmSpec& spec) { return is_fp8(spec.out) ? "fp8" : std::string(name(spec.out)); }

std::string formats_of(const GemmSpec& spec) { return std::string(name(spec.a)) + "*" + std::string(name(spec.b)); }

}  // namespace

BOOST_AUTO_TEST_CASE(every_cell_is_there_once) {
  const std::vector<CrossCell> cells = cross_cells();
  std::set<std::string> lines;
  std::set<std::string> formats, sums, outputs, fp8_outputs;
  std::set<std::size_t> groups;
  for (const CrossCell& cell : cells) {
    BOOST_CHECK_NO_THROW(validate(cell.spec));
    BOOST_TEST(lines.insert(print(KernelSpec(cell.spec))).second, print(KernelSpec(cell.spec)));
    BOOST_TEST(&cells[cell.index] == &cell);
    groups.insert(cell.group);
    if (!is_fp8(cell.spec.a)) continue;
    formats.insert(formats_of(cell.spec));
    sums.insert(sums_of(cell.spec));
    outputs.insert(output_of(cell.spec));
    if (is_fp8(cell.spec.out)) fp8_outputs.insert(std::string(name(cell.spec.out)));
  }
  BOOST_TEST(formats.size() == 16U);
  BOOST_TEST(sums.size() == 10U);
  BOOST_TEST(outputs.size() == 4U);
  BOOST_TEST(fp8_outputs.size() == kFp8Dtypes.size());
  BOOST_TEST(groups.size() == 69U);
  BOOST_TEST(cells.size() == 16U * 10 * 4 * kCrossEpilogues.size() + 5 * kCrossEpilogues.size());
}

// In each of the two squares.
BOOST_AUTO_TEST_CASE(every_cell_meets_every_m_n_and_k) {
  for (const bool whole : {false, true}) {
    std::set<std::tuple<std::int64_t, std::int64_t>> mn, mk, nk;
    std::set<std::int64_t> depths;
    for (std::size_t diagonal = 0; diagonal < 9; ++diagonal) {
      std::set<std::int64_t> m, n, k;
      for (std::size_t j = 0; j < 9; ++j) {
        const CrossShape shape = cross_shape_on(diagonal, j, whole);
        const auto [rows, cols, inner] = shape.shape;
        m.insert(rows);
        n.insert(cols);
        k.insert(inner);
        mn.insert({rows, cols});
        mk.insert({rows, inner});
        nk.insert({cols, inner});
        BOOST_TEST(rows * cols * inner < std::int64_t{1} << 31);
        if (whole) BOOST_TEST(inner % 16 == 0);
      }
      BOOST_TEST(m.size() == 9U);
      BOOST_TEST(n.size() == 9U);
      BOOST_TEST(k.size() == 9U);
      depths.merge(k);
    }
    BOOST_TEST(mn.size() == 81U);
    BOOST_TEST(mk.size() == 81U);
    BOOST_TEST(nk.size() == 81U);
    for (const std::int64_t extent : kCrossExtents) BOOST_TEST((whole || depths.contains(extent)));
  }
}

// So every kernel meets nearly all of the 81 sizes of a square.
BOOST_AUTO_TEST_CASE(what_shares_a_value_of_an_axis_meets_every_product) {
  std::map<std::string, std::set<std::size_t>> diagonals;
  std::map<std::string, std::set<std::size_t>> of_kernels;
  for (const CrossCell& cell : cross_cells()) {
    const std::string epilogue = kCrossEpilogues[cell.epilogue].words;
    const std::size_t diagonal = cross_diagonal(cell);
    for (const GemmSpec& kernel : cross_kernels(cell, kHopper)) {
      of_kernels[generate(kernel).text].insert(diagonal);
    }
    if (!is_fp8(cell.spec.a)) continue;
    const std::array<std::string, 4> axes{formats_of(cell.spec), sums_of(cell.spec), output_of(cell.spec),
                                          "epilogue " + epilogue};
    for (std::size_t i = 0; i < axes.size(); ++i) {
      for (std::size_t j = i + 1; j < axes.size(); ++j) diagonals[axes[i] + " and " + axes[j]].insert(diagonal);
    }
  }
  for (const auto& [pair, met] : diagonals) BOOST_TEST(met.size() >= 8U, pair << ": " << met.size());
  std::size_t mma = 0;
  for (const auto& [kernel, met] : of_kernels) {
    if (kernel.find("gemm_mma<") == std::string::npos || kernel.find("kernel=mma:64") == std::string::npos) continue;
    ++mma;
  }
  std::cout << of_kernels.size() << " kernels, " << mma << " of them gemm_mma's small tile\n";
  BOOST_TEST(of_kernels.size() <= 2150U);
}

BOOST_AUTO_TEST_CASE(every_tiling_is_there) {
  std::set<std::string> tilings;
  std::set<std::string> known;
  for (const CrossCell& cell : cross_cells()) {
    for (const GemmSpec& kernel : cross_kernels(cell, kHopper)) {
      BOOST_CHECK_NO_THROW(validate(kernel));
      if (kernel.kernel == GemmKernel::sm90) tilings.insert(print(*kernel.tiling) + " " + sums_of(kernel));
    }
    // (Every tiling with bf16 and f16: test_gemm_sm90_16bit_gpu.cpp.)
    if (!wgmma_multiplies(cell.spec) || !is_fp8(cell.spec.a)) continue;
    for (const GemmTiling& tiling : gemm_tilings(cell.spec)) known.insert(print(tiling) + " " + sums_of(cell.spec));
  }
  for (const std::string& tiling : known) BOOST_TEST(tilings.contains(tiling), tiling);
}

// Addresses are never dereferenced; only their alignment matters.
BOOST_AUTO_TEST_CASE(every_cell_is_given_to_the_librarys_choice_too) {
  const auto place = [](Dtype dtype, std::int64_t rows, std::int64_t cols, Placement at) {
    return Tensor{.data = reinterpret_cast<void*>(4096 + at.offset * size_of(dtype)),
                  .dtype = dtype,
                  .rows = rows,
                  .cols = cols,
                  .row_stride = cols + at.padding,
                  .device = {DeviceType::cuda, 0}};
  };
  std::size_t chosen = 0;
  std::size_t cublaslt = 0;
  for (const CrossCell& cell : cross_cells()) {
    const GemmSpec& spec = cell.spec;
    const std::vector<GemmSpec> kernels = cross_kernels(cell, kHopper);
    std::size_t of_cell = 0;
    for (const bool whole : {false, true}) {
      for (std::size_t j = 0; j < 9; ++j) {
        const CrossShape shape = cross_shape_on(cross_diagonal(cell), j, whole);
        const auto [m, n, k] = shape.shape;
        GemmTensors tensors{.a = place(spec.a, m, k, shape.placement),
                            .b = place(spec.b, n, k, shape.placement),
                            .out = place(spec.out, m, n, shape.placement)};
        if (spec.epilogue.c) tensors.c = place(*spec.epilogue.c, m, n, shape.placement);
        const MatmulSize size{.m = m, .n = n, .k = k};
        if (choice_is_compiled(cell, kernels, tensors, size, kHopper)) ++of_cell;
        if (cublaslt_refusal(spec, tensors, size, kHopper, kCrossCublaslt) == nullptr) ++cublaslt;
      }
    }
    BOOST_TEST(of_cell >= 9U, print(KernelSpec(spec)) << ": " << of_cell);
    chosen += of_cell;
  }
  std::cout << chosen << " of " << 18 * cross_cells().size() << " products are given to the library's choice, "
            << cublaslt << " to cuBLASLt\n";
}

BOOST_AUTO_TEST_CASE(the_checkers_kernels_compile) {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path{};
  Context context(options);
  if (context.compiler() == nullptr) {
    BOOST_TEST_MESSAGE("skipped: no NVRTC");
    return;
  }
  for (const Source& source : check_sources()) {
    for (const Target target : {kHopper, target_for(8, 0)}) {
      const auto compiled = context.cache().compiled(source, target);
      BOOST_TEST(compiled->resources.spill_bytes == 0, source.name);
      BOOST_TEST(compiled->log == "", source.name);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
