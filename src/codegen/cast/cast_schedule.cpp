#include "ingot/codegen/cast/cast_schedule.h"

namespace ingot {

CastSchedule cast_schedule(const CastSpec& spec) {
  if (spec.source != ScaleSource::dynamic || spec.list || !spec.codes) return CastSchedule::tiles;
  if (!spec.transposed) {
    if (spec.sum) return CastSchedule::tiles;
    if (spec.scale == kRowwise) return CastSchedule::rows;
    return spec.scale == kRowGroups ? CastSchedule::row_groups : CastSchedule::tiles;
  }
  return spec.scale == kRowwise && !spec.transposed_scale ? CastSchedule::rows_then_tiles : CastSchedule::tiles;
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

}  // namespace ingot
