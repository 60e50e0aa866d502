#include "ingot/runtime/jit/recorder.h"

#include <fmt/format.h>

#include <mutex>
#include <system_error>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/jit/recording_file.h"
#include "ingot/runtime/util/append_line.h"

namespace ingot {

namespace {

std::size_t count(const Recording& recording, const KernelSpec&) { return recording.kernels().size(); }
std::size_t count(const Recording& recording, const MatmulCall&) { return recording.matmuls().size(); }

}  // namespace

Recorder::Recorder(std::filesystem::path file, Warn warn, std::size_t most)
    : file_(std::move(file)), warn_(std::move(warn)), most_(most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_, error)) return;
  try {
    RecordingFile there = read_recording(file_);
    in_file_ = std::move(there.recording);
    if (there.damaged > 0) warn_once(there.problem);
  } catch (const Error& problem) {
    warn_once(fmt::format("recording {}", problem.what()));
  }
}

void Recorder::note(const KernelSpec& kernel) { add(kernel); }

void Recorder::note(const MatmulSpec& matmul, const MatmulSize& size) {
  if (size.m > 0 && size.n > 0 && size.k > 0) add(MatmulCall{.spec = without_kernel(matmul), .size = size});
}

Recording Recorder::recording() const {
  const std::lock_guard lock(mutex_);
  return recording_;
}

template <class Noted>
void Recorder::add(const Noted& noted) {
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    if (recording_.has(noted)) return;
    is_full = count(recording_, noted) >= most_;
    if (!is_full) recording_.add(noted);
    if (file_.empty() || in_file_.has(noted)) return;
    is_full = is_full || count(in_file_, noted) >= most_;
    if (!is_full) in_file_.add(noted);
  }
  if (is_full) {
    return warn_once(
        fmt::format("recording {}: has at most {} kernels and as many matmuls, so the rest is not noted; pad "
                    "sizes so that fewer differ",
                    file_.string(), most_));
  }
  const std::string problem = append_line(file_, print(noted));
  if (!problem.empty()) warn_once(fmt::format("recording {} cannot be written: {}", file_.string(), problem));
}

void Recorder::warn_once(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (warned_) return;
    warned_ = true;
  }
  if (warn_) warn_(text);
}

}  // namespace ingot
