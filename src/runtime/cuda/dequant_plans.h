// How a dequant_matmul is to be computed, worked out once for each spec and size and read without a lock from then on.
// Each entry stays until the end, some hundred bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ingot/codegen/dequant_candidates.h"
#include "ingot/runtime/grow_only_table.h"

namespace ingot {

class DequantPlans {
 public:
  explicit DequantPlans(const DequantPlace& place) : place_(place) {}

  // Specs that each name a kernel and its tiling: the first that takes the tensors is to be run.
  std::span<const DequantMatmulSpec> find(const DequantMatmulSpec& spec, const DequantSize& size);

 private:
  struct Entry {
    std::size_t hash;
    DequantMatmulSpec spec;
    DequantSize size;
    std::vector<DequantMatmulSpec> order;
  };

  DequantPlace place_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
