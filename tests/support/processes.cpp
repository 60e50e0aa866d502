#include "support/processes.h"
#include "support/function_ref.h"

namespace ingot::test {

pid_t start_process(test::FunctionRef<int()> function) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) return child;
  int status = kThrew;
  try {
    status = function();
  } catch (...) {}
  _exit(status);
}

int wait_for(pid_t process) {
  int status = 0;
  if (waitpid(process, &status, 0) != process) throw std::runtime_error("waitpid failed");
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int run_unprivileged(test::FunctionRef<int()> function) {
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
