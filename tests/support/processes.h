// Runs code in separate processes, for what one process cannot show: other users, kills, races between processes.
#pragma once

#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/function_ref.h"

#include <stdexcept>

namespace ingot::test {

inline constexpr int kThrew = 99;

// Returns the process id. The child exits with the function's value, or with kThrew.
pid_t start_process(test::FunctionRef<int()> function);

// Returns the exit status, or minus the signal that ended the process.
int wait_for(pid_t process);

inline int run_in_process(test::FunctionRef<int()> function) { return wait_for(start_process(function)); }

// Runs as a user whom permissions bind: a test that runs as root becomes nobody; other users stay.
int run_unprivileged(test::FunctionRef<int()> function);

}  // namespace ingot::test
