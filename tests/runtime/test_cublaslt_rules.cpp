// Which GEMMs cuBLASLt takes: starts from a call that it takes, and tests every single change that makes it refuse.
#include "ingot/runtime/gemm/cublaslt_rules.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>

BOOST_AUTO_TEST_SUITE(test_cublaslt_rules)

namespace {

using namespace ingot;

constexpr Target kHopper{9, 0, true};
constexpr Target kAda{8, 9, false};
constexpr Target kAmpere{8, 0, false};
constexpr Target kBlackwell{10, 0, true};
constexpr std::size_t kVersion = 130100;
constexpr Device kDevice{DeviceType::cuda, 0};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Call {
  GemmSpec spec;
  GemmTensors tensors;

  std::string refusal(Target target = kHopper, std::size_t version = kVersion) const {
    const char* const reason = cublaslt_refusal(spec, tensors, gemm_size(spec, tensors), target, version);
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
                      .scale_inv_a = vector(at(0x3000), Dtype::f32, 1, kDevice),
                      .scale_inv_b = vector(at(0x4000), Dtype::f32, 1, kDevice),
                      .bias = vector(at(0x5000), Dtype::bf16, n, kDevice),
                      .out = matrix(at(0x6000), spec.out, m, n, kDevice)}};
}

Call rowwise_call() {
  Call call = fp8_call();
  call.spec.scale_a = kRowwise;
  call.spec.scale_b = kRowwise;
  call.tensors.scale_inv_a.cols = 33;
  call.tensors.scale_inv_b.cols = 64;
  return call;
}

Call grouped_call(ScaleGranularity scale_b, std::int64_t m = 128, std::int64_t n = 128, std::int64_t k = 256) {
  Call call = fp8_call(m, n, k);
  call.spec.scale_a = kRowGroups;
  call.spec.scale_b = scale_b;
  call.tensors.scale_inv_a = vector(at(0x3000), Dtype::f32, scale_count(kRowGroups, m, k), kDevice);
  call.tensors.scale_inv_b = vector(at(0x40000), Dtype::f32, scale_count(scale_b, n, k), kDevice);
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
  for (Tensor GemmTensors::*member : {&GemmTensors::a, &GemmTensors::b, &GemmTensors::scale_inv_a,
                                      &GemmTensors::scale_inv_b, &GemmTensors::bias, &GemmTensors::out}) {
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

BOOST_AUTO_TEST_CASE(scale_inv_of_groups_are_hoppers_and_need_rows_by_fours) {
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    BOOST_TEST(grouped_call(scale_b).refusal() == "");
    BOOST_TEST(grouped_call(scale_b, 4, 8, 16).refusal() == "");
    for (const Target target : {kAda, kBlackwell}) {
      BOOST_TEST(grouped_call(scale_b).refusal(target) ==
                 "kernel cublaslt takes scale_inv of rows, groups and blocks on sm_90a only");
    }
    BOOST_TEST(grouped_call(scale_b).refusal(kHopper, 120900) == "");
    BOOST_TEST(grouped_call(scale_b).refusal(kHopper, 120805) ==
               "kernel cublaslt takes scale_inv of rows, groups and blocks from cuBLASLt 12.9 on only");
    const std::string by_fours =
        "kernel cublaslt takes scale_inv of groups and blocks only where M and N are multiples of 4";
    BOOST_TEST(grouped_call(scale_b, 126, 128, 256).refusal() == by_fours);
    BOOST_TEST(grouped_call(scale_b, 128, 126, 256).refusal() == by_fours);
    Call adding = grouped_call(scale_b);
    adding.spec.epilogue.c = adding.spec.out;
    adding.tensors.c = adding.tensors.out;
    BOOST_TEST(adding.refusal() == "");
    Call fnuz = grouped_call(scale_b);
    fnuz.spec.a = fnuz.tensors.a.dtype = Dtype::e4m3fnuz;
    BOOST_TEST(fnuz.refusal() == "kernel cublaslt multiplies e4m3fn and e5m2 only");
  }
}

// They are copied if they are stored otherwise than it reads them.
BOOST_AUTO_TEST_CASE(scale_inv_of_groups_have_any_layout) {
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    Call call = grouped_call(scale_b);
    call.tensors.scale_inv_a.data = at(0x3004);
    call.tensors.scale_inv_b.data = at(0x40004);
    BOOST_TEST(call.refusal() == "");
    call.tensors.scale_inv_a = matrix(at(0x3000), Dtype::f32, 2, 128, kDevice);
    call.tensors.scale_inv_a.row_stride = 131;
    BOOST_TEST(call.refusal() == "");
    call.tensors.scale_inv_a.row_stride = std::int64_t{1} << 30;
    BOOST_TEST(call.refusal() == "kernel cublaslt takes sizes, and pitches in bytes, below 2^31");
  }
}

namespace {

// The place of the scale_inv of a row (or block of rows) and a group of K, counted from the matrix' first.
std::int64_t place(const ScaleInvMatrix& matrix, bool by_group, std::int64_t part, std::int64_t group) {
  const std::int64_t row = by_group ? group : part;
  const std::int64_t col = by_group ? part : group;
  BOOST_REQUIRE((row < matrix.rows && col < matrix.cols && matrix.cols <= matrix.pitch));
  return row * matrix.pitch + col;
}

}  // namespace

