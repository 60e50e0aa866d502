// The GEMMs that a program does, written down as it runs: a file with a line for each (codegen/matmul.h), which
// `ingot tune --manifest` reads. A GEMM that was seen before costs one look into a table. Processes may share the file:
// a line is appended in one piece, and one that is there already is not repeated by those that start later. A line that
// a full disk or a kill has torn, or that somebody has damaged, is skipped with a warning, and costs no other.
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

  // A file that cannot be written is a warning, as is one with damaged lines, and nothing else.
  explicit MatmulManifest(std::filesystem::path file, Warn warn = {});

  // Of a call whose sizes are not 0; the spec's choice of a kernel is not written.
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
  std::vector<MatmulCall> calls{};  // each once, in the file's order
  int damaged = 0;                  // lines that are no GEMMs, and were left out
  std::string problem{};            // of them, with the file's name; empty where there are none
};

// Throws Error{not_found, io_failed}.
MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file);

}  // namespace ingot
