// Casts and column sums of experts' rows on the GPU: the bits of casts of each expert's rows by themselves on the CPU,
// and of sums in the order that the template says, also in a graph that takes other ends in each replay.
#include "support/gpu_test.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/cast_experts_case.h"
#include "support/column_sum_experts_case.h"
#include "support/compare.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_experts_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  void expect_right(const ExpertsCastCase& c) {
    const ExpertsCastInputs inputs(c);
    PlacedExpertsCast placed(c, inputs, backend, stream);
    const auto run = [&] { backend.cast(c.spec, placed.tensors(), stream); };
    const auto check = [&](const Ends& ends, const char* when) {
      ExpertsCastCase of = c;
      of.ends = ends;
      const std::string found = experts_difference(expected_of_experts(of, inputs), placed.outputs(stream));
      BOOST_CHECK_MESSAGE(found.empty(), describe(of) << ", " << when << ": " << found);
      placed.reset(stream);
    };
    run();
    check(c.ends, "called");
    if (c.cols == 0 && c.spec.source == ScaleSource::dynamic) return;  // a graph may not be empty
    Graph graph(stream, run);
    const Ends others(c.ends.size(), static_cast<std::int32_t>(c.rows / 2));
    for (const Ends& ends : {c.ends, others, c.ends}) {
      placed.set_ends(ends, stream);
      graph.replay(stream);
      check(ends, "replayed");
    }
  }

  void expect_right(const ExpertsSumCase& c) {
    PlacedExpertsSum placed(c, backend, stream);
    const auto run = [&] { backend.column_sum(c.spec, placed.tensors(), stream); };
    const auto check = [&](const char* when) {
      BOOST_TEST(bit_difference("sum", placed.expected(), placed.sum(stream)) == "", describe(c) << ", " << when);
    };
    run();
    check("called");
    Graph graph(stream, run);
    for (const Ends& ends : {Ends(c.ends.size(), static_cast<std::int32_t>(c.rows / 2)), c.ends}) {
      placed.set_ends(ends, stream);
      graph.replay(stream);
      check("replayed");
    }
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(the_bits_of_each_experts_cast) {
  for (const ExpertsCastCase& c : experts_cast_cases()) expect_right(c);
}

BOOST_AUTO_TEST_CASE(column_sums) {
  for (const ExpertsSumCase& c : experts_sum_cases()) expect_right(c);
}

// Nothing outside of the tensors is read or written: compute-sanitizer sees it.
BOOST_AUTO_TEST_CASE(ends_may_be_wrong) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const CastSpec& spec : experts_cast_specs()) {
    const ExpertsCastCase c{.spec = spec, .ends = {40, 90, 130, 200}, .rows = 200, .cols = 136, .of = 30};
    PlacedExpertsCast placed(c, ExpertsCastInputs(c), backend, stream);
    for (const Ends& ends : {Ends{90, 40, 130, 200},
                             {-5, 40, kMost, 7},
                             {kMost, kMost, kMost, kMost},
                             {-1, -1, -1, -1},
                             {200, 0, 200, 0}}) {
      placed.set_ends(ends, stream);
      backend.cast(spec, placed.tensors(), stream);
      for (const auto& [name, matrix] : placed.outputs(stream)) BOOST_TEST(matrix.damage() == "", name);
    }
  }
  const ExpertsSumCase c{.ends = {40, 90, 130, 200}, .rows = 200, .cols = 136, .of = 30};
  PlacedExpertsSum placed(c, backend, stream);
  for (const Ends& ends : {Ends{90, 40, 130, 200}, {-5, 40, kMost, 7}, {kMost, kMost, kMost, kMost}}) {
    placed.set_ends(ends, stream);
    backend.column_sum(c.spec, placed.tensors(), stream);
    BOOST_TEST(placed.sum(stream).damage() == "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_CASE(large_ones_have_the_bits_of_each_experts_cast, Fixture) {
  for (const CastSpec& spec : experts_cast_specs()) {
    expect_right({.spec = spec, .ends = zipf_ends(2400, 16), .rows = 2400, .cols = 1024, .of = 300});
    expect_right({.spec = spec, .ends = zipf_ends(2390, 512), .rows = 2400, .cols = 264, .of = 300, .by_group = true});
    expect_right({.spec = spec, .ends = zipf_ends(1021, 3), .rows = 1021, .cols = 509, .of = 128, .padding = 3});
  }
}

BOOST_FIXTURE_TEST_CASE(large_column_sums, Fixture) {
  const ColumnSumSpec spec{.experts = true};
  expect_right({.spec = spec, .ends = zipf_ends(2400, 128), .rows = 2400, .cols = 5760, .of = 300});
  expect_right({.spec = spec, .ends = zipf_ends(4096, 4), .rows = 4096, .cols = 2880});
}

// The kernel before writes the ends; the next cast's are others, so that ends that are read too early are the last
// one's. Either ends leave no slot to nobody. With given scales, those ahead may have raised other experts' maxima.
BOOST_FIXTURE_TEST_CASE(ends_are_read_after_the_work_ahead, Fixture) {
  DeviceApi& device = backend.device_api();
  for (const CastSpec& spec : experts_cast_specs()) {
    Ends even, odd;
    for (std::int32_t e = 1; e <= 16; ++e) {
      even.push_back(135 * e);
      odd.push_back(7 * e + 256 * ((e + 1) / 2));
    }
    ExpertsCastCase c{.spec = spec, .ends = even, .rows = 135 * 16 + 8, .cols = 512, .of = 256};
    const ExpertsCastInputs inputs(c);
    PlacedExpertsCast placed(c, inputs, backend, stream);
    const CastOutputs of_even = expected_of_experts(c, inputs);
    c.ends = odd;
    const CastOutputs expected[] = {of_even, expected_of_experts(c, inputs)};
    const std::size_t bytes = even.size() * sizeof(std::int32_t);
    Buffer both[] = {Buffer(backend, bytes), Buffer(backend, bytes)};
    device.copy_from_host(both[0].data(), even.data(), bytes, stream);
    device.copy_from_host(both[1].data(), odd.data(), bytes, stream);
    // A copy by a kernel, which casts may overlap: columns of f32, as one row.
    const auto copy = std::get<ElementwiseSpec>(parse("elementwise f32 of=x"));
    const auto ends_of = [&](const void* data) {
      return vector(const_cast<void*>(data), Dtype::f32, static_cast<std::int64_t>(even.size()), backend.device());
    };
    for (int i = 0; i < 20; ++i) {
      backend.elementwise(copy, {.input = ends_of(both[i % 2].data()), .output = ends_of(placed.tensors().ends.data)},
                          stream);
      backend.cast(spec, placed.tensors(), stream);
      if (i % 5 != 4) continue;
      const std::string found = experts_difference(expected[i % 2], placed.outputs(stream));
      BOOST_CHECK_MESSAGE(found.empty(), describe(c) << ": " << found);
      placed.reset(stream);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
