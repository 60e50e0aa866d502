// Which kernels to try for a dequant_matmul, in order: first what tuning has found, then the library's own order.
// Made once for each spec and size, then read without a lock. The first kMostPlans are kept (matmul_services.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class DequantPlans {
 public:
  // The services must outlive it.
  DequantPlans(const MatmulServices& services, const MatmulDevice& device, std::size_t most = kMostPlans)
      : services_(services), device_(device), most_(most) {}

  // Specs that each name a kernel and its tiling; the first that supports the tensors is to be run. A call seen for the
  // first time is noted in the recorder.
  KernelOrder<DequantMatmulSpec> find(const DequantMatmulSpec& spec, const MatmulSize& size);

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
  std::size_t most_;
  GrowOnlyTable<Entry> table_;
};

// Throws Error{invalid_argument}. `reason`: why the last kernel tried does not support the call; null if none was
// tried.
[[noreturn]] void refuse_dequant(const DequantMatmulSpec& asked, const char* reason);

// Runs the first spec of `order` that supports the call. try_kernel(spec) returns null if it has enqueued the call,
// else why the kernel does not support it. Throws Error{invalid_argument} if none does.
template <class TryKernel>
void run_first(const DequantMatmulSpec& asked, std::span<const DequantMatmulSpec> order, const TryKernel& try_kernel) {
  const char* reason = nullptr;
  for (const DequantMatmulSpec& named : order) {
    reason = try_kernel(named);
    if (reason == nullptr) return;
  }
  refuse_dequant(asked, reason);
}

// Why the call is not supported by the kernel, a pure function of the call and the GPU; null if it is. Requires a spec
// with a tiling.
const char* dequant_sm90_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device);
const char* dequant_mma_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device);

}  // namespace ingot
