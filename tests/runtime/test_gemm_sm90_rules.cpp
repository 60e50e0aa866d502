// Which GEMMs gemm_sm90 takes: starts from a call that it takes, and tests every single change that makes it refuse,
// with its reason.
#include "ingot/runtime/gemm/gemm_rules.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>

BOOST_AUTO_TEST_SUITE(test_gemm_sm90_rules)

namespace {

using namespace ingot;

constexpr Device kDevice{DeviceType::cuda, 0};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Call {
  GemmSpec spec;
  GemmTensors tensors;

  std::string refusal(Target target = target_for(9, 0)) const {
    const char* const reason = sm90_refusal(spec, tensors, gemm_size(spec, tensors), target);
    return reason == nullptr ? "" : reason;
  }
};

// Odd M and N, and an output with any pitch and address.
Call call(std::int64_t m = 33, std::int64_t n = 65, std::int64_t k = 48) {
  const GemmSpec spec{.a = Dtype::e5m2, .b = Dtype::e5m2, .scale_b = kRowwise};
  return {.spec = spec,
          .tensors = {.a = matrix(at(0x1000), spec.a, m, k, kDevice),
                      .b = matrix(at(0x2010), spec.b, n, k, kDevice),
                      .scale_inv_a = vector(at(0x3004), Dtype::f32, 1, kDevice),
                      .scale_inv_b = vector(at(0x4004), Dtype::f32, n, kDevice),
                      .out = matrix(at(0x6002), spec.out, m, n, kDevice)}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_it_takes) {
  BOOST_TEST(call().refusal() == "");
  BOOST_TEST(call(1, 1, 16).refusal() == "");
  BOOST_TEST(call(1 << 20, 1 << 16, 1 << 20).refusal() == "");
  Call wide = call();
  wide.tensors.a.row_stride = 64;
  BOOST_TEST(wide.refusal() == "");
  // Any K if rows are aligned; any alignment and layout of operands that are staged.
  Call odd = call(33, 65, 41);
  odd.tensors.a.row_stride = odd.tensors.b.row_stride = 48;
  BOOST_TEST(odd.refusal() == "");
  odd.tensors.a.row_stride = 41;
  odd.spec.staged_a = true;
  BOOST_TEST(odd.refusal() == "");
  odd.spec.layout_b = Layout::mn_major;
  odd.tensors.b = matrix(at(0x2001), odd.spec.b, 41, 65, kDevice);
  odd.spec.staged_b = true;
  BOOST_TEST(odd.refusal() == "");
}

BOOST_AUTO_TEST_CASE(what_it_refuses) {
  BOOST_TEST(call().refusal(target_for(8, 9)) == "kernel sm90 runs on sm_90a only");
  BOOST_TEST(call().refusal(target_for(10, 0)) == "kernel sm90 runs on sm_90a only");
  const std::string dtypes = "kernel sm90 multiplies e4m3fn and e5m2, or two operands of bf16 or of f16, only";
  for (const Dtype dtype : {Dtype::e4m3fnuz, Dtype::e5m2fnuz, Dtype::bf16}) {
    Call other = call();
    other.spec.a = dtype;
    BOOST_TEST(other.refusal() == dtypes);
    other = call();
    other.spec.b = dtype;
    BOOST_TEST(other.refusal() == dtypes);
  }
  Call wide = call();
  wide.spec.a = wide.spec.b = Dtype::f32;
  BOOST_TEST(wide.refusal() == dtypes);
  BOOST_TEST(call(33, 65, 0).refusal() == "kernel sm90 needs a K of at least 1");
  const std::string alignment =
      "kernel sm90 needs a and b in rows along k, at addresses and row strides that are multiples of 16 bytes, unless "
      "they are staged";
  BOOST_TEST(call(33, 65, 40).refusal() == alignment);
  Call odd = call();
  odd.tensors.a.data = at(0x1008);
  BOOST_TEST(odd.refusal() == alignment);
  odd = call();
  odd.tensors.b.data = at(0x2001);
  BOOST_TEST(odd.refusal() == alignment);
  odd = call();
  odd.tensors.a.row_stride = 56;
  BOOST_TEST(odd.refusal() == alignment);
  odd = call();
  odd.tensors.b.row_stride = 49;
  BOOST_TEST(odd.refusal() == alignment);
  odd = call();
  odd.spec.layout_b = Layout::mn_major;
  odd.tensors.b = matrix(at(0x2010), odd.spec.b, 48, 64, kDevice);
  BOOST_TEST(odd.refusal() == alignment);
  BOOST_TEST(call(std::int64_t{1} << 31, 65, 48).refusal() == "kernel sm90 takes sizes below 2^31 and as many tiles");
  BOOST_TEST(call(1 << 24, 1 << 24, 48).refusal() == "kernel sm90 takes sizes below 2^31 and as many tiles");
}

// bf16 and f16 along and across K: only their rows must start at multiples of 16 bytes.
BOOST_AUTO_TEST_CASE(operands_of_16_bits) {
  const auto of = [](Dtype dtype, Layout a, Layout b, std::int64_t pitch) {
    const GemmSpec spec{.a = dtype, .b = dtype, .out = dtype, .layout_a = a, .layout_b = b};
    const auto operand = [&](std::uintptr_t address, Layout layout, std::int64_t rows) {
      Tensor made = layout == Layout::k_major ? matrix(at(address), dtype, rows, 41, kDevice)
                                              : matrix(at(address), dtype, 41, rows, kDevice);
      made.row_stride = pitch;
      return made;
    };
    return Call{.spec = spec,
                .tensors = {.a = operand(0x1000, a, 33),
                            .b = operand(0x2010, b, 65),
                            .out = matrix(at(0x6002), dtype, 33, 65, kDevice)}};
  };
  const std::string alignment =
      "kernel sm90 needs a and b of bf16 or f16 at addresses and row strides that are multiples of 16 bytes";
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const Layout a : {Layout::k_major, Layout::mn_major}) {
      for (const Layout b : {Layout::k_major, Layout::mn_major}) {
        Call call = of(dtype, a, b, 72);
        BOOST_TEST(call.refusal() == "");
        call.tensors.b.data = at(0x2008);
        BOOST_TEST(call.refusal() == alignment);
        BOOST_TEST(of(dtype, a, b, 76).refusal() == alignment);
      }
    }
  }
}

