// Records the matmuls that a program runs and that can be tuned: a recording (jit/recorder.h) without the rest, which
// `ingot tune --manifest` reads.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/jit/recorder.h"

namespace ingot {

class INGOT_API MatmulManifest {
 public:
  using Warn = Recorder::Warn;

  // A file that cannot be read or written, or that has damaged lines, only causes a warning.
  explicit MatmulManifest(std::filesystem::path file, Warn warn = {}) : recorder_(std::move(file), std::move(warn)) {}

  // Notes a call without the kernel that its spec may name. Thread-safe. Batch-invariant matmuls, and those whose sizes
  // are not all above 0, are not noted.
  void note(const MatmulSpec& spec, const MatmulSize& size);

 private:
  Recorder recorder_;
};

struct MatmulManifestFile {
  std::vector<MatmulCall> calls{};  // without duplicates, in the file's order
  int damaged = 0;                  // lines that could not be read, and were skipped
  std::string problem{};            // describes them, with the file's name; empty if there are none
};

// Reads the matmuls that can be tuned from any recording (jit/recording_file.h). Throws what read_recording() throws.
INGOT_API MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file);

}  // namespace ingot
