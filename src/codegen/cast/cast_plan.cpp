#include "ingot/codegen/cast/cast_plan.h"

#include "cast/amax.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_columns.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/cast_whole.cuh"

namespace ingot {

CastSchedule cast_schedule(const CastSpec& spec) {
  if (spec.source != ScaleSource::dynamic || spec.list || !spec.codes) return CastSchedule::tiles;
  if (!spec.transposed) {
    if (spec.sum || (spec.stacked && spec.rounded)) return CastSchedule::tiles;
    if (spec.scale == kRowwise) return CastSchedule::rows;
    return spec.scale == kRowGroups && !spec.gathered ? CastSchedule::row_groups : CastSchedule::tiles;
  }
  const bool shared_rows = spec.scale == kRowwise && !spec.transposed_scale && !spec.stacked && !spec.gathered;
  return shared_rows ? CastSchedule::rows_then_tiles : CastSchedule::tiles;
}

FirstPass::Kind FirstPass::kind() const {
  const int count = (tensor ? 1 : 0) + (rows ? 1 : 0) + (columns ? 1 : 0);
  if (count == 0) return Kind::none;
  if (count == 1 && tensor) return Kind::partials;
  return count == 1 && rows ? Kind::rows : Kind::tiles;
}

FirstPass first_pass(const CastSpec& spec) {
  FirstPass wanted;
  if (spec.source == ScaleSource::given || cast_schedule(spec) != CastSchedule::tiles) return wanted;
  for (const ScaleGranularity scale : {spec.scale, spec.transposed_scale.value_or(spec.scale)}) {
    wanted.tensor |= scale == kTensorwise;
    wanted.rows |= scale == kRowwise;
    wanted.columns |= scale == kColumnwise;
  }
  return wanted;
}

CastConfig cast_tiles_config(const CastSpec& spec, Variant variant) {
  // Then the pass for rows has written everything but the transposed codes.
  const bool rest = cast_schedule(spec) == CastSchedule::rows_then_tiles && variant != Variant::whole;
  return {.codes = cast_output_config(spec.codes && !rest, spec.scale),
          .transposed = cast_output_config(spec.transposed, spec.transposed_scale.value_or(spec.scale)),
          .given_scales = spec.source == ScaleSource::given,
          .result = spec.result && !rest,
          .sum = spec.sum.has_value(),
          .unaligned = variant != Variant::standard || has_expert_scales(spec),
          .kept = variant == Variant::kept};
}

// Tiles of 64 rows gained nothing for clusters, nor for few tiles of a matrix without an expression
// (docs/notes/casts.md).
std::uint32_t cast_tile_rows_log2(const CastSpec& spec, Variant variant, std::int64_t rows, std::int64_t cols,
                                  const CastDevice& device) {
  const bool whole = variant == Variant::whole;
  if (!may_take_fewer_rows(cast_tiles_config(spec, variant), whole)) return CastTilesLaunch::kTileLog2;
  std::int64_t least = 0;
  if (variant == Variant::standard && spec.pointwise.empty()) least = ceil_div(i64{device.multiprocessors}, i64{4});
  if (whole && device.clusters) least = CastWholeLaunch::kMostInCluster + 1;
  return CastTilesLaunch::rows_log2(rows, cols, device.multiprocessors, least);
}

namespace {

bool is_cluster(i64 tiles, const CastDevice& device) {
  return tiles <= CastWholeLaunch::kMostInCluster && device.clusters;
}

// Are all tiles cast in one launch? They must fit on what the stream can use of the GPU, which is `room` then. Without
// an expression, which a pass for the maxima would compute twice, it is faster only as a cluster
// (docs/notes/casts.md), or if that pass could not read whole vectors.
bool is_whole(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream,
              CastDevice& room) {
  if (spec.stacked || spec.experts) return false;
  const i64 tiles = CastTilesLaunch::grid(call.rows, call.cols);
  if (tiles > device.multiprocessors * CastWholeLaunch::kMostPerMultiprocessor || !extra_passes(spec).whole) {
    return false;
  }
  const bool aligned_copy = !spec.pointwise && call.source_aligned;
  if (aligned_copy && !is_cluster(tiles, device)) return false;
  room = stream.room();
  if (aligned_copy && !is_cluster(tiles, room)) return false;
  if (tiles > room.multiprocessors * CastWholeLaunch::kMostPerMultiprocessor) return false;
  const std::optional<std::int64_t> registers = stream.registers(Pass::whole);
  return registers && tiles <= room.multiprocessors * CastWholeLaunch::per_multiprocessor(*registers);
}

// How blocks share the rows, if rows have blocks to themselves; otherwise `blocks` is 0.
CastRowsWideShape wide_shape(const CastSpec& spec, const CastCall& call, const CastDevice& device,
                             const CastStream& stream) {
  using Launch = CastRowsWideLaunch;
  const u64 bytes = value_bytes(spec);
  if (call.cols < Launch::min_cols(bytes) || call.rows > CastRowsLaunch::kMaxBlocks / kMaxClusterBlocks) return {};
  if (!call.outputs_aligned || !call.source_aligned) return {};
  const bool kept = call.cols <= Launch::kept_cols(bytes);
  return Launch::shape({.rows = call.rows,
                        .cols = call.cols,
                        .value_bytes = bytes,
                        .computed = !spec.pointwise.empty(),
                        .many_inputs = spec.pointwise.inputs().size() > 1,
                        .block_shared = device.block_shared,
                        .multiprocessors = static_cast<u32>(device.multiprocessors),
                        .clusters = device.clusters && (kept || stream.room().clusters)});
}

// Can one launch cast the rows and find the maxima of their columns?
bool rows_find_columns(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream) {
  using Launch = CastRowsColumnsLaunch;
  const u64 bytes = value_bytes(spec);
  if (!finds_columns(spec) || !call.source_aligned || !call.outputs_aligned) return false;
  if (call.cols > Launch::most_cols(bytes)) return false;
  const u64 element_bytes = static_cast<u64>(size_of(spec.in));
  return Launch::shared_bytes(Launch::threads(call.cols, bytes), element_bytes, bytes) <= device.block_shared &&
         stream.may_launch(Pass::whole);
}

// The pass along the rows, standard or wide.
Pass rows_pass(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream,
               Stage stage, CastRowsWideShape& shape) {
  const Pass wide{stage, Variant::wide};
  shape = wide_shape(spec, call, device, stream);
  return shape.blocks != 0 && stream.may_launch(wide) ? wide : Pass{stage};
}

// How many floats of scratch memory the first stage needs for its maxima, if each has one writer. `rows`: of the input.
i64 maxima_count(const CastSpec& spec, i64 rows, i64 cols) {
  if (spec.list || spec.stacked) return 0;  // tiles raise them
  if (cast_schedule(spec) == CastSchedule::rows_then_tiles) return rows;
  switch (first_pass(spec).kind()) {
    case FirstPass::Kind::none: return 0;
    case FirstPass::Kind::tiles: return spec.gathered ? 1 + rows + cols : 0;  // the stream's zeros
    case FirstPass::Kind::partials: return AmaxPartialsLaunch::kMaxBlocks;
    case FirstPass::Kind::rows: return rows;
  }
  return 0;
}

// Should the first stage of a cast that may keep its values write them? Computing them twice gives the same bits.
// `scratch`: with the values. Maxima of rows or columns (amax_tiles) are worth it for small matrices too. During a
// capture what earlier calls have loaded decides, and how much memory they took.
bool computes_once(const CastSpec& spec, const CastScratch& scratch, const CastStream& stream) {
  constexpr i64 kMostBytes = i64{256} << 20;
  // Two matrices of fewer bytes stay in the L2 of a large GPU between the stages: then reading them again is as fast.
  constexpr i64 kLeastBytes = i64{24} << 20;
  if (scratch.kept_bytes > kMostBytes) return false;
  const bool large = scratch.kept_bytes >= kLeastBytes || first_pass(spec).kind() == FirstPass::Kind::tiles;
  return (large || !stream.may_launch(Pass::first)) && stream.may_launch(Pass::keeping) &&
         stream.may_launch(Pass::kept) && stream.may_take(scratch.bytes());
}

// The kernel that casts the tiles after the first stage: the one for unaligned rows where it is faster.
Pass tiles_pass(const CastSpec& spec, const CastCall& call, const CastStream& stream) {
  if (!spec.transposed || spec.experts || (call.transposed_aligned && call.source_aligned)) return Pass::main;
  return stream.may_launch(Pass::unaligned) ? Pass::unaligned : Pass::main;
}

CastPlan plan_of_tiles(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream) {
  const i64 rows = call.rows;
  const i64 cols = call.cols;
  CastPlan plan{.finish = spec.sum && cols > 0};
  if (spec.sum) plan.scratch.sums = ceil_div(rows, CastTilesLaunch::kTile) * cols;
  if (CastDevice room; !call.knows_amax && is_whole(spec, call, device, stream, room)) {
    plan.main = Pass::whole;
    plan.tile_rows_log2 = cast_tile_rows_log2(spec, Variant::whole, rows, cols, room);
    plan.one_cluster = is_cluster(CastTilesLaunch::grid(rows, cols, 1, plan.tile_rows_log2), room);
    return plan;
  }
  const ExtraPasses extra = call.knows_amax ? ExtraPasses{} : extra_passes(spec);
  if (!call.knows_amax) plan.scratch.maxima = maxima_count(spec, call.input_rows.value_or(rows), cols);
  if (extra.kept) {
    CastScratch with_values = plan.scratch;
    with_values.kept_stride = ceil_div(cols, i64{kVec8}) * kVec8;
    with_values.kept_bytes = rows * with_values.kept_stride * size_of(spec.in);
    if (computes_once(spec, with_values, stream)) {
      plan.scratch = with_values;
      plan.first = Pass::keeping;
      plan.main = Pass::kept;
    }
  }
  if (!plan.first) {
    plan.main = tiles_pass(spec, call, stream);
    if (cast_schedule(spec) == CastSchedule::rows_then_tiles) {
      plan.first = rows_pass(spec, call, device, stream, Stage::first, plan.wide);
    } else if (extra.first) {
      plan.first = Pass::first;
    }
  }
  const bool keeps = plan.main == Pass::kept;
  plan.tile_rows_log2 = cast_tile_rows_log2(spec, plan.main.variant, rows, cols, device);
  plan.takes_two =
      plan.tile_rows_log2 == CastTilesLaunch::kTileLog2 &&
      CastTilesLaunch::takes_two(!spec.pointwise.empty() && !keeps, plan.main != Pass::main, keeps && spec.sum);
  plan.waits_for_end = !plan.first && first_pass(spec).kind() != FirstPass::Kind::none;
  return plan;
}

}  // namespace

CastPlan cast_plan(const CastSpec& spec, const CastCall& call, const CastDevice& device, const CastStream& stream) {
  CastPlan plan;
  if (rows_find_columns(spec, call, device, stream)) return {.main = Pass::whole};
  if (finds_columns(spec)) plan.first = Pass::first;
  switch (cast_schedule(spec)) {
    case CastSchedule::rows: plan.main = rows_pass(spec, call, device, stream, Stage::main, plan.wide); break;
    case CastSchedule::row_groups: break;
    case CastSchedule::rows_then_tiles:
    case CastSchedule::tiles: return plan_of_tiles(spec, call, device, stream);
  }
  return plan;
}

}  // namespace ingot
