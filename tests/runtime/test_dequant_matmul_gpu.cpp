// dequant_matmul and pack_weight on a GPU: against float64 with decoded weights, within the bound of f32 sums and the
// output's rounding. Outputs are poisoned, the bytes around them must stay untouched, and a second run must give the
// same bits. Several processes can share the cases (support/share.h).
#include "support/gpu_test.h"

#include <cmath>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "support/dequant_case.h"
#include "support/expect_error.h"
#include "support/share.h"

BOOST_AUTO_TEST_SUITE(test_dequant_matmul_gpu)

using namespace ingot;
using namespace ingot::test;

namespace {

Context& context() {
  static Context made(cuda_options());
  return made;
}

bool is_hopper() { return context().cache().target() == target_for(9, 0); }

std::vector<DequantKernel> kernels_of(WeightLayout layout) {
  std::vector<DequantKernel> kernels{DequantKernel::mma};
  if (is_packed(layout) && is_hopper()) kernels.push_back(DequantKernel::sm90);
  return kernels;
}

struct OnGpu {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  std::string problem{};
  std::unique_ptr<Driver> driver = Driver::open(problem);
  Share share = Share::of_arguments();
  std::size_t index = 0;
  int cases = 0;
  int faults = 0;

  ~OnGpu() { std::cout << cases << " cases\n"; }

  // Round-robin over the shares; or all cases of a spec in one process, where other suites use its kernels too.
  bool mine() { return share.has(index++); }
  bool mine(const DequantMatmulSpec& spec) const { return share.has(print(KernelSpec(spec))); }

  // Ten times in the stream and ten times in a graph, outputs poisoned before each.
  template <class Poison, class Enqueue, class Expect>
  void ten_times_each_way(const Poison& poison, const Enqueue& enqueue, const Expect& expect) {
    const auto ten_times = [&](const auto& run, const char* how) {
      for (int round = 0; round < 10; ++round) {
        poison();
        run();
        expect(how);
      }
    };
    ten_times(enqueue, "in the stream");
    Graph captured(stream, enqueue);
    ten_times([&] { captured.replay(stream); }, "in a graph");
  }

  // Right, and twice the same: the second time with codes that the kernel may read early.
  void check(const DequantCase& c) {
    const DequantData data(c);
    PlacedDequant placed(data, cuda, stream);
    check(placed, data, data.expected());
  }
  void check(PlacedDequant& placed, const DequantData& data, const std::vector<DequantData::Expected>& expected) {
    ++cases;
    std::string fault;
    try {
      placed.enqueue(stream);
      const GuardedMatrix out = placed.out(stream);
      fault = fault_of_outputs(data, out, expected);
      placed.poison(stream);
      placed.tensors().constant_weight = true;
      placed.enqueue(stream);
      if (fault.empty() && placed.out(stream).bytes() != out.bytes()) fault = "the second time the bits are others";
    } catch (const Error& error) {
      fault = std::string(error.what()) + "\n" + error.log();
    }
    if (fault.empty()) return;
    if (++faults <= 20) BOOST_ERROR(describe(data.of()) << ": " << fault);
    if (faults == 21) BOOST_ERROR("and more");
  }
};

// Several GEMMs, each with its own data, and the results that each gave when run by itself.
struct Products {
  std::vector<std::unique_ptr<DequantData>> data{};
  std::vector<std::unique_ptr<PlacedDequant>> placed{};
  std::vector<GuardedMatrix> alone{};

