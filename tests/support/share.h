// Selects a share of a program's cases, for programs that run as several processes at once: with `-- 3/8` as the last
// arguments, every eighth case from the fourth on (0/8 begins with the first). All shares together are all cases.
#pragma once

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <functional>
#include <string>

namespace ingot::test {

struct Share {
  int index = 0;
  int count = 1;

  bool has(std::size_t i) const { return static_cast<int>(i % static_cast<std::size_t>(count)) == index; }

  // All cases of one name are in one share. Where the name is a kernel's spec, one process compiles and loads the
  // kernel, and no other waits for it.
  bool has(const std::string& name) const { return has(std::hash<std::string>{}(name)); }

  // How many threads a process may use, so that all processes together keep the cores busy; 0, which is all cores, if
  // there is only one process.
  int threads() const;

  static Share of_arguments();
};

// Deals cases out to the shares round-robin, where each has its own kernels. Every process has to ask about the same
// cases in the same order, so no question may depend on the share.
class Turns {
 public:
  bool mine() { return share_.has(next_++); }

 private:
  Share share_ = Share::of_arguments();
  std::size_t next_ = 0;
};

// A decorator of cases and suites that are not shared: only the first process runs them.
boost::unit_test::precondition once();

}  // namespace ingot::test
