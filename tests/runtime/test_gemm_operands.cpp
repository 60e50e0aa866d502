// The check that every candidate of the tuner must pass: it accepts the result of a right kernel, however that rounds
// its sums, and rejects a wrong value in any output. Runs on the CPU, with sums changed to resemble other kernels'.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/measure/gemm_operands.h"

BOOST_AUTO_TEST_SUITE(test_gemm_operands)

using namespace ingot;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  RandomData random{*backend, stream,
                    [](void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }};

  GemmOperands make(const GemmSpec& spec, const MatmulSize& size) {
    return {
        random, [](void* to, unsigned char byte, std::size_t bytes) { std::memset(to, byte, bytes); }, {spec, size}};
  }
  static GemmTensors last(const GemmOperands& operands) { return operands.tensors(operands.copies() - 1); }

  // With sums that are larger by this fraction.
  void run(const GemmSpec& spec, const GemmTensors& tensors, float share) {
    std::vector<float> scale_inv(static_cast<std::size_t>(tensors.scale_inv_a.rows * tensors.scale_inv_a.cols));
    std::memcpy(scale_inv.data(), tensors.scale_inv_a.data, scale_inv.size() * sizeof(float));
    for (float& factor : scale_inv) factor *= 1 + share;
    GemmTensors other = tensors;
    other.scale_inv_a.data = scale_inv.data();
    backend->gemm(spec, other, stream);
  }
};

std::vector<GemmSpec> specs() {
  std::vector<GemmSpec> all = test::epilogue_specs();
  // Expressions that are steep, flat, undefined in places, or far beyond a format's range.
  for (const char* const line : {"e4m3fn*e4m3fn->bf16 epilogue=1/x", "e4m3fn*e4m3fn->f16 epilogue=exp(20*x) also=amax",
                                 "e4m3fn*e4m3fn->f32 epilogue=log(x)", "e4m3fn*e4m3fn->e4m3fn epilogue=rsqrt(x)",
                                 "e4m3fn*e4m3fn->bf16 epilogue=step(x)+relu(y) also=preactivation,amax",
                                 "e4m3fn*e4m3fn->e5m2fnuz bias also=amax", "e5m2fnuz*e4m3fnuz->f16 bias",
                                 "bf16*bf16->bf16 tt bias", "f16*f16->f32 nn", "f16*f16->f16 c=f16"}) {
    all.push_back(std::get<GemmSpec>(parse("gemm " + std::string(line))));
  }
  return all;
}

constexpr MatmulSize kSizes[] = {{.m = 70, .n = 40, .k = 200}, {.m = 5, .n = 33, .k = 64}};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_FIXTURE_TEST_CASE(right_results_pass_and_others_do_not, Fixture) {
  for (const GemmSpec& spec : specs()) {
    for (const MatmulSize& size : kSizes) {
      BOOST_TEST_CONTEXT(print(GemmCall{spec, size})) {
        GemmOperands operands = make(spec, size);
        const GemmTensors tensors = last(operands);
        operands.poison();
        BOOST_TEST(contains(operands.fault(), "was not written"), operands.fault());
        backend->gemm(spec, tensors, stream);
        BOOST_TEST(operands.fault() == "");
        // Another GEMM.
        GemmTensors other = tensors;
        other.b = operands.tensors(0).b;
        other.scale_inv_b = operands.tensors(0).scale_inv_b;
        operands.poison();
        backend->gemm(spec, other, stream);
        if (spec.epilogue.pointwise.uses_x() || !spec.epilogue.pointwise) {
          BOOST_TEST(operands.fault() != "");
        }
      }
    }
  }
}

// Errors such as tensor cores make, and larger ones.
BOOST_FIXTURE_TEST_CASE(roundings_are_forgiven, Fixture) {
  for (const GemmSpec& spec : specs()) {
    if (!is_fp8(spec.a) || (spec.epilogue.pointwise && !spec.epilogue.pointwise.uses_x())) continue;
    BOOST_TEST_CONTEXT(print(KernelSpec(spec))) {
      GemmOperands operands = make(spec, kSizes[0]);
      for (const float share : {0.003F, -0.003F}) {
        operands.poison();
        run(spec, last(operands), share);
        BOOST_TEST(operands.fault() == "");
      }
      operands.poison();
      run(spec, last(operands), 0.1F);
      BOOST_TEST(contains(operands.fault(), "relative error"), operands.fault());
    }
  }
}

