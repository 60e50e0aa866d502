// Epilogues of GEMMs on the GPU, against float64: by gemm_sm90 with every tiling, by gemm_simt (with the CPU
// reference's bits), and by the library's choice. Outputs are poisoned, the bytes around them must stay untouched, and
// a second run must give the same bits.
//
// Suites for --run_test: first (small, for compute-sanitizer), shapes, mma, simt, accumulation. With `-- 3/8` as last
// arguments, runs only that share of the specs (support/share.h).
#include "support/gpu_test.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/jit/warm_up.h"
#include "support/compare.h"
#include "support/epilogue_reference.h"
#include "support/gemm_on_gpu.h"
#include "support/run_case.h"
#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_epilogue_gpu)

namespace {

Context& context() {
  static Context one(cuda_options());
  return one;
}

bool on_hopper() { return context().cache().target() == target_for(9, 0); }

// bf16 and f16, whose rows have to start at multiples of 16 bytes, are test_gemm_sm90_16bit_gpu.cpp's.
bool wgmma_takes(const GemmSpec& spec) { return is_fp8(spec.a) && sm90_multiplies(spec); }

struct Fixture : GemmOnGpu {
  std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream{*cpu};
  EpilogueReference all_outputs;
  Share share = Share::of_arguments();

  Fixture() : GemmOnGpu(context()) {}

  // The specs of this process's share.
  std::vector<GemmSpec> specs_of_share() const {
    std::vector<GemmSpec> specs = epilogue_specs();
    std::erase_if(specs, [&](const GemmSpec& spec) { return !share.has(print(spec)); });
    return specs;
  }

  void compile(const std::vector<KernelSpec>& specs) {
    warm(used.cache(), specs, used.cache().target(), share.threads());
  }

  void expect_right(const Case& c) {
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, cuda, stream);
    std::string fault = damage(outputs);
    if (fault.empty()) fault = all_outputs.fault(c, inputs, outputs, kTensorCoreSum);
    if (fault.empty()) fault = differences(outputs, run(c, inputs, cuda, stream));
    count(c, fault);
  }

  // beta = 0, and a c that would spoil any result that read it.
  void expect_c_unread(const GemmSpec& spec, const Shape& shape) {
    const Case c{.spec = spec, .shape = shape, .beta = 0};
    const SharedMatrices inputs = with_unset_c(c, maker.inputs(c));
    const Matrices outputs = run(c, inputs, cuda, stream);
    std::string fault = damage(outputs);
    if (fault.empty()) fault = all_outputs.fault(c, inputs, outputs, kTensorCoreSum);
    count(c, fault);
  }

  void expect_bits_of_cpu(const Case& c) {
    const SharedMatrices inputs = maker.inputs(c);
    count(c, differences(run(c, inputs, *cpu, cpu_stream), run(c, inputs, cuda, stream)));
  }

  static std::string differences(const Matrices& expected, const Matrices& actual) {
    for (const auto& [what, matrix] : expected) {
      if (std::string fault = bit_difference(what, matrix, actual.at(what)); !fault.empty()) return fault;
    }
    return damage(actual);
  }

  // The specs that wgmma takes, with this tiling if it is one of their candidates.
  std::vector<KernelSpec> tiled(std::size_t index) const {
    std::vector<KernelSpec> specs;
    for (GemmSpec spec : specs_of_share()) {
      if (!wgmma_takes(spec)) continue;
      spec.kernel = GemmKernel::sm90;
      spec.tiling = gemm_tilings(spec)[index % gemm_tilings(spec).size()];
      specs.emplace_back(spec);
    }
    return specs;
  }
};

BOOST_FIXTURE_TEST_SUITE(first, Fixture)

