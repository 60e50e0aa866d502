// LayerNorm or RMSNorm of each row of a matrix. The kernel writes any of the values, their FP8 codes and the statistics
// (formulas: codegen/norm/norm_spec.h; order of the sums: norm.cuh). It reads each input byte once and writes each
// output byte once, in one launch: a row of up to 16384 columns stays in its threads' registers, first as elements
// and then as values, while its statistics and then its amax are found. Codes alone of more than 8192 columns are
// written faster by pairs of blocks (norm_rows_wide.cuh), and affine ones of 1024, 2048, 4096 or 8192 columns by a loop
// for these (norm_rows_full.cuh). Longer rows are read again in each pass, from the L2.
//
// A dynamic scale belongs to one row and comes from the row's values after they are rounded to the input's dtype. A
// given scale holds for the whole tensor; the kernel then raises the tensor's amax to the largest |value|.
//
// Where NormRowsParams::slot_rows says so, a block takes many rows, and each thread copies its part of the next one to
// shared memory while this one is reduced.
#pragma once

#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_row.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

template <class In, u32 Count>
INGOT_DEVICE void forget_values(Vec8<In> (&vec8s)[Count]) {
  INGOT_UNROLL
  for (Vec8<In>& vec8 : vec8s) forget_values(vec8);
}

// For how many vec8s gamma and beta are loaded at a time: as many as fit in the registers.
template <class Row>
constexpr u32 kAffineBatch = min_of(Row::kVec8s, (Row::kSubtractsMean || Row::kGivenScale ? 4U : 8U) /
                                                     static_cast<u32>(sizeof(typename Row::Element)));

// A row that stays in registers. Access: WholeVec8s or PaddedVec8s. kSkips: do groups of columns past the end of the
// row take no instructions? Otherwise they are zeros, and all groups go side by side, which waits less. The bits are
// the same: a sum that begins with 0 does not change when zeros are added to it.
template <class Row, class Access, bool kSkips>
struct NormKeptRow {
  using In = typename Row::Element;
  static constexpr u32 kVec8s = Row::kVec8s;

  Row& r;
  Access access;
  u32 begin, step, end;  // the column of the thread's first vec8; from one to the next; the end of the row

  INGOT_DEVICE NormKeptRow(Row& row, const Access& row_access)
      : r(row),
        access(row_access),
        begin(row.lane * kVec8),
        step(row.threads * kVec8),
        end(row.active() ? static_cast<u32>(row.p.cols) : 0) {}

  INGOT_DEVICE u32 column(u32 i) const { return begin + i * step; }
  INGOT_DEVICE bool inside(u32 i) const { return column(i) < end; }
  // Half of the groups are always there, but in the narrowest rows; LayerNorm is faster if they go side by side.
  INGOT_DEVICE bool skips(u32 i) const {
    const bool may = !Row::kSubtractsMean || i >= kVec8s / 2;
    return kSkips && may && !inside(i);
  }

