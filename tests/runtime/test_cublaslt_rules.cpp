// Which GEMMs cuBLASLt takes: starts from a call that it takes, and tests every single change that makes it refuse.
#include "ingot/runtime/gemm/cublaslt_rules.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>

namespace {

using namespace ingot;

constexpr Target kHopper{9, 0, true};
constexpr Target kAda{8, 9, false};
constexpr Target kAmpere{8, 0, false};
constexpr Target kBlackwell{10, 0, true};
constexpr Device kDevice{DeviceType::cuda, 0};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Call {
  GemmSpec spec;
  GemmTensors tensors;

  std::string refusal(Target target = kHopper) const {
    const char* const reason = cublaslt_refusal(spec, tensors, gemm_size(spec, tensors), target);
    return reason == nullptr ? "" : reason;
  }
  bool taken(Target target = kHopper) const { return refusal(target).empty(); }
};

// a[M, K] b[N, K]^T = out[M, N]; no memory is touched.
Call fp8_call(std::int64_t m = 33, std::int64_t n = 64, std::int64_t k = 48) {
  const GemmSpec spec{.a = Dtype::e4m3fn, .b = Dtype::e5m2, .out = Dtype::bf16, .bias = true};
  return {.spec = spec,
          .tensors = {.a = matrix(at(0x1000), spec.a, m, k, kDevice),
                      .b = matrix(at(0x2000), spec.b, n, k, kDevice),
                      .factor_a = vector(at(0x3000), Dtype::f32, 1, kDevice),
                      .factor_b = vector(at(0x4000), Dtype::f32, 1, kDevice),
                      .bias = vector(at(0x5000), Dtype::bf16, n, kDevice),
                      .out = matrix(at(0x6000), spec.out, m, n, kDevice)}};
}

Call rowwise_call() {
  Call call = fp8_call();
  call.spec.scale_a = kRowwise;
  call.spec.scale_b = kRowwise;
  call.tensors.factor_a.cols = 33;
  call.tensors.factor_b.cols = 64;
  return call;
}

Call bf16_call(std::int64_t m, std::int64_t n, std::int64_t k) {
  const GemmSpec spec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16};
  return {.spec = spec,
          .tensors = {.a = matrix(at(0x1002), spec.a, m, k, kDevice),
                      .b = matrix(at(0x2002), spec.b, n, k, kDevice),
                      .out = matrix(at(0x6002), spec.out, m, n, kDevice)}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(fp8_needs_its_tensor_cores) {
  BOOST_TEST(fp8_call().taken(kHopper));
  BOOST_TEST(fp8_call().taken(kAda));
  BOOST_TEST(fp8_call().taken(kBlackwell));
  BOOST_TEST(!fp8_call().taken(kAmpere));
  BOOST_TEST(!fp8_call().taken(Target{8, 6, false}));
}

BOOST_AUTO_TEST_CASE(fp8_types) {
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) {
      Call call = fp8_call();
      call.spec.a = call.tensors.a.dtype = a;
      call.spec.b = call.tensors.b.dtype = b;
      const bool ocp = (a == Dtype::e4m3fn || a == Dtype::e5m2) && (b == Dtype::e4m3fn || b == Dtype::e5m2);
      BOOST_TEST(call.taken() == (ocp && !(a == Dtype::e5m2 && b == Dtype::e5m2)), name(a) << " x " << name(b));
    }
  }
}

BOOST_AUTO_TEST_CASE(fp8_sizes) {
  BOOST_TEST(fp8_call(1, 64, 48).taken());  // M is free
  BOOST_TEST(!fp8_call(33, 64, 40).taken());
  BOOST_TEST(!fp8_call(33, 60, 48).taken());  // 120 bytes of bf16
  BOOST_TEST(fp8_call(33, 72, 48).taken());
  BOOST_TEST(!fp8_call(0, 64, 48).taken());
  BOOST_TEST(!fp8_call(33, 64, 0).taken());
  Call f32 = fp8_call(33, 68, 48);
  f32.spec.out = f32.tensors.out.dtype = Dtype::f32;
  BOOST_TEST(f32.taken());  // 4 floats are 16 bytes
}

