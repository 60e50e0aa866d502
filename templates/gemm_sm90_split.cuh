// Stream-K: how gemm_sm90 cuts tiles along K, so that all blocks have as much to do where the tiles alone would leave
// some of them idle (few rows, or a last round of few tiles). Constant arithmetic, which the kernel, the launch and the
// tests share.
//
// The first `shared` tiles, fewer than two for each block, are laid one behind the other, a unit for each step of 128
// of K, and every block has an equal stretch of them. So a block begins in the middle of a tile, and multiplies what
// is left of it; then whole tiles; and ends in the middle of another. It owns the tiles whose first steps it has: to
// those it adds the parts that others have summed, and writes the output. All other tiles are whole, in turns.
//
// Who waits: a tile's later parts are the first that their blocks work at, and its owner comes to it last, so that the
// parts are there, or nearly. And stretches are dealt out from the end: the later ones, which an owner waits for,
// belong to blocks of lower indices, which the GPU starts first. So no block waits for one that may not have started,
// whatever else runs.
//
// Whose bits: the cuts depend on the sizes, the tiling and the count of multiprocessors alone, and parts are added in
// ascending order of k.
#pragma once

#include "gemm_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

// An owner adds the others' parts before its last steps, this many, so that their way through the L2 is hidden behind
// what is still to be multiplied. Its stretch is longer by as many: these steps count for nothing where stretches are
// measured, and a tile's start is never cut off within them.
inline constexpr u32 kSm90Spare = 2;

// What a block works at: steps [begin, end) of a tile.
struct Sm90Span {
  u32 tile, begin, end;
  bool operator==(const Sm90Span&) const = default;
};

struct Sm90Split {
  u32 tiles, blocks;
  u32 steps;   // of a tile
  u32 spare;   // of these, what comes free with the first one
  u32 shared;  // tiles that are cut: the first ones
  u32 share;   // units of each block,
  u32 longer;  // and of how many of the first stretches one more

  INGOT_HOST_DEVICE constexpr u32 units() const { return steps - spare; }
  INGOT_HOST_DEVICE constexpr u32 begin(u32 stretch) const { return stretch * share + min_of(stretch, longer); }
  INGOT_HOST_DEVICE constexpr u32 step(u32 unit) const { return unit == 0 ? 0 : unit + spare; }
};

INGOT_HOST_DEVICE constexpr u32 sm90_steps(u32 k) { return ceil_div(k, kSm90Depth); }
INGOT_HOST_DEVICE constexpr u32 sm90_spare(u32 steps) { return min_of(kSm90Spare, steps - 1); }

// A stretch of L units in a tile of U meets U / L parts to add: where it were shorter than that, adding would take
// longer than multiplying.
INGOT_HOST_DEVICE constexpr u32 sm90_shortest_stretch(u32 units) {
  u32 length = 1;
  while (u64{length} * length < units) ++length;
  return length;
}

// Blocks to launch, K > 0.
INGOT_HOST_DEVICE constexpr u32 sm90_split_blocks(const Sm90Tiling& t, u32 m, u32 n, u32 k, u32 multiprocessors) {
  const u64 tiles = u64{sm90_tiles_m(t, m)} * sm90_tiles_n(t, n);
  if (tiles >= multiprocessors) return multiprocessors;
  const u32 steps = sm90_steps(k);
  const u32 units = steps - sm90_spare(steps);
  return static_cast<u32>(min_of(tiles * (units / sm90_shortest_stretch(units)), u64{multiprocessors}));
}

// Tiles are cut where they do not come out even: those of the last round, and of the one before, so that a stretch is
// longer than a tile and its end is not waited for.
INGOT_HOST_DEVICE constexpr Sm90Split sm90_split(const Sm90Tiling& t, u32 m, u32 n, u32 k, u32 blocks) {
  const u32 tiles = sm90_tiles_m(t, m) * sm90_tiles_n(t, n);
  const u32 steps = sm90_steps(k);
  Sm90Split split{.tiles = tiles,
                  .blocks = blocks,
                  .steps = steps,
                  .spare = sm90_spare(steps),
                  .shared = 0,
                  .share = 0,
                  .longer = 0};
  if (tiles % blocks == 0) return split;
  const u32 shared = tiles < blocks ? tiles : blocks + tiles % blocks;
  const u64 units = u64{shared} * split.units();
  if (units > 0x7fffffffU) return split;  // whole tiles: places are counted in 32 bits
  split.shared = shared;
  split.share = static_cast<u32>(units / blocks);
  split.longer = static_cast<u32>(units % blocks);
  return split;
}

// What one block works at, one after the other.
class Sm90Stretch {
 public:
  INGOT_HOST_DEVICE constexpr Sm90Stretch(const Sm90Split& split, u32 block)
      : split_(split), index_(split.blocks - 1 - block), next_(split.begin(index_)) {
    advance();
  }

  INGOT_HOST_DEVICE constexpr bool more() const { return span_.tile < split_.tiles; }
  INGOT_HOST_DEVICE constexpr const Sm90Span& span() const { return span_; }
  // Of this block: where it leaves its part of a tile that another one owns.
  INGOT_HOST_DEVICE constexpr u32 index() const { return index_; }
  INGOT_HOST_DEVICE constexpr bool owns() const { return span_.begin == 0; }
  // Is there a part of the current tile in that stretch, a later one than this?
  INGOT_HOST_DEVICE constexpr bool reaches(u32 stretch) const {
    return span_.tile < split_.shared && split_.begin(stretch) < (span_.tile + 1) * split_.units();
  }

  INGOT_HOST_DEVICE constexpr void advance() {
    const u32 stop = split_.begin(index_ + 1);
    if (next_ < stop) {
      const u32 units = split_.units();
      const u32 tile = next_ / units;
      const u32 first = next_ - tile * units;
      const u32 last = min_of(units, first + stop - next_);
      span_ = {tile, split_.step(first), split_.step(last)};
      next_ += last - first;
    } else {
      span_ = {split_.shared + (split_.blocks - 1 - index_) + (next_ - stop) * split_.blocks, 0, split_.steps};
      ++next_;
    }
  }

 private:
  const Sm90Split& split_;
  u32 index_;
  u32 next_;  // unit to come; past the stretch, whole tile to come
  Sm90Span span_{};
};

// Memory beside the operands: a part of each block, as its threads hold it, and a flag for each warp that has one.
inline constexpr u32 kSm90FlagsOfBlock = 4 * kSm90Consumers;
INGOT_HOST_DEVICE constexpr u64 sm90_part_bytes(const Sm90Tiling& t) { return u64{t.m} * t.n * 4; }

}  // namespace ingot
