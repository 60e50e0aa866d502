// Casts the rows of experts, those of one after those of another, in blocks of 128 rows that begin with each expert's
// first row; a block's transposed codes are in its slot (expert_slots.cuh). A block of threads takes a tile of a slot.
// Which rows that has follows from where experts end, which device memory says: then it casts those rows by themselves,
// as cast_list.cuh casts a matrix of a list. Slots of nobody are not written.
//
// With given scales each expert has one, and a maximum that its blocks raise. Then transposed codes are where those of
// the whole matrix would be, which begins anywhere for an expert, and rows that no expert has are neither read nor
// written.
#pragma once

#include "cast/cast_gathered.cuh"
#include "cast/cast_list.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/expert_rows.cuh"
#include "expert_slots.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "scaling.cuh"

namespace ingot {

// An expression of several matrices has no registers left for two blocks on Blackwell; with given scales one of any
// number for two before Hopper, nor for three there.
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr u32 cast_experts_residency() {
  if (kDeviceArch >= 1000 && Source::kFused && Source::kMatrices > 1) return 1;
  constexpr bool kTight = C.given_scales && Source::kFused;
  if (kTight && kDeviceArch != 0 && kDeviceArch < 900) return 1;
  return min_of(cast_list_residency<Source, Out, C>(), kTight ? 2U : 3U);
}

struct CastExpertsParams {
  CastTilesParams all;  // of all rows
  ExpertRowsParams experts;
};

struct CastExpertsLaunch {
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 experts) {
    return ExpertSlots::count(rows, experts) * CastTilesLaunch::tiles_along(cols);
  }
};

INGOT_DEVICE void enter_expert(CastOutput& output, u32 expert) {
  output.from += expert;
  output.factors += expert;
  output.amax += expert;
}

// Makes the parameters of a cast of the slot's rows from those of all; one thread.
template <class Source, CastConfig C>
INGOT_DEVICE void enter_slot(CastTilesParams& params, i64 slot, const SlotRows& at) {
  Source::skip_rows(params.source, at.first);
  params.source.rows = at.count;
  if constexpr (C.codes.written) {
    params.codes.codes = static_cast<u8*>(params.codes.codes) + at.first * params.codes.stride;
    if constexpr (!C.given_scales) params.codes.factors += at.first * params.codes.factor_steps.row;
  }
  if constexpr (C.result) {
    params.result = static_cast<typename Source::In*>(params.result) + at.first * params.result_stride;
  }
  if constexpr (C.given_scales) {
    enter_expert(C.codes.written ? params.codes : params.transposed, at.expert);
    params.transposed.codes = static_cast<u8*>(params.transposed.codes) + at.first;
  } else {
    params.transposed.codes = static_cast<u8*>(params.transposed.codes) + slot * ExpertSlots::kRows;
    params.transposed.factors += slot * params.source.cols;
  }
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_experts_residency<Source, Out, C>()))
    cast_experts(const __grid_constant__ CastExpertsParams p) {
  constexpr bool kInBlocks = C.transposed.written && C.transposed.scale == Granularity{128, 1} && !C.unaligned &&
                             (!C.codes.written || C.codes.scale == Granularity{1, 128});
  constexpr bool kOfExperts = is_tensorwise(first_output(C).scale) && !has_two_scales(C) && C.unaligned;
  static_assert(C.given_scales ? kOfExperts : kInBlocks);
  constexpr u32 kWords = sizeof(CastTilesParams) / sizeof(u64);
  static_assert(sizeof(CastTilesParams) % sizeof(u64) == 0 && kWords <= CastTilesLaunch::kThreads);
  constexpr CastConfig kSlots = [] {
    CastConfig config = C;
    config.listed = true;
    config.slots = !C.given_scales;
    return config;
  }();
  __shared__ CastTilesShared shared;
  alignas(CastTilesParams) __shared__ u8 memory[sizeof(CastTilesParams)];
  __shared__ SlotRows at;
  auto& params = *reinterpret_cast<CastTilesParams*>(memory);
  start_in_turn();
  const u32 across = static_cast<u32>(CastTilesLaunch::tiles_along(p.all.source.cols));
  const u32 slot = blockIdx.x / across;
  const u32 tile = blockIdx.x % across;
  if (threadIdx.x < kWords) {
    reinterpret_cast<u64*>(memory)[threadIdx.x] = reinterpret_cast<const u64*>(&p.all)[threadIdx.x];
  }
  find_slot_rows(p.experts, slot, CastTilesLaunch::kThreads, at);
  if (at.expert == SlotRows::kNobody || (C.given_scales && at.expert == p.experts.experts)) return;
  if (threadIdx.x == 0) enter_slot<Source, C>(params, slot, at);
  __syncthreads();
  if (!C.given_scales && at.count == 0) {
    const i64 column = i64{tile} * CastTilesLaunch::kTile + threadIdx.x;
    if (threadIdx.x < CastTilesLaunch::kTile && column < params.source.cols) {
      params.transposed.factors[column] = factor_from_dynamic_scale(scale_from_amax<Out>(0.0F, params.pow2));
    }
  }
  cast_tile<Source, Out, kSlots>(params, tile, shared);
}

}  // namespace ingot
