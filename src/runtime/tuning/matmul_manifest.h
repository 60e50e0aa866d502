// Records the GEMMs that a program runs: a file with one line for each (codegen/matmul.h), which `ingot tune
// --manifest` reads. A GEMM seen before costs one table lookup. Processes may share the file: each line is appended in
// one write, and processes that start later do not repeat it. A line that is truncated or damaged is skipped with a
// warning, and affects no other.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/util/grow_only_table.h"

namespace ingot {

class MatmulManifest {
 public:
  using Warn = std::function<void(const std::string&)>;

  // A file that cannot be written, or that has damaged lines, only causes a warning.
  explicit MatmulManifest(std::filesystem::path file, Warn warn = {});

  // Notes a call, whose sizes are not 0, without the kernel that its spec may name.
  void note(const MatmulSpec& spec, const MatmulSize& size);

 private:
  struct Entry {
    std::size_t hash;
    MatmulCall call;
  };

  void append(const MatmulCall& call) const;

  std::filesystem::path file_;
  Warn warn_;
  GrowOnlyTable<Entry> seen_;
};

struct MatmulManifestFile {
  std::vector<MatmulCall> calls{};  // without duplicates, in the file's order
  int damaged = 0;                  // lines that could not be read, and were skipped
  std::string problem{};            // describes them, with the file's name; empty if there are none
};

// Of any recording (jit/recording_file.h), the matmuls that can be tuned. Throws what read_recording() throws.
MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file);

}  // namespace ingot