// The tuner runs each candidate many times, on one copy after the other.
BOOST_FIXTURE_TEST_CASE(again_on_all_copies, Fixture) {
  for (const GemmSpec& spec : specs()) {
    GemmOperands operands = make(spec, kSizes[1]);
    BOOST_TEST(operands.copies() >= 2);
    operands.poison();
    for (int round = 0; round < 3; ++round) {
      for (const int copy : {0, operands.copies() - 1}) backend->gemm(spec, operands.tensors(copy), stream);
    }
    BOOST_TEST(operands.fault() == "", print(KernelSpec(spec)) << ": " << operands.fault());
  }
}

// A kernel that reads or writes an operand of the epilogue wrongly.
BOOST_FIXTURE_TEST_CASE(every_operand_and_output_matters, Fixture) {
  const auto spec = std::get<GemmSpec>(parse(
      "gemm e4m3fn*e4m3fn->e4m3fn scale=row,row bias c=f16 epilogue=x*gate*r[row]+w[col] also=preactivation,amax"));
  GemmOperands operands = make(spec, kSizes[0]);
  const GemmTensors right = last(operands);
  const GemmTensors other = operands.tensors(0);
  const auto fault = [&](const GemmTensors& tensors) {
    operands.poison();
    backend->gemm(spec, tensors, stream);
    return operands.fault();
  };
  BOOST_TEST(fault(right) == "");
  for (Tensor GemmTensors::*const operand : {&GemmTensors::bias, &GemmTensors::c}) {
    GemmTensors wrong = right;
    wrong.*operand = other.*operand;
    BOOST_TEST(contains(fault(wrong), "relative error"));
  }
  for (Tensor GemmTensors::*const operand : {&GemmTensors::scale_inv_a, &GemmTensors::scale_inv_b}) {
    GemmTensors wrong = right;
    std::vector<float> scale_inv(static_cast<std::size_t>((right.*operand).cols));
    std::memcpy(scale_inv.data(), (right.*operand).data, scale_inv.size() * sizeof(float));
    for (std::size_t i = 0; i < scale_inv.size(); i += 2) scale_inv[i] *= 1.2F;
    (wrong.*operand).data = scale_inv.data();
    BOOST_TEST(contains(fault(wrong), "relative error"));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    GemmTensors wrong = right;
    wrong.inputs[i] = other.inputs[i];
    BOOST_TEST(contains(fault(wrong), "relative error"), i);
  }
  GemmTensors wrong = right;
  wrong.beta = 1.0F;
  BOOST_TEST(contains(fault(wrong), "relative error"));

  BOOST_TEST(fault(right) == "");
  auto* const codes = static_cast<std::uint8_t*>(right.out.data);
  for (std::int64_t row = 0; row < 8; ++row) codes[row * right.out.cols + 20] ^= 0x20U;
  BOOST_TEST(contains(operands.fault(), "rows 0 to 7: relative error"), operands.fault());
  BOOST_TEST(fault(right) == "");
  auto* const kept = static_cast<std::uint16_t*>(right.preactivation.data);
  for (std::int64_t row = 62; row < 70; ++row) kept[row * right.preactivation.cols + 39] ^= 0x200U;
  BOOST_TEST(contains(operands.fault(), "preactivation, rows 62 to 69: relative error"), operands.fault());
  for (const float factor : {0.5F, 1.5F}) {
    BOOST_TEST(fault(right) == "");
    *static_cast<float*>(right.amax.data) *= factor;
    BOOST_TEST(contains(operands.fault(), "amax is "), operands.fault());
  }
  BOOST_TEST(fault(right) == "");
  *static_cast<float*>(right.scale_inv.data) *= 2;
  BOOST_TEST(contains(operands.fault(), "factor is "), operands.fault());

  const auto plain = std::get<GemmSpec>(parse("gemm bf16*bf16->bf16 also=amax"));
  GemmOperands of_plain = make(plain, kSizes[0]);
  of_plain.poison();
  backend->gemm(plain, last(of_plain), stream);
  BOOST_TEST(of_plain.fault() == "");
  *static_cast<float*>(last(of_plain).amax.data) *= 1.01F;
  BOOST_TEST(contains(of_plain.fault(), "but that of the output is"), of_plain.fault());
}

BOOST_AUTO_TEST_SUITE_END()
