// Casts whose amax is known already have the bits of those that look for it, on the GPU.
#include "support/gpu_test.h"

#include <string>

#include "ingot/runtime/context/context.h"
#include "support/known_amax.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_known_amax_gpu)

BOOST_AUTO_TEST_CASE(gives_the_bits_of_a_cast_that_looks_for_it) {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  InputMaker maker;
  for (const CastSpec& spec : casts_that_take_an_amax()) {
    std::vector<Case> all = known_amax_cases(spec);
    all.push_back({.spec = spec, .shape = {4096, 4096}});
    all.push_back({.spec = spec, .shape = {3001, 1037}});
    for (const Case& c : all) {
      const std::string fault = known_amax_fault(c, maker.inputs(c), cuda, stream);
      BOOST_CHECK_MESSAGE(fault.empty(), name(c) << ": " << fault);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
