// combine on the GPU: the sums of a loop on the host, to the bit.
#include "support/combine_case.h"

#include "support/gpu_test.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_combine_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  void check(const CombineCase& c) {
    const std::string fault = combine_fault(c, backend, stream);
    BOOST_CHECK_MESSAGE(fault.empty(), describe(c) << ": " << fault);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(small)
BOOST_FIXTURE_TEST_CASE(sums_are_those_of_a_loop, Fixture) {
  for (const CombineCase& c : combine_cases()) check(c);
}
BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_CASE(large_sums_are_those_of_a_loop, Fixture) {
  check({.tokens = 1023, .choices = 8, .rows = 8184, .cols = 7168});
  check({.dtype = Dtype::f32, .tokens = 700, .choices = 2, .rows = 1400, .cols = 4096});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
