// Which kernels to try for a GEMM, in order: first what tuning has found, then the library's own order. Made once for
// each spec and size, then read without a lock. The first kMostPlans are kept (matmul_services.h).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class GemmPlans {
 public:
  // The services must outlive it.
  GemmPlans(const MatmulServices& services, Target target, int multiprocessors, std::size_t most = kMostPlans)
      : services_(services), target_(target), multiprocessors_(multiprocessors), most_(most) {}

  // Specs that each name a kernel, and its tiling if it has any; the first that supports the tensors is to be run. If
  // `spec` names a kernel, there is only one. A call seen for the first time is noted in the recorder.
  // scale_inv_as_read: as gemm_order() has it.
  KernelOrder<GemmSpec> find(const GemmSpec& spec, const MatmulSize& size, bool scale_inv_as_read = false);

 private:
  struct Entry {
    std::size_t hash;
    GemmCall call;
    bool scale_inv_as_read;
    std::vector<GemmSpec> order;
  };

  Entry make(std::size_t hash, const GemmCall& call, bool scale_inv_as_read) const;

  MatmulServices services_;
  Target target_;
  int multiprocessors_;
  std::size_t most_;
  GrowOnlyTable<Entry> table_;
};

// Whether one launch computes two GEMMs: decided once for each pair of specs and sizes, then read without a lock. The
// first kMostPlans are kept (matmul_services.h).
class GemmPairPlans {
 public:
  // Whether the pair's kernel can be had: compiled, or found in the store. Asked once for each pair.
  using Available = std::function<bool(const GemmPairSpec&)>;

  // The services must outlive it.
  GemmPairPlans(const MatmulServices& services, const MatmulDevice& device, Available available,
                std::size_t most = kMostPlans)
      : services_(services), device_(device), available_(std::move(available)), most_(most) {}

  // Holds a pair that the table does not keep, because there are too many.
  using Own = std::optional<GemmPairSpec>;

  // The result of choose_gemm_pair(), if its kernel is available: null, or a pair that lives as long as this object and
  // `own`. Both GEMMs of a new pair are noted in the recorder, as for two launches, because another device may use
  // those.
  const GemmPairSpec* find(const GemmCall& first, const GemmCall& second, Own& own);

 private:
  struct Entry {
    std::size_t hash;
    GemmCall first;
    GemmCall second;
    std::optional<GemmPairSpec> pair;
  };

  std::optional<GemmPairSpec> choose(const GemmCall& first, const GemmCall& second) const;

  MatmulServices services_;
  MatmulDevice device_;
  Available available_;
  std::size_t most_;
  GrowOnlyTable<Entry> table_;
};

}  // namespace ingot
