// A bundle: compiled kernels and tuning records in one file, which `ingot warm --bundle` writes and any number of jobs
// read, from any path and as any user (an image layer that root owns serves a job that is not root).
//
//   file   := magic "INGOTB01" index_offset:u64 index_bytes:u64 checksum[16] kernel* tuning index
//   kernel := a kernel file (kernel_file.h), with its own checksum
//   tuning := tuning records, one line each (tuning_record.h), each with its own checksum
//   index  := identity_bytes:u64 identity kernels:u64 {key[16] offset:u64 bytes:u64}* tuning_offset:u64
//   tuning_bytes:u64 (integers little-endian, offsets from the start of the file, keys ascending; the checksum is
//   XXH3-128 of the index)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

inline constexpr std::string_view kBundleMagic = "INGOTB01";

class KernelBundle final : public KernelTier {
 public:
  struct Entry {
    KernelKey key{};
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  // Reads the index only. Null if the file cannot be used, with the reason in `problem` ("is truncated").
  static std::unique_ptr<KernelBundle> open(const std::filesystem::path& path, std::string& problem);

  using KernelTier::find;
  std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* wanted) const override;
  std::vector<KernelEntry> list() const override;
  std::optional<KernelFile> read(const KernelKey& key, std::string& problem) const override;
  const std::string& name() const override { return name_; }

  // Ascending by key.
  std::span<const Entry> entries() const { return entries_; }
  // An entry's kernel file as it is stored; shorter where the bundle has been truncated since.
  std::string file_of(const Entry& entry) const;
  // kernel_identity() of the Ingot that wrote the bundle. Kernels of another identity are never found.
  const std::string& identity() const { return identity_; }
  void read_tuning(const TakeTuningLine& take) const override;
  std::int64_t count_tuning() const override;

 private:
  KernelBundle() = default;
  const Entry* entry_of(const KernelKey& key) const;
  std::string tuning() const;

  std::string name_;
  FileDescriptor file_;
  std::string identity_;
  std::vector<Entry> entries_;
  std::int64_t tuning_offset_ = 0;
  std::int64_t tuning_bytes_ = 0;
};

// The content of a new bundle. Keys may repeat; the first of each counts.
struct BundleContent {
  struct Kernel {
    KernelKey key{};
    std::string file;  // encode_kernel_file()
  };
  std::string identity;  // kernel_identity()
  std::vector<Kernel> kernels{};
  std::string tuning{};  // lines of print(TuningRecord)
};

std::string encode_bundle(BundleContent content);

// Writes a bundle, whole or not at all, and returns its size. Whatever the umask, nobody else can write it: every
// reader would refuse it. Throws Error{io_failed}.
std::int64_t write_bundle(const std::filesystem::path& file, BundleContent content);

}  // namespace ingot