// Row by row, or with one row for each group of K, with 32-bit strides.
BOOST_AUTO_TEST_CASE(scale_inv_of_groups) {
  Call grouped = call(33, 65, 256);
  grouped.spec.scale_a = grouped.spec.scale_b = kRowGroups;
  grouped.tensors.scale_inv_a = vector(at(0x3004), Dtype::f32, 66, kDevice);
  grouped.tensors.scale_inv_b = vector(at(0x4004), Dtype::f32, 130, kDevice);
  BOOST_TEST(grouped.refusal() == "");
  for (Tensor GemmTensors::*member : {&GemmTensors::scale_inv_a, &GemmTensors::scale_inv_b}) {
    Call by_group = grouped;
    Tensor& scale_inv = by_group.tensors.*member;
    scale_inv = matrix(scale_inv.data, Dtype::f32, 2, scale_inv.cols / 2, kDevice);
    BOOST_TEST(by_group.refusal() == "");
    scale_inv.row_stride = (std::int64_t{1} << 32) - 1;
    BOOST_TEST(by_group.refusal() == "");
    scale_inv.row_stride = std::int64_t{1} << 32;
    BOOST_TEST(by_group.refusal() == "kernel sm90 takes scale_inv of groups at row strides below 2^32");
  }
}

// The copy engine loads scale_inv of groups where every group's begin at a multiple of 16 bytes and fill it. Those of
// blocks it does not load.
BOOST_AUTO_TEST_CASE(scale_inv_by_the_copy_engine) {
  struct Groups {
    std::int64_t m = 32, k = 256, pitch = 32;
    std::uintptr_t address = 0x3010;
    ScaleGranularity scale_b = kBlocks;
    bool by_group = true;
    std::int64_t n = 65, pitch_b = 65;
    std::uintptr_t address_b = 0x4000;

    bool by_engine() const {
      const auto scale_inv = [&](std::uintptr_t where, std::int64_t rows, std::int64_t apart) {
        Tensor all = by_group ? matrix(at(where), Dtype::f32, (k + 127) / 128, rows, kDevice)
                              : vector(at(where), Dtype::f32, rows * ((k + 127) / 128), kDevice);
        if (by_group) all.row_stride = apart;
        return all;
      };
      const GemmSpec spec{.scale_a = scale_b == kTensorwise ? kTensorwise : kRowGroups, .scale_b = scale_b};
      const GemmTensors tensors{.a = matrix(at(0x1000), spec.a, m, k, kDevice),
                                .b = matrix(at(0x2000), spec.b, n, k, kDevice),
                                .scale_inv_a = scale_inv(address, m, pitch),
                                .scale_inv_b = scale_inv(address_b, n, pitch_b),
                                .out = matrix(at(0x6000), spec.out, m, n, kDevice)};
      return sm90_by_engine(spec, tensors, {.m = m, .n = n, .k = k});
    }
  };
  BOOST_TEST(Groups{}.by_engine());
  BOOST_TEST((Groups{.pitch = 36}.by_engine()));
  BOOST_TEST((Groups{.m = 4, .pitch = 4}.by_engine()));
  BOOST_TEST((!Groups{.pitch = 34}.by_engine()));
  BOOST_TEST((!Groups{.m = 30}.by_engine()));
  BOOST_TEST((!Groups{.address = 0x3008}.by_engine()));
  BOOST_TEST((!Groups{.by_group = false}.by_engine()));
  BOOST_TEST((!Groups{.scale_b = kTensorwise}.by_engine()));
  // One group in a vector: its rows' are neighbours, but the stride is that of groups which lie side by side.
  BOOST_TEST((!Groups{.k = 128, .by_group = false}.by_engine()));
  BOOST_TEST((Groups{.scale_b = kRowGroups, .n = 64, .pitch_b = 68}.by_engine()));
  BOOST_TEST((!Groups{.scale_b = kRowGroups, .n = 65, .pitch_b = 68}.by_engine()));
  BOOST_TEST((!Groups{.scale_b = kRowGroups, .n = 64, .pitch_b = 66}.by_engine()));
  BOOST_TEST((!Groups{.scale_b = kRowGroups, .n = 64, .pitch_b = 64, .address_b = 0x4004}.by_engine()));
}

BOOST_AUTO_TEST_SUITE_END()
