// Casts on the GPU whose scale_inv of 1x128 groups form a matrix with one row for each group of columns: the CPU's
// bits.
#include "support/gpu_test.h"

#include <memory>
#include <string>

#include "ingot/runtime/context/cpu_backend.h"
#include "support/cast_by_group_case.h"
#include "support/compare.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_by_group_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& cuda = context.backend();
  Stream stream{cuda};
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream{*cpu};
  InputMaker maker;
};

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(casts_write_the_cpus_bits) {
  for (const Case& c : casts_by_group()) {
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices expected = run(c, inputs, *cpu, cpu_stream);
    const Matrices found = run(c, inputs, cuda, stream);
    std::string fault = damage(found);
    for (const auto& [what, output] : found) {
      if (!fault.empty()) break;
      fault = bit_difference(what, expected.at(what), output);
    }
    BOOST_TEST(fault == "", name(c));
  }
}

BOOST_AUTO_TEST_CASE(statistics_read_either_order) {
  Case c{.spec = parse("cast bf16->e4m3fn scale=1x128"), .shape = {.rows = 131, .cols = 300}};
  const SharedMatrices inputs = maker.inputs(c);
  std::vector<std::vector<std::byte>> found;
  for (const bool by_group : {false, true}) {
    c.scale_inv_by_group = by_group;
    PlacedCase placed(c, inputs, cuda, stream);
    placed.enqueue(stream);
    const Buffer stats(cuda, sizeof(CastStats));
    cuda.cast_stats({.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowGroups},
                    {.input = placed.tensor("input"),
                     .codes = placed.tensor("codes"),
                     .scale_inv = placed.tensor("scale_inv"),
                     .stats = vector(stats.data(), Dtype::f32, kCastStatsWords, cuda.device())},
                    stream);
    cuda.device_api().copy_to_host(found.emplace_back(sizeof(CastStats)).data(), stats.data(), sizeof(CastStats),
                                   stream);
  }
  BOOST_TEST((found[0] == found[1]));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
