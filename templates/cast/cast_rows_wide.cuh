// The dynamic rowwise cast (cast_rows.cuh) of rows that are too wide for the registers of one block: the blocks of a
// cluster share a row. So each input byte is read once here too. It gives the same bits as cast_rows, and takes only
// rows that can be read and written 8 elements at a time.
#pragma once

#include "cast/cast_rows.cuh"
#include "cast/source.cuh"
#include "cluster.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

struct CastRowsWideShared {
  u32 maxima[kMaxClusterWarps];
};

// As few blocks of 256 threads as hold the row, vec8s() times 8 elements per thread; if 8 do not, blocks of up to 512.
struct CastRowsWideLaunch {
  static constexpr u32 kMaxThreads = CastRowsLaunch::kMaxThreads;
  static constexpr u32 kUsualThreads = 256;
  INGOT_HOST_DEVICE static constexpr i64 cols_of(u32 threads, u64 value_bytes) {
    return i64{threads} * CastRowsLaunch::vec8s(value_bytes) * kVec8;
  }
  // The widest rows that cast_rows keeps in registers, and that this kernel does.
  INGOT_HOST_DEVICE static constexpr i64 narrow_cols(u64 value_bytes) { return cols_of(kMaxThreads, value_bytes); }
  INGOT_HOST_DEVICE static constexpr i64 max_cols(u64 value_bytes) {
    return kMaxClusterBlocks * cols_of(kMaxThreads, value_bytes);
  }
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols, u64 value_bytes) {
    return static_cast<u32>(min_of(i64{kMaxClusterBlocks}, ceil_div(cols, cols_of(kUsualThreads, value_bytes))));
  }
  // In each block: whole warps.
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols, u64 value_bytes) {
    return static_cast<u32>(ceil_div(cols, blocks(cols, value_bytes) * cols_of(32, value_bytes))) * 32;
  }
};

// The columns of a thread's vec8s.
struct CastRowsWideColumns {
  ClusterPlace place = ClusterPlace::here();
  INGOT_DEVICE u32 of(u32 i) const { return (i * place.threads() + place.thread()) * kVec8; }
};

// Casts the cluster's row.
template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_DEVICE void cast_row_of_cluster(const CastRowsParams& p) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kVec8s = CastRowsLaunch::vec8s(sizeof(Value));
  auto& shared = dynamic_shared_as<CastRowsWideShared>();
  const u32 cols = static_cast<u32>(p.source.cols);
  Vec8<Value> values[kVec8s] = {};
  {
    const CastRowsWideColumns columns;
    load_vec8s<Source, false>(p.source, Source::pointers_at(p.source, columns.place.index, 0), values,
                              [&](u32 i) -> Vec8Offset {
                                return {0, columns.of(i), columns.of(i) < cols};
                              });
  }
  u32 maximum = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8s; ++i) maximum = max_of(maximum, amax_bits(values[i]));
  cluster_started();
  maximum = cluster_max(maximum, shared.maxima);

  const CastRowsWideColumns columns;
  const i64 row = columns.place.index;
  const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
  if (columns.of(0) == 0) {
    p.factors[row] = factor_from_scale(scale);
    if (p.maxima != nullptr) p.maxima[row] = amax_from_bits(maximum);
  }
  Out* const codes = static_cast<Out*>(p.codes) + row * p.codes_stride;
  In* const result = C.result ? static_cast<In*>(p.result) + row * p.result_stride : nullptr;
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8s; ++i) {
    const U32x2 encoded = quantize<Out>(values[i], [&](u32) { return scale; });
    if (columns.of(i) >= cols) continue;
    store_streaming(codes + columns.of(i), encoded);
    if constexpr (C.result) store_vec8<In>(result + columns.of(i), values[i]);
  }
}

// Params as for cast_rows; threads_log2 is not read. Cluster i of the grid takes row i.
template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastRowsWideLaunch::kMaxThreads, (cast_rows_residency<Source, Out>()))
    cast_rows_wide(const __grid_constant__ CastRowsParams p) {
  if constexpr (kHasClusters) {
    cluster_start();
    start_in_turn();
    cast_row_of_cluster<Source, Out, C>(p);
  }
}

}  // namespace ingot
