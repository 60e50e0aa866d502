// The tensors of the cast operations, and lists of casts. Backend (backend.h) has the calls.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include "ingot/api.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/core/expert_ends.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

class Stream;

// Which of a matrix's rows each of `rows` others is: data[r] of row r, in the device's memory. They may be in any
// order, and repeat. A GPU's values are not seen by the host: where one is no row of the matrix, the values of that row
// are unspecified, but nothing outside of the tensors is read.
struct RowIndex {
  const std::int32_t* data = nullptr;
  std::int64_t rows = 0;
  Device device{};
};

// A tensor that the spec does not ask for stays a default Tensor. Matrices may have any row stride.
//
// Factors of 1x128 groups are written row by row into a vector or, into a matrix f32[ceil(cols / 128), rows], one row
// for each group of columns. GEMMs read both; cuBLASLt reads only the second (a GEMM converts the others for it).
struct CastTensors {
  // [rows, cols] of spec.in. If an expression does not use x, only the shape counts and the data may be null.
  Tensor input;
  // With spec.stacked: how many matrices of R = rows / matrices rows stand one after the other in `input`, 0 or more.
  // Those of the outputs do too: codes as in `input`; transposed is [matrices * cols, R]; scale_inv are
  // f32[matrices * scale_count(scale, R, cols)], those of the first matrix, then of the second, and so on, as are
  // scales, amax and what is of the transposed codes. A grouped GEMM reads codes and transposed as its b.
  std::int64_t matrices = 1;
  // With spec.gathered: the rows that are cast, M of them; more or fewer than the input has. Then `rows` of codes,
  // transposed and scale_inv is M. An input without rows takes no index but an empty one.
  RowIndex row_index{};
  // With spec.experts: where each expert's rows of the codes end, without a capacity. Then transposed is [cols, 128 *
  // expert_slots(rows, experts)], and its scale_inv are those of 128x1 groups of as many rows. Slots that are nobody's
  // are not written. With given scales, scale_inv, scales and amax are f32[experts], transposed is [cols, rows], and
  // rows that no expert has are neither read nor written.
  ExpertEnds ends{};
  Tensor codes{};                 // [rows, cols] of spec.out
  Tensor transposed{};            // [cols, rows] of spec.out
  Tensor scale_inv;               // f32[scale_count] (see above), of the codes, or of both
  Tensor transposed_scale_inv{};  // f32, of the transposed codes if they have their own scales (transposed_scale)

  // With given scales: as many f32 values as there are scale_inv. Scales are read. An amax is raised to the largest |x|
  // of its extent where it is smaller: clear it before the first cast.
  Tensor scales{};
  Tensor amax{};
  Tensor transposed_scales{};
  Tensor transposed_amax{};

  // With dynamic scales of the whole tensor, for all codes: f32[1], the largest |value| that is cast, where it is known
  // already. Then no pass looks for it, and the results have the same bits. Otherwise missing. Of stacked matrices
  // those of all, f32[matrices * scale_count], and also with one scale for each column. Not of gathered rows.
  Tensor known_amax{};
  // With dynamic scales of rows, and of columns for the transposed codes, of one matrix: known_amax is f32[rows], and
  // this f32[cols]. Both are given, or none. Otherwise missing.
  Tensor known_transposed_amax{};
  // If the spec asks for it: f32[matrices * scale_count(*spec.found_amax, R, cols)], which is written, of the first
  // matrix, then of the second, and so on: the known_amax of a cast of the same matrices.
  Tensor found_amax{};

  // Of an expression, in the order of spec.pointwise.inputs(): a matrix [rows, cols] or, for [col], a vector [1, cols]
  // of spec.in; for [col:f32] f32[1, cols]; for [row] f32[1, rows].
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor result{};  // [rows, cols] of spec.in
  Tensor sum{};     // [1, cols] of *spec.sum
};

// Casts any number of matrices together, again and again: for example all weights of a model after each optimizer step.
// Each gets the same results as from Backend::cast(), but all of them take one launch, or a fill and two launches if
// dynamic scales are of whole tensors, rows or columns. Backend::make_cast_list() makes a list. The tensors must not
// move while the list is used, and the backend must outlive it.
class INGOT_API CastList {
 public:
  virtual ~CastList() = default;
  CastList(const CastList&) = delete;
  CastList& operator=(const CastList&) = delete;

  // Enqueues all casts. A list must not run on two streams at once. Errors: those of Backend::cast().
  virtual void run(Stream& stream) = 0;

 protected:
  CastList() = default;
};

// input[rows, cols] of spec.in; amax: f32[scale_count]; second_amax: likewise, if the spec has a second_scale.
struct AmaxTensors {
  Tensor input;
  Tensor amax;
  Tensor second_amax{};
};

// Finds the maxima of any number of matrices together, again and again: in a fill and one launch, if the memory of all
// maxima is contiguous, otherwise with a fill for each contiguous part. Backend::make_amax_list() makes a list. The
// tensors must not move while the list is used, and the backend must outlive it.
class INGOT_API AmaxList {
 public:
  virtual ~AmaxList() = default;
  AmaxList(const AmaxList&) = delete;
  AmaxList& operator=(const AmaxList&) = delete;

  // Enqueues the search. Errors: those of Backend::amax().
  virtual void run(Stream& stream) = 0;

 protected:
  AmaxList() = default;
};

