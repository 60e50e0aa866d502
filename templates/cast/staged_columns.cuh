// The transposed codes of a tile on their way from shared memory to rows that start at any address, as those of 3000 or
// 3001 tokens do: by 8 bytes where all rows start at multiples of 8; otherwise by 16 bytes where the memory has them,
// and by single bytes at the two ends of a row.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_shared.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

// Stores the transposed codes that a block has staged of one tile, or of two, one below the other, to rows that start
// anywhere. Neighbours share the 32 bytes at the ends of each transposed row with this block, and the L2 puts them
// together.
//
// Each thread has the same piece of several columns. These are a multiple of 8 columns apart, so that what differs from
// one to the next in shared memory is a constant (StagedTile::flips()), and in the pieces of 16 bytes a multiple of 16
// columns apart, so that these start at the same place within 16 bytes of memory.
struct StagedColumns {
  const CastTilesShared* tiles;
  u8* target;  // the codes of the first tile's first column
  i64 stride;  // bytes
  u32 rows;    // in the matrix, of all tiles
  u32 cols;

  INGOT_DEVICE static StagedColumns of(const CastOutput& output, const TilePosition& first, u32 rows,
                                       const CastTilesShared* tiles) {
    return {tiles, static_cast<u8*>(output.codes) + first.first_col * output.stride + first.first_row, output.stride,
            rows, first.cols};
  }

  // All threads of the block call it.
  INGOT_DEVICE void store() const {
    const bool two = rows > kTileRows;
    if ((reinterpret_cast<u64>(target) | static_cast<u64>(stride)) % kRowsPerRun == 0) {
      return two ? store_by_8<2 * kTileRows / kRowsPerRun>() : store_by_8<kTileRows / kRowsPerRun>();
    }
    two ? store_units<2 * kTileRows / kUnit>() : store_units<kTileRows / kUnit>();
    store_ends();
  }

 private:
  static constexpr u32 kUnit = 16;
  static constexpr u32 kTileRows = static_cast<u32>(CastTilesLaunch::kTile);
  static constexpr u32 kColumns = static_cast<u32>(CastTilesLaunch::kTile);

  // body(to, more) for the columns col + more, with more = 0, kStep, 2 kStep ...; byte `row` of a column goes to `to`.
  template <u32 kStep, class Body>
  INGOT_DEVICE void for_each_column(u32 col, u32 row, const Body& body) const {
    u8* to = target + col * stride + row;
    if (cols == kColumns) {
      INGOT_UNROLL
      for (u32 more = 0; more < kColumns; more += kStep, to += kStep * stride) {
        hide(to);  // one addition leads to the next column, instead of a product
        body(to, more);
      }
    } else {
      INGOT_UNROLL_BY(1)
      for (u32 more = 0; col + more < cols; more += kStep, to += kStep * stride) body(to, more);
    }
  }

  // Where row `row` of a column is staged, as an offset from `tiles`; and where that of a column `more` further is.
  INGOT_DEVICE static u32 staged_at(u32 col, u32 row) {
    static_assert(sizeof(CastTilesShared) % StagedTile::kColumnBytes == 0);
    return row / kTileRows * static_cast<u32>(sizeof(CastTilesShared)) +
           StagedTile::half_slot(col, row % kTileRows / kRowsPerRun) + row % kRowsPerRun;
  }
  template <class T>
  INGOT_DEVICE T staged(u32 at, u32 more) const {
    return *reinterpret_cast<const T*>(reinterpret_cast<const u8*>(tiles) + (at ^ StagedTile::flips(more)) +
                                       more * StagedTile::kColumnBytes);
  }

  // Where each column starts at a multiple of 8 bytes, as the rows of 3000 tokens do. Neighbouring threads store
  // neighbouring bytes, so that a column is one request to the memory.
  template <u32 kRuns>
  INGOT_DEVICE void store_by_8() const {
    const u32 col = threadIdx.x / kRuns;
    const u32 row = threadIdx.x % kRuns * kRowsPerRun;
    if (row >= rows) return;
    const u32 at = staged_at(col, row);
    constexpr u32 kStep = CastTilesLaunch::kThreads / kRuns;
    if (row + kRowsPerRun <= rows) {
      for_each_column<kStep>(col, row, [&](u8* to, u32 more) { store_streaming(to, staged<U32x2>(at, more)); });
    } else {
      const u32 left = rows - row;
      INGOT_UNROLL_BY(1)
      for (u32 more = 0; col + more < cols; more += kStep) {
        store_bytes(target + (col + more) * stride + row, staged<U32x2>(at, more), left);
      }
    }
  }

