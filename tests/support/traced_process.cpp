#include "support/traced_process.h"
#include "support/function_ref.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "support/processes.h"

namespace ingot::test {
namespace {

constexpr int kNotTraced = 98;
constexpr int kSystemCall = SIGTRAP | 0x80;  // with PTRACE_O_TRACESYSGOOD

int next_status(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return status;
}

TracedEnd ended(bool killed, int status) {
  return {.killed = killed, .status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)};
}

}  // namespace

TracedEnd run_and_kill_at(int call, test::FunctionRef<int()> function) {
  const pid_t child = start_process([&function] {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return kNotTraced;
    raise(SIGSTOP);
    return function();
  });
  int status = next_status(child);
  if (!WIFSTOPPED(status)) return ended(false, status);
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  long signal = 0;      // to hand on
  bool inside = false;  // a call stops the child twice: at its entry and at its end
  for (int calls = 0;;) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, signal) != 0) throw std::runtime_error("PTRACE_SYSCALL failed");
    status = next_status(child);
    if (!WIFSTOPPED(status)) return ended(false, status);
    const bool at_call = WSTOPSIG(status) == kSystemCall;
    signal = at_call ? 0 : WSTOPSIG(status);
    if (at_call) inside = !inside;
    if (at_call && inside && ++calls == call) {
      kill(child, SIGKILL);
      return ended(true, next_status(child));
    }
  }
}

bool can_trace() {
  return run_and_kill_at(0, [] { return 0; }).status == 0;
}

}  // namespace ingot::test
