// cast_list(): its refusals, and that each cast in a list gives the same result as by itself.
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/jit/recorder.h"
#include "support/cast_list_case.h"
#include "support/expect_error.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_cast_list)

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  CastSpec spec{.transposed = true};
  ListedCast a = listed_cast(spec, 16, 32, stream);
  ListedCast b = listed_cast(spec, 8, 16, stream);

  std::string refusal(const CastSpec& which, const std::vector<CastTensors>& tensors,
                      ErrorCode code = ErrorCode::invalid_argument) {
    return error_of([&] { backend->make_cast_list(which, tensors, stream); }, code);
  }
};

BOOST_FIXTURE_TEST_SUITE(cast_list, Fixture)

BOOST_AUTO_TEST_CASE(each_cast_is_what_it_is_alone) {
  for (const CastSpec& one : listed_specs()) BOOST_TEST(list_difference(one, *backend, stream) == "", print(one));
}

BOOST_AUTO_TEST_CASE(an_empty_list_runs) {
  const auto list = backend->make_cast_list(spec, {}, stream);
  list->run(stream);
}

BOOST_AUTO_TEST_CASE(the_spec_may_say_so) {
  spec.list = true;
  const std::vector<CastTensors> tensors{a.tensors, b.tensors};
  backend->make_cast_list(spec, tensors, stream)->run(stream);
}

BOOST_AUTO_TEST_CASE(a_single_cast_refuses_the_spec_of_a_list) {
  spec.list = true;
  check_contains(error_of([&] { backend->cast(spec, a.tensors, stream); }, ErrorCode::invalid_argument),
                 {"out=codes,transposed list", "this is the spec of a list: make one with make_cast_list()"});
}

BOOST_AUTO_TEST_CASE(column_sums_are_refused) {
  spec.sum = Dtype::f32;
  check_contains(refusal(spec, {a.tensors}, ErrorCode::invalid_spec),
                 {"sum is set, but a list of casts has no column sums: cast that matrix alone"});
}

BOOST_AUTO_TEST_CASE(a_bad_cast_is_named) {
  b.tensors.codes = Tensor{};
  check_contains(refusal(spec, {a.tensors, b.tensors}), {"cast 1 of 2 of a list", "cast codes"});
}

BOOST_AUTO_TEST_CASE(outputs_overlap_nothing_of_another_cast) {
  CastTensors other = b.tensors;
  other.codes = matrix(a.tensors.codes.data, spec.out, 8, 16, backend->device());
  check_contains(refusal(spec, {a.tensors, other}),
                 {"codes of cast 1", "its memory overlaps that of the codes of cast 0", "its own memory"});
  other = b.tensors;
  other.scale_inv = vector(a.tensors.input.data, Dtype::f32, 1, backend->device());
  check_contains(refusal(spec, {other, a.tensors}), {"scale_inv of cast 0", "overlaps that of the input of cast 1"});
}

// Wherever tensors are: as often as a comparison of all pairs finds an overlap.
BOOST_AUTO_TEST_CASE(overlaps_are_found_among_many) {
  struct Span {
    std::int64_t begin, end;
    bool output;
    int cast;
    bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
  };
  std::vector<float> arena(1024);
  std::mt19937 random(1);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  const CastSpec codes_alone{};
  int refused = 0;
  constexpr int kLists = 300;
  for (int trial = 0; trial < kLists; ++trial) {
    std::vector<Span> all;
    std::vector<CastTensors> tensors;
    bool expected = false;
    while (tensors.size() < 5) {
      const std::int64_t n = 1 + below(trial % 2 == 0 ? 20 : 300);
      std::vector<Span> own;
      for (const std::int64_t bytes : {2 * n, n, std::int64_t{4}}) {
        const std::int64_t begin = 4 * below(4096 / 4 - bytes / 4 - 1);
        own.push_back({begin, begin + bytes, !own.empty(), static_cast<int>(tensors.size())});
      }
      if (own[0].meets(own[1]) || own[0].meets(own[2]) || own[1].meets(own[2])) continue;
      for (const Span& mine : own) {
        for (const Span& other : all) expected = expected || (mine.meets(other) && (mine.output || other.output));
      }
      all.insert(all.end(), own.begin(), own.end());
      const auto at = [&](const Span& span) { return reinterpret_cast<std::byte*>(arena.data()) + span.begin; };
      tensors.push_back({.input = matrix(at(own[0]), codes_alone.in, 1, n, backend->device()),
                         .codes = matrix(at(own[1]), codes_alone.out, 1, n, backend->device()),
                         .scale_inv = vector(at(own[2]), Dtype::f32, 1, backend->device())});
    }
    const std::string found = refusal(codes_alone, tensors);
    BOOST_TEST((found != "nothing thrown") == expected, "list " << trial << ": " << found);
    refused += expected ? 1 : 0;
  }
  BOOST_TEST((refused > kLists / 10 && refused < kLists * 9 / 10));
}

BOOST_AUTO_TEST_CASE(inputs_may_be_shared) {
  const ListedCast own = listed_cast(spec, 16, 32, stream);
  CastTensors other = own.tensors;
  other.input = a.tensors.input;
  backend->make_cast_list(spec, std::vector<CastTensors>{a.tensors, other}, stream)->run(stream);
  BOOST_TEST((bytes_of(a.tensors.codes, stream) == bytes_of(other.codes, stream)));
}

// A GPU asks for the list's kernel and for no other.
BOOST_AUTO_TEST_CASE(a_list_is_recorded_as_a_list_alone) {
  Recorder recorder;
  const std::unique_ptr<Backend> recorded = make_cpu_backend(1, &recorder);
  Stream its_stream(*recorded);
  const ListedCast one = listed_cast(spec, 16, 32, its_stream);
  recorded->make_cast_list(spec, std::vector<CastTensors>{one.tensors}, its_stream)->run(its_stream);
  CastSpec of_list = spec;
  of_list.list = true;
  BOOST_TEST((recorder.recording().kernels() == std::vector<KernelSpec>{of_list}));
}

BOOST_AUTO_TEST_CASE(another_backends_stream_is_refused) {
  const std::unique_ptr<Backend> second = make_cpu_backend();
  Stream foreign(*second);
  const auto list = backend->make_cast_list(spec, std::vector<CastTensors>{a.tensors}, stream);
  check_contains(error_of([&] { list->run(foreign); }, ErrorCode::invalid_argument),
                 {"belongs to another Context's backend"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
