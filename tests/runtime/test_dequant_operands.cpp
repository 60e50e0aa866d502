// The check that every candidate for a dequant_matmul must pass: it accepts the reference's result and rejects wrong
// ones.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <string>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/measure/dequant_operands.h"

BOOST_AUTO_TEST_SUITE(test_dequant_operands)

using namespace ingot;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  RandomData random{*backend, stream,
                    [](void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }};

  DequantOperands make(const DequantMatmulSpec& spec, const MatmulSize& size) {
    return {random, [](void* to, unsigned char byte, std::size_t bytes) { std::memset(to, byte, bytes); }, spec, size};
  }
};

constexpr MatmulSize kSizes[] = {{.m = 17, .n = 70, .k = 200}, {.m = 1, .n = 33, .k = 64}};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_FIXTURE_TEST_CASE(right_results_pass_and_others_do_not, Fixture) {
  for (const char* const line :
       {"bf16*e4m3fn->bf16 packed scale=row", "f16*e5m2->f16 row_major scale=tensor bias",
        "bf16*e4m3fnuz->f32 packed scale=1x128", "f16*e5m2fnuz->f16 packed scale=1x32 factors=e8m0fnu",
        "bf16*e4m3fn->bf16 packed scale=128x128 bias epilogue=silu(x)*gate", "bf16*e3m2fn->bf16 packed scale=1x64",
        "bf16*e2m3fn->bf16 row_major scale=row",
        "f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu epilogue=x+y[col]"}) {
    const auto spec = std::get<DequantMatmulSpec>(parse("dequant_matmul " + std::string(line)));
    for (const MatmulSize& size : kSizes) {
      BOOST_TEST_CONTEXT(print(MatmulCall{spec, size})) {
        DequantOperands operands = make(spec, size);
        const DequantMatmulTensors tensors = operands.tensors(operands.copies() - 1);
        operands.poison();
        BOOST_TEST(contains(operands.fault(), "was not written"), operands.fault());
        backend->dequant_matmul(spec, tensors, stream);
        BOOST_TEST(operands.fault() == "");
        DequantMatmulTensors other = tensors;
        other.weight = operands.tensors(0).weight;
        operands.poison();
        backend->dequant_matmul(spec, other, stream);
        BOOST_TEST(contains(operands.fault(), "relative error"), operands.fault());
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
