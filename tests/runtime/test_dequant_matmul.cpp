// dequant_matmul on the CPU reference, against float64.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "support/dequant_case.h"
#include "support/share.h"

BOOST_AUTO_TEST_SUITE(test_dequant_matmul)

using namespace ingot;
using namespace ingot::test;

namespace {

ContextOptions cpu_options() {
  ContextOptions options;
  options.where = ContextOptions::Where::cpu;
  return options;
}

struct OnCpu {
  Context context{cpu_options()};
  Backend& backend = context.backend();
  Stream stream{backend};

  GuardedMatrix run(const DequantData& data) {
    PlacedDequant placed(data, backend, stream);
    placed.enqueue(stream);
    return placed.out(stream);
  }

  void check(const DequantCase& c) {
    const DequantData data(c);
    const std::string fault = fault_of_outputs(data, run(data), data.expected());
    if (!fault.empty()) BOOST_ERROR(describe(c) << ": " << fault);
  }
};

DequantMatmulSpec spec_of(Dtype x, Dtype weight, const DequantScale& scale, WeightLayout layout) {
  return {.x = x, .weight = weight, .out = x, .scale = scale.scale, .scale_inv = scale.scale_inv, .layout = layout};
}

constexpr std::array kLayouts{WeightLayout::row_major, WeightLayout::packed, WeightLayout::packed_f16};

}  // namespace

BOOST_FIXTURE_TEST_CASE(every_format_scale_activation_and_layout, OnCpu) {
  const Share share = Share::of_arguments();
  std::size_t index = 0;
  for (const Dtype weight : kWeightDtypes) {
    for (const DequantScale& scale : kDequantScales) {
      for (const Dtype x : kDequantActivations) {
        for (const WeightLayout layout : kLayouts) {
          for (const std::int64_t m : {1, 2, 3, 5, 8, 16, 17, 33}) {
            if (!share.has(index++)) continue;
            DequantMatmulSpec spec = spec_of(x, weight, scale, layout);
            if (m % 2 == 0) spec.out = Dtype::f32;
            check({.spec = spec, .m = m, .n = m < 8 ? 141 : 75, .k = m < 8 ? 301 : 133, .seed = index});
          }
        }
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(any_size, OnCpu) {
  for (const DequantScale& scale : kDequantScales) {
    for (const WeightLayout layout : kLayouts) {
      for (const Dtype weight : {Dtype::e5m2, Dtype::e2m3fn, Dtype::e2m1fn}) {
        for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                              {7, 13, 31},
                                                                              {2, 64, 64},
                                                                              {3, 530, 65},
                                                                              {780, 5, 40},
                                                                              {4, 129, 257},
                                                                              {0, 5, 8},
                                                                              {5, 0, 8},
                                                                              {3, 4, 0}}) {
          check({.spec = spec_of(Dtype::bf16, weight, scale, layout), .m = m, .n = n, .k = k});
        }
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(rows_anywhere, OnCpu) {
  for (const Dtype weight : kWeightDtypes) {
    for (const WeightLayout layout : kLayouts) {
      check({.spec = spec_of(Dtype::f16, weight, kDequantScales[1], layout),
             .m = 5,
             .n = 37,
             .k = 99,
             .placement = {.x_padding = 3,
                           .x_offset = 1,
                           .weight_padding = 6,
                           .weight_offset = 1,
                           .out_padding = 5,
                           .out_offset = 3}});
    }
  }
}

BOOST_FIXTURE_TEST_CASE(nan_and_inf_stay_in_their_rows, OnCpu) {
  for (const Dtype weight : kFp8Dtypes) {
    for (const DequantScale& scale : kDequantScales) {
      for (const WeightLayout layout : kLayouts) {
        check({.spec = spec_of(Dtype::bf16, weight, scale, layout), .m = 3, .n = 70, .k = 140, .faulty = true});
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(scale_inv_of_mx_at_their_ends, OnCpu) {
  const DequantCase c{
      .spec = spec_of(Dtype::bf16, Dtype::e2m1fn, kDequantScales[6], WeightLayout::packed), .m = 1, .n = 3, .k = 32};
  DequantMatmulSpec spec = c.spec;
  spec.out = Dtype::f32;
  DequantCase wide = c;
  wide.spec = spec;
  DequantData data(wide);
  for (std::int64_t k = 0; k < 32; ++k) {
    data.x.set_bits(0, k, k == 3 ? 0x3f80U : 0U);
    for (std::int64_t n = 0; n < 3; ++n) data.weight.at(n, k) = k == 3 ? 2 : 0;  // 1.0
  }
  data.scale_inv.set_bits(0, 0, 0);
  data.scale_inv.set_bits(0, 1, 254);
  data.scale_inv.set_bits(0, 2, 255);
  const GuardedMatrix out = run(data);
  BOOST_TEST(out.value(0, 0) == 0x1p-127);
  BOOST_TEST(out.value(0, 1) == 0x1p127);
  BOOST_TEST(std::isnan(out.value(0, 2)));
}

BOOST_FIXTURE_TEST_CASE(bias_and_epilogue, OnCpu) {
  for (const char* const expression :
       {"silu(x)", "gelu(x)", "silu(x)*gate", "x*scale[row]+shift[col]", "max(x,0)*a+b"}) {
    for (const WeightLayout layout : kLayouts) {
      for (const DequantScale& scale : kDequantScales) {
        for (const Dtype out : {Dtype::f16, Dtype::f32}) {
          DequantMatmulSpec spec = spec_of(Dtype::f16, Dtype::e4m3fn, scale, layout);
          spec.out = out;
          spec.bias = true;
          spec.pointwise = parse_pointwise(expression);
          check({.spec = spec, .m = 6, .n = 70, .k = 150});
        }
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(layouts_and_numbers_of_rows_give_the_same_bits, OnCpu) {
  for (const Dtype weight : kWeightDtypes) {
    for (const DequantScale& scale : kDequantScales) {
      const auto of_layout = [&](WeightLayout layout) {
        return DequantCase{.spec = spec_of(Dtype::bf16, weight, scale, layout), .m = 9, .n = 50, .k = 140};
      };
      const GuardedMatrix packed = run(DequantData(of_layout(WeightLayout::packed)));
      const GuardedMatrix rows = run(DequantData(of_layout(WeightLayout::row_major)));
      BOOST_TEST((packed.bytes() == rows.bytes()), name(weight));
      DequantCase fewer = of_layout(WeightLayout::packed);
      fewer.m = 1;
      const GuardedMatrix one = run(DequantData(fewer));
      for (std::int64_t n = 0; n < 50; ++n) BOOST_TEST(one.bits(0, n) == packed.bits(0, n));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
