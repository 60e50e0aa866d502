// How a dequant_matmul is to be computed, worked out once for each spec and size and read without a lock from then on:
// what tuning has found for it, then the library's own order.
// Each entry stays until the end, some hundred bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class DequantPlans {
 public:
  // The services outlive it.
  DequantPlans(const MatmulServices& services, const MatmulDevice& device) : services_(services), device_(device) {}

  // Specs that each name a kernel and its tiling: the first that takes the tensors is to be run. What is asked for the
  // first time is noted in the manifest, but for batch-invariant products, which are not tuned.
  std::span<const DequantMatmulSpec> find(const DequantMatmulSpec& spec, const MatmulSize& size);

 private:
  struct Entry {
    std::size_t hash;
    DequantMatmulSpec spec;
    MatmulSize size;
    std::vector<DequantMatmulSpec> order;
  };

  Entry make(std::size_t hash, const DequantMatmulSpec& spec, const MatmulSize& size) const;

  MatmulServices services_;
  MatmulDevice device_;
  GrowOnlyTable<Entry> table_;
};

// `reason`: of the last kernel that was tried; null: there was none.
[[noreturn]] void refuse_dequant(const DequantMatmulSpec& asked, const char* reason);

// Runs the first spec of `order` that takes the call of `asked`. try_kernel(spec) is null where it has been enqueued,
// else why it does not take the call. Throws Error{invalid_argument} where none does.
template <class TryKernel>
void run_first(const DequantMatmulSpec& asked, std::span<const DequantMatmulSpec> order, const TryKernel& try_kernel) {
  const char* reason = nullptr;
  for (const DequantMatmulSpec& named : order) {
    reason = try_kernel(named);
    if (reason == nullptr) return;
  }
  refuse_dequant(asked, reason);
}

}  // namespace ingot
