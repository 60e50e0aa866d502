// Runs numbered jobs in separate processes. NVRTC's front end runs one compile at a time in a process, so two
// processes compile in half the time; and a compiler that crashes takes one job with it, not the command.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ingot::tools {

struct JobResult {
  std::size_t job = 0;
  bool failed = false;
  double seconds = 0;
  std::string text{};  // what the job returned, or its error
};

struct WorkerOptions {
  int processes = 0;  // one per core
  // Runs in a worker; its text goes to `done`. What it throws makes the job a failed one.
  std::function<std::string(std::size_t job)> work;
  // Runs here, as jobs begin and end.
  std::function<void(std::size_t job)> begun = [](std::size_t) {};
  std::function<void(const JobResult&)> done;
  // Asked before each job, and often while jobs run; true: those are ended, without a result, and no others begun.
  std::function<bool()> stop = [] { return false; };
  // A job that takes longer is ended and counts as failed. The longest known compile takes about a minute.
  std::chrono::milliseconds limit = std::chrono::minutes(30);
};

// Runs the jobs in their order, each once, and returns when all that were begun have ended, or `stop` ends them. A job
// whose process dies, hangs or answers garbage is a failed one. The calling process must have no other threads. Throws
// Error{io_failed} if not even one worker can be started.
void run_in_workers(std::span<const std::size_t> jobs, const WorkerOptions& options);

}  // namespace ingot::tools
