// Packs a weight's codes [n, k] from rows into the order in which the tensor cores take them (dequant_layout.cuh), and
// unpacks them again. Each weight is packed once, so the kernels are simple: they write whole tiles at once, but read a
// sector as often as lanes need bytes of it.
//
// To pack, a block takes 64 rows and walks along k; a thread makes one fragment at a time. The block sees every code of
// its rows, so at the end it knows which rows contain a NaN. To unpack, a thread takes four codes of a row, which fill
// whole bytes.
#pragma once

#include "dequant/dequant_codes.cuh"
#include "dequant/dequant_layout.cuh"
#include "memory.cuh"
#include "platform.cuh"

namespace ingot {

struct PackWeightParams {
  u8* codes;  // [n, k], row_bytes from one row to the next; input of pack_weight, output of unpack_weight
  i64 n, k;
  i64 row_bytes;
  u8* packed;  // aligned to 16 bytes; output of pack_weight, input of unpack_weight
};

struct PackWeightLaunch {
  static constexpr u32 kThreads = 512;
  static constexpr u32 kTiles = kThreads / kDequantFragments;  // tiles packed at once
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 n) { return ceil_div(n, i64{kDequantRows}); }
};

struct UnpackWeightLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kCodes = 4;  // per thread
  INGOT_HOST_DEVICE static constexpr i64 runs(i64 k) { return ceil_div(k, i64{kCodes}); }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 n, i64 k) { return ceil_div(n * runs(k), i64{kThreads}); }
};

// Makes the words of a fragment and returns which of its two rows contain a NaN (bit 0: the lane's row, bit 1: that row
// + 8). Codes outside the weight are 0.
template <CodeFormat W>
INGOT_HOST_DEVICE u32 gather_fragment(CodeLayout layout, const PackWeightParams& p, i64 row_block, i64 k_block,
                                      u32 warp, u32 lane, u32 (&words)[Fragment<W>::kWords]) {
  u8 codes[16];
  u32 faults = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < 16; ++i) {
    const FragmentPosition at = fragment_position(warp, lane, i);
    const i64 row = row_block * kDequantRows + at.row;
    const i64 k = k_block * kDequantDepth + at.k;
    codes[i] = row < p.n && k < p.k ? code_at<W>(p.codes + row * p.row_bytes, k) : u8{0};
    if (is_nan_code<W>(codes[i])) faults |= 1U << (i / 2 % 2);
  }
  pack_fragment<W>(layout, codes, words);
  return faults;
}

// A row's fault, by which its scale_inv is multiplied.
INGOT_HOST_DEVICE float fault_of(bool has_nan) { return has_nan ? float_from_bits(kF32Nan) : 1.0F; }

INGOT_HOST_DEVICE float* packed_faults(const PackWeightParams& p, u32 bits) {
  return reinterpret_cast<float*>(p.packed + packed_code_bytes(static_cast<u64>(p.n), static_cast<u64>(p.k), bits));
}

// Unpacks up to four codes of a row, from k (a multiple of 4) on.
template <CodeFormat W>
INGOT_HOST_DEVICE void scatter_codes(CodeLayout layout, const PackWeightParams& p, i64 row, i64 k) {
  const u32 count = static_cast<u32>(min_of(i64{UnpackWeightLaunch::kCodes}, p.k - k));
  u32 word = 0;
  for (u32 i = 0; i < count; ++i) {
    word |= u32{packed_code_at<W>(layout, p.packed, p.k, row, k + i)} << (i * kCodeBits<W>);
  }
  u8* const target = p.codes + row * p.row_bytes + k * i64{kCodeBits<W>} / 8;
  for (u32 i = 0; i < ceil_div(count * kCodeBits<W>, 8U); ++i) target[i] = static_cast<u8>(word >> (8 * i));
}

// Requires n > 0.
template <CodeFormat W, CodeLayout L>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(PackWeightLaunch::kThreads, 1) pack_weight(const PackWeightParams p) {
  start_in_turn();
  __shared__ u32 faults[kDequantRows];
  if (threadIdx.x < kDequantRows) faults[threadIdx.x] = 0;
  __syncthreads();
  const u32 warp = threadIdx.x / 32 % 4;
  const u32 lane = threadIdx.x % 32;
  const i64 k_blocks = static_cast<i64>(dequant_padded(static_cast<u64>(p.k)) / kDequantDepth);
  u32 seen = 0;
  for (i64 k_block = threadIdx.x / kDequantFragments; k_block < k_blocks; k_block += PackWeightLaunch::kTiles) {
    u32 words[Fragment<W>::kWords];
    seen |= gather_fragment<W>(L, p, blockIdx.x, k_block, warp, lane, words);
    u8* const target =
        p.packed +
        packed_tile_offset<W>(static_cast<u64>(blockIdx.x), static_cast<u64>(k_block), static_cast<u64>(p.k)) +
        packed_fragment_offset<W>(warp, lane);
    INGOT_UNROLL
    for (u32 i = 0; i < Fragment<W>::kWords; ++i) reinterpret_cast<u32*>(target)[i] = words[i];
  }
  if ((seen & 1U) != 0) atomicMax(&faults[16 * warp + lane / 4], 1U);
  if ((seen & 2U) != 0) atomicMax(&faults[16 * warp + lane / 4 + 8], 1U);
  __syncthreads();
  if (threadIdx.x < kDequantRows) {
    packed_faults(p, kCodeBits<W>)[i64{blockIdx.x} * kDequantRows + threadIdx.x] = fault_of(faults[threadIdx.x] != 0);
  }
}

// Requires n > 0 and k > 0.
template <CodeFormat W, CodeLayout L>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(UnpackWeightLaunch::kThreads, 1) unpack_weight(const PackWeightParams p) {
  start_in_turn();
  const i64 run = i64{blockIdx.x} * UnpackWeightLaunch::kThreads + threadIdx.x;
  const i64 runs = UnpackWeightLaunch::runs(p.k);
  if (run < p.n * runs) scatter_codes<W>(L, p, run / runs, run % runs * UnpackWeightLaunch::kCodes);
}

}  // namespace ingot
