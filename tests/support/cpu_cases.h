// Runs the CPU reference on the ci cases of tests/cases.h, or on those whose turn it is: the fixture of the tests that
// judge its outputs.
#pragma once

#include <boost/test/test_tools.hpp>
#include <boost/test/tools/old/interface.hpp>
#include <boost/test/unit_test_log.hpp>

#include <cstddef>
#include <memory>
#include <string>

#include "cases.h"
#include "ingot/runtime/cpu_backend.h"
#include "support/in_turn.h"
#include "support/run_case.h"

namespace ingot::test {

struct CpuCases {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;

  // Runs the ci cases of one kind of spec; `verify` returns the outputs' first fault, or an empty text.
  template <class Spec, class Verify>
  void run_all(const Verify& verify) {
    const InTurn turns = InTurn::of_environment();
    std::size_t next = 0;
    int faults = 0;
    int run_count = 0;
    for (const Case& c : cases(SizeClass::ci)) {
      const Spec* const spec = std::get_if<Spec>(&c.spec);
      if (spec == nullptr || !turns.has(next++)) continue;
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices outputs = run(c, inputs, *backend, stream);
      std::string fault = damage(outputs);
      if (fault.empty()) fault = verify(*spec, c, inputs, outputs);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
      faults += fault.empty() ? 0 : 1;
      if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
      ++run_count;
    }
    BOOST_TEST(run_count > 0);
    BOOST_TEST_MESSAGE(run_count << " cases");
  }
};

}  // namespace ingot::test
