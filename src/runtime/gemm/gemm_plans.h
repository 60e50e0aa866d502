// How a GEMM is to be computed, worked out once for each spec and size and read without a lock from then on: what
// tuning has found for it, then the library's own order. Each entry stays until the end, some 500 bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class GemmPlans {
 public:
  // The services outlive it.
  GemmPlans(const MatmulServices& services, Target target, int multiprocessors)
      : services_(services), target_(target), multiprocessors_(multiprocessors) {}

  // Specs that each name a kernel, with its tiling where it has some: the first that takes the tensors is to be run. A
  // spec that names its kernel is alone. What is asked for the first time is noted in the manifest.
  std::span<const GemmSpec> find(const GemmSpec& spec, const MatmulSize& size);

 private:
  struct Entry {
    std::size_t hash;
    GemmCall call;
    std::vector<GemmSpec> order;
  };

  Entry make(std::size_t hash, const GemmCall& call) const;

  MatmulServices services_;
  Target target_;
  int multiprocessors_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