  INGOT_DEVICE void load(Vec8<In> (&vec8s)[kVec8s]) const {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (inside(i)) vec8s[i] = access.load_once(r.input(), column(i));
    }
  }

  // The block's slots for one vec8 of each thread are neighbours.
  INGOT_DEVICE static u32 slot_step() { return blockDim.x * 16; }
  // Begins to copy the thread's part of the row to its slots.
  INGOT_DEVICE void copy_ahead(u32 slots) const {
    const In* from = r.input();
    hide(from);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (inside(i)) copy_async<16>(slots + i * slot_step(), from + column(i), 16);
    }
    commit_copies();
  }
  INGOT_DEVICE void load_slots(u32 slots, Vec8<In> (&vec8s)[kVec8s]) const {
    wait_for_copies<0>();
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (inside(i)) vec8s[i].vectors[0].bits = load_shared16(slots + i * slot_step());
    }
  }

  // Turns the elements into the norm's values, zeros past the end of the row; writes them, if they are wanted, and
  // returns amax_bits() of the largest, if there are codes.
  INGOT_DEVICE u32 take_values(Vec8<In> (&vec8s)[kVec8s]) const {
    Vec8sMaximum<In> maximum;
    // One by one, elements take more registers on their way.
    // Side by side, all groups of the row leave registers for the gammas of two.
    constexpr u32 kWholeBatch = kSkips ? kAffineBatch<Row> : min_of(2U, kAffineBatch<Row>);
    constexpr u32 kBatch = is_same<Access, WholeVec8s> ? kWholeBatch : 1;
    INGOT_UNROLL
    for (u32 first = 0; first < kVec8s; first += kBatch) {
      typename Row::AffineVec8 affine[kBatch];
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        if (!inside(first + i)) continue;
        affine[i] = r.affine([&](const In* vector) { return access.load_again(vector, column(first + i)); });
      }
      INGOT_UNROLL
      for (u32 i = first; i < first + kBatch; ++i) {
        if (skips(i)) continue;
        float x[kVec8];
        unpack(vec8s[i], x);
        vec8s[i] = r.values(x, affine[i - first]);
        if constexpr (Row::kNeverZero) vec8s[i] = access.inside(vec8s[i], column(i));
        if (!inside(i)) vec8s[i] = {};
        if constexpr (Row::kWritesCodes) maximum.take(vec8s[i]);
        if constexpr (Row::kWritesResult) {
          if (inside(i)) access.store(r.result(), column(i), vec8s[i]);
        }
      }
    }
    return maximum.bits();
  }

  INGOT_DEVICE void store_codes(const Vec8<In> (&vec8s)[kVec8s]) const {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      // One by one, elements take more registers on their way: no two vec8s at a time.
      constexpr bool kOneByOne = kSkips || !is_same<Access, WholeVec8s>;
      if (kOneByOne && !inside(i)) continue;
      const U32x2 codes = r.quantized(vec8s[i]);
      if (inside(i)) access.store_codes(r.codes(), column(i), codes);
    }
  }

  // The shared memory is read after the last barrier: it is free again after the block's next barrier, in its next row.
  INGOT_DEVICE void run(Vec8<In> (&vec8s)[kVec8s], float (&warp_sums)[2][kMaxWarps],
                        u32 (&warp_maxima)[kMaxWarps]) const {
    if constexpr (Row::kSubtractsMean) {
      float sum = 0.0F;
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        if (skips(i)) continue;
        float x[kVec8];
        unpack(vec8s[i], x);
        sum = sum + vec8_sum(x);
      }
      sum = group_sum(sum, r.threads, warp_sums[0]);
      forget_values(vec8s);
      r.take_sum(sum);
    }
    float squares = 0.0F;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (skips(i)) continue;
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, access.left(column(i)));
      squares = squares + (inside(i) ? sum : 0.0F);
    }
    squares = group_sum(squares, r.threads, warp_sums[1]);
    forget_values(vec8s);
    r.take_squares(squares);
    if constexpr (Row::kWritesValues) {
      const u32 maximum = take_values(vec8s);
      if constexpr (Row::kWritesCodes) {
        r.take_maximum(group_max_once(maximum, r.threads, warp_maxima));
        store_codes(vec8s);
      }
    }
  }
};