  PlacedDequant& add(const char* spec, std::int64_t m, std::int64_t n, std::int64_t k, Backend& cuda, Stream& stream) {
    data.push_back(std::make_unique<DequantData>(
        DequantCase{.spec = std::get<DequantMatmulSpec>(parse(spec)), .m = m, .n = n, .k = k}));
    placed.push_back(std::make_unique<PlacedDequant>(*data.back(), cuda, stream));
    return *placed.back();
  }
  void set_constant(bool constant) {
    for (const auto& each : placed) each->tensors().constant_weight = constant;
  }
  void poison(Stream& stream) {
    for (const auto& each : placed) each->poison(stream);
  }
  void enqueue(Stream& stream) {
    for (const auto& each : placed) each->enqueue(stream);
  }
  void expect_alone(Stream& stream, const char* how, int& cases) {
    for (std::size_t i = 0; i < placed.size(); ++i) {
      ++cases;
      BOOST_TEST((placed[i]->out(stream).bytes() == alone[i].bytes()), describe(data[i]->of()) << " " << how);
    }
  }
};

DequantMatmulSpec spec_of(Dtype x, Dtype weight, const DequantScale& scale, WeightLayout layout) {
  return {.x = x, .weight = weight, .out = x, .scale = scale.scale, .scale_inv = scale.scale_inv, .layout = layout};
}

constexpr std::array kLayouts{WeightLayout::row_major, WeightLayout::packed, WeightLayout::packed_f16};

// Two tilings of each kernel, for few tokens and for many: most cases run these, so that few kernels are compiled.
DequantTiling tiling_of(DequantKernel kernel, std::int64_t m, int split) {
  if (kernel == DequantKernel::mma) {
    return m <= 33 ? DequantTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .split = split, .k_warps = 2}
                   : DequantTiling{.tokens = 64, .rows = 128, .depth = 64, .stages = 3, .split = split};
  }
  return m <= 33 ? DequantTiling{.tokens = 16, .rows = 128, .depth = 128, .stages = 4, .split = 2}
                 : DequantTiling{.wgmma = true, .tokens = 64, .rows = 128, .depth = 64, .stages = 6};
}

// Every weight, scale, activation and layout, one after the other; every third with f32 outputs.
struct Combination {
  std::size_t index;
  DequantMatmulSpec spec;
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const Dtype weight : kWeightDtypes) {
    for (const DequantScale& scale : kDequantScales) {
      for (const Dtype x : kDequantActivations) {
        for (const WeightLayout layout : kLayouts) {
          Combination each{.index = all.size() + 1, .spec = spec_of(x, weight, scale, layout)};
          if (each.index % 3 == 0) each.spec.out = Dtype::f32;
          all.push_back(each);
        }
      }
    }
  }
  return all;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, OnGpu)

