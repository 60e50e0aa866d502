// Casts a list of tensors with one launch per pass, for example all weights of a model after an optimizer step: small
// tensors then fill the GPU together. Every tensor has its own scales.
//
// The list is in device memory: the parameters of each cast, and for each tile the cast to which it belongs. A block
// takes a tile as a block of cast_tiles does. Scales of whole rows, columns or tensors need a pass before the cast,
// over the same tiles, which raises maxima that start as zeros.
#pragma once

#include "cast/amax.cuh"
#include "cast/cast_tiles.cuh"

namespace ingot {

struct ListedTile {
  u32 cast;  // index in CastListParams::casts
  u32 tile;  // within that cast, as cast_tiles counts them
};

// The pass for the maxima writes them to CastOutput::amax; the casts read them from CastOutput::from.
struct CastListParams {
  const CastTilesParams* casts;
  const ListedTile* tiles;
};

// Copies the parameters of a tile's cast to shared memory (bytes there: a CastTilesParams would have to be
// initialised), where every thread reads them fast, and returns the tile's index. The table was written before any
// launch, so it may be read before start_in_turn(). All threads of the block call it.
INGOT_DEVICE u32 enter_tile(const CastListParams& list, u32 index, CastTilesParams& params) {
  const ListedTile at = list.tiles[index];
  static_assert(sizeof(CastTilesParams) % sizeof(U32x2) == 0 &&
                sizeof(CastTilesParams) / 8 <= CastTilesLaunch::kThreads);
  const auto* const source = reinterpret_cast<const U32x2*>(list.casts + at.cast);
  auto* const target = reinterpret_cast<U32x2*>(&params);
  if (threadIdx.x < sizeof(CastTilesParams) / sizeof(U32x2)) target[threadIdx.x] = source[threadIdx.x];
  __syncthreads();
  return at.tile;
}

// Blocks per SM of the two kernels of a list. They keep the position in the list in registers, which leaves fewer
// blocks room than the kernels of one matrix have (amax_tiles_residency(), cast_tiles_residency()).
template <class Source>
INGOT_HOST_DEVICE constexpr u32 cast_list_maxima_residency() {
  // Two matrices of f16 take more registers to unpack than bf16: a long expression has too few for two blocks on sm_90.
  if (kDeviceArch == 900 && Source::kMatrices == 2 && is_same<typename Source::In, f16>) return 1;
  return min_of(amax_tiles_residency<Source>(), 3U);
}
// An expression has room for one block: of several matrices, or where rows are `unaligned`, on sm_120; of several
// matrices with given scales and `unaligned` rows before sm_90.
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr u32 cast_list_residency() {
  constexpr bool kSeveral = Source::kMatrices > 1;
  constexpr bool kBeforeSm90 = kDeviceArch != 0 && kDeviceArch < 900;
  constexpr bool kTightOnSm120 = kDeviceArch >= 1200 && (kSeveral || C.unaligned);
  constexpr bool kTightBeforeSm90 = kBeforeSm90 && kSeveral && C.unaligned && C.given_scales;
  constexpr bool kTight = Source::kFused && (kTightOnSm120 || kTightBeforeSm90);
  constexpr u32 kMost = kTight ? 1 : has_two_scales(C) || works_by_halves<Source, Out, C>() ? 2 : 3;
  return min_of(cast_tiles_residency<Source, Out, C>(), kMost);
}

// An expression of two matrices is computed by halves of a thread's rows on sm_90: for all of them at once, a long one
// (erf(x) * tanh(gate)) has not registers enough for two blocks. (Host tests take the same way.)
template <class Source>
INGOT_HOST_DEVICE constexpr bool computes_by_halves() {
  return Source::kMatrices == 2 && (kDeviceArch == 0 || kDeviceArch == 900);
}

// What the two kernels do, with a list or other parameters from which enter_tile() makes those of a tile's cast
// (cast_stack.cuh). An output that needs no maxima from the first is not `written`. Call it after start_in_turn().
template <class Source, CastConfig C, class List>
INGOT_DEVICE void find_listed_maxima(const List& list) {
  using Value = typename Source::Value;
  __shared__ CastTilesShared shared;
  alignas(CastTilesParams) __shared__ u8 memory[sizeof(CastTilesParams)];
  auto& params = *reinterpret_cast<CastTilesParams*>(memory);
  const u32 tile = enter_tile(list, blockIdx.x, params);
  const TilePosition at = TilePosition::of(params.source, tile);
  Vec8<Value> values[kRowsPerRun] = {};
  load_tile<Source, computes_by_halves<Source>()>(params.source, at, shared, values);
  static_assert(has_cast_scales(C), "find_listed_maxima() has no scales of such a granularity");
  if constexpr (C.codes.written) {
    record(params.codes, params.source, at, PendingMaxima<C.codes.scale, Value>::of(values), shared);
  }
  if constexpr (C.transposed.written) {
    record(params.transposed, params.source, at, PendingMaxima<C.transposed.scale, Value>::of(values), shared);
  }
}

template <class Source, Fp8Format Out, CastConfig C, class List>
INGOT_DEVICE void cast_listed_tile(const List& list) {
  __shared__ CastTilesShared shared;
  alignas(CastTilesParams) __shared__ u8 memory[sizeof(CastTilesParams)];
  auto& params = *reinterpret_cast<CastTilesParams*>(memory);
  const u32 tile = enter_tile(list, gridDim.x - 1 - blockIdx.x, params);
  static_assert(!C.sum, "a list of casts has no sums");
  constexpr CastConfig kListed = [] {
    CastConfig config = C;
    config.listed = true;
    return config;
  }();
  cast_tile<Source, Out, kListed>(params, tile, shared);
}

template <class Source, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_list_maxima_residency<Source>()))
    cast_list_maxima(const __grid_constant__ CastListParams list) {
  start_in_turn();
  find_listed_maxima<Source, C>(list);
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_list_residency<Source, Out, C>()))
    cast_list(const __grid_constant__ CastListParams list) {
  cast_listed_tile<Source, Out, C>(list);
}

}  // namespace ingot
