#include "ingot/codegen/gemm/gemm_sm90.h"

#include <fmt/format.h>

namespace ingot {

std::string tiling_fault(const GemmTiling& t, bool fast) {
  const int wave = t.pingpong ? 64 : 128;
  const bool shares_columns = !t.pingpong && t.m == 64;
  if (!shares_columns && (t.m < wave || t.m > 256 || t.m % wave != 0)) {
    return t.pingpong ? fmt::format("a tile of {} rows, but pingpong takes a multiple of 64 up to 256", t.m)
                      : fmt::format("a tile of {} rows, but cooperative takes 64, 128 or 256", t.m);
  }
  if (t.n < 64 || t.n > 256 || t.n % 64 != 0) {
    return fmt::format("a tile of {} columns, but it must be 64, 128, 192 or 256", t.n);
  }
  if (shares_columns && t.n % 128 != 0) {
    return fmt::format("a tile of 64 rows, whose {} columns cooperative shares out: it takes 128 or 256", t.n);
  }
  if (t.cluster_m < 1 || t.cluster_n < 1 || t.cluster_m > 2 || t.cluster_n > 2 || t.cluster_m + t.cluster_n > 3) {
    return fmt::format("a cluster of {}x{}, but it must be 1x1, 2x1 or 1x2", t.cluster_m, t.cluster_n);
  }
  if (t.stream_k && (t.pingpong || t.cluster_m + t.cluster_n > 2)) {
    return "stream-K, but that takes cooperative tiles and a cluster of 1x1";
  }
  if (t.stages < 2 || t.stages > 16) return fmt::format("{} stages, but there must be 2 to 16", t.stages);
  const Sm90Tiling tiling = sm90_tiling(t);
  if (const u32 bytes = sm90_shared_bytes({.tiling = tiling}); bytes > kSm90SharedLimit) {
    return fmt::format("{} bytes of shared memory, but a block has {}: fewer stages or a smaller tile", bytes,
                       kSm90SharedLimit);
  }
  // A thread's 232 registers must hold the sums of its waves and one more wave's, which are added to them.
  const u32 sums = sm90_sums(tiling, !fast);
  constexpr u32 kMostSums = 192;
  if (sums > kMostSums) {
    return fmt::format("{} sums in each thread, but its registers hold {}: take a smaller tile", sums, kMostSums);
  }
  return {};
}

}  // namespace ingot
