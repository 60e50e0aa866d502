// Runs code in a child process up to a chosen system call, and kills it there (ptrace).
#pragma once

#include "support/function_ref.h"

namespace ingot::test {

struct TracedEnd {
  bool killed = false;  // otherwise it made fewer calls than that
  int status = 0;       // of wait_for()
};

// The child gets SIGKILL at the entry of the system call of `function` with this number, counted from 1: those before
// it were made, and this one is not.
TracedEnd run_and_kill_at(int call, test::FunctionRef<int()> function);

// False where processes may not trace their children.
bool can_trace();

}  // namespace ingot::test
