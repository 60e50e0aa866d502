// Casts that write scale_inv of 1x128 groups by group: one for each schedule and source of scales, and their shapes.
#pragma once

#include <vector>

#include "cases.h"

namespace ingot::test {

inline std::vector<Case> casts_by_group() {
  std::vector<Case> all;
  for (const char* const line :
       {"cast bf16->e4m3fn scale=1x128", "cast f32->e5m2 scale=1x128 pow2",
        "cast f16->e4m3fnuz scale=1x128 out=transposed", "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed",
        "cast bf16->e5m2 scale=1x128+128x1 out=codes,transposed,sum:f32",
        "cast f32->e4m3fn scale=1x128+col out=codes,transposed",
        "cast bf16->e4m3fn scale=row+1x128 out=codes,transposed", "cast bf16->e4m3fn scale=1x128 out=codes,transposed",
        "cast bf16->e4m3fn scale=1x128+128x1 out=codes,transposed given", "cast f16->e5m2 scale=1x128 given",
        "cast bf16->e4m3fn of=silu(x)*gate scale=1x128 out=codes,result",
        "cast bf16->e4m3fn of=gelu(x+bias[col]) scale=1x128+128x1 out=codes,transposed"}) {
    for (const Shape& shape : {Shape{.rows = 1, .cols = 1},
                               {.rows = 1, .cols = 300},
                               {.rows = 257, .cols = 128},
                               {.rows = 129, .cols = 129},
                               {.rows = 256, .cols = 640},
                               {.rows = 131, .cols = 1000}}) {
      for (const Placement& placement : {Placement{}, Placement{.padding = 3, .offset = 1}}) {
        all.push_back({.spec = parse(line), .shape = shape, .placement = placement, .scale_inv_by_group = true});
      }
    }
  }
  return all;
}

}  // namespace ingot::test
