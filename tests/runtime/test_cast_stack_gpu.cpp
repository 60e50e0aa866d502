// Casts of stacked matrices on the GPU: the bits of casts of each by itself on the CPU, also in a graph.
#include "support/gpu_test.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/cast_stack_case.h"
#include "support/compare.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_stack_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(the_bits_of_casts_of_each, Fixture) {
  std::vector<StackCase> cases = stack_cases();
  const auto add = [&](const CastSpec& spec, bool known) {
    cases.push_back({.spec = spec, .matrices = 9, .rows = 256, .cols = 384, .known = known});
    cases.push_back({.spec = spec, .matrices = 130, .rows = 48, .cols = 129, .padding = 5, .known = known});
    cases.push_back(
        {.spec = spec, .matrices = 3, .rows = 515, .cols = 1032, .padding = 8, .offset = 2, .known = known});
  };
  for (const CastSpec& spec : stacked_specs()) add(spec, false);
  for (const CastSpec& spec : stacked_specs_with_known_maxima()) add(spec, true);
  for (const StackCase& c : cases) {
    const GuardedMatrix input = stack_input(c);
    const auto expected = cast_one_by_one(c, input);
    PlacedStack placed(c, input, backend, stream);
    const auto run = [&] { backend.cast(c.spec, placed.tensors(), stream); };
    const auto check = [&](const char* when) {
      const std::string found = stack_difference(expected, placed.outputs(stream));
      BOOST_CHECK_MESSAGE(found.empty(), describe(c) << ", " << when << ": " << found);
      placed.reset(stream);
    };
    run();
    check("called");
    if (c.matrices * c.rows * c.cols == 0) continue;  // a graph may not be empty
    Graph graph(stream, run);
    for (const char* const when : {"first replay", "second replay"}) {
      graph.replay(stream);
      check(when);
    }
  }
}

// Rows with the maxima of their columns, of every width: a warp to a block, many blocks, the widest, and wider ones
// (which take another pass); more blocks than matrices, and fewer.
BOOST_FIXTURE_TEST_CASE(small_maxima_of_columns, Fixture) {
  const auto spec = [](const char* words) {
    return std::get<CastSpec>(parse(std::string("cast ") + words + " scale=row out=codes,amax:col stacked"));
  };
  std::vector<StackCase> cases;
  for (const std::int64_t cols : {8, 264, 1032, 2048, 4104, 7168, 14336, 24576, 24584}) {
    cases.push_back({.spec = spec("bf16->e4m3fn"), .matrices = 3, .rows = 37, .cols = cols});
  }
  cases.push_back({.spec = spec("bf16->e5m2 pow2"), .matrices = 70, .rows = 3, .cols = 2048, .padding = 8});
  cases.push_back({.spec = spec("f16->e4m3fnuz"), .matrices = 2, .rows = 700, .cols = 520, .padding = 8});
  cases.push_back({.spec = spec("f32->e4m3fn"), .matrices = 2, .rows = 35, .cols = 4096});
  cases.push_back({.spec = spec("f32->e4m3fn rounded=bf16"), .matrices = 2, .rows = 35, .cols = 7168});
  for (const StackCase& c : cases) {
    const GuardedMatrix input = stack_input(c);
    const PlacedStack placed(c, input, backend, stream);
    backend.cast(c.spec, placed.tensors(), stream);
    BOOST_TEST(stack_difference(cast_one_by_one(c, input), placed.outputs(stream)) == "", describe(c));
  }
}

// More than 2^31 elements: matrices of two kinds in turn.
BOOST_FIXTURE_TEST_CASE(offsets_beyond_32_bits, Fixture) {
  constexpr std::int64_t kMatrices = 130;
  constexpr std::int64_t kSize = 4096;
  constexpr auto kElements = static_cast<std::size_t>(kSize * kSize);
  const auto spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row+col out=codes,transposed stacked"));
  DeviceApi& device = backend.device_api();
  const OwnedTensor input(backend, Dtype::bf16, kMatrices * kSize, kSize);
  const OwnedTensor codes(backend, spec.out, kMatrices * kSize, kSize);
  const OwnedTensor transposed(backend, spec.out, kMatrices * kSize, kSize);
  const OwnedTensor scale_inv(backend, Dtype::f32, 1, kMatrices * kSize);
  const OwnedTensor transposed_scale_inv(backend, Dtype::f32, 1, kMatrices * kSize);
  const auto in_matrix = [](const OwnedTensor& of, std::int64_t index, std::size_t bytes) {
    return static_cast<std::byte*>(of.view().data) + static_cast<std::size_t>(index) * bytes;
  };
  const StackCase two{.spec = spec, .matrices = 2, .rows = kSize, .cols = kSize};
  const GuardedMatrix kinds = stack_input(two);
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    device.copy_from_host(in_matrix(input, i, 2 * kElements), kinds.element(i % 2 * kSize, 0), 2 * kElements, stream);
  }
  backend.cast(spec,
               {.input = input,
                .matrices = kMatrices,
                .codes = codes,
                .transposed = transposed,
                .scale_inv = scale_inv,
                .transposed_scale_inv = transposed_scale_inv},
               stream);
  const std::map<std::string, GuardedMatrix> expected = cast_one_by_one(two, kinds);
  for (const std::int64_t i : {0L, 1L, 63L, 64L, 127L, 128L, 129L}) {
    const auto check = [&](const char* name, const OwnedTensor& found, std::int64_t bytes) {
      std::vector<std::byte> actual(static_cast<std::size_t>(bytes));
      device.copy_to_host(actual.data(), in_matrix(found, i, actual.size()), actual.size(), stream);
      const GuardedMatrix& both = expected.at(name);
      const std::byte* const wanted = both.element(0, 0) + i % 2 * bytes;
      BOOST_TEST(std::equal(actual.begin(), actual.end(), wanted), name << " of matrix " << i);
    };
    check("codes", codes, kSize * kSize);
    check("transposed", transposed, kSize * kSize);
    check("scale_inv", scale_inv, kSize * 4);
    check("transposed_scale_inv", transposed_scale_inv, kSize * 4);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
