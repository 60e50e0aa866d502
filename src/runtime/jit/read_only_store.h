// Another user's store, as a tier: a folder in the layout of kernel_store.h and tuning_store.h that is only read.
// Nothing in it is touched, moved or removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/jit/kernel_tier.h"

namespace ingot {

class ReadOnlyStore final : public KernelTier {
 public:
  // Null if the folder cannot be used, with the reason in `problem` ("can be written by other users (mode 0777)").
  static std::unique_ptr<ReadOnlyStore> open(const std::filesystem::path& folder, std::string& problem);

  using KernelTier::find;
  std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* wanted) const override;
  void read_tuning(const TakeTuningLine& take) const override;
  std::int64_t count_tuning() const override;
  std::vector<KernelEntry> list() const override;
  std::optional<KernelFile> read(const KernelKey& key, std::string& problem) const override;
  const std::string& name() const override { return name_; }

 private:
  explicit ReadOnlyStore(std::filesystem::path folder) : folder_(std::move(folder)), name_(folder_.string()) {}
  std::vector<std::string> tuning_files() const;

  std::filesystem::path folder_;
  std::string name_;
};

}  // namespace ingot
