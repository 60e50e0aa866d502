// combine on the CPU, and what is refused.
#include <boost/test/unit_test.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "support/combine_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_combine)

BOOST_AUTO_TEST_CASE(sums_are_those_of_a_loop) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const CombineCase& c : combine_cases()) BOOST_TEST(combine_fault(c, *backend, stream) == "", describe(c));
}

BOOST_AUTO_TEST_CASE(refusals) {
  DryRun dry{gpu_named("h200")};
  Stream stream(dry.backend());
  std::array<float, 64> memory{};
  std::array<std::int32_t, 6> index{};
  const Device gpu = dry.backend().device();
  const auto refusal = [&](const std::function<void(CombineTensors&)>& change) {
    CombineTensors tensors{.input = matrix(memory.data(), Dtype::f32, 4, 8, gpu),
                           .index = {.data = index.data(), .rows = 6, .device = gpu},
                           .output = matrix(memory.data() + 32, Dtype::f32, 3, 8, gpu)};
    change(tensors);
    return error_of([&] { dry.backend().combine({.in = Dtype::f32}, tensors, stream); }, ErrorCode::invalid_argument);
  };
  check_contains(refusal([](CombineTensors& t) { t.input.dtype = Dtype::bf16; }),
                 {"combine input: is bf16[4, 8] on cuda:0; the spec asks for f32"});
  check_contains(refusal([](CombineTensors& t) { t.output.cols = 7; }),
                 {"combine output: is f32[3, 7] on cuda:0, row stride 8; it must have 8 columns, as the input"});
  check_contains(refusal([](CombineTensors& t) { t.index.rows = 7; }),
                 {"combine index: has 7 rows, but must have as many for each of the output's 3 rows"});
  check_contains(refusal([](CombineTensors& t) { t.index.rows = -3; }), {"combine index: has -3 rows; it must have 0"});
  check_contains(refusal([](CombineTensors& t) { t.index.data = nullptr; }),
                 {"combine index: has a null data pointer; it must be 6 int32, one for each row"});
  check_contains(refusal([](CombineTensors& t) { t.index.device = {}; }),
                 {"combine index: is on cpu; this backend works on cuda:0: copy it there"});
  check_contains(refusal([&](CombineTensors& t) { t.output.data = index.data(); }),
                 {"its memory overlaps that of combine index"});
  check_contains(refusal([](CombineTensors& t) { t.output.data = t.input.data; }),
                 {"its memory overlaps that of combine input"});
  CombineTensors good{.input = matrix(memory.data(), Dtype::f32, 4, 8, gpu),
                      .index = {.data = index.data(), .rows = 6, .device = gpu},
                      .output = matrix(memory.data() + 32, Dtype::f32, 3, 8, gpu)};
  dry.backend().combine({.in = Dtype::f32}, good, stream);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
