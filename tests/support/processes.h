// Runs code in separate processes, for what one process cannot show: other users, kills, races between processes.
#pragma once

#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

namespace ingot::test {

inline constexpr int kThrew = 99;

// Returns the process id. The child exits with the function's value, or with kThrew.
inline pid_t start_process(const std::function<int()>& function) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) return child;
  int status = kThrew;
  try {
    status = function();
  } catch (...) {}
  _exit(status);
}

// Returns the exit status, or minus the signal that ended the process.
inline int wait_for(pid_t process) {
  int status = 0;
  if (waitpid(process, &status, 0) != process) throw std::runtime_error("waitpid failed");
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

inline int run_in_process(const std::function<int()>& function) { return wait_for(start_process(function)); }

// Runs as a user whom permissions bind: a test that runs as root becomes nobody; other users stay.
inline int run_unprivileged(const std::function<int()>& function) {
  return run_in_process([&function] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
                           setresuid(kNobody, kNobody, kNobody) != 0)) {
      return kThrew;
    }
    return function();
  });
}

}  // namespace ingot::test
