// What a cast in tiles decides from its template arguments: the order of its steps, and how many blocks share a
// multiprocessor. Most of it is there so that no kernel spills (tests/templates/test_compile_matrix.cpp).
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/source.cuh"
#include "granularity.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

// A kernel of two matrices that knows its scale before its values: on sm_90 it has room for three blocks per SM if it
// takes a thread's rows by halves. An `unaligned` kernel fetches so, any other only computes so (load_vec8s). (Host
// tests take the same way.)
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr bool works_by_halves() {
  constexpr bool kTwoMatrices = Source::kFused && Source::kMatrices == 2 && Source::kColumns + Source::kRows == 0;
  constexpr bool kFits =
      sizeof(typename Source::Value) == 2 && !has_two_scales(C) && !C.result && !within_tile(first_output(C).scale);
  return kTwoMatrices && kFits && (kDeviceArch == 0 || (kDeviceArch == 900 && has_hardware_encode<Out>()));
}

// Blocks per SM, as registers allow without a spill (tests/templates/test_compile_matrix.cpp): 80, 128 or 255 per
// thread. Second scales, given scales, more outputs of the values and an expression all take registers. (Four blocks,
// with 64 registers, would fit most casts but are no faster.)
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr u32 cast_tiles_residency() {
  constexpr bool kTwo = has_two_scales(C);
  constexpr bool kMoreOutputs = C.result || C.sum;
  constexpr bool kWide = is_wide<Source>();
  constexpr bool kBlackwell = kDeviceArch >= 1000;
  if (kTwo && (!has_hardware_encode<Out>() || (Source::kFused && (kWide || Source::kColumns > 0)) ||
               ((C.given_scales || kMoreOutputs) && (kWide || kBlackwell)))) {
    return 1;
  }
  constexpr bool kSeveral = Source::kMatrices > 1;
  constexpr bool kMany = Source::kMatrices > 2 || (kWide && kSeveral);
  if (Source::kFused && (kMany || (kMoreOutputs && kBlackwell && (kWide || kSeveral || Source::kMany)))) return 1;
  // On sm_120, ptxas cannot fit these into 128 registers.
  constexpr bool kMore = Source::kRows > 0 || !has_hardware_encode<Out>();
  if (kDeviceArch >= 1200 && Source::kFused && kSeveral && kMore) return 1;
  if (works_by_halves<Source, Out, C>()) return 3;
  if (C.kept && C.sum && kDeviceArch == 900 && !kTwo && !kWide && !C.result && has_hardware_encode<Out>()) return 3;
  if (kWide || kMoreOutputs || !has_hardware_encode<Out>()) return 2;
  if (Source::kFused) return kTwo || Source::kMatrices > 1 || (C.unaligned && kDeviceArch >= 1200) ? 2 : 3;
  // On sm_89, maxima of rows take more registers (max_u16x2()) than four blocks can spare with given scales.
  constexpr bool kRowMaxima = C.given_scales && C.transposed.written && by_row(C.transposed.scale);
  // Nor do maxima of blocks leave room for four on sm_100.
  const bool tight =
      (kDeviceArch < 900 && kRowMaxima) || (kBlackwell && first_output(C).scale == Granularity{128, 128});
  if (!kTwo) return C.unaligned && !tight ? 4 : 3;
  return kDeviceArch == 900 && by_row(C.codes.scale) && by_column(C.transposed.scale) && !C.given_scales ? 3 : 2;
}

// The decisions of cast_tile().
struct CastTilePlan {
  // after_pass: does any scale come from maxima that an earlier pass, or the tiles before the grid barrier, have found?
  // reads_first, reads_second: do the first scales, or the second?
  bool after_pass = false;
  bool reads_first = false;
  bool reads_second = false;

  // Do the sums, or the maximum, of a tile of an `unaligned` kernel use separate shared memory, and are they combined
  // at the barrier after its transposed codes?
  bool sums_apart = false;
  bool maximum_apart = false;

  // The rows of a thread that an `unaligned` kernel fetches at a time. Does any other kernel compute a thread's rows by
  // halves?
  u32 rows_in_flight = 0;
  bool by_halves = false;

  // What a thread computes anew, because ptxas has no registers left to keep it: lanes of other threads, from one tile
  // of the block to the next; and the tile's place, until the end.
  bool lanes_anew = false;
  bool place_anew = false;

  // Largest magnitudes take the words that unpacking the values gives (forget_values()), because the compiler would
  // keep all of a thread's in registers from one maximum to the next.
  bool forgets = false;

  // Do threads without rows, in a tile of fewer than 128, skip their part? Elsewhere they compute zeros: ptxas has no
  // registers left for another branch, or the branch costs the tiles of 128 rows more than it saves.
  bool skips_idle = false;

  // Where ptxas has no registers left for the codes of all rows, an `unaligned` kernel stores each row's before it
  // encodes the next.
  bool stores_each_row = false;

