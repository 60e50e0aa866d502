// pack_weight on the CPU, both ways: tile by tile, as templates/dequant/pack_weight.cuh.
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/visit_weight.h"

#include "dequant/pack_weight.cuh"

namespace ingot::cpu {
namespace {

PackWeightParams params_of(const PackWeightTensors& tensors, i64 row_bytes) {
  return {.codes = static_cast<u8*>(tensors.codes.data),
          .n = tensors.codes.rows,
          .k = tensors.codes.cols,
          .row_bytes = row_bytes,
          .packed = static_cast<u8*>(tensors.packed.data)};
}

// 64 rows and their faults.
template <class W>
void pack_rows(CodeLayout layout, const PackWeightParams& p, i64 row_block) {
  const i64 k_blocks = static_cast<i64>(dequant_padded(static_cast<u64>(p.k)) / kDequantDepth);
  bool faults[kDequantRows] = {};
  for (i64 k_block = 0; k_block < k_blocks; ++k_block) {
    u8* const tile =
        p.packed + packed_tile_offset<W>(static_cast<u64>(row_block), static_cast<u64>(k_block), static_cast<u64>(p.k));
    for (u32 i = 0; i < kDequantFragments; ++i) {
      u32 words[Fragment<W>::kWords];
      const u32 seen = gather_fragment<W>(layout, p, row_block, k_block, i / 32, i % 32, words);
      __builtin_memcpy(tile + packed_fragment_offset<W>(i / 32, i % 32), words, sizeof(words));
      const u32 row = 16 * (i / 32) + i % 32 / 4;
      faults[row] |= (seen & 1U) != 0;
      faults[row + 8] |= (seen & 2U) != 0;
    }
  }
  float* const written = packed_faults(p, kCodeBits<W>) + row_block * kDequantRows;
  for (u32 row = 0; row < kDequantRows; ++row) written[row] = fault_of(faults[row]);
}

}  // namespace

void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, ThreadPool& pool) {
  const CodeLayout layout = code_layout(spec.layout);
  visit_weight(spec.weight, [&]<class W>(Type<W>) {
    const PackWeightParams p = params_of(tensors, code_row_bytes<W>(tensors.codes.row_stride));
    if (!spec.unpack) {
      return pool.parallel_for(PackWeightLaunch::grid(p.n), 1, [&](i64 begin, i64 end) {
        for (i64 row_block = begin; row_block < end; ++row_block) pack_rows<W>(layout, p, row_block);
      });
    }
    pool.parallel_for(p.n, 16, [&](i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) {
        for (i64 k = 0; k < p.k; k += UnpackWeightLaunch::kCodes) scatter_codes<W>(layout, p, row, k);
      }
    });
  });
}

}  // namespace ingot::cpu
