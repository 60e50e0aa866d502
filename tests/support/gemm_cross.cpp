#include "support/gemm_cross.h"

namespace ingot::test {

std::vector<CrossCell> cross_cells() {
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
          for (const auto scale_b : kGroupedScalesOfB) {
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

CrossShape cross_shape(std::size_t row, std::size_t col, bool whole) {
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

CrossShape cross_shape_on(std::size_t diagonal, std::size_t j, bool whole) {
  return cross_shape(j, (j + diagonal) % 9, whole);
}

Input cross_input(const CrossCell& cell, const CrossShape& shape) {
  return kCrossEpilogues[cell.epilogue].exact && shape.turn % 2 == 0 ? Input::integers : Input::normal;
}

GemmTiling smallest_tiling(const GemmSpec& spec) {
  const auto all = gemm_tilings(spec);
  return *std::min_element(all.begin(), all.end(), [](auto& x, auto& y) { return x.m * x.n < y.m * y.n; });
}

GemmSpec with_tiling(GemmSpec spec, GemmKernel kernel, const GemmTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

std::vector<GemmSpec> cross_kernels(const CrossCell& cell, Target target) {
  const GemmSpec& spec = cell.spec;
  if (spec.a == Dtype::f32) {
    GemmSpec simt = spec;
    simt.kernel = GemmKernel::simt;
    return {simt};
  }
  std::vector<GemmSpec> kernels{with_tiling(spec, GemmKernel::mma, kMmaTilings[1])};
  const bool grouped = has_group_scale_inv(spec);
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

bool choice_is_compiled(const CrossCell& cell, const std::vector<GemmSpec>& kernels, const GemmTensors& tensors,
                        const MatmulSize& shape, Target target) {
  const GemmCall call{.spec = cell.spec, .size = {.m = shape.m, .n = shape.n, .k = shape.k}};
  const auto compiled = [&](const GemmSpec& spec) { return std::ranges::find(kernels, spec) != kernels.end(); };
  for (const GemmSpec& named : gemm_order(call, {.target = target, .multiprocessors = kCrossMultiprocessors})) {
    if (named.kernel == GemmKernel::cublaslt) {
      if (cublaslt_refusal(named, tensors, shape, target, kCrossCublaslt) == nullptr)
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
