// A recording of what a run asked for: each kernel that it used, by its spec, and each matmul that it ran, by its spec
// and size. It decides which kernels to compile ahead of the next such run (kernels_of()), and which matmuls to tune.
//
// As text, a line for each, which print(KernelSpec) or print(MatmulCall) makes. Empty lines and those that begin with #
// mean nothing. Two recordings one after the other are their merger.
//
//   # Ingot recording
//   cast bf16->e4m3fn scale=row+col out=codes,transposed pow2
//   gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast kernel=sm90:128x256:2x1:4:cooperative
//   gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast 8192 6144 4096
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/pass.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

// Keeps the order in which things were added, each of them once.
class INGOT_API Recording {
 public:
  // True if it is new. A matmul is noted without the kernel that its spec may name.
  bool add(const KernelSpec& kernel);
  bool add(const MatmulCall& matmul);
  void add(const Recording& other);
  bool has(const KernelSpec& kernel) const { return known_kernels_.contains(kernel); }
  bool has(const MatmulCall& matmul) const;

  const std::vector<KernelSpec>& kernels() const { return kernels_; }
  const std::vector<MatmulCall>& matmuls() const { return matmuls_; }
  bool empty() const { return kernels_.empty() && matmuls_.empty(); }
  bool operator==(const Recording& other) const { return kernels_ == other.kernels_ && matmuls_ == other.matmuls_; }

 private:
  struct Hash {
    std::size_t operator()(const KernelSpec& kernel) const { return hash_value(kernel); }
    std::size_t operator()(const MatmulCall& matmul) const { return hash_value(matmul); }
  };

  std::vector<KernelSpec> kernels_{};
  std::vector<MatmulCall> matmuls_{};
  std::unordered_set<KernelSpec, Hash> known_kernels_{};
  std::unordered_set<MatmulCall, Hash> known_matmuls_{};
};

// A line for each kernel, then for each matmul, below a line that says what the text is.
INGOT_API std::string print(const Recording& recording);

struct ParsedRecording {
  Recording recording{};
  int damaged = 0;      // lines that could not be read, and were skipped
  std::string first{};  // of them: "line 3: \"x\" is no k; expected ..."
};

// In time proportional to the text's length. Throws only what an allocation throws.
INGOT_API ParsedRecording parse_recording(std::string_view text);

// ---- From a recording to kernels ------------------------------------------------------------------------------------
//
// kernels_of() lists the kernels that the next run may need, on any GPU, from a recording of what this run asked for:
// those to compile ahead. A pure function, as the choice of kernels is.
//
// An operation's spec gives all its passes. A matmul gives every kernel that the library could choose for it there: its
// whole order (gemm_order, dequant_order), because a call may refuse the first for its addresses or strides, and what
// those kernels launch before themselves. cuBLASLt's kernels are its own.

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
