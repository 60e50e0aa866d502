// templates/gemm/gemm_sm90_pair.cuh on a Hopper GPU, through Backend::gemm_pair: both results have the bits of
// Backend::gemm with the same kernel and tiling, the bytes around them stay untouched, and a second run gives the same
// bits. (test_gemm_sm90_gpu.cpp compares that kernel with float64.) On other GPUs the tests are skipped.
//
// Suites for --run_test: small (for compute-sanitizer), pairs, library.
#include "support/gpu_test.h"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/graph.h"
#include "support/expect_error.h"
#include "support/gemm_on_gpu.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_pair_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

GemmSpec spec_of(const std::string& line) { return std::get<GemmSpec>(parse("gemm " + line)); }

// The operands of the two GEMMs of a layer's gradients.
using Kinds = std::pair<GemmSpec, GemmSpec>;
std::vector<Kinds> every_kind() {
  return {{spec_of("bf16*bf16->bf16 nn"), spec_of("bf16*bf16->bf16 tn")},
          {spec_of("f16*f16->f16 nn"), spec_of("f16*f16->f32 tn c=f32")},
          {spec_of("e5m2*e4m3fn->bf16 nt scale=tensor,tensor"), spec_of("e5m2*e4m3fn->bf16 nt scale=tensor,tensor")},
          {spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,row fast"), spec_of("e4m3fn*e4m3fn->f32 nt scale=row,row c=f32")},
          {spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"), spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128")},
          {spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,tensor"), spec_of("bf16*bf16->bf16 tn c=bf16")}};
}

struct Fixture : GemmOnGpu {
  Fixture() : GemmOnGpu(context()) {
    BOOST_REQUIRE_MESSAGE(context().cache().target() == target_for(9, 0), "this GPU is no Hopper");
  }

  void expect_bits_of_gemm(const Case& first, const Case& second) {
    PlacedCase a(first, maker.inputs(first), cuda, stream);
    PlacedCase b(second, maker.inputs(second), cuda, stream);
    a.enqueue(stream);
    b.enqueue(stream);
    const Matrices expected_a = a.outputs(stream);
    const Matrices expected_b = b.outputs(stream);
    std::string fault = damage(expected_a) + damage(expected_b);
    for (int run = 0; run < 2 && fault.empty(); ++run) {
      a.poison(stream);
      b.poison(stream);
      const std::int64_t launches = cuda.device_api().launches();
      cuda.gemm_pair(a.gemm(), b.gemm(), stream);
      if (cuda.device_api().launches() != launches + 1) fault = "was not one launch";
      const Matrices found_a = a.outputs(stream);
      const Matrices found_b = b.outputs(stream);
      if (fault.empty()) fault = damage(found_a) + damage(found_b);
      if (fault.empty()) fault = bit_difference("first", expected_a.at("out"), found_a.at("out"));
      if (fault.empty()) fault = bit_difference("second", expected_b.at("out"), found_b.at("out"));
    }
    count(first, fault);
  }

  void expect_near(const Case& first, const Case& second, bool one_launch) {
    PlacedCase a(first, maker.inputs(first), cuda, stream);
    PlacedCase b(second, maker.inputs(second), cuda, stream);
    const std::int64_t launches = cuda.device_api().launches();
    cuda.gemm_pair(a.gemm(), b.gemm(), stream);
    BOOST_TEST((cuda.device_api().launches() == launches + 1) == one_launch);
    for (const auto& [of, placed] : {std::pair{&first, &a}, std::pair{&second, &b}}) {
      const auto& spec = std::get<GemmSpec>(of->spec);
      const Matrices found = placed->outputs(stream);
      std::string fault = damage(found);
      if (fault.empty()) {
        const Expected expected = reference(spec, of->shape, maker.inputs(*of), false);
        fault = norm_difference("out", expected, found.at("out"), tolerance(spec));
      }
      count(*of, fault);
    }
  }
};

// A layer's size: tokens, input and output features.
struct LayerSize {
  std::int64_t tokens, in, out;
};

// Both GEMMs may get equal values; the tests do not depend on it.
std::pair<Case, Case> cases_of(const Kinds& kinds, const LayerSize& s, bool by_group = false) {
  const bool groups = by_group && has_group_scale_inv(kinds.first);
  return {{.spec = kinds.first, .shape = {s.tokens, s.in, s.out}, .a_by_group = groups, .b_by_group = groups},
          {.spec = kinds.second, .shape = {s.out, s.in, s.tokens}, .a_by_group = groups, .b_by_group = groups}};
}

void expect_bits(Fixture& on, const Kinds& kinds, const LayerSize& size) {
  for (const bool by_group : {false, true}) {
    if (by_group && !has_group_scale_inv(kinds.first)) continue;
    const auto [first, second] = cases_of(kinds, size, by_group);
    on.expect_bits_of_gemm(first, second);
  }
}

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

// Ragged tiles, and one half with far more of them than the other.
BOOST_AUTO_TEST_CASE(of_each_kind) {
  for (const Kinds& kinds : every_kind()) {
    expect_bits(*this, {pair_halves(kinds.first).front(), pair_halves(kinds.second).back()}, {144, 272, 400});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(pairs, Fixture)

// Every tiling with every other one. Sizes: one tile; ragged ones; more tiles than half of the multiprocessors have
// blocks, in both, in the first and in the second.
BOOST_AUTO_TEST_CASE(every_tiling) {
  for (const Kinds& kinds : every_kind()) {
    std::vector<KernelSpec> specs;
    for (const GemmSpec& first : pair_halves(kinds.first)) {
      for (const GemmSpec& second : pair_halves(kinds.second)) specs.emplace_back(GemmPairSpec{first, second});
    }
    compile(specs);
    for (const KernelSpec& spec : specs) {
      const auto& pair = std::get<GemmPairSpec>(spec);
      for (const LayerSize& size : {LayerSize{16, 64, 16}, {304, 392, 2064}, {2064, 528, 1040}, {4096, 1024, 144}}) {
        expect_bits(*this, {pair.first, pair.second}, size);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(library, Fixture)

// Without a named kernel: what the library takes for a pair, against float64, which has no c.
BOOST_AUTO_TEST_CASE(is_right_where_it_chooses) {
  for (Kinds kinds : every_kind()) {
    kinds.first.epilogue = kinds.second.epilogue = {};
    for (const LayerSize& size : {LayerSize{256, 256, 256}, {1024, 1024, 1024}, {300, 391, 77}}) {
      const auto [first, second] = cases_of(kinds, size);
      expect_near(first, second, size.in % 16 == 0 && (size.tokens == 1024 || !is_fp8(kinds.first.a)));
    }
  }
}

// In a captured graph: one launch, with the same bits in each replay. A kernel that is not loaded when a capture begins
// cannot be loaded in it: the two GEMMs run instead, if theirs are.
BOOST_AUTO_TEST_CASE(runs_in_captured_graphs) {
  const Kinds kinds = every_kind().front();
  const auto [first, second] =
      cases_of({pair_halves(kinds.first).front(), pair_halves(kinds.second).front()}, {272, 400, 144});
  for (const bool loaded : {false, true}) {
    Context fresh(cuda_options());
    Backend& backend = fresh.backend();
    Stream on(backend);
    PlacedCase a(first, maker.inputs(first), backend, on);
    PlacedCase b(second, maker.inputs(second), backend, on);
    a.enqueue(on);
    b.enqueue(on);
    const Matrices expected_a = a.outputs(on);
    const Matrices expected_b = b.outputs(on);
    if (loaded) backend.gemm_pair(a.gemm(), b.gemm(), on);
    const std::int64_t launches = backend.device_api().launches();
    Graph graph(on, [&] { backend.gemm_pair(a.gemm(), b.gemm(), on); });
    BOOST_TEST(backend.device_api().launches() == launches + (loaded ? 1 : 2));
    for (int replay = 0; replay < 2; ++replay) {
      a.poison(on);
      b.poison(on);
      graph.replay(on);
      BOOST_TEST(bit_difference("first", expected_a.at("out"), a.outputs(on).at("out")) == "");
      BOOST_TEST(bit_difference("second", expected_b.at("out"), b.outputs(on).at("out")) == "");
    }
  }
}

// Addresses that the copy engine does not take make two launches of it.
BOOST_AUTO_TEST_CASE(takes_two_launches_where_tensors_do_not_fit) {
  auto [first, second] = cases_of(every_kind().front(), {256, 256, 256});
  first.placement = {.padding = 3, .offset = 1};
  expect_near(first, second, false);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
