// Casts of gathered rows on the GPU: the bits of plain casts of copies of the rows on the CPU, also in a graph.
#include "support/gpu_test.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/cast_gather_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_gather_gpu)

namespace {

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  void expect_bits_of_copies(const GatherCase& c) {
    const GuardedMatrix input = gather_input(c);
    const std::vector<std::int32_t> index = gather_index(c);
    const GatherOutputs expected = cast_of_copies(c, input, index);
    PlacedGather placed(c, input, index, backend, stream);
    const auto run = [&] { backend.cast(c.spec, placed.tensors(), stream); };
    const auto check = [&](const char* when) {
      const std::string found = gather_difference(expected, placed.outputs(stream));
      BOOST_CHECK_MESSAGE(found.empty(), describe(c) << ", " << when << ": " << found);
      placed.reset(stream);
    };
    run();
    check("called");
    if (c.of == 0 || c.rows == 0 || c.cols == 0) return;  // a graph may not be empty
    Graph graph(stream, run);
    for (const char* const when : {"first replay", "second replay"}) {
      graph.replay(stream);
      check(when);
    }
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(the_bits_of_casts_of_copies) {
  for (const GatherCase& c : gather_cases()) expect_bits_of_copies(c);
}

// Nothing outside of the input is read: compute-sanitizer sees it.
BOOST_AUTO_TEST_CASE(an_index_may_be_wrong) {
  for (const CastSpec& spec : gathered_specs()) {
    const GatherCase c{.spec = spec, .of = 9, .rows = 200, .cols = 136};
    std::vector<std::int32_t> index = gather_index(c);
    index[3] = -1;
    index[50] = 9;
    index[130] = std::numeric_limits<std::int32_t>::max();
    index[199] = std::numeric_limits<std::int32_t>::min();
    const PlacedGather placed(c, gather_input(c), index, backend, stream);
    backend.cast(spec, placed.tensors(), stream);
    for (const auto& [name, matrix] : placed.outputs(stream)) BOOST_TEST(matrix.damage() == "", name);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_CASE(large_ones_have_the_bits_of_casts_of_copies, Fixture) {
  for (const CastSpec& spec : gathered_specs()) {
    expect_bits_of_copies({.spec = spec, .of = 300, .rows = 2400, .cols = 1024});
    expect_bits_of_copies({.spec = spec, .of = 1000, .rows = 515, .cols = 1032, .padding = 8, .offset = 2});
    expect_bits_of_copies({.spec = spec, .of = 128, .rows = 1021, .cols = 509});
  }
}

// The kernel before writes the index and the input; the next cast's index is another, so that one that is read too
// early is the last one's.
BOOST_FIXTURE_TEST_CASE(the_index_is_read_after_the_work_ahead, Fixture) {
  DeviceApi& device = backend.device_api();
  for (const CastSpec& spec : gathered_specs()) {
    const GatherCase c{.spec = spec, .of = 256, .rows = 2048, .cols = 512};
    const GuardedMatrix input = gather_input(c);
    const std::vector<std::int32_t> first = gather_index(c);
    const std::vector<std::int32_t> second(first.rbegin(), first.rend());
    const GatherOutputs expected[] = {cast_of_copies(c, input, first), cast_of_copies(c, input, second)};
    PlacedGather placed(c, input, first, backend, stream);
    const std::size_t bytes = first.size() * sizeof(std::int32_t);
    Buffer both[] = {Buffer(backend, bytes), Buffer(backend, bytes)};
    device.copy_from_host(both[0].data(), first.data(), bytes, stream);
    device.copy_from_host(both[1].data(), second.data(), bytes, stream);
    // A copy by a kernel, which casts may overlap: columns of f32, as one row.
    const auto copy = std::get<ElementwiseSpec>(parse("elementwise f32 of=x"));
    const auto index_of = [&](const void* data) {
      return vector(const_cast<void*>(data), Dtype::f32, c.rows, backend.device());
    };
    for (int i = 0; i < 20; ++i) {
      backend.elementwise(
          copy, {.input = index_of(both[i % 2].data()), .output = index_of(placed.tensors().row_index.data)}, stream);
      backend.cast(spec, placed.tensors(), stream);
      if (i % 5 != 4) continue;
      const std::string found = gather_difference(expected[i % 2], placed.outputs(stream));
      BOOST_CHECK_MESSAGE(found.empty(), describe(c) << ": " << found);
      placed.reset(stream);
    }
  }
}

// Offsets beyond 2^31 elements, of the codes and of the input: rows of two kinds in turn.
BOOST_FIXTURE_TEST_CASE(offsets_beyond_32_bits, Fixture) {
  constexpr std::int64_t kCols = 4096;
  constexpr std::int64_t kRows = 600000;
  const auto spec = std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row+col out=codes,transposed gathered"));
  DeviceApi& device = backend.device_api();
  const GatherCase two{.spec = spec, .of = 2, .rows = 2, .cols = kCols};
  const GuardedMatrix kinds = gather_input(two);
  const OwnedTensor input(backend, Dtype::bf16, kRows, kCols);
  const OwnedTensor codes(backend, spec.out, kRows, kCols);
  const OwnedTensor transposed(backend, spec.out, kCols, kRows);
  const OwnedTensor scale_inv(backend, Dtype::f32, 1, kRows);
  const OwnedTensor transposed_scale_inv(backend, Dtype::f32, 1, kCols);
  Buffer index(backend, kRows * sizeof(std::int32_t));
  constexpr std::int64_t kAtOnce = 6000;
  std::vector<std::byte> some(static_cast<std::size_t>(kAtOnce) * kinds.row_bytes());
  for (std::int64_t r = 0; r < kAtOnce; ++r) {
    std::memcpy(some.data() + static_cast<std::size_t>(r) * kinds.row_bytes(), kinds.element(r % 2, 0),
                kinds.row_bytes());
  }
  for (std::int64_t first = 0; first < kRows; first += kAtOnce) {
    auto* const to = static_cast<std::byte*>(input.view().data) + static_cast<std::size_t>(first) * kinds.row_bytes();
    device.copy_from_host(to, some.data(), some.size(), stream);
  }
  std::vector<std::int32_t> rows(kRows);
  for (std::int64_t r = 0; r < kRows; ++r) {
    rows[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(kRows - 1 - r);
  }
  device.copy_from_host(index.data(), rows.data(), rows.size() * sizeof(rows[0]), stream);
  backend.cast(spec,
               {.input = input,
                .row_index = {static_cast<const std::int32_t*>(index.data()), kRows, backend.device()},
                .codes = codes,
                .transposed = transposed,
                .scale_inv = scale_inv,
                .transposed_scale_inv = transposed_scale_inv},
               stream);
  const GatherOutputs expected = cast_of_copies(two, kinds, {1, 0});
  std::vector<std::byte> found(static_cast<std::size_t>(kRows * kCols));
  device.copy_to_host(found.data(), codes.view().data, found.size(), stream);
  for (const std::int64_t r : {0L, 1L, 262143L, 262144L, 524287L, 524288L, kRows - 2, kRows - 1}) {
    const std::byte* const row = found.data() + r * kCols;
    BOOST_TEST(std::equal(row, row + kCols, expected.at("codes").element(r % 2, 0)), r);
  }
  device.copy_to_host(found.data(), transposed.view().data, found.size(), stream);
  for (const std::int64_t col : {0L, 1L, 3578L, 3579L, kCols - 1}) {
    for (const std::int64_t r : {0L, 1L, 300000L, kRows - 1}) {
      BOOST_TEST((found[static_cast<std::size_t>(col * kRows + r)] == *expected.at("transposed").element(col, r % 2)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
