// A place with compiled kernels and tuning records that is only read: a bundle (kernel_bundle.h), or the store of
// another user (read_only_store.h). A cache looks in its own store first and then in its tiers, in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "ingot/api.h"
#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_file.h"

namespace ingot {

// Tuning records as they are stored with kernels: lines that nobody has parsed yet (tuning_record.h does). In a bundle
// they are a text (kernel_bundle.h); a store has a file for each, <root>/tuning/<32 hex digits>.json.
inline constexpr const char* kTuningFolder = "tuning";
inline constexpr std::string_view kTuningSuffix = ".json";
// The limit on the size of a record's file, which usually has less than 1000 bytes: nothing larger is written, or read
// into memory.
inline constexpr std::int64_t kMaxTuningRecordBytes = std::int64_t{1} << 20;

// "<32 hex digits>.json". A file of any other name is no record.
INGOT_API bool is_tuning_file(std::string_view name);

// The line of a record's file; nothing, with the reason in `problem`, if the file is not complete.
INGOT_API std::string_view line_of_tuning_file(std::string_view content, std::string& problem);

struct TuningLine {
  std::string_view text{};  // without the line's end; gone when the call returns
  std::string place{};      // "line 3", "/opt/store/tuning/<32 hex digits>.json"
  std::string problem{};    // why there is no text: "is truncated"
};

// Is called with one line after the other, until it returns false.
using TakeTuningLine = std::function<bool(const TuningLine&)>;

// Takes the lines of a text; empty ones mean nothing.
INGOT_API void take_tuning_lines(std::string_view text, const TakeTuningLine& take);

class INGOT_API KernelTier {
 public:
  virtual ~KernelTier() = default;
  KernelTier(const KernelTier&) = delete;
  KernelTier& operator=(const KernelTier&) = delete;

  // Verified before it is returned, also to be made from what is wanted, unless that is null; nothing if the tier lacks
  // it, or if it is damaged there. Thread-safe.
  std::optional<CompiledKernel> find(const KernelKey& key) const { return find(key, nullptr); }
  virtual std::optional<CompiledKernel> find(const KernelKey& key, const KernelWanted* wanted) const = 0;
  // The tuning records stored with its kernels, and what is wrong with those that cannot be read. tuning_record.h
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
