// A file of tuning records, one per line. `ingot tune --export` writes it, --import reads it, and runs that must choose
// the same kernels everywhere use it in place of the store (ContextOptions::tuning_file).
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/runtime/tuning/tuning_record.h"

namespace ingot {

class KernelTier;  // runtime/jit/kernel_tier.h

struct TuningFile {
  std::vector<TuningRecord> records{};
  int damaged = 0;        // lines that could not be read, and were skipped
  std::string problem{};  // of the first of them: "line 3 does not match its checksum"
  bool stopped = false;   // before the end
};

// Throws Error{not_found, io_failed}. `stop` is asked before each line.
INGOT_API TuningFile read_tuning_file(const std::filesystem::path& path, const std::function<bool()>& stop = {});
// The same of a bundle, or of a store that may be another user's. The lines of a store are its files.
INGOT_API TuningFile read_tuning_of(const KernelTier& tier, const std::function<bool()>& stop = {});
// All or nothing; what is no regular file, such as a FIFO, is written into. Throws Error{io_failed}.
INGOT_API void write_tuning_file(const std::filesystem::path& path, std::span<const TuningRecord> records);

}  // namespace ingot
