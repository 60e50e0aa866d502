// The full cross of GEMMs: every pair of formats, fast and accurate sums, every kind of factors, of output and of
// epilogue: some five thousand cells. Each cell has 18 products, whose M, N and K take every length around a tile, a
// vector or a row of 16 bytes, and one beyond 4096; in nine of them K is arbitrary, in the others a multiple of 16,
// which wgmma and cuBLASLt want. Pure values: tests/runtime/test_gemm_cross.cpp checks the list, and
// test_gemm_cross_gpu.cpp runs it.
//
// Kernels. A kernel is compiled for a cell (formats, sums, output, epilogue), not for its sizes, but the sizes decide
// which tiling the library takes. So few tilings are compiled: the smallest one of each, which most of these sizes get,
// and for some cells another one. Calls that leave the choice to the library are made if it falls on one of these.
// Another test runs every tiling with every epilogue (test_gemm_epilogue_gpu.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "ingot/runtime/gemm/gemm_mma_rules.h"
#include "ingot/runtime/gemm/gemm_sm90_rules.h"

namespace ingot::test {

struct CrossEpilogue {
  const char* words;  // in the spec's line; {} is the dtype of c
  bool exact;         // only the output is rounded, if sums and inputs are small integers
};

enum class CrossValue : std::uint8_t { identity, relu, gelu, silu_gate, sigmoid_affine, residual };

inline constexpr std::array kCrossEpilogues{CrossEpilogue{"", true},
                                            CrossEpilogue{"bias", true},
                                            CrossEpilogue{"epilogue=relu(x)", true},
                                            CrossEpilogue{"bias epilogue=gelu(x) also=preactivation", false},
                                            CrossEpilogue{"epilogue=silu(x)*gate", false},
                                            CrossEpilogue{"epilogue=sigmoid(x)*w[col]+r[row] also=amax", false},
                                            CrossEpilogue{"epilogue=x+residual", true},
                                            CrossEpilogue{"c=bf16 also=amax", true}};
inline constexpr std::array kCrossValues{CrossValue::identity, CrossValue::identity,  CrossValue::relu,
                                         CrossValue::gelu,     CrossValue::silu_gate, CrossValue::sigmoid_affine,
                                         CrossValue::residual, CrossValue::identity};

inline constexpr float kCrossBeta = 0.5F;

struct CrossCell {
  GemmSpec spec;
  std::size_t index = 0;     // in the list
  std::size_t group = 0;     // formats and output: no two groups share a kernel
  std::size_t epilogue = 0;  // in kCrossEpilogues
};

inline bool wgmma_multiplies(const GemmSpec& spec) { return is_ocp(spec.a) && is_ocp(spec.b); }

inline std::vector<CrossCell> cross_cells() {
  std::vector<CrossCell> cells;
  std::size_t group = 0;
  const auto add = [&](const GemmSpec& kind) {
    for (std::size_t i = 0; i < kCrossEpilogues.size(); ++i) {
      const auto words = std::get<GemmSpec>(parse("gemm bf16*bf16->bf16 " + std::string(kCrossEpilogues[i].words)));
      GemmSpec spec = kind;
      spec.bias = words.bias;
      spec.epilogue = words.epilogue;
      if (spec.epilogue.c) spec.epilogue.c = epilogue_dtype(spec);
      cells.push_back({.spec = spec, .index = cells.size(), .group = group, .epilogue = i});
    }
  };
  // Operands that gemm_sm90 multiplies too come first: then every share of the groups has as many kernels.
  for (const bool wgmma : {true, false}) {
    for (const Dtype a : kFp8Dtypes) {
      for (const Dtype b : kFp8Dtypes) {
        if (wgmma_multiplies({.a = a, .b = b}) != wgmma) continue;
        for (const Dtype out : {Dtype::bf16, Dtype::f16, Dtype::f32, kFp8Dtypes[group / 4 % kFp8Dtypes.size()]}) {
          for (const auto scale_a : {kTensorwise, kRowwise}) {
            for (const auto scale_b : {kTensorwise, kRowwise}) {
              for (const bool fast : {true, false}) {
                add({.a = a, .b = b, .out = out, .scale_a = scale_a, .scale_b = scale_b, .fast_accumulation = fast});
              }
            }
          }
          for (const auto scale_b : {kBlocks, kRowGroups}) {
            add({.a = a, .b = b, .out = out, .scale_a = kRowGroups, .scale_b = scale_b});
          }
          ++group;
        }
      }
    }
  }
  for (const auto& [in, out] :
       {std::pair{Dtype::bf16, Dtype::bf16}, std::pair{Dtype::bf16, Dtype::f32}, std::pair{Dtype::f16, Dtype::f16},
        std::pair{Dtype::f16, Dtype::f32}, std::pair{Dtype::f32, Dtype::f32}}) {
    add({.a = in, .b = in, .out = out});
    ++group;
  }
  return cells;
}

// ---- sizes -------------------------------------------------------------------------------------------------------

inline constexpr std::array<std::int64_t, 9> kCrossExtents{1, 7, 16, 17, 100, 127, 129, 1000, 4097};

struct CrossShape {
  Shape shape;
  Placement placement;
  std::size_t turn = 0;  // 0 to 80
  bool whole = false;    // K, pitches and addresses at multiples of 16
};

// A Latin square: for each two of M, N and K, its 81 products contain every pair of values once. K is assigned so that
// no product has more than 2^31 terms: two large extents get a short K.
inline CrossShape cross_shape(std::size_t row, std::size_t col, bool whole) {
  constexpr std::array<std::int64_t, 9> kDepths{1000, 129, 127, 100, 17, 16, 7, 1, 4097};
  constexpr std::array<std::int64_t, 9> kWholeDepths{528, 128, 144, 112, 272, 1040, 48, 16, 4096};
  constexpr std::array<Placement, 4> kAnywhere{Placement{0, 0}, Placement{3, 0}, Placement{0, 1}, Placement{5, 2}};
  constexpr std::array<Placement, 2> kWhole{Placement{0, 0}, Placement{16, 16}};
  const std::size_t symbol = (row + col) % 9;
  const std::size_t turn = 9 * row + col;
  return {.shape = {kCrossExtents[row], kCrossExtents[col], whole ? kWholeDepths[symbol] : kDepths[symbol]},
          .placement = whole ? kWhole[turn % kWhole.size()] : kAnywhere[turn % kAnywhere.size()],
          .turn = turn,
          .whole = whole};
}

// The diagonal of the square on which a cell's products lie: nine products, with every M, every N and every K. (M is
// the j-th extent and N the one `diagonal` further; the sum of both indices takes every value, because 2 and 9 have no
// common divisor.) Neighbouring cells of the list have different diagonals.
inline std::size_t cross_diagonal(const CrossCell& cell) { return cell.index % 9; }
inline CrossShape cross_shape_on(std::size_t diagonal, std::size_t j, bool whole) {
  return cross_shape(j, (j + diagonal) % 9, whole);
}

// Small integers, whose sums and products are exact, if the epilogue is exact too; otherwise bell-shaped values.
inline Input cross_input(const CrossCell& cell, const CrossShape& shape) {
  return kCrossEpilogues[cell.epilogue].exact && shape.turn % 2 == 0 ? Input::integers : Input::normal;
}

// ---- kernels -----------------------------------------------------------------------------------------------------

inline constexpr int kCrossMultiprocessors = 132;  // tilings are chosen for a Hopper GPU's

inline GemmTiling smallest_tiling(const GemmSpec& spec) {
  const auto all = gemm_tilings(spec);
  return *std::min_element(all.begin(), all.end(), [](auto& x, auto& y) { return x.m * x.n < y.m * y.n; });
}

inline GemmSpec with_tiling(GemmSpec spec, GemmKernel kernel, const GemmTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

// Our kernels that a cell runs: those that are compiled beforehand. Only what a kernel depends on decides them, not
// what generate() makes a parameter, so that neighbouring cells share kernels.
inline std::vector<GemmSpec> cross_kernels(const CrossCell& cell, Target target) {
  const GemmSpec& spec = cell.spec;
  if (spec.a == Dtype::f32) {
    GemmSpec simt = spec;
    simt.kernel = GemmKernel::simt;
    return {simt};
  }
  std::vector<GemmSpec> kernels{with_tiling(spec, GemmKernel::mma, kMmaTilings[1])};
  const bool grouped = has_group_factors(spec);
  if ((cell.group + cell.epilogue + (grouped ? 3 : 0)) % 8 == 0) {
    kernels.push_back(with_tiling(spec, GemmKernel::mma, kMmaTilings[0]));
  }
  if (target != target_for(9, 0) || !wgmma_multiplies(spec)) return kernels;
  kernels.push_back(with_tiling(spec, GemmKernel::sm90, smallest_tiling(spec)));
  const std::size_t sums = (grouped                  ? 4U
                            : spec.fast_accumulation ? 2U
                                                     : 0U) +
                           (spec.scale_b == kRowwise || spec.scale_b == kRowGroups ? 1U : 0U);
  if ((cell.group + cell.epilogue + sums) % 4 == 0) {
    std::vector<GemmTiling> others(gemm_tilings(spec).begin(), gemm_tilings(spec).end());
    std::erase(others, smallest_tiling(spec));
    const std::size_t turn = (2 * (cell.group / 4) + cell.group % 4 + 2 * cell.epilogue) % others.size();
    kernels.push_back(with_tiling(spec, GemmKernel::sm90, others[turn]));
    // The last tilings are those that few epilogues have.
    const std::size_t last = others.size() - 1 - (cell.group / 4 + cell.epilogue) % others.size();
    if (cell.epilogue < 2 && last != turn) kernels.push_back(with_tiling(spec, GemmKernel::sm90, others[last]));
  }
  return kernels;
}

// Does the library's own choice for a call need only kernels that are compiled? This follows the backend's order of
// choice; if that were another, a kernel would be compiled at its first call, and this test would be slower.
inline bool choice_is_compiled(const CrossCell& cell, const std::vector<GemmSpec>& kernels, const GemmTensors& tensors,
                               const MatmulSize& shape, Target target) {
  const GemmCall call{.spec = cell.spec, .size = {.m = shape.m, .n = shape.n, .k = shape.k}};
  const auto compiled = [&](const GemmSpec& spec) { return std::ranges::find(kernels, spec) != kernels.end(); };
  for (const GemmSpec& named : gemm_order(call, {.target = target, .multiprocessors = kCrossMultiprocessors})) {
    if (named.kernel == GemmKernel::cublaslt) {
      if (cublaslt_refusal(named, tensors, shape, target) == nullptr)
        continue;  // it may have no algorithm all the same
    } else if (named.kernel == GemmKernel::sm90) {
      if (sm90_refusal(named, tensors, shape, target) == nullptr) return compiled(named);
    } else {
      return named.kernel == GemmKernel::simt || compiled(named);
    }
  }
  return false;
}

}  // namespace ingot::test
