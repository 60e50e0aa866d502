#include "ingot/runtime/tuning/matmul_manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/printable.h"

namespace ingot {
namespace {

std::string reason(const Error& error) { return std::string(error.what()).substr(error.subject().size() + 2); }

bool ends_inside_a_line(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

// Appends a line. Empty, or why it failed.
std::string append_line(const std::filesystem::path& path, const std::string& text) {
  const auto because_of = [](int error) { return std::system_category().message(error); };
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) return because_of(errno);
  const std::string line = fmt::format("{}{}\n", ends_inside_a_line(file.get()) ? "\n" : "", text);
  const ssize_t written = ::write(file.get(), line.data(), line.size());
  if (written < 0) return because_of(errno);
  if (written < static_cast<ssize_t>(line.size())) {
    return fmt::format("only {} of a line's {} bytes fit", written, line.size());
  }
  return file.close() ? "" : because_of(errno);
}

}  // namespace

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

MatmulManifestFile read_matmul_manifest(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw Error(ErrorCode::not_found, file.string(),
                "there is no such manifest; a run with INGOT_GEMM_MANIFEST set to this path records one");
  }
  MatmulManifestFile manifest;
  std::string first;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos || line.starts_with('#')) continue;
    try {
      const MatmulCall call = parse_matmul_call(line);
      if (std::ranges::find(manifest.calls, call) == manifest.calls.end()) manifest.calls.push_back(call);
    } catch (const Error& error) {
      if (manifest.damaged++ == 0) first = fmt::format("line {}: {}", number, printable(reason(error)));
    }
  }
  if (!stream.eof()) throw Error(ErrorCode::io_failed, file.string(), "cannot be read");
  if (manifest.damaged > 0) {
    manifest.problem = fmt::format("GEMM manifest {}: {} {} ignored; {}", file.string(), manifest.damaged,
                                   manifest.damaged == 1 ? "damaged line is" : "damaged lines are", first);
  }
  return manifest;
}

}  // namespace ingot
