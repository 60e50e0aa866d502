// Lists the full cross product of GEMM kinds: every pair of formats, fast and accurate sums, every kind of scale_inv,
// of output and of epilogue, in some five thousand cells. Each cell has 18 GEMMs, whose M, N and K take every length
// around a tile, a vector or a row of 16 bytes, and one beyond 4096; in nine of them K is arbitrary, in the others a
// multiple of 16, which wgmma and cuBLASLt want. Pure values: tests/runtime/test_gemm_cross.cpp checks the list, and
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
#include "ingot/runtime/gemm/gemm_rules.h"

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

inline bool wgmma_multiplies(const GemmSpec& spec) { return sm90_multiplies(spec); }

std::vector<CrossCell> cross_cells();

// ---- sizes -------------------------------------------------------------------------------------------------------

inline constexpr std::array<std::int64_t, 9> kCrossExtents{1, 7, 16, 17, 100, 127, 129, 1000, 4097};

struct CrossShape {
  Shape shape;
  Placement placement;
  std::size_t turn = 0;  // 0 to 80
  bool whole = false;    // K, pitches and addresses at multiples of 16
};

// A Latin square: for each two of M, N and K, its 81 GEMMs contain every pair of values once. K is assigned so that
// no GEMM has more than 2^31 terms: two large extents get a short K.
CrossShape cross_shape(std::size_t row, std::size_t col, bool whole);

// The diagonal of the square on which a cell's GEMMs are: nine GEMMs, with every M, every N and every K. (M is
// the j-th extent and N the one `diagonal` further; the sum of both indices takes every value, because 2 and 9 have no
// common divisor.) Neighbouring cells of the list have different diagonals.
inline std::size_t cross_diagonal(const CrossCell& cell) { return cell.index % 9; }
CrossShape cross_shape_on(std::size_t diagonal, std::size_t j, bool whole);

// Small integers, whose sums and products are exact, if the epilogue is exact too; otherwise bell-shaped values.
Input cross_input(const CrossCell& cell, const CrossShape& shape);

// ---- kernels -----------------------------------------------------------------------------------------------------

inline constexpr int kCrossMultiprocessors = 132;      // tilings are chosen for a Hopper GPU's
inline constexpr std::size_t kCrossCublaslt = 130100;  // an older cuBLASLt refuses more by itself

GemmTiling smallest_tiling(const GemmSpec& spec);

GemmSpec with_tiling(GemmSpec spec, GemmKernel kernel, const GemmTiling& tiling);

// The library's own kernels that a cell runs; they are compiled beforehand. They depend only on what is compiled into a
// kernel, not on what generate() makes a parameter, so that neighbouring cells share kernels.
std::vector<GemmSpec> cross_kernels(const CrossCell& cell, Target target);

// Does the library's own choice for a call need only kernels that are compiled? This follows the order
// in which the backend chooses; if that changed, a kernel would be compiled at its first call, and the test be slower.
bool choice_is_compiled(const CrossCell& cell, const std::vector<GemmSpec>& kernels, const GemmTensors& tensors,
                        const MatmulSize& shape, Target target);

}  // namespace ingot::test
