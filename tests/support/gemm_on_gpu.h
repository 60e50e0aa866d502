// A tensor-core GEMM on a GPU, through Backend::gemm: compared with float64, exactly if the inputs are small integers;
// outputs poisoned, the bytes around them untouched; the same bits a second time. Include it after support/gpu_test.h.
#pragma once

#include <iostream>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
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
  static double tolerance(const GemmSpec& spec) {
    if (spec.out == Dtype::bf16) return 0x1p-8;
    return spec.fast_accumulation ? 5e-3 : 1e-3;
  }

  void expect_right(const Case& c) {
    const GemmSpec& spec = std::get<GemmSpec>(c.spec);
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, cuda, stream);
    const bool exact = c.input == Input::integers;
    std::string fault = damage(outputs);
    if (fault.empty()) {
      const Expected expected = reference(spec, c.shape, inputs, exact);
      fault = exact ? value_difference("out", expected, outputs.at("out"))
                    : norm_difference("out", expected, outputs.at("out"), tolerance(spec));
    }
    if (fault.empty()) fault = bit_difference("again", outputs.at("out"), run(c, inputs, cuda, stream).at("out"));
    if (fault.empty() && (c.a_by_group || c.b_by_group)) {
      Case by_row = c;
      by_row.a_by_group = by_row.b_by_group = false;
      fault = bit_difference("factors row by row", run(by_row, inputs, cuda, stream).at("out"), outputs.at("out"));
    }
    count(c, fault);
  }

  void count(const Case& c, const std::string& fault) {
    BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    faults += fault.empty() ? 0 : 1;
    if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
    ++run_count;
  }

  // The message of a call that must be refused before anything is launched.
  std::string refusal(const Case& c) {
    PlacedCase placed(c, maker.inputs(c), cuda, stream);
    const std::int64_t launches = cuda.launches();
    std::string message = error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument);
    BOOST_TEST(cuda.launches() == launches);
    return message;
  }

  void compile(const std::vector<KernelSpec>& specs) { used.cache().warm(specs, used.cache().target(), 0); }
};

}  // namespace ingot::test
