#include "support/gemm_on_gpu.h"

#include <boost/test/unit_test.hpp>

namespace ingot::test {

double GemmOnGpu::tolerance(const GemmSpec& spec) {
  if (spec.out == Dtype::bf16) return 0x1p-8;
  return spec.fast_accumulation ? 5e-3 : 1e-3;
}

void GemmOnGpu::expect_right(const Case& c) {
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
    fault = bit_difference("scale_inv row by row", run(by_row, inputs, cuda, stream).at("out"), outputs.at("out"));
  }
  count(c, fault);
}

void GemmOnGpu::count(const Case& c, const std::string& fault) {
  BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
  faults += fault.empty() ? 0 : 1;
  if (faults == 10) BOOST_FAIL("10 cases have failed; the rest is not run");
  ++run_count;
}

std::string GemmOnGpu::refusal(const Case& c) {
  PlacedCase placed(c, maker.inputs(c), cuda, stream);
  const std::int64_t launches = cuda.device_api().launches();
  std::string message = error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument);
  BOOST_TEST(cuda.device_api().launches() == launches);
  return message;
}

}  // namespace ingot::test
