// Tuning on the GPU: real candidates give right results and are timed, and a GEMM runs what its record says.
#include "support/gpu_test.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/gpu_measurer.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_autotuner_gpu)

using namespace ingot;

namespace {

struct Fixture {
  ContextOptions options() const {
    ContextOptions made = test::cuda_options();
    made.store_root = directory.path() / "store";
    made.tuning = Tuning::on;
    made.tuning_file.clear();
    return made;
  }
  static RandomData::Copy copy_on(MeasuredGpu& gpu) {
    return [&gpu](void* to, const void* from, std::size_t bytes) { gpu.copy(to, from, bytes); };
  }
  static GemmOperands::Fill fill_on(MeasuredGpu& gpu) {
    return [&gpu](void* to, unsigned char byte, std::size_t bytes) { gpu.fill(to, byte, bytes); };
  }
  static std::vector<std::byte> output(MeasuredGpu& gpu, const GemmTensors& tensors) {
    std::vector<std::byte> bytes(byte_span(tensors.out, "out"));
    gpu.device_api().copy_to_host(bytes.data(), tensors.out.data, bytes.size(), gpu.stream());
    return bytes;
  }
  static TuningRecord record(const Context& context, const GemmCall& call, const MatmulSpec& chosen) {
    return {.machine = context.tuning_machine(),
            .spec = call.spec,
            .size = call.size,
            .chosen = chosen,
            .us = 1,
            .date = "2026-11-21"};
  }