// Any other row is read once per pass. The passes share one loop, because more code would gain nothing.
template <class Row>
INGOT_DEVICE void norm_streamed_row(Row& r, float (&warp_sums)[2][kMaxWarps], u32 (&warp_maxima)[kMaxWarps]) {
  using In = typename Row::Element;
  enum : u32 { sum, squares, values, codes };
  constexpr u32 kFirst = Row::kSubtractsMean ? sum : squares;
  constexpr u32 kLast = Row::kWritesCodes ? codes : Row::kWritesValues ? values : squares;
  const i64 cols = r.p.cols;
  INGOT_UNROLL_BY(1)
  for (u32 pass = kFirst; pass <= kLast; ++pass) {
    const bool vectors = Row::vectors(r.p);  // computed again in each pass: there is no register to keep it
    float total = 0.0F;
    u32 maximum = 0;
    INGOT_UNROLL_BY(1)
    for (i64 col = i64{r.lane} * kVec8; r.active() && col < cols; col += i64{r.threads} * kVec8) {
      float x[kVec8];
      load_padded(r.input(), col, cols, vectors, x);
      if (pass == sum) {
        total = total + vec8_sum(x);
      } else if (pass == squares) {
        total = total + r.sum_of_squares(x, cols - col);
      } else if constexpr (Row::kWritesValues) {
        const Vec8<In> vec8 = r.values(x, r.affine([&](const In* vector) {
          float loaded[kVec8];
          load_padded(vector, col, cols, vectors, loaded);
          return pack<In>(loaded);
        }));
        if (pass == values) {
          if constexpr (Row::kWritesResult) store_padded(r.result(), col, cols, vectors, vec8);
          unpack(vec8, x);
          INGOT_UNROLL
          for (u32 c = 0; c < kVec8; ++c) maximum = max_of(maximum, col + c < cols ? amax_bits(x[c]) : 0U);
        } else if constexpr (Row::kWritesCodes) {
          store_padded_codes(r.codes(), col, cols, vectors, r.quantized(vec8));
        }
      }
    }
    if (pass <= squares) {
      total = group_sum(total, r.threads, warp_sums[pass]);
      if (pass == sum) r.take_sum(total);
      if (pass == squares) r.take_squares(total);
    } else if constexpr (Row::kWritesCodes) {
      if (pass == values) r.take_maximum(group_max(maximum, r.threads, warp_maxima));
    }
  }
}

// Do rows that cannot be read in vectors stay in registers? On sm_80 and sm_120 they would spill. Without eps, rstd may
// be Inf, and then the zeros past the end of a row would become NaN.
inline constexpr bool kPaddedRowsStay = kDeviceArch != 800 && kDeviceArch < 1200;
inline constexpr float kLeastEpsToStay = 1.17549435e-38F;  // the smallest normal number

// Which rows a block takes: in each turn, all blocks take as many neighbouring rows as they have groups of threads.
struct NormRowsTurns {
  const NormRowsParams& p;
  i64 first;  // the block's first row in this turn
  u32 lane;   // the thread's place in its group

  INGOT_DEVICE explicit NormRowsTurns(const NormRowsParams& params)
      : p(params), first(i64{blockIdx.x} * groups()), lane(threadIdx.x & (threads() - 1)) {}
  INGOT_DEVICE u32 threads() const { return 1U << p.threads_log2; }
  INGOT_DEVICE u32 groups() const { return blockDim.x >> p.threads_log2; }
  INGOT_DEVICE i64 step() const { return i64{gridDim.x} * groups(); }  // rows from one turn to the next
  INGOT_DEVICE bool more() const { return first < p.rows; }
  INGOT_DEVICE void go_on() { first += step(); }
  template <class Row>
  INGOT_DEVICE Row row() const {
    return {p, first + (threadIdx.x >> p.threads_log2), lane, threads()};
  }
  template <class Row>
  INGOT_DEVICE Row next_row() const {
    return {p, first + step() + (threadIdx.x >> p.threads_log2), lane, threads()};
  }
};

// Is there a short way for launches in which each group of threads takes one row (NormRowsParams::one_turn)? RMSNorm's
// codes alone have slots at any size. Values in addition to codes would spill.
template <class Row>
inline constexpr bool kHasOneTurn = sizeof(typename Row::Element) == 2 &&
                                    (Row::kWritesCodes ? Row::kCodesAlone && Row::kSubtractsMean : Row::kWritesResult);
// Then all other rows that can be read in vectors have slots. (The host's test for vectors holds wherever this kernel's
// does, so that there is shared memory for them.)
template <class Row>
inline constexpr bool kAlwaysCopies = Row::kCodesAlone || kHasOneTurn<Row>;

