// Runs the CPU reference on the ci cases of tests/cases.h, or on a fixed part of them: the fixture of the tests that
// judge its outputs.
#pragma once

#include <boost/test/test_tools.hpp>
#include <boost/test/tools/old/interface.hpp>
#include <boost/test/unit_test_log.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/fixed_set.h"
#include "support/run_case.h"

namespace ingot::test {

// Of the cases of CpuCasesOfCi, CI has an eighth.
inline constexpr std::uint32_t kCpuCasesInCi = 8;

struct CpuCases {
  explicit CpuCases(std::uint32_t one_of = 1) : in_ci(one_of) {}

  FixedSet in_ci;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;

  // Runs the ci cases of one kind of spec; `verify` returns the outputs' first fault, or an empty text.
  template <class Spec, class Verify>
  void run_all(const Verify& verify) {
    int faults = 0;
    int run_count = 0;
    for (const Case& c : cases_of_kind<Spec>()) {
      const Spec* const spec = std::get_if<Spec>(&c.spec);
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

 private:
  template <class Spec>
  std::vector<Case> cases_of_kind() const {
    std::vector<Case> all = cases(SizeClass::ci);
    std::erase_if(all, [](const Case& c) { return !std::holds_alternative<Spec>(c.spec); });
    std::vector<NamedCase> named;
    for (const Case& c : all) named.push_back({.name = name(c), .kinds = kinds_of_words(name(c))});
    std::vector<Case> runs;
    for (const std::size_t i : in_ci.of(named)) runs.push_back(all[i]);
    return runs;
  }
};

struct CpuCasesOfCi : CpuCases {
  CpuCasesOfCi() : CpuCases(kCpuCasesInCi) {}
};

}  // namespace ingot::test
