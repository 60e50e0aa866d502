// A place with compiled kernels and tuning records that is only read: a bundle (kernel_bundle.h), or the store of
// another user (read_only_store.h). A cache looks in its own store first and then in its tiers, in their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_entry.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "ingot/runtime/jit/kernel_key.h"
#include "ingot/runtime/jit/tuning_lines.h"

namespace ingot {

class INGOT_API KernelTier {
 public:
  virtual ~KernelTier() = default;
  KernelTier(const KernelTier&) = delete;
  KernelTier& operator=(const KernelTier&) = delete;

  // Verified before it is returned, also to be made from what is wanted, unless that is null; nothing if the tier lacks
  // it, or if it is damaged there. Thread-safe.
  std::optional<CompiledKernel> find(const KernelKey& key) const { return find(key, nullptr); }
  virtual std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* wanted) const = 0;
  // The tuning records stored with its kernels, and what is wrong with those that cannot be read. tuning_file.h
  // verifies them.
  virtual void read_tuning(const TakeTuningLine& take) const = 0;
  // How many there are, damaged ones too. Of a store, none is opened.
  virtual std::int64_t count_tuning() const = 0;
  // All that it has, in ascending order of keys, unread.
  virtual std::vector<KernelEntry> list() const = 0;
  // Like find(), but returns the source too. `problem` says what is wrong with a kernel that is there ("does not match
  // its checksum").
  virtual std::optional<KernelFile> read(const KernelKey& key, std::string& problem) const = 0;
  // The path that it was opened by.
  virtual const std::string& name() const = 0;

 protected:
  KernelTier() = default;
};

}  // namespace ingot
