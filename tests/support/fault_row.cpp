#include "support/fault_row.h"

#include <boost/test/unit_test.hpp>

#include <cstdio>
#include <exception>
#include <utility>

#include "support/function_ref.h"
#include "support/processes.h"

namespace ingot::test {

FaultRow::FaultRow(std::string name, std::chrono::milliseconds bound) : name_(std::move(name)), bound_(bound) {}

void FaultRow::inject(const std::string& what, test::FunctionRef<std::string()> check) {
  ++injections_;
  const auto start = std::chrono::steady_clock::now();
  try {
    if (const std::string problem = check(); !problem.empty()) note(wrong_, what + ": " + problem);
  } catch (const std::exception& error) {
    note(crashes_, what + ": threw " + error.what());
  }
  if (std::chrono::steady_clock::now() - start > bound_) note(hangs_, what + ": took too long");
}

void FaultRow::child_ended(const std::string& what, int status) {
  ++injections_;
  if (status < 0 || status == kThrew) {
    note(crashes_, what + ": ended with " + std::to_string(status));
  } else if (status != 0) {
    note(wrong_, what + ": status " + std::to_string(status));
  }
}

void FaultRow::wrong(const std::string& what) { note(wrong_, what); }

void FaultRow::finish(int at_least) const {
  std::printf("%s: %d injections, %d wrong kernels, %d crashes, %d hangs\n", name_.c_str(), injections_, wrong_,
              crashes_, hangs_);
  std::fflush(stdout);
  for (const std::string& example : examples_) BOOST_TEST_MESSAGE(example);
  const std::string first = examples_.empty() ? "" : examples_[0];
  BOOST_TEST(injections_ >= at_least);
  BOOST_TEST(wrong_ == 0, wrong_ << " were wrong, first " << first);
  BOOST_TEST(crashes_ == 0, crashes_ << " crashed, first " << first);
  BOOST_TEST(hangs_ == 0, hangs_ << " hung, first " << first);
}

void FaultRow::note(int& counter, const std::string& what) {
  constexpr std::size_t kExamples = 20;
  ++counter;
  if (examples_.size() < kExamples) examples_.push_back(what);
}

}  // namespace ingot::test
