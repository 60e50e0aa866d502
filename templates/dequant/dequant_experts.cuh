// Matmuls of experts with decoded weights: the rows of x are those of experts (gemm/expert_table.cuh), and each expert
// has a weight, scale_inv and a bias of its own, one expert's after the other's. A tile has rows of one expert only. Of
// these, this is what the kernels dequant_sm90 and dequant_mma share.
#pragma once

#include "gemm/expert_table.cuh"
#include "platform.cuh"

namespace ingot {

// The part of a kernel's parameters that says which rows experts have and how far apart their operands are.
struct DequantExperts {
  const i32* ends;   // [experts]: the row of x at which each expert ends; with a capacity, how many rows it has
  u32 experts;       // 1 to kExpertTableMost
  u32 capacity;      // 0, or the rows that each expert has room for
  u64 weight_bytes;  // from one expert's weight to the next one's
  u64 factor_bytes;  // likewise for scale_inv
};

// The expert whose rows a tile has, and the row at which they end. In a kernel without experts nothing reads it.
struct DequantExpert {
  u32 index = 0;
  u32 row_end = 0;
};

// An operand of all experts, and that of one of them.
template <bool Experts>
INGOT_HOST_DEVICE const void* operand_of_expert(const void* all, [[maybe_unused]] u64 bytes,
                                                [[maybe_unused]] const DequantExpert& expert) {
  if constexpr (Experts) {
    return static_cast<const u8*>(all) + expert.index * bytes;
  } else {
    return all;
  }
}

// Makes a block's table in kExpertTableBytes of memory; all of its threads call it. rows: of x.
template <class Tiles>
INGOT_DEVICE ExpertTable make_expert_table(const DequantExperts& p, u32* memory, u32 rows, u32 threads,
                                           Tiles tiles_of) {
  const ExpertTable table{
      .row_ends = memory, .tile_ends = memory + kExpertTableMost, .experts = p.experts, .capacity = p.capacity};
  fill_expert_table(table, p.ends, rows, threads, tiles_of);
  return table;
}

}  // namespace ingot