  // How many bytes of a column are ahead of the first unit of 16 bytes that the memory has, and how many whole units
  // follow.
  INGOT_DEVICE u32 bytes_ahead(u32 col) const {
    return (0U - static_cast<u32>(reinterpret_cast<u64>(target)) - col * static_cast<u32>(stride)) % kUnit;
  }
  INGOT_DEVICE u32 whole_units(u32 ahead) const { return rows < ahead ? 0 : (rows - ahead) / kUnit; }

  // The units of 16 bytes that the memory has in each column. Each takes its bytes from five staged words, or from four
  // if it begins with one.
  template <u32 kUnits>
  INGOT_DEVICE void store_units() const {
    constexpr u32 kStep = CastTilesLaunch::kThreads / kUnits;
    static_assert(kStep % kUnit == 0);
    constexpr u32 kWord = 4;
    const u32 col = threadIdx.x / kUnits;
    const u32 unit = threadIdx.x % kUnits;
    const u32 ahead = bytes_ahead(col);
    if (unit >= whole_units(ahead)) return;
    const u32 row = unit * kUnit + ahead;
    u32 at[5];
    INGOT_UNROLL
    for (u32 i = 0; i < 5; ++i) {
      at[i] = staged_at(col, min_of(row / kWord * kWord + i * kWord, kUnits * kUnit - kWord));
    }
    const u32 selector = 0x3210U + 0x1111U * (row % kWord);
    for_each_column<kStep>(col, row, [&](u8* to, u32 more) {
      u32 words[5];
      INGOT_UNROLL
      for (u32 i = 0; i < 5; ++i) words[i] = staged<u32>(at[i], more);
      store_streaming(to, U32x4{__byte_perm(words[0], words[1], selector), __byte_perm(words[1], words[2], selector),
                                __byte_perm(words[2], words[3], selector), __byte_perm(words[3], words[4], selector)});
    });
  }

  // What is left at the two ends of each column, a byte to a thread: threads side by side, so that each end is one
  // request to the memory. The ends of 64, 128 or 256 rows have 16 bytes together, one for each thread. No streaming
  // hint: the L2 should keep these bytes until the neighbour has stored its own.
  INGOT_DEVICE void store_ends() const {
    const u32 col = threadIdx.x / kUnit;
    const u32 offset = threadIdx.x % kUnit;
    const u32 ahead = bytes_ahead(col);
    const u32 last = ahead + whole_units(ahead) * kUnit + (offset - ahead) % kUnit;
    const bool has_first = offset < min_of(ahead, rows);
    const bool has_last = last < rows;
    if (has_first || has_last) store_byte(col, has_first ? offset : last);
    if (has_first && has_last) store_byte(col, last);
  }
  INGOT_DEVICE void store_byte(u32 col, u32 row) const {
    constexpr u32 kStep = CastTilesLaunch::kThreads / kUnit;
    const u32 at = staged_at(col, row);
    if (cols != kColumns) {
      INGOT_UNROLL_BY(1)
      for (u32 more = 0; col + more < cols; more += kStep) target[(col + more) * stride + row] = staged<u8>(at, more);
      return;
    }
    // All bytes first: the compiler lets no load pass a store.
    u8 bytes[kColumns / kStep];
    INGOT_UNROLL
    for (u32 i = 0; i < kColumns / kStep; ++i) bytes[i] = staged<u8>(at, i * kStep);
    u8* to = target + col * stride + row;
    INGOT_UNROLL
    for (const u8 byte : bytes) {
      hide(to);
      store_global(to, byte);
      to += kStep * stride;
    }
  }
};

}  // namespace ingot