BOOST_AUTO_TEST_CASE(small) {
  if (!on_hopper()) return;
  const std::vector<KernelSpec> specs = tiled(0);
  compile(specs);
  for (const KernelSpec& spec : specs) {
    expect_right({.spec = spec, .shape = {70, 131, 144}, .input = Input::integers, .placement = {16, 16}});
    expect_right({.spec = spec, .shape = {129, 264, 272}});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(shapes, Fixture)

// Every tiling: tails of M and N, single elements, several tiles per block, and rows with and without whole pairs.
BOOST_AUTO_TEST_CASE(of_every_tiling) {
  if (!on_hopper()) return;
  constexpr std::size_t kMostTilings = 16;
  constexpr std::array kShapes{Shape{1, 1, 16}, Shape{17, 100, 128}, Shape{300, 392, 1040}, Shape{127, 129, 528}};
  for (std::size_t index = 0; index < kMostTilings; ++index) {
    const std::vector<KernelSpec> specs = tiled(index);
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Shape& shape : kShapes) {
        expect_right({.spec = spec, .shape = shape});
        expect_right({.spec = spec, .shape = shape, .input = Input::integers, .placement = {16, 16}});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_several_tiles_to_a_block) {
  if (!on_hopper()) return;
  for (const std::size_t index : {0U, 3U}) {
    for (const KernelSpec& spec : tiled(index)) expect_right({.spec = spec, .shape = {3000, 2100, 144}});
  }
}

BOOST_AUTO_TEST_CASE(of_the_librarys_choice) {
  for (const GemmSpec& spec : specs_of_share()) {
    for (const Shape shape :
         {Shape{37, 131, 67}, Shape{128, 256, 512}, Shape{5, 7, 0}, Shape{0, 8, 16}, Shape{8, 0, 16}}) {
      for (const Input input : {Input::normal, Input::integers, Input::zeros, Input::nan}) {
        expect_right({.spec = spec, .shape = shape, .input = input});
      }
    }
    for (const Placement placement : {Placement{3, 0}, Placement{0, 1}, Placement{16, 0}}) {
      expect_right({.spec = spec, .shape = {64, 48, 32}, .placement = placement});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(mma, Fixture)

BOOST_AUTO_TEST_CASE(of_both_tilings) {
  for (const GemmTiling& tiling : kMmaTilings) {
    std::vector<KernelSpec> specs;
    for (GemmSpec spec : specs_of_share()) {
      if (spec.a == Dtype::f32) continue;
      spec.kernel = GemmKernel::mma;
      spec.tiling = tiling;
      specs.emplace_back(spec);
    }
    compile(specs);
    for (const KernelSpec& spec : specs) {
      for (const Shape shape : {Shape{1, 1, 1}, Shape{37, 131, 67}, Shape{300, 392, 272}, Shape{5, 7, 0}}) {
        expect_right({.spec = spec, .shape = shape});
        expect_right({.spec = spec, .shape = shape, .input = Input::integers, .placement = {3, 1}});
      }
      expect_right({.spec = spec, .shape = {70, 40, 96}, .input = Input::nan, .placement = {16, 16}});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(simt, Fixture)

BOOST_AUTO_TEST_CASE(has_the_references_bits) {
  for (GemmSpec spec : specs_of_share()) {
    spec.kernel = GemmKernel::simt;
    for (const Shape shape :
         {Shape{1, 1, 1}, Shape{37, 131, 67}, Shape{70, 200, 300}, Shape{5, 7, 0}, Shape{0, 8, 16}}) {
      for (const Input input : {Input::normal, Input::nan}) {
        expect_bits_of_cpu({.spec = spec, .shape = shape, .input = input, .placement = {3, 1}});
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(accumulation, Fixture)

// As in BLAS, the contents of c do not matter then. By the library's choice (also cuBLASLt's) and by all of its own
// kernels.
BOOST_AUTO_TEST_CASE(without_beta_c_is_not_read) {
  for (const GemmSpec& spec : specs_of_share()) {
    if (!spec.epilogue.c) continue;
    std::vector<GemmSpec> all{spec};
    for (const GemmKernel kernel : {GemmKernel::sm90, GemmKernel::mma, GemmKernel::simt}) {
      if (kernel == GemmKernel::sm90 && (!on_hopper() || !wgmma_takes(spec))) continue;
      if (kernel == GemmKernel::mma && spec.a == Dtype::f32) continue;
      all.push_back(spec);
      all.back().kernel = kernel;
    }
    for (const GemmSpec& each : all) {
      for (const Shape& shape : {Shape{70, 131, 144}, Shape{256, 304, 400}}) expect_c_unread(each, shape);
    }
  }
}

// A gradient is added in place, by cuBLASLt and by both tensor-core kernels of the library.
BOOST_AUTO_TEST_CASE(in_place) {
  for (const char* const kernel : {"", " kernel=sm90", " kernel=mma", " kernel=simt"}) {
    if (*kernel != '\0' && !on_hopper()) continue;
    for (const char* const out : {"f32", "bf16"}) {
      if (!share.has(std::string(out) + kernel)) continue;
      const Case c{.spec = parse(std::string("gemm e4m3fn*e4m3fn->") + out + " scale=row,row c=" + out + kernel),
                   .shape = {256, 304, 400}};
      const SharedMatrices inputs = maker.inputs(c);
      const Matrices apart = run(c, inputs, cuda, stream);
      PlacedCase placed(c, inputs, cuda, stream);
      const Tensor from = placed.tensor("c");
      const Tensor to = placed.tensor("out");
      const auto bytes = static_cast<std::size_t>(from.rows * from.row_stride * size_of(from.dtype));
      std::vector<std::byte> copy(bytes);
      cuda.device_api().copy_to_host(copy.data(), from.data, bytes, stream);
      cuda.device_api().copy_from_host(to.data, copy.data(), bytes, stream);
      placed.tensor("c") = to;
      placed.enqueue(stream);
      count(c, differences(apart, placed.outputs(stream)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
