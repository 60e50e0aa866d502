// The operands on which GEMMs are measured: Backend::gemm accepts them, for any spec.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/output_error.h"

BOOST_AUTO_TEST_SUITE(test_gemm_data)

using namespace ingot;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  RandomData random{*backend, stream,
                    [](void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }};
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(of_every_spec, Fixture) {
  std::vector<GemmSpec> specs = test::epilogue_specs();
  for (const KernelSpec& spec : all_valid_specs()) {
    if (const auto* const gemm = std::get_if<GemmSpec>(&spec)) specs.push_back(*gemm);
  }
  for (const GemmSpec& spec : specs) {
    const GemmCall call{.spec = spec, .size = {.m = 5, .n = 17, .k = 130}};
    BOOST_TEST_CONTEXT(print(call)) {
      const GemmData data = make_gemm_data(random, call, 1);
      BOOST_CHECK_NO_THROW(backend->gemm(spec, data.tensors, stream));
      if (spec.epilogue.amax) BOOST_TEST(*static_cast<const float*>(data.tensors.amax.data) > 0);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(sums_are_of_about_1, Fixture) {
  for (const char* const line :
       {"gemm e4m3fn*e5m2->f32 scale=row,tensor", "gemm e4m3fn*e4m3fn->f32 scale=1x128,128x128", "gemm bf16*bf16->f32",
        "gemm f32*f32->f32 tn"}) {
    for (const std::int64_t k : {16, 1000, 4096}) {
      const GemmCall call{.spec = std::get<GemmSpec>(parse(line)), .size = {.m = 40, .n = 50, .k = k}};
      const GemmData data = make_gemm_data(random, call, 1);
      backend->gemm(call.spec, data.tensors, stream);
      const auto* const sums = static_cast<const float*>(data.tensors.out.data);
      const float size = root_mean_square(std::span(sums, 40 * 50));
      BOOST_TEST((size > 0.6F && size < 1.6F), print(call) << ": " << size);
    }
  }
}

// A kernel must not get them right by chance: rows differ, and so do the values of different seeds.
BOOST_FIXTURE_TEST_CASE(values_differ, Fixture) {
  const GemmCall call{.spec = {.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::f32}, .size = {2, 4, 100}};
  const GemmData one = make_gemm_data(random, call, 1);
  const GemmData same = make_gemm_data(random, call, 1);
  const GemmData other = make_gemm_data(random, call, 1000);
  const auto row = [](const Tensor& tensor, int r) { return static_cast<const float*>(tensor.data) + r * 100; };
  const auto equal = [](const float* a, const float* b) { return std::memcmp(a, b, 100 * sizeof(float)) == 0; };
  BOOST_TEST(equal(row(one.tensors.a, 0), row(same.tensors.a, 0)));
  BOOST_TEST(!equal(row(one.tensors.a, 0), row(one.tensors.a, 1)));
  BOOST_TEST(!equal(row(one.tensors.a, 0), row(one.tensors.b, 0)));
  BOOST_TEST(!equal(row(one.tensors.a, 0), row(other.tensors.a, 0)));
}

BOOST_AUTO_TEST_SUITE_END()
