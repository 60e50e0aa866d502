// Stream-K: how tiles are cut along K, so that all blocks have as much to do where the tiles alone would leave some of
// them idle (few rows, or a last round of few tiles). Constant arithmetic, which kernels, launches and the tests share.
//
// The first `shared` tiles, fewer than two for each block, are laid one behind the other, a unit for each step along K,
// and every block has an equal stretch of them. So a block begins in the middle of a tile, and multiplies what is left
// of it; then whole tiles; and ends in the middle of another. It owns the tiles whose first steps it has: to those it
// adds the parts that others have summed, and writes the output. All other tiles are whole, in turns.
//
// Who waits: a tile's later parts are the first that their blocks work at, and its owner comes to it last, so that the
// parts are there, or nearly. And stretches are dealt out from the end: the later ones, which an owner waits for,
// belong to blocks of lower indices, which the GPU starts first. So no block waits for one that may not have started,
// whatever else runs.
//
// An owner may add the others' parts before its last steps, so that their way through the L2 is hidden behind what is
// still to be multiplied. Its stretch is longer by as many: these steps, `spare` of them, count for nothing where
// stretches are measured, and a tile's start is never cut off within them.
//
// Whose bits: the cuts depend on the sizes, the tiling and the count of blocks alone, and parts are added in ascending
// order of k.
#pragma once

#include "platform.cuh"

namespace ingot {

// What a block works at: steps [begin, end) of a tile.
struct StreamKSpan {
  u32 tile, begin, end;
  bool operator==(const StreamKSpan&) const = default;
};

// Tiles, steps of each, and of these what comes free with the first one: fewer than all.
struct StreamKWork {
  u32 tiles, steps, spare;
};

struct StreamKSplit {
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

// A stretch of L units in a tile of U meets U / L parts to add: where it were shorter than that, adding would take
// longer than multiplying.
INGOT_HOST_DEVICE constexpr u32 stream_k_shortest_stretch(u32 units) {
  u32 length = 1;
  while (u64{length} * length < units) ++length;
  return length;
}

// Blocks to launch, where so many run at once.
INGOT_HOST_DEVICE constexpr u32 stream_k_blocks(const StreamKWork& work, u32 at_once) {
  if (work.tiles >= at_once) return at_once;
  const u32 units = work.steps - work.spare;
  return static_cast<u32>(min_of(u64{work.tiles} * (units / stream_k_shortest_stretch(units)), u64{at_once}));
}

// Tiles are cut where they do not come out even: those of the last round, and of the one before, so that a stretch is
// longer than a tile and its end is not waited for.
INGOT_HOST_DEVICE constexpr StreamKSplit stream_k_split(const StreamKWork& work, u32 blocks) {
  StreamKSplit split{.tiles = work.tiles,
                     .blocks = blocks,
                     .steps = work.steps,
                     .spare = work.spare,
                     .shared = 0,
                     .share = 0,
                     .longer = 0};
  if (work.tiles % blocks == 0) return split;
  const u32 shared = work.tiles < blocks ? work.tiles : blocks + work.tiles % blocks;
  const u64 units = u64{shared} * split.units();
  if (units > 0x7fffffffU) return split;  // whole tiles: places are counted in 32 bits
  split.shared = shared;
  split.share = static_cast<u32>(units / blocks);
  split.longer = static_cast<u32>(units % blocks);
  return split;
}

// What one block works at, one after the other.
class StreamKStretch {
 public:
  INGOT_HOST_DEVICE constexpr StreamKStretch(const StreamKSplit& split, u32 block)
      : split_(split), index_(split.blocks - 1 - block), next_(split.begin(index_)) {
    advance();
  }

  INGOT_HOST_DEVICE constexpr bool more() const { return span_.tile < split_.tiles; }
  INGOT_HOST_DEVICE constexpr const StreamKSpan& span() const { return span_; }
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
  const StreamKSplit& split_;
  u32 index_;
  u32 next_;  // unit to come; past the stretch, whole tile to come
  StreamKSpan span_{};
};

// What a kernel is given.
struct StreamKParams {
  StreamKSplit split;
  float* parts;  // of each block, one after the other, the sums of a tile
  u32* flags;    // of each block one for each warp that has sums: zeros, before the kernel and after it
};

}  // namespace ingot
