// Where the values of a cast come from whose rows are gathered (CastSpec::gathered): row r of the values is row
// index[r] of a matrix, so that the rows that each expert of a mixture has are cast without being written first. The
// kernel is cast_tiles or, of a rowwise cast (cast_gathered_rows.cuh), cast_rows. Maxima of a pass before it are those
// of the matrix, found by kernels that know nothing of an index.
//
// SourceParams has the rows of the values, and in operands[0] the index, as the data, and the matrix's last row, as the
// stride. Like the matrix, the index is read no earlier than cast_tile() says. Where it is outside of the matrix, the
// last row is read.
#pragma once

#include "cast/cast_tile_shared.cuh"
#include "cast/cast_tiles.cuh"
#include "cast/source.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

template <HighPrecision InDtype>
struct GatheredSource : ValueSource<InDtype> {
  using Elements = ValueSource<InDtype>;
  using In = InDtype;
  using Value = In;
  using typename Elements::Raw;
  using typename Elements::RawColumns;
  static constexpr bool kGathered = true;

  // For what writes the values: a thread's rows are looked up together, so that no load of a row waits for another.
  struct Pointers {
    const In* x;            // the column, in the matrix's first row
    u32 rows[kRowsPerRun];  // of the matrix
    u32 first;              // how far step_down() has come
  };
  INGOT_DEVICE static Pointers pointers_at(const SourceParams& p, i64 row, i64 col) {
    Pointers at{.x = static_cast<const In*>(p.input) + col, .rows = {}, .first = 0};
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) {
      if (row + r < p.rows) at.rows[r] = static_cast<u32>(index_of(p)[row + r]);
    }
    INGOT_UNROLL
    for (u32& of : at.rows) of = inside(p, of);
    return at;
  }
  INGOT_DEVICE static void step_down(const SourceParams&, Pointers& at) { ++at.first; }

  INGOT_DEVICE static Raw fetch(const SourceParams& p, const Pointers& at, u32 rows, u32 cols) {
    Raw raw{};
    raw.x = load_vec8_once(row_at(p, at, rows) + cols);
    return raw;
  }
  INGOT_DEVICE static Raw fetch_elements(const SourceParams& p, const Pointers& at, u32 rows, u32 count) {
    Raw raw{};
    raw.x = load_elements(row_at(p, at, rows), count);
    return raw;
  }
  INGOT_DEVICE static RawColumns fetch_columns(const Pointers&, u32) { return {}; }
  INGOT_DEVICE static RawColumns fetch_column_elements(const Pointers&, u32) { return {}; }
  INGOT_DEVICE static In element(const SourceParams& p, i64 row, i64 col) {
    return Elements::element(p, row_of(p, row), col);
  }
  INGOT_DEVICE static Vec8<In> load(const SourceParams& p, i64 row, i64 col) {
    return Elements::load(p, row_of(p, row), col);
  }

  // As ValueSource has it.
  INGOT_DEVICE static void skip_rows(SourceParams& p, i64 rows) { p.operands[0].data = index_of(p) + rows; }

  // Which row of the matrix is row `row` of the values?
  INGOT_DEVICE static i64 row_of(const SourceParams& p, i64 row) {
    return inside(p, static_cast<u32>(index_of(p)[row]));
  }

 private:
  INGOT_DEVICE static const i32* index_of(const SourceParams& p) { return static_cast<const i32*>(p.operands[0].data); }
  INGOT_DEVICE static u32 inside(const SourceParams& p, u32 row) {
    return min_of(row, static_cast<u32>(p.operands[0].stride));
  }
  INGOT_DEVICE static const In* row_at(const SourceParams& p, const Pointers& at, u32 rows) {
    return at.x + i64{at.rows[at.first + rows]} * p.input_stride;
  }
};

}  // namespace ingot