BOOST_AUTO_TEST_CASE(one_of_each_kind) {
  std::size_t turn = 0;
  for (const DequantScale& scale : kDequantScales) {
    for (const WeightLayout layout : kLayouts) {
      for (const DequantKernel kernel : kernels_of(layout)) {
        DequantMatmulSpec spec = spec_of(kDequantActivations[turn % 2], kWeightDtypes[turn % 7], scale, layout);
        spec.kernel = kernel;
        for (const std::int64_t m : {1, 17}) check({.spec = spec, .m = m, .n = 131, .k = 200, .seed = ++turn});
        // (sm90 reads rows of x at multiples of 16 bytes.)
        check({.spec = spec, .m = 65, .n = 70, .k = kernel == DequantKernel::sm90 ? 136 : 129, .seed = turn});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(packing) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream(*cpu);
  for (const PackWeightSpec& spec : valid_specs<PackWeightSpec>()) {
    if (spec.unpack) continue;
    const Dtype dtype = spec.weight;
    for (const auto& [n, k] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {70, 131}, {200, 77}, {3, 0}}) {
      const WeightCodes weight = WeightCodes::random(dtype, n, k, 5, false);
      GuardedMatrix rows = weight.rows(3, 1);
      const auto bytes = static_cast<std::size_t>(packed_weight_bytes(dtype, n, k));
      std::vector<std::byte> by_cpu(bytes + 16);
      auto* const from_16 = by_cpu.data() + (16 - reinterpret_cast<std::uintptr_t>(by_cpu.data()) % 16) % 16;
      const auto packed_at = [&](void* data, Device device) {
        return vector(data, Dtype::u8, static_cast<std::int64_t>(bytes), device);
      };
      cpu->pack_weight(spec, {.codes = weight.view(rows, rows.bytes().data(), {}, 3), .packed = packed_at(from_16, {})},
                       cpu_stream);
      Buffer codes(cuda, rows.bytes().size());
      cuda.device_api().copy_from_host(codes.data(), rows.bytes().data(), rows.bytes().size(), stream);
      Buffer packed(cuda, bytes);
      const Tensor on_gpu = weight.view(rows, codes.data(), cuda.device(), 3);
      cuda.pack_weight(spec, {.codes = on_gpu, .packed = packed_at(packed.data(), cuda.device())}, stream);
      std::vector<std::byte> by_gpu(bytes);
      cuda.device_api().copy_to_host(by_gpu.data(), packed.data(), bytes, stream);
      BOOST_TEST(std::equal(by_gpu.begin(), by_gpu.end(), from_16), print(spec) << " " << n << "x" << k);
      GuardedMatrix back = rows;
      std::fill(back.bytes().begin(), back.bytes().end(), GuardedMatrix::kPoison);
      cuda.device_api().copy_from_host(codes.data(), back.bytes().data(), back.bytes().size(), stream);
      cuda.pack_weight({.weight = dtype, .layout = spec.layout, .unpack = true},
                       {.codes = on_gpu, .packed = packed_at(packed.data(), cuda.device())}, stream);
      cuda.device_api().copy_to_host(back.bytes().data(), codes.data(), back.bytes().size(), stream);
      BOOST_TEST(back.damage() == "");
      const auto bits = static_cast<unsigned>(k * bits_of(dtype) % 8);
      for (std::int64_t r = 0; bits != 0 && r < n; ++r) {
        rows.set_bits(r, rows.cols() - 1, rows.bits(r, rows.cols() - 1) & ((1U << bits) - 1U));
      }
      BOOST_TEST((back.bytes() == rows.bytes()), print(spec) << " " << n << "x" << k);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(exact, OnGpu)

// Every format, kind of scale_inv, activation, layout and kernel, with every number of tokens; N and K vary with the
// case. Only two tilings of each kernel are compiled here; suite `tilings` runs the others.
BOOST_AUTO_TEST_CASE(of_everything) {
  constexpr std::array<std::pair<int, int>, 4> kSizes{std::pair{141, 301}, {75, 1133}, {333, 65}, {257, 514}};
  for (const Combination& each : combinations()) {
    if (!mine(each.spec)) continue;
    std::size_t turn = each.index;
    DequantMatmulSpec spec = each.spec;
    for (const std::int64_t m : {1, 2, 3, 5, 8, 16, 17, 33, 64, 100, 128, 256, 1000}) {
      const auto& [n, k] = kSizes[turn++ % kSizes.size()];
      spec.bias = m % 3 == 0;
      // Kernel sm90 takes rows of x at multiples of 16 bytes.
      DequantCase c{.spec = spec, .m = m, .n = n, .k = k, .seed = turn};
      c.placement.x_padding = (8 - k % 8) % 8;
      const auto expected = DequantData(c).expected();
      for (const DequantKernel kernel : kernels_of(spec.layout)) {
        c.spec.kernel = kernel;
        c.spec.tiling = tiling_of(kernel, m, m == 5 || m == 128 ? 3 : 1);
        const DequantData data(c);
        PlacedDequant placed(data, cuda, stream);
        check(placed, data, expected);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_anywhere) {
  for (const Dtype weight : kWeightDtypes) {
    for (const WeightLayout layout : kLayouts) {
      for (const Dtype x : kDequantActivations) {
        if (!mine()) continue;
        for (const DequantPlacement& placement :
             {DequantPlacement{
                  .x_padding = 3, .x_offset = 1, .weight_padding = 6, .weight_offset = 1, .out_padding = 5},
              DequantPlacement{.weight_padding = 16, .weight_offset = 16, .out_padding = 1, .out_offset = 1},
              DequantPlacement{.x_padding = 8, .x_offset = 8, .weight_padding = 2, .weight_offset = 2}}) {
          for (const std::int64_t m : {1, 9, 70}) {
            check({.spec = spec_of(x, weight, kDequantScales[1], layout),
                   .m = m,
                   .n = 133,
                   .k = 264,
                   .placement = placement});
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(empty_and_tiny) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {0, 5, 8}, {5, 0, 8}, {3, 4, 0}, {1, 1, 1}, {1, 1, 64}, {2, 3, 7}, {1, 64, 64}, {300, 1, 1}}) {
    for (const WeightLayout layout : kLayouts) {
      for (const DequantScale& scale : kDequantScales) {
        if (mine()) check({.spec = spec_of(Dtype::bf16, Dtype::e4m3fn, scale, layout), .m = m, .n = n, .k = k});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(epilogues) {
  for (const char* const expression : {"silu(x)", "silu(x)*gate", "x*scale[row]+shift[col]"}) {
    for (const WeightLayout layout : kLayouts) {
      for (const DequantKernel kernel : kernels_of(layout)) {
        for (const std::int64_t m : {3, 70}) {
          if (!mine()) continue;
          DequantMatmulSpec spec = spec_of(Dtype::bf16, Dtype::e4m3fn, kDequantScales[2], layout);
          spec.kernel = kernel;
          spec.bias = true;
          spec.pointwise = parse_pointwise(expression);
          check({.spec = spec, .m = m, .n = 131, .k = 200});
          spec.out = Dtype::f32;
          check({.spec = spec, .m = m, .n = 132, .k = 200});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(decoding, OnGpu)

// In each token, x is 1 at a single position: so each output is the value of one code, and every code is covered.
BOOST_AUTO_TEST_CASE(every_code) {
  for (const Dtype weight : kWeightDtypes) {
    for (const Dtype x : kDequantActivations) {
      for (const WeightLayout layout : kLayouts) {
        for (const DequantKernel kernel : kernels_of(layout)) {
          if (!mine()) continue;
          DequantMatmulSpec spec = spec_of(x, weight, kDequantScales[1], layout);
          spec.out = Dtype::f32;
          spec.kernel = kernel;
          DequantData data({.spec = spec, .m = 64, .n = 256, .k = 64});
          const std::uint32_t mask = (1U << static_cast<unsigned>(bits_of(weight))) - 1U;
          for (std::int64_t n = 0; n < 256; ++n) {
            data.scale_inv.set_bits(0, n, float_bits(1.0F));
            for (std::int64_t k = 0; k < 64; ++k) {
              const std::uint32_t code = static_cast<std::uint32_t>(n + k) & mask;
              data.weight.at(n, k) = static_cast<std::uint8_t>(is_nan_or_inf(weight, code) ? 0 : code);
            }
          }
          for (std::int64_t m = 0; m < 64; ++m) {
            for (std::int64_t k = 0; k < 64; ++k) data.x.set_bits(m, k, encode_input(x, m == k ? 1.0F : 0.0F));
          }
          PlacedDequant placed(data, cuda, stream);
          placed.enqueue(stream);
          const GuardedMatrix out = placed.out(stream);
          ++cases;
          bool right = true;
          for (std::int64_t m = 0; m < 64; ++m) {
            for (std::int64_t n = 0; n < 256; ++n) right = right && out.value(m, n) == data.weight.value(n, m);
          }
          BOOST_TEST(right, describe(data.of()));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(scale_inv_of_mx_at_their_ends) {
  for (const WeightLayout layout : kLayouts) {
    for (const DequantKernel kernel : kernels_of(layout)) {
      DequantMatmulSpec spec = spec_of(Dtype::bf16, Dtype::e2m1fn, kDequantScales[6], layout);
      spec.out = Dtype::f32;
      spec.kernel = kernel;
      DequantData data({.spec = spec, .m = 1, .n = 3, .k = 32});
      for (std::int64_t k = 0; k < 32; ++k) {
        data.x.set_bits(0, k, k == 3 ? 0x3f80U : 0U);
        for (std::int64_t n = 0; n < 3; ++n) data.weight.at(n, k) = k == 3 ? 2 : 0;  // 1.0
      }
      data.scale_inv.set_bits(0, 0, 0);
      data.scale_inv.set_bits(0, 1, 254);
      data.scale_inv.set_bits(0, 2, 255);
      PlacedDequant placed(data, cuda, stream);
      placed.enqueue(stream);
      const GuardedMatrix out = placed.out(stream);
      ++cases;
      BOOST_TEST(out.value(0, 0) == 0x1p-127);
      BOOST_TEST(out.value(0, 1) == 0x1p127);
      BOOST_TEST(std::isnan(out.value(0, 2)));
    }
  }
}

// A stage that goes past the last k has no group there whose scale_inv counts: the last group's may be Inf.
BOOST_AUTO_TEST_CASE(an_infinite_scale_inv_of_the_last_group) {
  for (const ScaleGranularity scale : {ScaleGranularity{1, 32}, ScaleGranularity{1, 64}, ScaleGranularity{1, 128}}) {
    for (const WeightLayout layout : kLayouts) {
      for (const DequantKernel kernel : kernels_of(layout)) {
        for (const auto& [m, k] : {std::pair{1, 32}, {1, 96}, {16, 160}, {200, 96}, {64, 256}}) {
          const DequantMatmulSpec spec{.x = Dtype::bf16,
                                       .weight = Dtype::e4m3fn,
                                       .out = Dtype::f32,
                                       .scale = scale,
                                       .layout = layout,
                                       .kernel = kernel};
          DequantData data({.spec = spec, .m = m, .n = 130, .k = k});
          const std::int64_t groups = (k + scale.cols - 1) / scale.cols;
          for (std::int64_t row = 0; row < m; ++row) {
            for (std::int64_t at = 0; at < k; ++at) data.x.set_bits(row, at, 0x3f80U);  // 1.0
          }
          for (std::int64_t row = 0; row < 130; ++row) {
            for (std::int64_t at = 0; at < k; ++at) data.weight.at(row, at) = 0x38;  // 1.0
            for (std::int64_t group = 0; group < groups; ++group) {
              data.scale_inv.set_bits(0, row * groups + group, group == groups - 1 ? 0x7f800000U : 0x3f800000U);
            }
          }
          PlacedDequant placed(data, cuda, stream);
          placed.enqueue(stream);
          const GuardedMatrix out = placed.out(stream);
          ++cases;
          for (const std::int64_t row : {std::int64_t{0}, std::int64_t{m - 1}}) {
            for (std::int64_t col = 0; col < 130; ++col) {
              if (!std::isinf(out.value(row, col))) ++faults;
            }
          }
          BOOST_TEST(faults == 0, print(KernelSpec(spec)) << " M " << m << " K " << k);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(nans, OnGpu)

// Rows with a NaN or an Inf, and their neighbours.
BOOST_AUTO_TEST_CASE(stays_in_its_row) {
  for (const Combination& each : combinations()) {
    if (!is_fp8(each.spec.weight) || !mine(each.spec)) continue;
    for (const DequantKernel kernel : kernels_of(each.spec.layout)) {
      DequantMatmulSpec spec = each.spec;
      spec.kernel = kernel;
      for (const std::int64_t m : {2, 70}) {
        spec.tiling = tiling_of(kernel, m, 1);
        check({.spec = spec, .m = m, .n = 150, .k = 264, .seed = each.index, .faulty = true});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tilings, OnGpu)

// Every tiling that is offered for any number of tokens, on sizes that cut off tiles and on sizes that take several
// rounds. (Of other numbers of rows some have no tilings with stream-K.)
BOOST_AUTO_TEST_CASE(of_every_kernel) {
  const MatmulDevice place{.target = context().cache().target(), .multiprocessors = 132};
  for (const std::size_t scale : {1U, 2U, 6U}) {
    std::set<std::string> seen;
    for (const std::int64_t m : {1, 16, 32, 64, 128, 256, 1000}) {
      DequantMatmulSpec spec =
          spec_of(Dtype::bf16, scale == 6 ? Dtype::e2m1fn : Dtype::e4m3fn, kDequantScales[scale], WeightLayout::packed);
      for (const DequantKernel kernel : kernels_of(spec.layout)) {
        spec.kernel = kernel;
        spec.tiling.reset();
        for (const DequantTiling& tiling : dequant_tilings(spec, {m, 10240, 8192}, place)) {
          spec.tiling = tiling;
          if (!seen.insert(print(KernelSpec(spec))).second || !mine()) continue;
          // If tiles are cut, there are enough K-steps.
          const std::int64_t k = tiling.stream_k ? 8 * tiling.depth + 72 : 1096;
          check({.spec = spec, .m = tiling.tokens + 3, .n = 2 * tiling.rows + 37, .k = k, .seed = index});
          check({.spec = spec, .m = 1, .n = 1000, .k = 72, .seed = index});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(rounds, OnGpu)

// The weight stays in the L2, so that codes arrive as fast as possible, and each block has many tiles: the copy engine
// must not overwrite what a warp has still to read. (It did when a stage was released as soon as its loads were
// issued.) Outputs would then change from launch to launch.
BOOST_AUTO_TEST_CASE(every_launch_gives_the_same) {
  if (!is_hopper()) return;
  const MatmulDevice place{.target = context().cache().target(), .multiprocessors = 132};
  const auto check_tilings = [&](DequantMatmulSpec spec) {
    const DequantData data({.spec = spec, .m = 130, .n = 9001, .k = 2048, .seed = 7});
    PlacedDequant placed(data, cuda, stream);
    spec.kernel = DequantKernel::sm90;
    const auto launch = [&] {
      placed.poison(stream);
      placed.enqueue(spec, stream);
      return placed.out(stream);
    };
    std::set<std::string> seen;
    for (const std::int64_t m : {1, 16, 32, 64, 128}) {
      spec.tiling.reset();
      for (const DequantTiling& tiling : dequant_tilings(spec, {m, 28672, 8192}, place)) {
        if (!seen.insert(print(DequantKernel::sm90, tiling)).second || !mine()) continue;
        spec.tiling = tiling;
        ++cases;
        const GuardedMatrix first = launch();
        for (int i = 0; i < 6; ++i) BOOST_TEST((launch().bytes() == first.bytes()), print(spec));
      }
    }
  };
  check_tilings({.scale = kRowGroups});
  for (const Dtype weight : {Dtype::e4m3fn, Dtype::e3m2fn, Dtype::e2m1fn}) {
    check_tilings({.weight = weight});
    if (weight != Dtype::e4m3fn) check_tilings({.weight = weight, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu});
  }
}

// The GEMM before writes each GEMM's x, while the weight's codes are read early.
BOOST_AUTO_TEST_CASE(a_chain_with_constant_weights) {
  if (!is_hopper()) return;
  constexpr std::array kChain{"dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x192x64:7:2:1",
                              "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu "
                              "kernel=sm90:mma:8x256x512:2:1:1:streamk",
                              "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x64x256:5:2:2",
                              "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:wgmma:16x128x256:2:2:1",
                              "dequant_matmul bf16*e4m3fn->bf16 packed scale=row "
                              "kernel=sm90:wgmma:128x256x128:3:1:1:waves2:multicast2",
                              "dequant_matmul bf16*e4m3fn->bf16 packed scale=row "
                              "kernel=sm90:mma:8x128x256:2:1:1:blocks2:streamk"};
  Products chain;
  for (const char* const text : kChain) {
    PlacedDequant& added = chain.add(text, 5, 4096, 4096, cuda, stream);
    if (chain.placed.size() > 1) added.tensors().x = chain.placed[chain.placed.size() - 2]->tensors().out;
  }
  chain.poison(stream);
  for (const auto& each : chain.placed) {
    each->enqueue(stream);
    cuda.device_api().synchronize(stream);
  }
  for (const auto& each : chain.placed) chain.alone.push_back(each->out(stream));
  BOOST_TEST(fault_of_outputs(*chain.data[0], chain.alone[0], chain.data[0]->expected()).empty());

  chain.set_constant(true);
  ten_times_each_way([&] { chain.poison(stream); }, [&] { chain.enqueue(stream); },
                     [&](const char* how) { chain.expect_alone(stream, how, cases); });
}

// The weight is not constant: the previous kernel packs it, for longer than the GEMM takes to begin, and the kernel
// before that one writes its scale_inv.
BOOST_AUTO_TEST_CASE(a_weight_that_has_just_been_written) {
  if (!is_hopper()) return;
  constexpr std::array kSpecs{"dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x64x256:5:2:2",
                              "dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu "
                              "kernel=sm90:mma:8x128x512:2:1:1:blocks2:streamk",
                              "dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:wgmma:64x256x128:4:1:1"};
  for (const char* const text : kSpecs) {
    const auto spec = std::get<DequantMatmulSpec>(parse(text));
    const DequantData data({.spec = spec, .m = 5, .n = 8192, .k = 4096});
    PlacedDequant placed(data, cuda, stream);
    placed.enqueue(stream);
    const GuardedMatrix expected = placed.out(stream);

    const Tensor weight = placed.tensors().weight, scale_inv = placed.tensors().scale_inv;
    const auto copy = [&](void* from, void* to, std::size_t bytes) {
      const auto count = static_cast<std::int64_t>(bytes);
      cuda.relayout({},
                    {.input = vector(from, Dtype::e4m3fn, count, cuda.device()),
                     .output = vector(to, Dtype::e4m3fn, count, cuda.device())},
                    stream);
    };
    const Buffer right_codes(cuda, 8192 * 4096), right_scale_inv(cuda, byte_span(scale_inv, "scale_inv"));
    const Tensor codes = matrix(right_codes.data(), spec.weight, 8192, 4096, cuda.device());
    cuda.pack_weight({.weight = spec.weight, .unpack = true}, {.codes = codes, .packed = weight}, stream);
    copy(scale_inv.data, right_scale_inv.data(), right_scale_inv.bytes());
    const auto write_and_multiply = [&] {
      cuda.device_api().fill_zero(scale_inv.data, right_scale_inv.bytes(), stream);
      cuda.device_api().fill_zero(weight.data, byte_span(weight, "weight"), stream);
      copy(right_scale_inv.data(), scale_inv.data, right_scale_inv.bytes());
      cuda.pack_weight({.weight = spec.weight}, {.codes = codes, .packed = weight}, stream);
      placed.enqueue(stream);
    };
    ten_times_each_way([&] { placed.poison(stream); }, write_and_multiply,
                       [&](const char* how) {
                         ++cases;
                         BOOST_TEST((placed.out(stream).bytes() == expected.bytes()), text << " " << how);
                       });
  }
}

// Stream-K's partial sums and flags pass between launches of different sizes and warp counts without any wait in
// between, also in a graph. Groups of K are cut in the middle. Of an x that the L2 does not hold, only the last round's
// tiles are cut.
BOOST_AUTO_TEST_CASE(cut_tiles_one_after_the_other) {
  if (!is_hopper()) return;
  struct Cut {
    const char* spec;
    std::int64_t m, n, k;
  };
  const std::vector<Cut> cuts{
      {"dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:mma:8x128x256:3:1:1:streamk", 5, 9001, 2120},
      {"dequant_matmul bf16*e4m3fn->bf16 packed scale=1x128 kernel=sm90:wgmma:64x128x64:4:1:1:streamk", 70, 4500, 1096},
      {"dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu kernel=sm90:mma:8x256x512:2:1:1:streamk", 3,
       5000, 4200},
      {"dequant_matmul bf16*e4m3fn->bf16 packed scale=128x128 kernel=sm90:wgmma:16x128x256:4:1:1:streamk", 16, 3000,
       4096},
      {"dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=sm90:wgmma:256x128x64:5:1:1:streamk", 65530, 120,
       208}};
  Products products;
  for (const Cut& cut : cuts) {
    PlacedDequant& added = products.add(cut.spec, cut.m, cut.n, cut.k, cuda, stream);
    check(added, *products.data.back(), products.data.back()->expected());
    products.alone.push_back(added.out(stream));
  }
  const auto all_at_once = [&] {
    for (int round = 0; round < 5; ++round) products.enqueue(stream);
  };
  for (const bool constant : {false, true}) {
    products.set_constant(constant);
    products.poison(stream);
    all_at_once();
    products.expect_alone(stream, "one after the other", cases);
  }
  Graph captured(stream, all_at_once);
  products.poison(stream);
  for (int replay = 0; replay < 3; ++replay) captured.replay(stream);
  products.expect_alone(stream, "in a graph", cases);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(batch_invariant, OnGpu)

// A token's outputs have the same bits by itself and among others, even among so many that the memory for split-K sums
// is used several times.
BOOST_AUTO_TEST_CASE(rows_do_not_depend_on_m) {
  const auto check_rows = [&](DequantMatmulSpec spec, std::int64_t n, std::int64_t k) {
    spec.batch_invariant = true;
    spec.out = Dtype::f32;
    const DequantData data({.spec = spec, .m = 2500, .n = n, .k = k});
    PlacedDequant placed(data, cuda, stream);
    placed.enqueue(stream);
    const GuardedMatrix all = placed.out(stream);
    DequantMatmulTensors& tensors = placed.tensors();
    for (const std::int64_t m : {1, 2, 3, 8, 16, 17, 64, 100, 256, 1000}) {
      placed.poison(stream);
      tensors.x.rows = tensors.out.rows = m;
      placed.enqueue(stream);
      const GuardedMatrix some = placed.out(stream);
      ++cases;
      bool same = true;
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t c = 0; c < n; ++c) same = same && some.bits(r, c) == all.bits(r, c);
      }
      BOOST_TEST(same, describe(data.of()) << " alone with " << m);
    }
  };
  for (const DequantScale& scale : kDequantScales) {
    for (const WeightLayout layout : kLayouts) {
      for (const Dtype x : kDequantActivations) {
        for (const Dtype weight : {Dtype::e4m3fn, Dtype::e2m1fn}) {
          for (const auto& [n, k] : std::vector<std::pair<std::int64_t, std::int64_t>>{{512, 4096}, {2100, 520}}) {
            if (mine()) check_rows(spec_of(x, weight, scale, layout), n, k);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(graph, OnGpu)

BOOST_AUTO_TEST_CASE(a_replay_gives_the_same) {
  for (const WeightLayout layout : kLayouts) {
    for (const std::int64_t m : {1, 16, 64, 300}) {
      if (!mine()) continue;
      DequantMatmulSpec spec = spec_of(Dtype::bf16, Dtype::e4m3fn, kDequantScales[1], layout);
      const DequantData data({.spec = spec, .m = m, .n = 512, .k = 4096});
      PlacedDequant placed(data, cuda, stream);
      placed.enqueue(stream);
      const GuardedMatrix eager = placed.out(stream);
      Graph captured(stream, [&] {
        placed.enqueue(stream);
        placed.enqueue(stream);
      });
      for (int i = 0; i < 3; ++i) {
        placed.poison(stream);
        captured.replay(stream);
        ++cases;
        BOOST_TEST((placed.out(stream).bytes() == eager.bytes()), describe(data.of()));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(refusals, OnGpu)

BOOST_AUTO_TEST_CASE(a_named_kernel_says_why_it_does_not_take_a_call) {
  if (!is_hopper()) return;
  DequantMatmulSpec spec;
  spec.kernel = DequantKernel::sm90;
  const auto message = [&](const DequantCase& c) {
    const DequantData data(c);
    PlacedDequant placed(data, cuda, stream);
    return error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument);
  };
  check_contains(message({.spec = spec, .m = 3, .n = 64, .k = 100}),
                 {"kernel sm90 needs rows of x at multiples of 16 bytes; leave kernel out to have the library choose"});
  check_contains(message({.spec = spec, .m = 3, .n = 64, .k = 0}), {"kernel sm90 needs a K of at least 1"});
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
