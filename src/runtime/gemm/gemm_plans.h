// Which kernels to try for a GEMM, in order: first what tuning has found, then the library's own order. Made once for
// each spec and size, then read without a lock. The first kMostPlans are kept (kernel_order.h).
#pragma once

#include <cstddef>
#include <vector>

#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/tuning/kernel_order.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class GemmPlans {
 public:
  // The services must outlive it.
  GemmPlans(const MatmulServices& services, Target target, int multiprocessors, std::size_t most = kMostPlans)
      : services_(services), target_(target), multiprocessors_(multiprocessors), most_(most) {}

  // Specs that each name a kernel, and its tiling if it has any; the first that supports the tensors is to be run. If
  // `spec` names a kernel, there is only one. A call seen for the first time is noted in the recorder. factors_as_read:
  // as gemm_order() has it.
  KernelOrder<GemmSpec> find(const GemmSpec& spec, const MatmulSize& size, bool factors_as_read = false);

 private:
  struct Entry {
    std::size_t hash;
    GemmCall call;
    bool factors_as_read;
    std::vector<GemmSpec> order;
  };

  Entry make(std::size_t hash, const GemmCall& call, bool factors_as_read) const;

  MatmulServices services_;
  Target target_;
  int multiprocessors_;
  std::size_t most_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
