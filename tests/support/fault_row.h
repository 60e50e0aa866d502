// Counts the injections of one row of the fault matrix (docs/notes/checks.md) and prints it as a line:
//
//   F1: 412 injections, 0 wrong kernels, 0 crashes, 0 hangs
#pragma once

#include <chrono>
#include <string>
#include <vector>
#include "support/function_ref.h"

namespace ingot::test {

class FaultRow {
 public:
  // What takes longer than `bound` counts as a hang.
  explicit FaultRow(std::string name, std::chrono::milliseconds bound = std::chrono::seconds(20));

  // One injection: `check` causes the fault, looks at the outcome, and returns what is wrong, or nothing. An exception
  // counts as a crash.
  void inject(const std::string& what, test::FunctionRef<std::string()> check);
  // The same where a child process has had the fault; `status` is that of wait_for(): 0 if all was well, minus a signal
  // if it crashed.
  void child_ended(const std::string& what, int status);
  void wrong(const std::string& what);

  // Prints the line, and fails the test unless there were at least `at_least` injections and nothing was wrong.
  void finish(int at_least = 1) const;

 private:
  void note(int& counter, const std::string& what);

  std::string name_;
  std::chrono::milliseconds bound_;
  int injections_ = 0;
  int wrong_ = 0;
  int crashes_ = 0;
  int hangs_ = 0;
  std::vector<std::string> examples_;  // the first few faults
};

}  // namespace ingot::test