BOOST_AUTO_TEST_CASE(fp8_alignment) {
  for (Tensor GemmTensors::*member : {&GemmTensors::a, &GemmTensors::b, &GemmTensors::factor_a, &GemmTensors::factor_b,
                                      &GemmTensors::bias, &GemmTensors::out}) {
    Call call = fp8_call();
    Tensor& tensor = call.tensors.*member;
    tensor.data = at(reinterpret_cast<std::uintptr_t>(tensor.data) + 8);
    BOOST_TEST(!call.taken());
  }
  for (Tensor GemmTensors::*member : {&GemmTensors::a, &GemmTensors::b, &GemmTensors::out}) {
    Call call = fp8_call();
    (call.tensors.*member).row_stride += 4;
    BOOST_TEST(!call.taken());
    (call.tensors.*member).row_stride += 12;
    BOOST_TEST(call.taken());
  }
}

BOOST_AUTO_TEST_CASE(fp8_layouts) {
  Call call = fp8_call();
  call.spec.layout_a = Layout::mn_major;
  call.tensors.a = matrix(at(0x1000), Dtype::e4m3fn, 48, 32, kDevice);
  BOOST_TEST(!call.taken());
}

// With any layouts.
BOOST_AUTO_TEST_CASE(factors_of_groups_are_not_taken) {
  for (const ScaleGranularity scale_b : {kRowGroups, kBlocks}) {
    Call call = fp8_call(128, 128, 256);
    call.spec.scale_a = kRowGroups;
    call.spec.scale_b = scale_b;
    const std::int64_t rows_b = scale_b == kBlocks ? 1 : 128;
    const std::string reason =
        scale_b == kBlocks ? "kernel cublaslt takes factors of one kind for both operands only"
                           : "kernel cublaslt takes one factor for each operand or, on sm_90a, one for each row";
    call.tensors.factor_a = vector(at(0x3000), Dtype::f32, 256, kDevice);
    call.tensors.factor_b = vector(at(0x4000), Dtype::f32, 2 * rows_b, kDevice);
    BOOST_TEST(call.refusal() == reason);
    call.tensors.factor_a = matrix(at(0x3000), Dtype::f32, 2, 128, kDevice);
    call.tensors.factor_b = matrix(at(0x4000), Dtype::f32, 2, rows_b, kDevice);
    BOOST_TEST(call.refusal() == reason);
  }
}

BOOST_AUTO_TEST_CASE(row_scales_are_hoppers_and_of_both_operands) {
  BOOST_TEST(rowwise_call().taken(kHopper));
  BOOST_TEST(!rowwise_call().taken(kAda));
  BOOST_TEST(!rowwise_call().taken(kBlackwell));
  Call mixed = rowwise_call();
  mixed.spec.scale_b = kTensorwise;
  BOOST_TEST(!mixed.taken());
}

BOOST_AUTO_TEST_CASE(high_precision_takes_any_shape) {
  BOOST_TEST(bf16_call(3, 5, 7).taken(kAmpere));
  BOOST_TEST(!bf16_call(3, 5, 0).taken());
  Call call = bf16_call(3, 5, 7);
  call.spec.out = call.tensors.out.dtype = Dtype::f32;
  BOOST_TEST(call.taken());
  call.spec.out = call.tensors.out.dtype = Dtype::f16;
  BOOST_TEST(!call.taken());
}

