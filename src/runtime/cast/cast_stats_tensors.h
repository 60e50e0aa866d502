// The tensors of cast_stats. Backend (backend.h) has the call.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// If the spec has an `out`, codes and factors are what a cast of the input wrote; otherwise they stay default Tensors.
struct CastStatsTensors {
  Tensor input;      // [rows, cols] of spec.in
  Tensor codes{};    // [rows, cols], or [cols, rows] if spec.transposed, of *spec.out
  Tensor factors{};  // f32[scale_count(spec.scale, rows, cols)], or by group (CastTensors)
  Tensor stats;      // f32[kCastStatsWords] at a multiple of 8 bytes: the bytes of a CastStats (cast_stats.h)
};

}  // namespace ingot