// Every scale_inv is found where GemmTensors says it is, and is read where NVIDIA's documentation says.
BOOST_AUTO_TEST_CASE(the_order_of_scale_inv) {
  for (const ScaleGranularity scale : {kRowGroups, kBlocks}) {
    for (const std::int64_t rows : {1, 4, 128, 132, 300}) {
      for (const std::int64_t k : {16, 128, 144, 512, 1000}) {
        const std::int64_t groups = (k + 127) / 128;
        const std::int64_t parts = scale == kBlocks ? (rows + 127) / 128 : rows;
        for (const std::int64_t padding : {-1, 0, 3}) {
          Tensor scale_inv = vector(at(0x3000), Dtype::f32, parts * groups, kDevice);
          if (padding >= 0) {
            scale_inv = matrix(at(0x3000), Dtype::f32, groups, parts, kDevice);
            scale_inv.row_stride += padding;
          }
          const CublasltScaleInv order = cublaslt_scale_inv(scale_inv, scale, rows, k);
          const ScaleInvStrides strides = scale_inv_strides(scale_inv, scale, k);
          const bool read_by_group = scale == kRowGroups;
          const bool given_by_group = read_by_group != order.transposed;
          for (std::int64_t part = 0; part < parts; ++part) {
            for (std::int64_t group = 0; group < groups; ++group) {
              BOOST_TEST(place(order.given, given_by_group, part, group) == part * strides.row + group * strides.group);
              const std::int64_t read = read_by_group ? group * rows + part : part * ((groups + 3) / 4 * 4) + group;
              BOOST_TEST(place(order.read, read_by_group, part, group) == read);
              if (!order.moved) BOOST_TEST(read == part * strides.row + group * strides.group);
            }
          }
          BOOST_TEST((order.bytes() == 0) == !order.moved);
          BOOST_TEST(order.bytes() % 256 == 0U);
          if (order.moved)
            BOOST_TEST(order.bytes() >= 4 * static_cast<std::size_t>(order.read.rows * order.read.pitch));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(which_scale_inv_are_moved) {
  const auto moved = [](const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t k) {
    return cublaslt_scale_inv(scale_inv, scale, rows, k).moved;
  };
  const auto row_by_row = [](std::int64_t count) { return vector(at(0x3000), Dtype::f32, count, kDevice); };
  BOOST_TEST(moved(row_by_row(2 * 128), kRowGroups, 128, 256));
  BOOST_TEST(!moved(row_by_row(128), kRowGroups, 128, 128));
  BOOST_TEST(!moved(matrix(at(0x3000), Dtype::f32, 2, 128, kDevice), kRowGroups, 128, 256));
  BOOST_TEST(moved(matrix(at(0x3004), Dtype::f32, 2, 128, kDevice), kRowGroups, 128, 256));
  BOOST_TEST(!moved(row_by_row(3 * 8), kBlocks, 384, 1024));
  BOOST_TEST(moved(row_by_row(3 * 7), kBlocks, 384, 896));
  BOOST_TEST(moved(matrix(at(0x3000), Dtype::f32, 8, 3, kDevice), kBlocks, 384, 1024));
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

// NVIDIA's library reads any a, b, c and d of 16 bits or f32 (their alignments are told to its heuristic), but a bias
// only in vectors of 16 bytes, and does not check that.
BOOST_AUTO_TEST_CASE(a_bias_that_is_not_aligned_is_copied) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    Call call = bf16_call(64, 136, 64);
    call.spec.a = call.spec.b = call.spec.out = dtype;
    call.tensors.a.dtype = call.tensors.b.dtype = call.tensors.out.dtype = dtype;
    BOOST_TEST(cublaslt_bias_bytes(call.spec, call.tensors) == 0U);
    call.spec.bias = true;
    for (const int bytes : {0, 2, 4, 6, 8, 14, 16, 32}) {
      call.tensors.bias = vector(at(0x5000U + static_cast<unsigned>(bytes)), dtype, 136, kDevice);
      const std::size_t copy = dtype == Dtype::f32 ? 768 : 512;  // 136 elements, in whole 256 bytes
      BOOST_TEST(call.taken());
      BOOST_TEST(cublaslt_bias_bytes(call.spec, call.tensors) == (bytes % 16 == 0 ? 0U : copy), bytes);
    }
    for (Tensor GemmTensors::*member : {&GemmTensors::a, &GemmTensors::b, &GemmTensors::out}) {
      Call moved = call;
      (moved.tensors.*member).data = at(0x70000 + static_cast<unsigned>(size_of(dtype)));
      BOOST_TEST(moved.taken());
    }
  }
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
  BOOST_TEST(call.refusal() == "kernel cublaslt takes FP8 operands stored along K (nt) only");
  BOOST_TEST(rowwise_call().refusal(kAda) ==
             "kernel cublaslt takes scale_inv of rows, groups and blocks on sm_90a only");
  call = rowwise_call();
  call.spec.scale_b = kTensorwise;
  BOOST_TEST(call.refusal() == "kernel cublaslt takes scale_inv of rows for both operands or for none");
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

BOOST_AUTO_TEST_SUITE_END()