// cuBLASLt takes beta * c of the output's dtype; the library's own kernels run any other epilogue.
BOOST_AUTO_TEST_CASE(epilogues) {
  Call call = fp8_call();
  call.spec.epilogue.c = call.spec.out;
  call.tensors.c = call.tensors.out;
  BOOST_TEST(call.taken());
  call.tensors.c.row_stride += 1;
  BOOST_TEST(!call.taken());
  call.tensors.c = call.tensors.out;
  call.spec.epilogue.c = call.tensors.c.dtype = Dtype::f32;
  BOOST_TEST(!call.taken());
  for (const GemmEpilogue& epilogue :
       {GemmEpilogue{.pointwise = parse_pointwise("silu(x)")}, GemmEpilogue{.amax = true}}) {
    Call other = fp8_call();
    other.spec.epilogue = epilogue;
    BOOST_TEST(!other.taken());
  }
  Call codes = fp8_call();
  codes.spec.out = codes.tensors.out.dtype = Dtype::e4m3fn;
  BOOST_TEST(!codes.taken());
}

BOOST_AUTO_TEST_CASE(sizes_beyond_32_bits_are_refused) {
  constexpr std::int64_t kBig = std::int64_t{1} << 31;
  BOOST_TEST(!bf16_call(kBig, 16, 16).taken());
  BOOST_TEST(!bf16_call(16, kBig, 16).taken());
  Call call = bf16_call(16, 16, 16);
  call.tensors.a.row_stride = kBig / 2;  // elements of 2 bytes
  BOOST_TEST(!call.taken());
}

BOOST_AUTO_TEST_CASE(every_refusal_says_why) {
  const std::string alignment =
      "kernel cublaslt needs every FP8 operand, what goes with it and its output at addresses, pitches and row lengths "
      "that are multiples of 16 bytes";
  BOOST_TEST(fp8_call().refusal(kAmpere) == "kernel cublaslt multiplies FP8 on sm_89 and later only");
  Call call = fp8_call();
  call.spec.a = call.tensors.a.dtype = Dtype::e4m3fnuz;
  BOOST_TEST(call.refusal() == "kernel cublaslt multiplies e4m3fn and e5m2 only");
  call.spec.a = call.tensors.a.dtype = Dtype::e5m2;
  BOOST_TEST(call.refusal() == "kernel cublaslt does not multiply e5m2 by e5m2");
  BOOST_TEST(fp8_call(33, 64, 40).refusal() == alignment);
  BOOST_TEST(fp8_call(33, 64, 0).refusal() == "kernel cublaslt needs an M, an N and a K of at least 1");
  call = fp8_call();
  call.spec.layout_a = Layout::mn_major;
  call.tensors.a = matrix(at(0x1000), Dtype::e4m3fn, 48, 32, kDevice);
  BOOST_TEST(call.refusal() == "kernel cublaslt takes FP8 operands that lie along K (nt) only");
  BOOST_TEST(rowwise_call().refusal(kAda) ==
             "kernel cublaslt takes one factor for each operand or, on sm_90a, one for each row");
  call = rowwise_call();
  call.spec.scale_b = kTensorwise;
  BOOST_TEST(call.refusal() == "kernel cublaslt takes factors of one kind for both operands only");
  call = fp8_call();
  call.spec.epilogue.amax = true;
  BOOST_TEST(call.refusal() == "kernel cublaslt has no epilogue but beta * c");
  call = fp8_call();
  call.spec.epilogue.c = Dtype::f32;
  BOOST_TEST(call.refusal() == "kernel cublaslt adds a c of the output's dtype only");
  call.spec.epilogue.c = call.spec.out;
  call.tensors.c = call.tensors.out;
  call.tensors.c.row_stride += 1;
  BOOST_TEST(call.refusal() == alignment);
  call.spec.out = Dtype::e4m3fn;
  BOOST_TEST(call.refusal() == "kernel cublaslt writes no FP8 output");
  call = bf16_call(3, 5, 7);
  call.spec.out = Dtype::f16;
  BOOST_TEST(call.refusal() == "kernel cublaslt writes high-precision results in the operands' dtype or f32 only");
  BOOST_TEST(bf16_call(std::int64_t{1} << 31, 16, 16).refusal() ==
             "kernel cublaslt takes sizes, and pitches in bytes, below 2^31");
}
