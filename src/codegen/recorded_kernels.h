// Lists the kernels that the next run may need, on any GPU, from a recording of what this run asked for: those to
// compile ahead. A pure function, as the choice of kernels is.
//
// An operation's spec gives all its passes. A matmul gives every kernel that the library could choose for it there: its
// whole order (gemm_order, dequant_order), because a call may refuse the first for its addresses or strides, and what
// those kernels launch before themselves. cuBLASLt's kernels are its own.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/pass.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

struct KernelPass {
  KernelSpec spec{};
  Pass pass = Pass::main;
  bool operator==(const KernelPass&) const = default;
};

// The kernel that tuning has found for a matmul on this GPU.
struct TunedMatmul {
  MatmulCall call{};
  MatmulSpec chosen{};
};

// All that tuning has found, by the matmul. Made once, it serves many recordings.
class TunedKernels {
 public:
  TunedKernels() = default;
  explicit TunedKernels(std::span<const TunedMatmul> all) {
    for (const TunedMatmul& each : all) chosen_.emplace(each.call, each.chosen);
  }

  // Calls use(chosen) for each choice of the matmul.
  template <class Use>
  void for_each(const MatmulCall& call, const Use& use) const {
    const auto [begin, end] = chosen_.equal_range(call);
    for (auto each = begin; each != end; ++each) use(each->second);
  }

 private:
  struct Hash {
    std::size_t operator()(const MatmulCall& call) const { return hash_value(call); }
  };
  std::unordered_multimap<MatmulCall, MatmulSpec, Hash> chosen_;
};

struct RecordedKernelsOptions {
  TunedKernels tuned{};          // those of the recording's matmuls are added
  std::function<bool()> stop{};  // asked before each kernel and matmul; true: the rest is left out
};

// Each kernel once (no two have the same source), in the recording's order. Kernels that cannot run on that GPU are
// left out: a recording may be another GPU's.
INGOT_API std::vector<KernelPass> kernels_of(const Recording& recording, const MatmulDevice& device,
                                             const RecordedKernelsOptions& options = {});

}  // namespace ingot