  test::TemporaryDirectory directory;
};

std::vector<MatmulSpec> products(const std::vector<GemmSpec>& specs) { return {specs.begin(), specs.end()}; }

GemmSpec with_kernel(GemmSpec spec, GemmKernel kernel) {
  spec.kernel = kernel;
  return spec;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(tunes_a_gemm, Fixture) {
  Context context(options());
  MeasuredGpu gpu(context);
  RandomData random(gpu.backend(), gpu.stream(), copy_on(gpu));
  for (const GemmCall& call : {GemmCall{{.fast_accumulation = true}, {1024, 1024, 1024}},
                               GemmCall{{.a = Dtype::e5m2, .scale_a = kRowwise, .scale_b = kRowwise}, {512, 768, 2048}},
                               GemmCall{{.a = Dtype::bf16, .b = Dtype::bf16}, {1024, 512, 512}}}) {
    GpuMeasurer measurer(gpu, random, call.spec, call.size);
    const auto all = products(gemm_candidates(
        call, {.target = context.cache().target(), .multiprocessors = context.tuning_machine().multiprocessors}));
    const AutotuneResult result = autotune(all, measurer, {.most_rounds = 5});
    BOOST_TEST_CONTEXT(print(call)) {
      BOOST_REQUIRE(result.chosen.has_value());
      for (const Trial& trial : result.trials)
        BOOST_TEST(!trial.wrong, print(kernel_spec(trial.spec)) << ": " << trial.problem);
      const Trial& chosen = result.trials[*result.chosen];
      BOOST_TEST(chosen.median_us > 0);
      BOOST_TEST(context.tuning_store().put(record(context, call, chosen.spec)));
    }
  }
}

// For any spec, every candidate that takes it is right, and the chosen one stays right: it runs again and again, on one
// copy after the other.
BOOST_FIXTURE_TEST_CASE(tunes_every_epilogue, Fixture) {
  Context context(options());
  MeasuredGpu gpu(context);
  RandomData random(gpu.backend(), gpu.stream(), copy_on(gpu));
  for (const GemmSpec& spec : test::epilogue_specs()) {
    const GemmCall call{.spec = spec, .size = {512, 384, 640}};
    BOOST_TEST_CONTEXT(print(call)) {
      GpuMeasurer measurer(gpu, random, call.spec, call.size);
      const auto all = products(gemm_candidates(
          call, {.target = context.cache().target(), .multiprocessors = context.tuning_machine().multiprocessors}));
      const AutotuneResult result = autotune(all, measurer, {.most_rounds = 3});
      for (const Trial& trial : result.trials)
        BOOST_TEST(!trial.wrong, print(kernel_spec(trial.spec)) << ": " << trial.problem);
      BOOST_REQUIRE(result.chosen.has_value());
      const Trial& chosen = result.trials[*result.chosen];
      BOOST_TEST(chosen.median_us > 0);
      GemmOperands operands(random, fill_on(gpu), call);
      operands.poison();
      for (int i = 0; i < 2 * operands.copies(); ++i) {
        gpu.backend().gemm(std::get<GemmSpec>(chosen.spec), operands.tensors(i % operands.copies()), gpu.stream());
      }
      BOOST_TEST(operands.fault() == "");
      BOOST_TEST(context.tuning_store().put(record(context, call, chosen.spec)));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(right_results_pass_and_others_do_not, Fixture) {
  Context context(options());
  MeasuredGpu gpu(context);
  RandomData random(gpu.backend(), gpu.stream(), copy_on(gpu));
  std::vector<GemmSpec> specs{{},
                              {.b = Dtype::e5m2, .scale_a = kRowwise, .scale_b = kRowwise, .bias = true},
                              {.out = Dtype::f32, .scale_a = kRowGroups, .scale_b = kBlocks},
                              {.out = Dtype::f16, .scale_a = kRowGroups, .scale_b = kRowGroups, .bias = true}};
  for (const Layout a : {Layout::k_major, Layout::mn_major}) {
    for (const Layout b : {Layout::k_major, Layout::mn_major}) {
      specs.push_back({.a = Dtype::bf16, .b = Dtype::bf16, .layout_a = a, .layout_b = b, .bias = true});
      specs.push_back({.a = Dtype::f16, .b = Dtype::f16, .out = Dtype::f32, .layout_a = a, .layout_b = b});
    }
  }
  for (const GemmSpec& spec : specs) {
    for (const MatmulSize& size : {MatmulSize{300, 272, 400}, MatmulSize{5, 64, 128}}) {
      BOOST_TEST_CONTEXT(print(GemmCall{spec, size})) {
        GemmOperands operands(random, fill_on(gpu), {spec, size});
        const GemmTensors tensors = operands.tensors(operands.copies() - 1);
        operands.poison();
        BOOST_TEST(operands.fault().find("was not written") != std::string::npos);
        gpu.backend().gemm(spec, tensors, gpu.stream());
        BOOST_TEST(operands.fault() == "");
        // Another GEMM.
        GemmTensors other = tensors;
        other.b = operands.tensors(0).b;
        other.scale_inv_b = operands.tensors(0).scale_inv_b;
        gpu.backend().gemm(spec, other, gpu.stream());
        BOOST_TEST(operands.fault().find("relative error") != std::string::npos);
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_gemm_runs_what_its_record_says, Fixture) {
  const GemmCall call{.spec = {.out = Dtype::f32}, .size = {256, 256, 4096}};
  {
    Context context(options());
    BOOST_REQUIRE(context.tuning_store().put(record(context, call, with_kernel(call.spec, GemmKernel::simt))));
  }
  const auto run = [&](Tuning tuning, GemmKernel kernel) {
    ContextOptions with = options();
    with.tuning = tuning;
    Context context(with);
    MeasuredGpu gpu(context);
    RandomData random(gpu.backend(), gpu.stream(), copy_on(gpu));
    const GemmOperands operands(random, fill_on(gpu), call);
    gpu.backend().gemm(with_kernel(call.spec, kernel), operands.tensors(0), gpu.stream());
    return output(gpu, operands.tensors(0));
  };
  const auto simt = run(Tuning::off, GemmKernel::simt);
  BOOST_TEST((run(Tuning::on, GemmKernel::automatic) == simt));
  BOOST_TEST((run(Tuning::frozen, GemmKernel::automatic) == simt));
  BOOST_TEST((run(Tuning::off, GemmKernel::automatic) != simt), "the tensor cores' sums have simt's bits");
}

// A record for aligned tensors does not apply to unaligned ones: another kernel takes them, as without a record.
BOOST_FIXTURE_TEST_CASE(a_record_that_does_not_fit_the_tensors, Fixture) {
  const GemmCall call{.spec = {}, .size = {64, 64, 128}};
  for (const GemmKernel kernel : {GemmKernel::cublaslt, GemmKernel::sm90}) {
    Context context(options());
    BOOST_REQUIRE(context.tuning_store().put(record(context, call, with_kernel(call.spec, kernel))));
    MeasuredGpu gpu(context);
    RandomData random(gpu.backend(), gpu.stream(), copy_on(gpu));
    GemmOperands operands(random, fill_on(gpu), call);
    GemmTensors tensors = operands.tensors(operands.copies() - 1);
    const Buffer moved(gpu.backend(), 64 * 131 + 1);  // an odd address and an odd pitch
    for (int row = 0; row < 64; ++row) {
      gpu.copy(static_cast<std::byte*>(moved.data()) + 1 + row * 131,
               static_cast<const std::byte*>(tensors.a.data) + row * 128, 128);
    }
    tensors.a.data = static_cast<std::byte*>(moved.data()) + 1;
    tensors.a.row_stride = 131;
    operands.poison();
    gpu.backend().gemm(call.spec, tensors, gpu.stream());
    BOOST_TEST(operands.fault() == "");
  }
}

BOOST_FIXTURE_TEST_CASE(small_a_kernel_that_is_missing_in_a_capture_is_told, Fixture) {
  const GemmCall call{.spec = {}, .size = {256, 128, 256}};
  for (const GemmKernel kernel : {GemmKernel::cublaslt, GemmKernel::simt}) {
    const GemmSpec chosen = with_kernel(call.spec, kernel);
    Context context(options());
    BOOST_REQUIRE(context.tuning_store().put(record(context, call, chosen)));
    Context fresh(options());
    MeasuredGpu gpu(fresh);
    const OwnedTensor codes(gpu.backend(), Dtype::e4m3fn, 256, 256);
    const OwnedTensor out(gpu.backend(), Dtype::bf16, 256, 128);
    const OwnedTensor scale_inv(gpu.backend(), Dtype::f32, 1, 1);
    Tensor b = codes;
    b.rows = 128;
    static_cast<void>(gpu.stream().scratch(64 << 20));
    gpu.check(gpu.api().cuStreamBeginCapture(gpu.stream().handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "cuStreamBeginCapture");
    const std::string error = test::error_of(
        [&] {
          gpu.backend().gemm(call.spec,
                             {.a = codes, .b = b, .scale_inv_a = scale_inv, .scale_inv_b = scale_inv, .out = out},
                             gpu.stream());
        },
        ErrorCode::invalid_argument);
    CUgraph graph = nullptr;
    if (gpu.api().cuStreamEndCapture(gpu.stream().handle(), &graph) == CUDA_SUCCESS) {
      static_cast<void>(gpu.api().cuGraphDestroy(graph));
    }
    test::check_contains(error, {"run the step once before capturing it"});
  }
}

BOOST_AUTO_TEST_SUITE_END()
