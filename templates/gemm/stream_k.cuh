// Stream-K: cuts tiles along K so that all blocks get equal work, where whole tiles would leave some of them idle (few
// rows, or a last round of few tiles). Constant arithmetic shared by gemm_sm90, dequant_sm90, their launches, the cost
// models and the tests.
//
// The first `shared` tiles, fewer than two per block, are laid end to end, with a unit for each step along K, and every
// block gets an equal stretch of units. So a block begins in the middle of a tile and multiplies the rest of it, then
// whole tiles, and ends in the middle of another. A block owns the tiles whose first steps it has: it adds the parts
// that other blocks have summed, and writes the output. All other tiles stay whole; the blocks take them round-robin.
//
// Who waits: a block computes a later part of another block's tile first, and the owner comes to its tile last, so the
// parts are ready then, or nearly. Stretches are dealt out from the end: the later ones, for which an owner waits,
// belong to blocks of lower indices, which the GPU starts first. So no block waits for one that may not have started,
// whatever else runs.
//
// An owner may add the others' parts before its last steps, so that their way through the L2 overlaps with the
// multiplications that remain. Its stretch is longer by that many steps: these `spare` steps do not count in the length
// of a stretch, and a tile is never cut within them.
//
// Bits: the cuts depend only on the sizes, the tiling and the number of blocks, and parts are added in ascending order
// of k.
#pragma once

#include "platform.cuh"

namespace ingot {

// A piece of a block's work: steps [begin, end) of a tile.
struct StreamKSpan {
  u32 tile, begin, end;
  bool operator==(const StreamKSpan&) const = default;
};

// The tiles; the steps of each; how many of these come free with the first step, fewer than all; and whether the round
// before the last one may keep its tiles whole. Blocks read what they share at different steps of cut tiles, which
// takes long where the L2 does not hold it.
struct StreamKWork {
  u32 tiles, steps, spare;
  bool last_round_alone = false;
};

struct StreamKSplit {
  u32 tiles, blocks;
  u32 steps;   // of a tile
  u32 spare;   // how many of these come free with the first step
  u32 shared;  // how many tiles are cut: the first ones
  u32 share;   // units per block,
  u32 longer;  // and the number of first stretches that have one more

  INGOT_HOST_DEVICE constexpr u32 units() const { return steps - spare; }
  INGOT_HOST_DEVICE constexpr u32 begin(u32 stretch) const { return stretch * share + min_of(stretch, longer); }
  INGOT_HOST_DEVICE constexpr u32 step(u32 unit) const { return unit == 0 ? 0 : unit + spare; }
};

// A stretch of L units in a tile of U units gets U / L parts to add. If L were smaller than that, adding would take
// longer than multiplying.
INGOT_HOST_DEVICE constexpr u32 stream_k_shortest_stretch(u32 units) {
  u32 length = 1;
  while (u64{length} * length < units) ++length;
  return length;
}

// Blocks to launch if at_once of them run at once.
INGOT_HOST_DEVICE constexpr u32 stream_k_blocks(const StreamKWork& work, u32 at_once) {
  if (work.tiles >= at_once) return at_once;
  const u32 units = work.steps - work.spare;
  return static_cast<u32>(min_of(u64{work.tiles} * (units / stream_k_shortest_stretch(units)), u64{at_once}));
}

// Are tiles of the last round alone cut, if they do not divide evenly? Of a first round that is the last, always; of
// another only if they are enough for all blocks.
INGOT_HOST_DEVICE constexpr bool stream_k_cuts_last_alone(u64 tiles, u32 units, u64 blocks, bool last_round_alone) {
  if (tiles < blocks) return true;
  return last_round_alone && tiles % blocks * units >= blocks * stream_k_shortest_stretch(units);
}

// Only tiles that do not divide evenly are cut: those of the last round, and of the one before, so that a stretch is
// longer than a tile and nobody waits for its end; or those of the last round alone.
INGOT_HOST_DEVICE constexpr StreamKSplit stream_k_split(const StreamKWork& work, u32 blocks) {
  StreamKSplit split{.tiles = work.tiles,
                     .blocks = blocks,
                     .steps = work.steps,
                     .spare = work.spare,
                     .shared = 0,
                     .share = 0,
                     .longer = 0};
  if (work.tiles % blocks == 0) return split;
  const u32 last = work.tiles % blocks;
  const bool is_alone = stream_k_cuts_last_alone(work.tiles, split.units(), blocks, work.last_round_alone);
  const u32 shared = is_alone ? last : blocks + last;
  const u64 units = u64{shared} * split.units();
  if (units > 0x7fffffffU) return split;  // leave all tiles whole: units are counted in 32 bits
  split.shared = shared;
  split.share = static_cast<u32>(units / blocks);
  split.longer = static_cast<u32>(units % blocks);
  return split;
}

// The work of one block, piece by piece.
class StreamKStretch {
 public:
  INGOT_HOST_DEVICE constexpr StreamKStretch(const StreamKSplit& split, u32 block)
      : split_(split), index_(split.blocks - 1 - block), next_(split.begin(index_)) {
    advance();
  }

  INGOT_HOST_DEVICE constexpr bool more() const { return span_.tile < split_.tiles; }
  INGOT_HOST_DEVICE constexpr const StreamKSpan& span() const { return span_; }
  // The index of this block's stretch: where it leaves its part of another block's tile.
  INGOT_HOST_DEVICE constexpr u32 index() const { return index_; }
  INGOT_HOST_DEVICE constexpr bool owns() const { return span_.begin == 0; }
  // Does `stretch`, a later one than this, have a part of the current tile?
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
  u32 next_;  // next unit; past the stretch, a counter of whole tiles
  StreamKSpan span_{};
};

// A kernel's stream-K parameters.
struct StreamKParams {
  StreamKSplit split;
  float* parts;  // for each block, one after the other, the sums of a tile
  u32* flags;    // for each block, one per warp that has sums; zeros before the kernel and after it
};

}  // namespace ingot
