// Casts of gathered rows: what is refused, and that they have the bits of casts of copies of the rows.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/cast_gather_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_gather)

BOOST_AUTO_TEST_CASE(rows_are_cast_as_copies_of_them) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const GatherCase& c : gather_cases()) {
    const GuardedMatrix input = gather_input(c);
    const std::vector<std::int32_t> index = gather_index(c);
    const PlacedGather placed(c, input, index, *backend, stream);
    backend->cast(c.spec, placed.tensors(), stream);
    BOOST_TEST(gather_difference(cast_of_copies(c, input, index), placed.outputs(stream)) == "", describe(c));
  }
}

// The largest element of all is in a row that nobody takes.
BOOST_AUTO_TEST_CASE(scales_are_those_of_all_rows) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GatherCase c{.spec = {.gathered = true}, .of = 3, .rows = 2, .cols = 8};
  GuardedMatrix input = gather_input(c);
  input.set_bits(1, 5, 0x4700);  // 32768
  for (const ScaleGranularity scale : {kTensorwise, kColumnwise, kRowwise}) {
    c.spec.scale = scale;
    const PlacedGather placed(c, input, {0, 2}, *backend, stream);
    backend->cast(c.spec, placed.tensors(), stream);
    const GuardedMatrix scale_inv = placed.outputs(stream).at("scale_inv");
    if (scale == kRowwise) {
      BOOST_TEST((scale_inv.value(0, 0) < 1.0 && scale_inv.value(0, 1) < 1.0));
    } else {
      const float scale_of = 448.0F / 32768.0F;
      BOOST_TEST(scale_inv.value(0, scale == kTensorwise ? 0 : 5) == static_cast<double>(1.0F / scale_of));
    }
  }
}

// What stands for a row that is none is unspecified; nothing else changes, and nothing outside is read.
BOOST_AUTO_TEST_CASE(an_index_may_be_wrong) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  GatherCase c{.of = 9, .rows = 20, .cols = 24};
  c.spec = {.transposed = true, .transposed_scale = kColumnwise, .gathered = true};
  c.spec.scale = kRowwise;
  const GuardedMatrix input = gather_input(c);
  std::vector<std::int32_t> index = gather_index(c);
  const GatherOutputs right = cast_of_copies(c, input, index);
  index[3] = -1;
  index[4] = 9;
  index[7] = std::numeric_limits<std::int32_t>::max();
  index[8] = std::numeric_limits<std::int32_t>::min();
  const PlacedGather placed(c, input, index, *backend, stream);
  backend->cast(c.spec, placed.tensors(), stream);
  const GatherOutputs found = placed.outputs(stream);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    if (r == 3 || r == 4 || r == 7 || r == 8) continue;
    BOOST_TEST(found.at("scale_inv").bits(0, r) == right.at("scale_inv").bits(0, r), r);
    for (std::int64_t col = 0; col < c.cols; ++col) {
      BOOST_TEST(found.at("codes").bits(r, col) == right.at("codes").bits(r, col));
      BOOST_TEST(found.at("transposed").bits(col, r) == right.at("transposed").bits(col, r));
    }
  }
  for (const auto& [name, matrix] : found) BOOST_TEST(matrix.damage() == "", name);
}

namespace {

struct Fixture {
  DryRun dry{gpu_named("h200")};
  Backend& backend = dry.backend();
  Stream stream{backend};
  GatherCase c{.spec = {.codes = true, .transposed = true, .gathered = true}, .of = 5, .rows = 12, .cols = 8};

