// The outputs of a cast's kernel as its template arguments.
#pragma once

#include "ingot/codegen/types/template_types.h"

#include "cast/cast_output.cuh"

namespace ingot {

constexpr CastOutputConfig written_by(ScaleGranularity scale) {
  return {.written = true, .scale = template_granularity(scale)};
}

inline constexpr CastOutputConfig kNotWritten{};
inline constexpr CastOutputConfig kTensorScale = written_by(kTensorwise);
inline constexpr CastOutputConfig kRowScale = written_by(kRowwise);
inline constexpr CastOutputConfig kColumnScale = written_by(kColumnwise);
inline constexpr CastOutputConfig kRowGroupScale = written_by(kRowGroups);
inline constexpr CastOutputConfig kColumnGroupScale = written_by(kColumnGroups);
inline constexpr CastOutputConfig kBlockScale = written_by(kBlocks);

}  // namespace ingot
