// The list of test cases: every spec of all_valid_specs() with the shapes, inputs and memory layouts that it may meet.
// It drives the CPU tests and the CUDA-against-CPU tests. There are endlessly many expressions, so fused_specs(),
// epilogue_specs() and elementwise_specs() list representatives.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ingot/codegen/kernel_spec.h"

namespace ingot::test {

// Where a case runs: everywhere; only on a GPU; or, past 2^31 elements, on the GPU and nightly on the CPU, compared on
// samples.
enum class SizeClass : std::uint8_t { ci, gpu, huge };

enum class Input : std::uint8_t { normal, nan, inf, zeros, equal, spread, subnormal, integers };
inline constexpr std::array kInputs{Input::normal, Input::nan,    Input::inf,       Input::zeros,
                                    Input::equal,  Input::spread, Input::subnormal, Input::integers};

std::string_view name(Input input);

// rows x cols; for a GEMM M x N, with K = inner.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t inner = 0;
};

// In every matrix of a case: elements between the end of a row and the next, and elements before the first one.
struct Placement {
  std::int64_t padding = 0;
  std::int64_t offset = 0;
};

struct Case {
  KernelSpec spec;
  Shape shape;
  Input input = Input::normal;
  Placement placement{};
  SizeClass size = SizeClass::ci;
  float beta = 0.5F;  // for a GEMM that adds c
  // For a GEMM: the scale_inv of groups are a matrix with one row for each group of K, and padding between the rows.
  bool a_by_group = false;
  bool b_by_group = false;
  // For a cast: its scale_inv of 1x128 groups are such a matrix.
  bool scale_inv_by_group = false;
};

// Prints "cast bf16->e4m3fn scale=row out=codes 120x2080 normal padding=3 offset=1".
std::string name(const Case& c);

// Casts with an expression or a column sum, in the fusions that layers use: each granularity, scale source, kind of
// input and output, precision and schedule appears at least once.
std::vector<KernelSpec> fused_specs();

// GEMMs with more than scale_inv and a bias: each kind of scale, sum, output and operand, c of every dtype, and
// expressions with inputs of every kind or without x.
std::vector<GemmSpec> epilogue_specs();

// Elementwise operations: each dtype, inputs of every kind, expressions without x, fast ones, and pairs of expressions.
std::vector<KernelSpec> elementwise_specs();

bool is_fused(const KernelSpec& spec);

std::vector<KernelSpec> all_specs();

struct SizedShape {
  Shape shape;
  SizeClass size;
};

// Shapes for every spec but GEMMs.
inline constexpr std::array kMatrixShapes{
    SizedShape{{1, 1}, SizeClass::ci},          SizedShape{{1, 300}, SizeClass::ci},
    SizedShape{{300, 1}, SizeClass::ci},        SizedShape{{0, 16}, SizeClass::ci},
    SizedShape{{16, 0}, SizeClass::ci},         SizedShape{{8, 8}, SizeClass::ci},
    SizedShape{{120, 2080}, SizeClass::ci},     SizedShape{{1481, 677}, SizeClass::ci},
    SizedShape{{993, 512}, SizeClass::ci},      SizedShape{{256, 65536}, SizeClass::gpu},
    SizedShape{{1008, 640}, SizeClass::gpu},  // tiles of 64 rows, one to a multiprocessor
    SizedShape{{65536, 128}, SizeClass::gpu},   SizedShape{{4096, 4096}, SizeClass::gpu},
    SizedShape{{40001, 131}, SizeClass::gpu},  // too many tiles for a cast in one launch
    SizedShape{{65537, 32769}, SizeClass::huge}};

// Further shapes for norms: rows that do not fit into registers, columns of many short rows, and rows that fill their
// threads.
inline constexpr std::array kNormShapes{Shape{5, 8200}, Shape{2, 65545}, Shape{1100, 24}, Shape{37, 1024}};

// Shapes for every GEMM: some that the hardware path takes, and some that it does not.
inline constexpr std::array kGemmShapes{Shape{64, 48, 32}, Shape{37, 131, 67}};
// Shapes for the typical GEMMs only (see below).
inline constexpr std::array kMoreGemmShapes{
    SizedShape{{1, 1, 1}, SizeClass::ci},         SizedShape{{1, 70, 33}, SizeClass::ci},
    SizedShape{{70, 1, 33}, SizeClass::ci},       SizedShape{{5, 7, 0}, SizeClass::ci},
    SizedShape{{0, 8, 16}, SizeClass::ci},        SizedShape{{8, 0, 16}, SizeClass::ci},
    SizedShape{{8, 8, 8}, SizeClass::ci},         SizedShape{{16, 16, 16}, SizeClass::ci},
    SizedShape{{257, 120, 1040}, SizeClass::ci},  SizedShape{{512, 256, 384}, SizeClass::gpu},
    SizedShape{{1481, 677, 993}, SizeClass::gpu}, SizedShape{{1024, 1024, 1024}, SizeClass::gpu}};

// Odd memory layouts: no 16-byte vectors from the second row on, or from the first; and a pitch that keeps them.
inline constexpr std::array kPlacements{Placement{3, 0}, Placement{0, 1}, Placement{5, 1}, Placement{16, 0}};

// The typical GEMMs, one of each kind: operands of one format (or the usual mixed pair of a backward pass) and equal
// granularities.
bool typical(const GemmSpec& spec);

std::vector<Case> gemm_cases(const GemmSpec& spec);

// Past 2^31 elements, one format represents all: only index arithmetic can break there.
bool runs_huge(const KernelSpec& spec);

// Casts and norms that CI runs on every small case: one pair of dtypes with every pair of granularities, every pair of
// dtypes with tensor and row scales, and the fused casts. CI runs a few cases of the others, and the GPU runs all.
bool thorough(const KernelSpec& spec);

// Large shapes run without pow2 and in two formats only: these settings matter no more there.
bool runs_large(const KernelSpec& spec);

std::vector<Case> matrix_cases(const KernelSpec& spec);

std::vector<Case> cases_of(const KernelSpec& spec);

// The cases of one size class, over all specs.
std::vector<Case> cases(SizeClass size);

}  // namespace ingot::test
