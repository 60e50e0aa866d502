// Measures the copy ceiling, the yardstick of everything that is bound by memory: how fast this GPU copies, counting
// bytes read and written.
#pragma once

#include "harness.h"

namespace ingot::bench {

struct CopyCeiling {
  double tb_per_s = 0;
  double megabytes = 0;  // the copy size that reached it
};

// Times cuMemcpyDtoDAsync of 256 MiB to 1 GiB of random data, outside of a graph (a graph's memcpy node is slower), and
// takes the median of each size and the best of them. `options` may ask for fewer rounds.
CopyCeiling measure_copy_ceiling(MeasuredGpu& gpu, RandomData& random, const MeasureOptions& options);

}  // namespace ingot::bench