  std::string refusal(const std::function<void(CastSpec&, CastTensors&)>& change,
                      ErrorCode code = ErrorCode::invalid_argument) {
    const PlacedGather placed(c, gather_input(c), gather_index(c), backend, stream);
    CastSpec spec = c.spec;
    CastTensors tensors = placed.tensors();
    change(spec, tensors);
    return error_of([&] { backend.cast(spec, tensors, stream); }, code);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(refusals, Fixture)

BOOST_AUTO_TEST_CASE(indices) {
  check_contains(refusal([](CastSpec& spec, CastTensors&) { spec.gathered = false; }),
                 {"cast row_index: has 12 rows; it must not be given (a default RowIndex instead): the spec gathers "
                  "none"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.row_index.rows = -1; }),
                 {"cast row_index: has -1 rows; it must have 0 to 1152921504606846976"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.row_index.data = nullptr; }),
                 {"cast row_index: has a null data pointer; it must be 12 int32, one for each row"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.row_index.device = {}; }),
                 {"cast row_index: is on cpu; this backend works on cuda:0: copy it there"});
  check_contains(refusal([](CastSpec&, CastTensors& t) {
                   t.row_index.data =
                       reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(t.row_index.data) + 2);
                 }),
                 {"cast row_index: has a data pointer", "that is misaligned: it must be a multiple of 4 bytes"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.input.rows = 0; }),
                 {"cast row_index: has 12 rows, but the matrix has none"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.row_index = {}; }),
                 {"cast codes: is e4m3fn[12, 8]", "it must be [0, 8]: the rows of the index"});
}

BOOST_AUTO_TEST_CASE(shapes_of_outputs) {
  check_contains(
      refusal([](CastSpec&, CastTensors& t) { t.codes.rows = 5; }),
      {"cast codes: is e4m3fn[5, 8]", "it must be [12, 8]: the rows of the index, the columns of the input"});
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.transposed = {}; }),
                 {"cast transposed: is missing; it must be e4m3fn[8, 12]: the columns of the input, the rows of the "
                  "index"});
  check_contains(
      refusal([](CastSpec&, CastTensors& t) { t.scale_inv.data = const_cast<std::int32_t*>(t.row_index.data); }),
      {"cast scale_inv", "its memory overlaps that of cast row_index, which is u8[1, 48]"});
  c.spec.scale = kRowwise;
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.scale_inv.cols = t.scale_inv.row_stride = 5; }),
                 {"cast scale_inv: is f32[1, 5]", "it must be [1, 12]: one for each row of the index"});
}

BOOST_AUTO_TEST_CASE(known_maxima) {
  check_contains(refusal([](CastSpec&, CastTensors& t) { t.known_amax = t.scale_inv; }),
                 {"cast known_amax", "gathered rows", "do not take it"});
}

BOOST_AUTO_TEST_CASE(specs) {
  check_contains(
      refusal([](CastSpec& spec, CastTensors&) { spec.source = ScaleSource::given; }, ErrorCode::invalid_spec),
      {"gathered is set, but gathered rows have no given scales: let them be dynamic"});
  const CastSpec spec = c.spec;
  check_contains(error_of([&] { backend.make_cast_list(spec, {}, stream); }, ErrorCode::invalid_spec),
                 {"gathered is set, but the matrices of a list have no index: leave one of them out"});
}

BOOST_AUTO_TEST_SUITE_END()

// The pass for the maxima of the input, if there is one, and that of the codes; nothing is waited for, so they may be
// captured.
BOOST_FIXTURE_TEST_CASE(launches, Fixture) {
  const auto launches_of = [&](const char* words, std::int64_t of, std::int64_t rows) {
    c = {.spec = std::get<CastSpec>(parse(std::string("cast bf16->e4m3fn gathered ") + words)),
         .of = of,
         .rows = rows,
         .cols = 128};
    const PlacedGather placed(c, gather_input(c), gather_index(c), backend, stream);
    const auto run = [&] { backend.cast(c.spec, placed.tensors(), stream); };
    const std::int64_t before = backend.device_api().launches();
    run();
    const std::int64_t launched = backend.device_api().launches() - before;
    const Graph graph(stream, run);
    BOOST_TEST(backend.device_api().launches() - before == 2 * launched, words);
    return launched;
  };
  BOOST_TEST(launches_of("scale=tensor out=codes,transposed", 100, 800) == 2);
  BOOST_TEST(launches_of("scale=row+col out=codes,transposed", 100, 800) == 2);
  BOOST_TEST(launches_of("scale=row out=codes,transposed", 100, 30) == 2);
  BOOST_TEST(launches_of("scale=row out=codes", 100, 800) == 1);
  BOOST_TEST(launches_of("scale=1x128+128x1 out=codes,transposed", 100, 800) == 1);
  BOOST_TEST(launches_of("scale=row+col out=codes,transposed", 100, 0) == 2);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
