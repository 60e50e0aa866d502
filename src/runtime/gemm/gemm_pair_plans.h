// Whether one launch computes two GEMMs: decided once for each pair of specs and sizes, then read without a lock. The
// first kMostPlans are kept (kernel_order.h).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "ingot/codegen/gemm/gemm_pair_choice.h"
#include "ingot/runtime/tuning/kernel_order.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

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
