#include "ingot/runtime/tuning/matmul_manifest.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>
#include <variant>

#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/recording_file.h"
#include "ingot/runtime/util/append_line.h"

namespace ingot {

MatmulManifest::MatmulManifest(std::filesystem::path file, Warn warn) : file_(std::move(file)), warn_(std::move(warn)) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_, error)) return;
  try {
    const MatmulManifestFile there = read_matmul_manifest(file_);
    for (const MatmulCall& call : there.calls) seen_.insert({hash_value(call), call}, matching(call));
    if (there.damaged > 0 && warn_) warn_(there.problem);
  } catch (const Error& problem) {
    if (warn_) warn_(fmt::format("GEMM manifest {}", problem.what()));
  }
}

void MatmulManifest::note(const MatmulSpec& spec, const MatmulSize& size) {
  const MatmulCall call{.spec = without_kernel(spec), .size = size};
  const std::size_t hash = hash_value(call);
  if (seen_.find(hash, matching(call)) != nullptr) return;
  const std::size_t before = seen_.size();
  seen_.insert({hash, call}, matching(call));
  if (seen_.size() > before) append(call);
}

void MatmulManifest::append(const MatmulCall& call) const {
  const std::string problem = append_line(file_, print(call));
  if (!problem.empty() && warn_) {
    warn_(fmt::format("GEMM manifest {} cannot be written: {}", file_.string(), problem));
  }
}

// (Batch-invariant matmuls are not tuned.)
MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file) {
  RecordingFile read = read_recording(file, "GEMM manifest");
  MatmulManifestFile manifest{.calls = {}, .damaged = read.damaged, .problem = std::move(read.problem)};
  for (const MatmulCall& call : read.recording.matmuls()) {
    const auto* const dequant = std::get_if<DequantMatmulSpec>(&call.spec);
    if (dequant == nullptr || !dequant->batch_invariant) manifest.calls.push_back(call);
  }
  return manifest;
}

}  // namespace ingot