  // Does an `unaligned` kernel store codes of rows that start anywhere by words? Kernels of plain values whose tiles do
  // not wait for each other would spill.
  bool stores_words = false;
};

// Syncs: the tiles wait for each other at a grid barrier (cast_whole.cuh). Stores: the tile stores its transposed codes
// itself.
template <class Source, Fp8Format Out, CastConfig C, bool Syncs, bool Stores>
INGOT_HOST_DEVICE constexpr CastTilePlan cast_tile_plan() {
  constexpr Granularity kFirst = first_output(C).scale;
  constexpr Granularity kTransposed = C.transposed.scale;
  constexpr bool kTwo = has_two_scales(C);
  CastTilePlan plan;

  plan.after_pass = !C.given_scales && (from_pass(C.codes) || from_pass(C.transposed));
  // Readers are not counted where each tile reads the maxima of any rows: those are cleared before they are raised.
  plan.reads_first = plan.after_pass && !Source::kGathered && from_pass(first_output(C));
  plan.reads_second = plan.after_pass && !Source::kGathered && kTwo && from_pass(C.transposed);

  // Blocks of an expression, or of its kept values with sums, take one tile, so that no other tile's sums are there.
  plan.sums_apart = C.sum && C.unaligned && (Source::kFused || C.kept);
  const bool one_scale = !kTwo && !by_row(kFirst) && !by_column(kFirst);
  plan.maximum_apart = C.given_scales && C.unaligned && C.transposed.written && one_scale;

  plan.by_halves = works_by_halves<Source, Out, C>() && !Syncs;
  // Blocks that wait for each other, and write values and sums too, have no registers left for all rows of two
  // matrices.
  const bool half_of_rows = plan.by_halves || (Syncs && Source::kMatrices == 2 && C.result && C.sum);
  const u32 most = half_of_rows ? kRowsPerRun / 2 : kRowsPerRun;
  plan.rows_in_flight = min_of(most, vec8s_in_flight<Source>(Source::kMatrices));

  // (Host tests take both ways: threads skip where the values themselves are not written.)
  const bool may_skip = Stores && (Source::kFused || !Syncs) && (kDeviceArch == 900 || (kDeviceArch == 0 && !C.result));
  plan.skips_idle = may_take_fewer_rows(C, Syncs) && may_skip;
  const u32 residency = Stores ? 0 : cast_tiles_residency<Source, Out, C>();
  plan.lanes_anew = residency == 2 && C.sum && !C.result && is_rowwise(kFirst) && is_tensorwise(kTransposed);
  plan.place_anew = residency == 4 && kDeviceArch < 1000 && C.codes.written && kFirst == Granularity{128, 128};

  // Before sm_90, which has an instruction for max_u16x2(); and on sm_120 after scales of rows or of columns.
  const bool plain = !Source::kFused && !C.result && !C.sum && has_hardware_encode<Out>();
  const bool before_sm90 = plain && kDeviceArch < 900 && C.given_scales && is_same<typename Source::Value, bf16> &&
                           by_row(kTransposed) && (kTwo ? !C.unaligned && kFirst == Granularity{128, 1} : C.unaligned);
  const bool on_sm120 = plain && kDeviceArch >= 1200 && !C.given_scales && sizeof(typename Source::Value) == 2 &&
                        kTwo && C.unaligned && (is_rowwise(kFirst) || is_columnwise(kFirst));
  const bool sums_on_sm80 =
      kDeviceArch < 890 && C.given_scales && C.sum && C.unaligned && !Source::kFused && !kTwo && by_column(kFirst);
  plan.forgets = before_sm90 || sums_on_sm80 || on_sm120;
  // On sm_90, f16 values with a scale for each 1x128 spilled where four blocks share the registers. (Host tests take
  // the same way, with any number of blocks.)
  const bool four_blocks = kDeviceArch == 0 || (kDeviceArch == 900 && cast_tiles_residency<Source, Out, C>() == 4);
  const bool tight_groups = four_blocks && is_same<typename Source::Value, f16> && C.codes.written &&
                            kFirst == Granularity{1, 128} && !C.given_scales;
  plan.stores_words = (Syncs || Source::kFused) && (kDeviceArch == 0 || kDeviceArch == 900);
  plan.stores_each_row = kTwo ? kDeviceArch >= 1000 || (C.given_scales && (C.sum || C.result)) : tight_groups;
  return plan;
}

// Where ptxas has no registers left to keep the place of the first of two tiles until the end, the block finds it anew.
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr bool finds_first_tile_anew() {
  constexpr bool kScalesOfColumns = is_columnwise(C.codes.scale) && is_columnwise(C.transposed.scale);
  return kDeviceArch == 900 && kScalesOfColumns && C.codes.written && !C.given_scales && !C.result && !C.sum &&
         is_same<typename Source::Value, bf16> && has_hardware_encode<Out>();
}

}  // namespace ingot
