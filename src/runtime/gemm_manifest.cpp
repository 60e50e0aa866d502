#include "ingot/runtime/gemm_manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/file_descriptor.h"

namespace ingot {

GemmManifest::GemmManifest(std::filesystem::path file, Warn warn) : file_(std::move(file)), warn_(std::move(warn)) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_, error)) return;
  try {
    for (const GemmCall& call : read_gemm_manifest(file_)) seen_.insert({hash_value(call), call}, matching(call));
  } catch (const Error& problem) {
    if (warn_) warn_(fmt::format("GEMM manifest {}", problem.what()));
  }
}

void GemmManifest::note(const GemmSpec& spec, const GemmSize& size) {
  const GemmCall call{.spec = without_kernel(spec), .size = size};
  const std::size_t hash = hash_value(call);
  if (seen_.find(hash, matching(call)) != nullptr) return;
  const std::size_t before = seen_.size();
  seen_.insert({hash, call}, matching(call));
  if (seen_.size() > before) append(call);
}

void GemmManifest::append(const GemmCall& call) const {
  const std::string line = print(call) + "\n";
  FileDescriptor file(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file && ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) && file.close())
    return;
  if (warn_) {
    warn_(fmt::format("GEMM manifest {} cannot be written: {}", file_.string(), std::system_category().message(errno)));
  }
}

std::vector<GemmCall> read_gemm_manifest(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw Error(ErrorCode::not_found, file.string(),
                "there is no such manifest; a run with INGOT_GEMM_MANIFEST set to this path records one");
  }
  std::vector<GemmCall> calls;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos || line.starts_with('#')) continue;
    try {
      const GemmCall call = parse_gemm_call(line);
      if (std::ranges::find(calls, call) == calls.end()) calls.push_back(call);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_spec, fmt::format("{}:{}", file.string(), number), error.what());
    }
  }
  return calls;
}

}  // namespace ingot
