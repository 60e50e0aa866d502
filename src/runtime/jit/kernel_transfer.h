// Carries kernels from one place to another: from a bundle or another store into a store, and from a store into a
// bundle. A kernel is only ever carried whole, checked, and under the key of its own source.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/runtime/jit/kernel_bundle.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "ingot/runtime/jit/kernel_tier.h"

namespace ingot {

// Things that were not taken, for one reason.
struct Refused {
  std::string why{};    // "compiled by another build of NVRTC ..."
  std::string first{};  // one of them, by its name
  std::int64_t count = 0;
  bool damaged = false;
};

// Counts `more` of it under its reason.
void add_refused(std::vector<Refused>& all, const Refused& more);

// Whose kernels a store takes.
struct ImportRules {
  std::string identity{};   // this Ingot's kernel_identity()
  std::string toolchain{};  // of this machine's compiler; empty without one
};

struct ImportedKernels {
  std::int64_t added = 0;
  std::int64_t there = 0;  // the store had them, and uses them
  std::vector<Refused> refused{};
  bool stopped = false;  // before the end
};

// Takes what the store would use: undamaged kernels of this Ingot which this machine's NVRTC made, or any NVRTC where
// there is none. Each is published whole, so that the import may be stopped, killed and repeated at any time. Throws
// Error{io_failed} if the store cannot be written. `stop` is asked before each kernel.
ImportedKernels import_kernels(const KernelTier& from, KernelStore& to, const ImportRules& rules,
                               const std::function<bool()>& stop = {});

struct ExportedKernels {
  std::vector<BundleContent::Kernel> kernels{};
  std::int64_t not_wanted = 0;
  std::int64_t of_other_versions = 0;  // of Ingot or its templates: nobody who reads the bundle would find them
  std::vector<std::string> damaged{};  // "<file> does not match its checksum"
  bool stopped = false;                // before the end
};

// The store's kernels of this Ingot that `wanted` accepts, as they stand in a bundle.
ExportedKernels export_kernels(KernelStore& from, const std::string& identity,
                               const std::function<bool(const KernelFile&)>& wanted,
                               const std::function<bool()>& stop = {});

}  // namespace ingot
