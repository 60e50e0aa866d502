// The kernels that one spec takes, one launch each.
#pragma once

#include <cstdint>

namespace ingot {

// In the order of their launches. first: computes what the main pass builds on, such as the maxima that a tensorwise
// cast needs before it. main: every spec has it. finish: combines what the main pass left in parts, such as column
// sums.
//
// The others give the same bits and are chosen by the tensors. whole: replaces first and main for matrices that are
// small enough (templates/cast/cast_whole.cuh). unaligned: replaces main for matrices whose rows do not start at
// multiples of 16 bytes. wide: replaces the pass that goes along the rows, for rows that have their own block or
// cluster. pair: likewise, for rows of which two blocks hold one half each (templates/norm/norm_pair.cuh). keeping and
// kept: replace first and main of a costly expression whose values are neither few nor too many: the one also writes
// them, the other reads them.
enum class Pass : std::uint8_t { first, main, finish, whole, unaligned, wide, pair, keeping, kept };

// The passes that a spec may take in addition to the main one.
struct ExtraPasses {
  bool first = false;
  bool finish = false;
  bool whole = false;
  bool unaligned = false;
  bool wide = false;
  bool pair = false;
  bool kept = false;  // and keeping
};

}  // namespace ingot
