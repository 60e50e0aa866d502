// Runs a tensor-core GEMM on a GPU through Backend::gemm, on poisoned outputs, and compares them with float64: exactly,
// if the inputs are small integers. The bytes around the outputs must stay untouched, and a second run must give the
// same bits.
#pragma once

#include <iostream>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/util/error.h"
#include "support/compare.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {

struct GemmOnGpu {
  Context& used;
  Backend& cuda = used.backend();
  Stream stream{cuda};
  InputMaker maker;
  GemmReference reference;
  int run_count = 0;
  int faults = 0;

  explicit GemmOnGpu(Context& context) : used(context) {}
  ~GemmOnGpu() { std::cout << run_count << " cases\n"; }

  // targets: bf16's own rounding is 1.7e-3, the tensor cores' short sums 2.6e-3.
  static double tolerance(const GemmSpec& spec);

  void expect_right(const Case& c);

  void count(const Case& c, const std::string& fault);

  // The message of a call that must be refused before anything is launched.
  std::string refusal(const Case& c);

  void compile(const std::vector<KernelSpec>& specs) { warm(used.cache(), specs, used.cache().target(), 0); }
};

}  // namespace ingot::test