// Both f32[n]. `scale` may be `amax` itself.
struct AmaxScalesTensors {
  Tensor amax;
  Tensor scale;
};

// The n slots of delayed scaling, or views of a part of them. All tensors are f32.
struct AmaxHistoryTensors {
  Tensor amax;     // [n], read and written
  Tensor history;  // [n, length], read and written; any row stride, length >= 1 unless n is 0
  Tensor scale;    // [n], read and written
  Tensor limits;   // [n], read: FP8_MAX of each slot's dtype (fp8_max())
  Tensor pow2;     // [n], read: not 0 where the scale is rounded down to a power of two
  // [n], read, or missing: scales of earlier steps. One that is positive, finite and not 1 (1 means none yet) becomes
  // the slot's scale, whatever the maxima are.
  Tensor known{};
};

// What Backend::cast_stats() writes: how a cast changed its values, or, without codes, what the values are. It compares
// the values x with the code * factor that each was cast to. Sums are in f64, over the elements for which both
// are finite; without codes, over all finite x. All 0 for an empty tensor.
struct CastStats {
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  std::uint64_t saturated = 0;  // finite x beyond the format: |x| > FP8_MAX * factor, give or take rounding
  std::uint64_t flushed = 0;    // finite x != 0 whose code is 0
  std::uint64_t spoiled = 0;  // finite x whose code or factor is not, as where an Inf is within the extent of its scale
  double sum_of_squares = 0;  // x^2
  double sum_of_squared_errors = 0;  // (x - code * factor)^2
  float amax = 0;                    // max |x|; NaN where there is one
  float smallest = 0;                // the smallest |x| that is not 0
  float smallest_scale_inv = 0;      // 0 without codes
  float largest_scale_inv = 0;       // NaN where there is one
  bool operator==(const CastStats&) const = default;
};

// The length of the f32 vector that holds its bytes.
inline constexpr std::int64_t kCastStatsWords = sizeof(CastStats) / 4;

// If the spec has an `out`, codes and scale_inv are what a cast of the input wrote; otherwise they stay default
// Tensors.
struct CastStatsTensors {
  Tensor input;        // [rows, cols] of spec.in
  Tensor codes{};      // [rows, cols], or [cols, rows] if spec.transposed, of *spec.out
  Tensor scale_inv{};  // f32[scale_count(spec.scale, rows, cols)], or by group (CastTensors)
  Tensor stats;        // f32[kCastStatsWords] at a multiple of 8 bytes: the bytes of a CastStats
};

// input[rows, cols] of spec.in; sum[cols] of spec.out. With spec.experts, sum[experts, cols], dense: of the rows that
// each expert has, 0 of none.
struct ColumnSumTensors {
  Tensor input;
  Tensor sum;
  ExpertEnds ends{};  // with spec.experts: of rows, without a capacity
  // Likewise, if it is given: row r of the experts is row row_index[r] of the input, as CastTensors::row_index.
  std::optional<RowIndex> row_index{};
};

// output[tokens, cols] and input[rows, cols], both of spec.in. index: int32[tokens * k], k for each token, which name
// rows of the input: any of them, any number of times. One below 0 or from `rows` on counts as nothing, so that a token
// may have fewer rows than k, or none: then its output is 0. ContextOptions::check_experts refuses those from `rows`
// on.
struct CombineTensors {
  Tensor input;
  RowIndex index;
  Tensor output;
};

// input[rows, cols], output[rows, cols] and, with a second expression, second[rows, cols] of spec.in; input and inputs
// are those of a cast's expression (CastTensors), of two expressions in the order of ElementwiseInputs. Each output may
// be `input` or one of the matrices that the expressions read, with the same address and row stride; otherwise it must
// not overlap them. The outputs must not overlap each other, but may be different columns of one matrix. amax: f32[1]
// if the spec asks for it; the call clears it first, and it is 0 where there are no elements. sums: f32[1, rows] if the
// spec has a row_sum, 0 of rows without columns. With maxima row_amax: f32[1, rows], and column_amax: f32[1, cols] or,
// with a second expression, f32[1, 2 * cols], those of output's columns first; 0 of extents without elements.
struct ElementwiseTensors {
  Tensor input;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor output;
  Tensor second{};
  Tensor amax{};
  Tensor sums{};
  Tensor row_amax{};
  Tensor column_amax{};
};

// The layout of a matrix's scale_inv. Those of 1x128 groups may have either of two orders: row by row in one vector, or
// as a matrix with one row for each group of columns, in which cuBLASLt reads them (gemm/cublaslt_rules.h).
// The distance, in elements, between the scale_inv of neighbouring rows (or blocks of rows), and between those of
// neighbouring groups of columns; 0 if all share one factor. A GEMM's operand has its columns along K.
struct ScaleInvStrides {
  std::int64_t row, group;
};
// For scale_inv in one vector, in which those of each row (or block of rows) are contiguous.
inline ScaleInvStrides scale_inv_strides(ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols == 0) return {.row = scale.rows == 0 ? 0 : 1, .group = 0};
  return {.row = scale.rows == 0 ? 0 : scale_count(scale, 1, cols), .group = 1};
}

// For checked scale_inv, which may also be a matrix with one row for each group of columns.
inline ScaleInvStrides scale_inv_strides(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols != 0 && scale_inv.rows > 1) return {.row = 1, .group = scale_inv.row_stride};
  return scale_inv_strides(scale, cols);
}

}  // namespace ingot
