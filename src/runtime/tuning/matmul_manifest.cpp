#include "ingot/runtime/tuning/matmul_manifest.h"

#include <utility>

#include "ingot/runtime/jit/recording_file.h"

namespace ingot {

void MatmulManifest::note(const MatmulSpec& spec, const MatmulSize& size) {
  if (is_tuned(spec)) recorder_.note(spec, size);
}

MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file) {
  RecordingFile read = read_recording(file);
  MatmulManifestFile manifest{.calls = {}, .damaged = read.damaged, .problem = std::move(read.problem)};
  for (const MatmulCall& call : read.recording.matmuls()) {
    if (is_tuned(call.spec)) manifest.calls.push_back(call);
  }
  return manifest;
}

}  // namespace ingot
