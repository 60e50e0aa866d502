// The launches that a cast is made of. The spec alone decides its schedule and the kernels that it may take; the
// tensors, the GPU and what the stream allows decide which of these a call takes (cast_plan()). Nothing else does.
#pragma once

#include <cstdint>
#include <optional>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/types/pass.h"
#include "ingot/codegen/types/template_types.h"

#include "cast/cast_output.cuh"
#include "cast/cast_rows_wide.cuh"

namespace ingot {

// ---- What the spec decides -----------------------------------------------------------------------------------------

// rows: each row stays on the chip, in one launch (templates/cast/cast_rows.cuh, cast_rows_wide.cuh). With maxima of
// columns also (cast_rows_columns.cuh), where rows fit a block; otherwise after a pass that finds these.
// row_groups: likewise with 1 x 128 groups (templates/cast/cast_row_groups.cuh).
// rows_then_tiles: first the codes by rows, which also finds the maxima that the transposed codes share; then the
// transposed codes in tiles (templates/cast/cast_tiles.cuh).
// tiles: everything in tiles, after a pass for the maxima that no tile sees whole.
// Stacked matrices are one matrix to what goes along the rows; otherwise they are cast in tiles, as those of a list.
// Experts' rows are cast in tiles of their slots (templates/cast/cast_experts.cuh), in one launch.
enum class CastSchedule : std::uint8_t { rows, row_groups, rows_then_tiles, tiles };
CastSchedule cast_schedule(const CastSpec& spec);

// The maxima that a cast in tiles needs beforehand, and the kernel that finds them: none, amax_partials (one maximum
// per block), amax_rows, or amax_tiles (raises maxima that must be cleared first). Lists and stacked matrices have a
// kernel to themselves that raises maxima. Where rows are gathered, it looks at all rows of the input.
struct FirstPass {
  enum class Kind : std::uint8_t { none, partials, rows, tiles };
  bool tensor = false;
  bool rows = false;
  bool columns = false;
  Kind kind() const;
};
FirstPass first_pass(const CastSpec& spec);

// Does the cast also find the maxima of columns, while it goes along the rows?
inline bool finds_columns(const CastSpec& spec) { return spec.found_amax == kColumnwise; }

// Do a cast's dynamic scales of this granularity come from such a pass? Otherwise each tile finds them.
constexpr bool from_first_pass(ScaleGranularity scale) {
  return scale == kTensorwise || scale == kRowwise || scale == kColumnwise;
}

// The bytes of a value that is cast.
inline std::uint64_t value_bytes(const CastSpec& spec) {
  return spec.unrounded ? 4U : static_cast<std::uint64_t>(size_of(spec.rounded.value_or(spec.in)));
}

// An output with its scales, or none.
constexpr CastOutputConfig cast_output_config(bool written, ScaleGranularity scale) {
  if (!written) return {};
  return {.written = true, .scale = template_granularity(scale)};
}

// The CastConfig of the kernel that casts the tiles of `spec`: the main stage in this variant. `listed` is false,
// because cast_list.cuh sets it.
CastConfig cast_tiles_config(const CastSpec& spec, Variant variant);

// ---- What a call decides -------------------------------------------------------------------------------------------

struct CastCall {
  std::int64_t rows = 0, cols = 0;  // of the codes
  // Do rows start at multiples of 16 bytes: those of all that the values are computed from; those of the codes (of 8
  // bytes) and the result; those of the transposed codes?
  bool source_aligned = true;
  bool outputs_aligned = true;
  bool transposed_aligned = true;
  bool knows_amax = false;                   // of dynamic scales: then nothing looks for it
  std::optional<std::int64_t> input_rows{};  // if they are gathered
};

// A GPU, or what a stream can use of it.
struct CastDevice {
  std::int64_t multiprocessors = 0;
  bool clusters = false;           // does it have thread block clusters, and room for large ones?
  std::uint32_t block_shared = 0;  // the most shared memory that one block can have
};

// What the stream of a call allows. It is asked only for what decides, because some of the answers take time.
class CastStream {
 public:
  // Nothing may be loaded during a capture.
  virtual bool may_launch(Pass pass) const = 0;
  // The registers of a thread, if the kernel may be launched; it is loaded for that.
  virtual std::optional<std::int64_t> registers(Pass pass) const = 0;
  // May the call have so much scratch memory? Some captures do not let it grow.
  virtual bool may_take(std::int64_t scratch_bytes) const = 0;
  // What the stream can use of the GPU.
  virtual CastDevice room() const = 0;

 protected:
  ~CastStream() = default;
};

// The parts of the scratch memory, in this order.
struct CastScratch {
  std::int64_t kept_stride = 0;  // of the rows of the kept values, in elements
  std::int64_t kept_bytes = 0;
  std::int64_t sums = 0;    // floats: of the columns, for each row of tiles of 128 rows
  std::int64_t maxima = 0;  // floats: those of the first stage, unless they are the stream's zeros
  std::int64_t bytes() const { return kept_bytes + (sums + maxima) * std::int64_t{sizeof(float)}; }
};

struct CastPlan {
  std::optional<Pass> first{};
  Pass main{};
  bool finish = false;
  CastRowsWideShape wide{};          // of the pass along the rows in its wide variant
  std::uint32_t tile_rows_log2 = 7;  // CastTilesParams::rows_log2
  bool takes_two = false;            // may a block take two tiles?
  // The main kernel reads its values before it waits, as an earlier pass lets it do, and there is none: it may only
  // begin once the work ahead has ended.
  bool waits_for_end = false;
  bool one_cluster = false;  // whole: the blocks are a cluster; otherwise they have a grid barrier
  CastScratch scratch{};
};
CastPlan cast_plan(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream);

// log2 of the rows of a tile, 6 or 7, of a matrix of rows x cols in the main stage.
std::uint32_t cast_tile_rows_log2(const CastSpec& spec, Variant variant, std::int64_t rows, std::int64_t cols,
                                  const CastDevice& device);

}  // namespace ingot