// Rows that stay in registers. The two warp_sums alternate: RMSNorm's values alone take only one barrier per row,
// and what one row leaves there is read until the next row's.
template <class Row, class Access>
INGOT_DEVICE void norm_kept_rows(const NormRowsParams& p, const Access& access, NormRowsShared& shared) {
  using In = typename Row::Element;
  using Kept = NormKeptRow<Row, Access, true>;
  constexpr bool kMayCopy = sizeof(In) == 2 && is_same<Access, WholeVec8s>;
  const bool copies = kMayCopy && (kAlwaysCopies<Row> || p.slot_rows != 0);
  NormRowsTurns turns(p);
  hide(turns.lane);
  u32 slots = shared_memory() + threadIdx.x * 16;  // the thread's first
  hide(slots);
  if (copies) {
    Row first = turns.row<Row>();
    Kept(first, access).copy_ahead(slots);
  }
  INGOT_UNROLL_BY(1)
  for (u32 turn = 0; turns.more(); turn ^= 1U) {
    Row row = turns.row<Row>();
    const Kept kept(row, access);
    Vec8<In> vec8s[Row::kVec8s] = {};
    if (copies) {
      kept.load_slots(slots, vec8s);
      Row next = turns.next_row<Row>();
      Kept(next, access).copy_ahead(slots);
    } else {
      kept.load(vec8s);
    }
    kept.run(vec8s, shared.warp_sums[turn], shared.warp_maxima);
    turns.go_on();
  }
}

// One row for each group of the launch, which the row fills with whole vec8s.
template <class Row>
INGOT_DEVICE void norm_kept_row(const NormRowsParams& p, NormRowsShared& shared) {
  Row row = NormRowsTurns(p).row<Row>();
  const NormKeptRow<Row, WholeVec8s, false> kept(row, {});
  Vec8<typename Row::Element> vec8s[Row::kVec8s] = {};
  kept.load(vec8s);
  kept.run(vec8s, shared.warp_sums[0], shared.warp_maxima);
}

// How many blocks of the most threads share a multiprocessor. On sm_120, ptxas cannot fit LayerNorm's codes with gamma
// and a given scale into the 64 registers that two leave.
template <class In, class Kind, NormRowsConfig C>
INGOT_HOST_DEVICE constexpr u32 norm_rows_residency() {
  return sizeof(In) == 4 || (kDeviceArch >= 1200 && kCentred<Kind> && C.affine && C.given_scale) ? 1 : 2;
}

template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsLaunch::kMaxThreads, (norm_rows_residency<In, Kind, C>()))
    norm_rows(const __grid_constant__ NormRowsParams p) {
  using Row = NormRow<In, Kind, Codes, C>;
  __shared__ NormRowsShared shared;
  start_in_turn();
  if constexpr (C.given_scale) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
  }
  // This way comes first, and the host tests for it, because the instructions before the first load take a tenth of a
  // small matrix's time.
  if constexpr (kHasOneTurn<Row>) {
    if (p.one_turn) [[likely]]
      return norm_kept_row<Row>(p, shared);
  }
  const bool kept = p.cols <= (i64{NormRowsLaunch::kVec8s * kVec8} << p.threads_log2);
  if (kept && Row::vectors(p) && p.cols % kVec8 == 0) {
    norm_kept_rows<Row>(p, WholeVec8s{}, shared);
  } else if (kept && kPaddedRowsStay && p.eps >= kLeastEpsToStay) {
    norm_kept_rows<Row>(p, PaddedVec8s{static_cast<u32>(p.cols)}, shared);
  } else {
    INGOT_UNROLL_BY(1)
    for (NormRowsTurns turns(p); turns.more(); turns.go_on()) {
      Row row = turns.row<Row>();
      norm_streamed_row(row, shared.warp_sums[0], shared.warp_maxima);
      __syncthreads();  // the shared memory is free again
    }
  }
}

}  // namespace ingot
