// What a call of a layer takes for its time: the stream, which is one thread's, and memory of the stream's allocator
// where the caller gives none. On the CPU reference, and by the calls that a GPU's driver is asked for.
#include <boost/test/unit_test.hpp>

#include <malloc.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/module_case.h"
#include "support/counting_allocator.h"
#include "support/expect_error.h"
#include "support/fake_compiler.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_layer_call)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  CountingBackend counting{*backend, &stream};
  CountingAllocator allocator;
  Stream on{counting, nullptr, allocator};

  static std::string refusal(test::FunctionRef<void()> act) { return error_of(act, ErrorCode::invalid_argument); }
};

// The first rows of a matrix, if there is one.
Tensor first(Tensor of, std::int64_t rows) {
  if (of.data != nullptr) of.rows = rows;
  return of;
}

bool has_delayed_scales(const LinearConfig& config) {
  const LinearPlan plan = linear_plan({.config = config, .shape = kLinear});
  return std::ranges::any_of(plan.scaling.all(),
                             [](const auto* cast) { return *cast && (*cast)->scaling == Scaling::delayed; });
}

// A layer of each kind, run by its functions without scratch and with AllocatedSaved.
struct LinearStep {
  LinearStep(const LinearConfig& config, const char* prologue, Backend& on, Stream& stream)
      : layer({.name = "wq",
               .config = config,
               .shape = kLinear,
               .fusion = {.prologue = *prologue != 0 ? parse_pointwise(prologue) : Pointwise{}}},
              on, stream),
        device(make_inputs(kShape, Dtype::bf16, bias_dtype_of(config, Dtype::bf16), 1), Dtype::bf16,
               bias_dtype_of(config, Dtype::bf16), on, stream) {
    layer.cast_weight(device.weight, stream);
  }
  LinearForwardTensors forward(std::int64_t tokens, LinearSaved* saved) const {
    LinearForwardTensors t = layer.forward_tensors(device.forward(true), saved, {});
    t.input = first(t.input, tokens);
    t.output = first(t.output, tokens);
    return t;
  }
  LinearBackwardTensors backward(std::int64_t tokens, const LinearSaved& saved) const {
    LinearForward of = device.forward(true);
    of.input = first(of.input, tokens);
    of.output = first(of.output, tokens);
    LinearBackwardTensors t = layer.backward_tensors(device.backward(true), of, saved, {});
    t.grad_output = first(t.grad_output, tokens);
    t.grad_input = first(t.grad_input, tokens);
    return t;
  }

  FunctionLayer layer;
  LinearCase device;
};

struct NormStep {
  NormStep(const LinearConfig& config, Backend& on, Stream& stream)
      : layer({.linear = {.name = "wq", .config = config, .shape = kLinear}}, none(on), on, stream),
        device(config, kNorms[0], Dtype::bf16, 1, on, stream) {}
  static const DelayedScaling& none(Backend& on) {
    static const DelayedScaling empty(on);
    return empty;
  }

  NormFunctions layer;
  NormCase device;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(layer_calls, Fixture)

// ---- memory of the stream's allocator ------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(scratch_that_is_left_out_comes_from_the_allocator) {
  for (const LinearConfig& config : every_config()) {
    if (has_delayed_scales(config)) continue;  // which steps before have to make
    for (const char* const prologue : {"", "tanh(x)"}) {
      BOOST_TEST_CONTEXT(ingot::print(config) << " [" << prologue << "]") {
        LinearStep step(config, prologue, counting, on);
        const LinearPlan& plan = step.layer.plan;
        // With memory of the caller's.
        FunctionSaved kept(plan, kShape.tokens, counting, on);
        step.layer.forward(step.device.forward(true), &kept.saved, on);
        step.layer.backward(step.device.backward(true), step.device.forward(true), kept.saved, on);
        const std::vector<std::uint8_t> expected = step.device.result_bytes(on);

        step.device.poison_results(on);
        const int allocations = counting.allocations;
        allocator.most_bytes = 0;
        {
          AllocatedSaved saved(plan, kShape.tokens, on);
          BOOST_TEST(saved.bytes() == plan.saved_memory(kShape.tokens).bytes);
          BOOST_TEST(allocator.live_bytes == saved.bytes());
          linear_forward(plan, counting, step.forward(kShape.tokens, saved.get()), {.stream = on});
          BOOST_TEST(allocator.live_bytes == saved.bytes());
          const std::size_t scratch = plan.forward_scratch(kShape.tokens).bytes;
          BOOST_TEST(allocator.most_bytes == saved.bytes() + scratch);
          linear_backward(plan, counting, step.backward(kShape.tokens, *saved.get()), {.stream = on});
          BOOST_TEST(allocator.most_bytes ==
                     saved.bytes() + std::max(scratch, plan.backward_scratch(kShape.tokens).bytes));
        }
        BOOST_TEST(allocator.live.empty());
        BOOST_TEST(counting.allocations == allocations);
        BOOST_TEST((step.device.result_bytes(on) == expected));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(forwards_that_keep_nothing_and_recomputes_take_scratch_too) {
  LinearStep step(rowwise(), "", counting, on);
  const LinearPlan& plan = step.layer.plan;
  linear_forward(plan, counting, step.forward(kShape.tokens, nullptr), {.stream = on});
  BOOST_TEST(allocator.most_bytes == plan.forward_scratch(kShape.tokens, LinearPass::inference).bytes);
  AllocatedSaved saved(plan, kShape.tokens, on);
  linear_recompute(plan, counting, step.forward(kShape.tokens, saved.get()), {.stream = on});
  BOOST_TEST(saved.get()->kept);
  // One element for all needs more.
  LinearBackwardTensors backward = step.backward(kShape.tokens, *saved.get());
  backward.grad_output.rows = backward.grad_output.cols = 1;
  allocator.most_bytes = 0;
  linear_backward(plan, counting, backward, {.stream = on});
  BOOST_TEST(allocator.most_bytes == saved.bytes() + plan.backward_scratch(kShape.tokens, {}, false, true).bytes);
}

// The side stream may use the scratch of a call that has returned: it goes back after that use.
BOOST_AUTO_TEST_CASE(scratch_goes_back_after_the_side_stream) {
  Stream side(counting);
  LinearStep step(rowwise(), "", counting, on);
  const LinearPlan& plan = step.layer.plan;
  AllocatedSaved saved(plan, kShape.tokens, on);
  linear_forward(plan, counting, step.forward(kShape.tokens, saved.get()), {.stream = on, .side = &side});
  LinearBackwardTensors of_input = step.backward(kShape.tokens, *saved.get());
  of_input.grad_weight = {};
  linear_backward(plan, counting, of_input, {.stream = on, .side = &side});
  BOOST_TEST(counting.waiting.empty(), "unless nothing was enqueued there, which a capture might not have");
  linear_backward(plan, counting, step.backward(kShape.tokens, *saved.get()), {.stream = on, .side = &side});
  using Streams = std::vector<const Stream*>;
  BOOST_TEST_CHECK(counting.waiting == (Streams{&side, &on}), boost::test_tools::per_element());
  BOOST_TEST_CHECK(counting.awaited == (Streams{&on, &side}), boost::test_tools::per_element());
  counting.gemm_fails = true;
  counting.waiting.clear();
  BOOST_CHECK_THROW(
      linear_backward(plan, counting, step.backward(kShape.tokens, *saved.get()), {.stream = on, .side = &side}),
      Error);
  BOOST_TEST(counting.waiting.back() == &on);
  BOOST_TEST(allocator.live_bytes == saved.bytes());
}

BOOST_AUTO_TEST_CASE(modules_wait_for_the_side_stream_if_they_use_it) {
  Stream side(counting);
  const LinearRun run{.stream = on, .side = &side};
  const MlpKind& kind = kMlps[0];
  const MlpFunctions mlp(plan_options(rowwise(), kind), NormStep::none(counting), counting, on);
  const MlpCase device(rowwise(), kind, Dtype::bf16, 1, counting, on);
  AllocatedSaved saved(mlp.plan, kShape.tokens, on);
  mlp_forward(mlp.plan, counting, mlp.tensors(device.forward(), saved.get(), {}), run);
  BOOST_TEST(counting.waiting.empty());
  const auto waits = [&](const MlpBackward& backward) {
    counting.waiting.clear();
    mlp_backward(mlp.plan, counting, mlp.tensors(backward, device.forward(), *saved.get(), {}), run);
    return std::ranges::count(counting.waiting, &on);
  };
  MlpBackward backward = device.backward();
  BOOST_TEST(waits(backward) == 2, "the second layer's and the scratch's");
  backward.grad_down_weight = {};
  BOOST_TEST(waits(backward) == 1);
  backward.grad_up_weight = {};
  BOOST_TEST(waits(backward) == 0);
  BOOST_TEST(counting.waiting.empty());
}

BOOST_AUTO_TEST_CASE(an_allocator_that_fails_ends_a_call_before_anything_is_launched) {
  LinearStep step(rowwise(), "", counting, on);
  counting.calls.clear();
  allocator.gives_null = true;
  check_contains(
      error_of([&] { linear_forward(step.layer.plan, counting, step.forward(kShape.tokens, nullptr), {.stream = on}); },
               ErrorCode::out_of_memory),
      {"stream allocator: gave null for"});
  BOOST_TEST(counting.calls.empty());
}

BOOST_AUTO_TEST_CASE(without_an_allocator_scratch_is_asked_for) {
  Stream bare(counting);
  LinearStep step(rowwise(), "", counting, on);
  const LinearPlan& plan = step.layer.plan;
  const auto asked = [](std::size_t bytes) {
    return " scratch: is missing; it must have " + std::to_string(bytes) +
           " bytes: the plan says how much memory a call needs, and a Stream with a StreamAllocator gives it for the "
           "time of the call";
  };
  BOOST_TEST(refusal([&] { linear_forward(plan, counting, step.forward(kShape.tokens, nullptr), {.stream = bare}); }) ==
             "linear \"wq\"" + asked(plan.forward_scratch(kShape.tokens, LinearPass::inference).bytes));
  const NormStep norm(rowwise(), counting, on);
  BOOST_TEST(refusal([&] {
               norm_linear_forward(norm.layer.plan, counting, norm.layer.tensors(norm.device.forward(), nullptr, {}),
                                   {.stream = bare});
             }) ==
             "norm linear \"wq\"" + asked(norm.layer.plan.forward_scratch(kShape.tokens, LinearPass::inference).bytes));
  const MlpFunctions mlp(plan_options(rowwise(), kMlps[0]), NormStep::none(counting), counting, on);
  const MlpCase device(rowwise(), kMlps[0], Dtype::bf16, 1, counting, on);
  BOOST_TEST(refusal([&] {
               mlp_forward(mlp.plan, counting, mlp.tensors(device.forward(), nullptr, {}), {.stream = bare});
             }) == "MLP \"mlp\"" + asked(mlp.plan.forward_scratch(kShape.tokens, LinearPass::inference).bytes));
  BOOST_TEST(refusal([&] { AllocatedSaved(plan, kShape.tokens, bare); }) ==
             "stream: has no allocator to take memory from; make it with a StreamAllocator, or give the call memory");
}

// Nothing of a frozen weight's input is kept: then there is a stamp, and no memory.
BOOST_AUTO_TEST_CASE(nothing_that_is_kept_takes_no_memory) {
  const LinearPlan frozen = linear_plan({.config = rowwise(), .shape = kLinear, .grad_weight = false});
  const AllocatedSaved empty(frozen, kShape.tokens, on);
  BOOST_TEST(empty.bytes() == 0U);
  BOOST_TEST(allocator.live.empty());
}

// Modules of several parts, in steps of many lengths: all memory comes from the allocator and goes back, neither the
// backend nor the host's heap gives any after the first steps, and never more than the plan tells is taken at once.
BOOST_AUTO_TEST_CASE(a_thousand_steps_of_varying_length_leave_nothing) {
  constexpr std::int64_t kLongest = kShape.tokens;
  LinearStep linear(rowwise(), "", counting, on);
  const NormStep norm(tensorwise(), counting, on);
  const MlpKind& kind = kMlps[3];
  const MlpFunctions mlp(plan_options(rowwise(), kind), NormStep::none(counting), counting, on);
  const MlpCase of_mlp(rowwise(), kind, Dtype::bf16, 1, counting, on);
  BOOST_REQUIRE(allocator.live.empty());
  std::size_t most = 0;
  const auto step = [&](std::int64_t tokens) {
    const auto run = [&](const auto& plan, const auto& forward, const auto& backward) {
      AllocatedSaved saved(plan, tokens, on);
      BOOST_REQUIRE(allocator.live_bytes == plan.saved_memory(tokens).bytes);
      forward(saved.get());
      backward(*saved.get());
      const auto memory = plan.memory(tokens);
      most = std::max(most, memory.saved.bytes + std::max(memory.forward.bytes, plan.backward_scratch(tokens).bytes));
    };
    run(
        linear.layer.plan,
        [&](LinearSaved* saved) {
          linear_forward(linear.layer.plan, counting, linear.forward(tokens, saved), {.stream = on});
        },
        [&](const LinearSaved& saved) {
          linear_backward(linear.layer.plan, counting, linear.backward(tokens, saved), {.stream = on});
        });
    const auto shorter = [&](auto forward) {
      forward.input = first(forward.input, tokens);
      forward.output = first(forward.output, tokens);
      return forward;
    };
    const auto shorter_gradients = [&](auto backward) {
      backward.grad_output = first(backward.grad_output, tokens);
      backward.grad_input = first(backward.grad_input, tokens);
      return backward;
    };
    const NormLinearForward of_norm = shorter(norm.device.forward());
    run(
        norm.layer.plan,
        [&](LinearSaved* saved) {
          norm_linear_forward(norm.layer.plan, counting, norm.layer.tensors(of_norm, saved, {}), {.stream = on});
        },
        [&](const LinearSaved& saved) {
          norm_linear_backward(norm.layer.plan, counting,
                               norm.layer.tensors(shorter_gradients(norm.device.backward()), of_norm, saved, {}),
                               {.stream = on});
        });
    const MlpForward to_mlp = shorter(of_mlp.forward());
    run(
        mlp.plan,
        [&](LinearSaved* saved) { mlp_forward(mlp.plan, counting, mlp.tensors(to_mlp, saved, {}), {.stream = on}); },
        [&](const LinearSaved& saved) {
          mlp_backward(mlp.plan, counting, mlp.tensors(shorter_gradients(of_mlp.backward()), to_mlp, saved, {}),
                       {.stream = on});
        });
    BOOST_REQUIRE(allocator.live.empty());
    counting.calls.clear();
    counting.streams.clear();
  };
  int allocations = 0;
  std::size_t heap = 0;
  for (int i = 0; i < 1000; ++i) {
    step(1 + i * 7 % kLongest);
    if (i == 2 * kLongest) {
      allocations = counting.allocations;
      heap = mallinfo2().uordblks;
    }
  }
  BOOST_TEST(counting.allocations == allocations);
  BOOST_TEST(mallinfo2().uordblks <= heap + 4096);
  BOOST_TEST(allocator.most_bytes <= most);
}

// ---- one thread at a time ------------------------------------------------------------------------------------------

namespace {

// A call of `layer` that stops within its first cast or GEMM until the second call, on this thread, has been refused.
template <class First, class Second>
std::string refused_beside(CountingBackend& counting, const First& first, const Second& second) {
  std::promise<void> inside, go_on;
  bool stopped = false;
  counting.before_call = [&] {
    if (std::exchange(stopped, true)) return;
    inside.set_value();
    go_on.get_future().wait();
  };
  std::thread thread(first);
  inside.get_future().wait();
  const std::size_t calls = counting.calls.size();
  std::string message = error_of(second, ErrorCode::invalid_argument);
  BOOST_TEST(counting.calls.size() == calls);
  go_on.set_value();
  thread.join();
  counting.before_call = {};
  second();  // afterwards it may
  return message;
}

constexpr const char* kInUse =
    ": is in use by another thread's call of a layer: give each thread its own Stream, or let one call end before "
    "the next begins";

}  // namespace

BOOST_AUTO_TEST_CASE(two_threads_on_one_stream_are_refused) {
  LinearStep step(rowwise(), "", counting, on);
  const LinearPlan& plan = step.layer.plan;
  FunctionSaved kept(plan, kShape.tokens, counting, stream);
  const auto forward = [&] {
    linear_forward(plan, counting, step.forward(kShape.tokens, &kept.saved), {.stream = on});
  };
  forward();
  const auto backward = [&] {
    linear_backward(plan, counting, step.backward(kShape.tokens, kept.saved), {.stream = on});
  };
  const auto recompute = [&] {
    linear_recompute(plan, counting, step.forward(kShape.tokens, &kept.saved), {.stream = on});
  };
  const auto cast = [&] { step.layer.cast_weight(step.device.weight, on); };
  const std::string message = "linear \"wq\" stream" + std::string(kInUse);
  BOOST_TEST(refused_beside(counting, forward, backward) == message);
  BOOST_TEST(refused_beside(counting, backward, forward) == message);
  BOOST_TEST(refused_beside(counting, recompute, recompute) == message);
  BOOST_TEST(refused_beside(counting, cast, cast) == message);
  Stream own(counting);
  BOOST_TEST(refused_beside(
                 counting,
                 [&] { linear_forward(plan, counting, step.forward(kShape.tokens, nullptr), {.stream = on}); },
                 [&] {
                   const PoisonedRegion scratch(plan.backward_scratch(kShape.tokens).bytes, counting, stream);
                   LinearBackwardTensors tensors = step.backward(kShape.tokens, kept.saved);
                   tensors.scratch = scratch;
                   linear_backward(plan, counting, tensors, {.stream = own, .side = &on});
                 }) == "linear \"wq\" side stream" + std::string(kInUse));
}

BOOST_AUTO_TEST_CASE(two_threads_on_one_stream_are_refused_by_modules_and_owners) {
  const NormStep norm(rowwise(), counting, on);
  const MlpKind& kind = kMlps[1];
  const MlpFunctions mlp(plan_options(rowwise(), kind), NormStep::none(counting), counting, on);
  const MlpCase of_mlp(rowwise(), kind, Dtype::bf16, 1, counting, on);
  const auto norm_forward = [&] {
    norm_linear_forward(norm.layer.plan, counting, norm.layer.tensors(norm.device.forward(), nullptr, {}),
                        {.stream = on});
  };
  const auto mlp_step = [&] {
    mlp_forward(mlp.plan, counting, mlp.tensors(of_mlp.forward(), nullptr, {}), {.stream = on});
  };
  BOOST_TEST(refused_beside(counting, mlp_step, norm_forward) == "norm linear \"wq\" stream" + std::string(kInUse));
  BOOST_TEST(refused_beside(counting, norm_forward, mlp_step) == "MLP \"mlp\" stream" + std::string(kInUse));

  LinearStep step(rowwise(), "", counting, on);
  Float8Linear linear(counting, kLinear, rowwise(), {.name = "wo"});
  NormLinear norm_linear(NormKind::layer, counting, {.linear = kLinear}, rowwise(), {.name = "wk"});
  Mlp owner(counting, kMlp, rowwise(), {.name = "ffn", .activation = kind.activation});
  const auto linear_step = [&] {
    linear.forward(step.device.forward(true), on);
    linear.backward(step.device.backward(true), on);
  };
  const auto norm_step = [&] {
    norm_linear.forward(norm.device.forward(), on);
    norm_linear.backward(norm.device.backward(), on);
  };
  const auto owner_step = [&] {
    owner.forward(of_mlp.forward(), on);
    owner.backward(of_mlp.backward(), on);
  };
  BOOST_TEST(refused_beside(counting, norm_step, linear_step) == "Float8Linear \"wo\" stream" + std::string(kInUse));
  BOOST_TEST(refused_beside(counting, owner_step, norm_step) == "NormLinear \"wk\" stream" + std::string(kInUse));
  BOOST_TEST(refused_beside(counting, linear_step, owner_step) == "Mlp \"ffn\" stream" + std::string(kInUse));
}

// An observer may run another layer on the stream that it is given: that is the same thread.
BOOST_AUTO_TEST_CASE(calls_of_one_thread_may_be_nested) {
  LinearStep step(rowwise(), "", counting, on);
  LinearStep other(rowwise(), "", counting, on);
  int nested = 0;
  counting.after_cast = [&](const CastSpec&, const CastTensors&, Stream&) {
    if (++nested != 1) return;
    linear_forward(other.layer.plan, counting, other.forward(kShape.tokens, nullptr), {.stream = on});
    BOOST_TEST(!StreamUse(on).refused());
  };
  linear_forward(step.layer.plan, counting, step.forward(kShape.tokens, nullptr), {.stream = on});
  BOOST_TEST(nested == 2);
  bool refused = false;
  std::thread([&] { refused = StreamUse(on).refused(); }).join();
  BOOST_TEST(!refused, "the outer call gave the stream up");
}

BOOST_AUTO_TEST_SUITE_END()

// ---- on a GPU, by the driver's calls -------------------------------------------------------------------------------

namespace {

// What the driver was asked for. libcuda's functions take no state.
struct DriverCalls {
  int allocations = 0;
  int copies = 0;
  int fills = 0;
  decltype(Driver::Api::cuMemAlloc) allocate = nullptr;
};
DriverCalls driver_calls;

// The CUDA backend on a driver that does nothing, with kernels of a compiler that compiles nothing.
struct DryGpu {
  static std::unique_ptr<Driver> counted(const Driver& dry) {
    Driver::Api api = dry.api();
    driver_calls = {.allocate = api.cuMemAlloc};
    api.cuMemAlloc = [](CUdeviceptr* data, std::size_t bytes) {
      ++driver_calls.allocations;
      return driver_calls.allocate(data, bytes);
    };
    api.cuMemcpyHtoDAsync = [](CUdeviceptr, const void*, std::size_t, CUstream) {
      ++driver_calls.copies;
      return CUDA_SUCCESS;
    };
    api.cuMemsetD32Async = [](CUdeviceptr, unsigned, std::size_t, CUstream) {
      ++driver_calls.fills;
      return CUDA_SUCCESS;
    };
    CUdevice device = 0;
    BOOST_REQUIRE(dry.api().cuCtxGetDevice(&device) == CUDA_SUCCESS);
    return Driver::over(api, device, {dry.context(0), [](CUctx_st*) {}});
  }

  std::unique_ptr<Driver> dry = make_dry_driver(gpu_named("h200"));
  CurrentContext current{*dry, 0};
  std::unique_ptr<Driver> driver = counted(*dry);
  KernelStore store{std::filesystem::path()};
  FakeCompiler compiler;
  KernelCache cache{&compiler, store, gpu_named("h200").target, driver.get()};
  std::unique_ptr<Backend> backend = make_cuda_backend(*driver, 0, cache, {});
  Stream own{*backend};
};

// A layer without delayed scales whose tensors are long enough for every step.
struct GpuStep {
  static constexpr std::int64_t kLongest = 500;
  static constexpr std::int64_t kIn = 256;
  static constexpr std::int64_t kOut = 384;

  GpuStep(const LinearConfig& config, Backend& on)
      : plan(linear_plan({.name = "wq", .config = config, .shape = {kIn, kOut, true}})),
        backend(&on),
        input(on, Dtype::bf16, kLongest, kIn),
        output(on, Dtype::bf16, kLongest, kOut),
        weight(on, Dtype::bf16, kOut, kIn),
        bias(on, Dtype::bf16, 1, kOut),
        grad_output(on, Dtype::bf16, kLongest, kOut),
        grad_input(on, Dtype::bf16, kLongest, kIn),
        grad_weight(on, Dtype::f32, kOut, kIn),
        grad_bias(on, Dtype::bf16, 1, kOut),
        constant_memory(on, kLinearConstantBytes) {}

  void operator()(std::int64_t tokens, Stream& on) const {
    const StreamBlock of_weight = on.kept(plan.weight_memory().bytes);
    const Float8View codes =
        cast_weight(plan, *backend, {.weight = weight, .into = {of_weight.data(), of_weight.bytes()}}, {on});
    const LinearScales scales = linear_constants(plan, *backend, region_of(constant_memory), on);
    AllocatedSaved saved(plan, tokens, on);
    linear_forward(plan, *backend,
                   {.input = first(input, tokens),
                    .weight = weight,
                    .bias = bias,
                    .output = first(output, tokens),
                    .codes = codes,
                    .scales = scales,
                    .saved = saved.get()},
                   {on});
    linear_backward(plan, *backend,
                    {.saved = saved.get(),
                     .grad_output = first(grad_output, tokens),
                     .grad_input = first(grad_input, tokens),
                     .grad_weight = grad_weight,
                     .grad_bias = grad_bias,
                     .input = first(input, tokens),
                     .weight = weight,
                     .codes = codes,
                     .scales = scales},
                    {on});
  }

  LinearPlan plan;
  Backend* backend;
  OwnedTensor input, output, weight, bias, grad_output, grad_input, grad_weight, grad_bias;
  Buffer constant_memory;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(layer_calls_on_a_gpu)

// Once each length has been seen, steps take nothing from the driver or the heap, and the scratch of operations, which
// a stream keeps, is what the longest step needs.
BOOST_AUTO_TEST_CASE(steps_of_varying_length_take_nothing_from_the_driver) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      DryGpu gpu;
      CountingAllocator memory;
      memory.expected = gpu.own.handle();
      {
        Stream on(*gpu.backend, gpu.own.handle(), memory);
        const GpuStep step(recipe.config, *gpu.backend);
        for (std::int64_t tokens = GpuStep::kLongest; tokens > 0; --tokens) step(tokens, on);
        const DriverCalls before = driver_calls;
        const std::size_t held = memory.live_bytes;
        const std::size_t heap = mallinfo2().uordblks;
        for (std::int64_t i = 0; i < 1000; ++i) step(1 + i * 7 % GpuStep::kLongest, on);
        BOOST_TEST(driver_calls.allocations == before.allocations);
        BOOST_TEST(driver_calls.copies == before.copies);
        BOOST_TEST(memory.live_bytes == held);
        // If each step kept the least that malloc gives, it would be 32000 bytes. What a thread's cache keeps of freed
        // memory counts as used.
        BOOST_TEST(mallinfo2().uordblks <= heap + 16384);
      }
      BOOST_TEST(memory.live.empty());
    }
  }
}

// All of a step is captured, its constants too: nothing is copied, and the graph has the memory that the allocator
// gives otherwise.
BOOST_AUTO_TEST_CASE(a_whole_step_is_captured) {
  LinearConfig fixed = tensorwise();
  for (std::optional<Cast>* cast : {&fixed.output.a, &fixed.grad_weight.b}) {
    (*cast)->scaling = Scaling::fixed;
    (*cast)->scale = 8;
  }
  for (const LinearConfig& config : {fixed, rowwise_folded()}) {
    DryGpu gpu;
    CountingAllocator memory;
    memory.expected = gpu.own.handle();
    Stream on(*gpu.backend, gpu.own.handle(), memory);
    const GpuStep step(config, *gpu.backend);
    step(64, on);
    const DriverCalls before = driver_calls;
    const int given = memory.given;
    Graph graph(on, [&] { step(64, on); });
    BOOST_TEST(driver_calls.copies == before.copies);
    BOOST_TEST(driver_calls.fills > before.fills);
    BOOST_TEST(memory.given == given);
    graph.replay(on);
  }
}

namespace {

// The same by a layer that owns its memory.
struct GpuOwner {
  GpuOwner(const LinearConfig& config, Backend& on)
      : step(config, on), layer(on, step.plan.shape, config, {.name = "wq"}) {}

  void operator()(std::int64_t tokens, Stream& on) {
    layer.weight_changed();
    layer.forward({.input = first(step.input, tokens),
                   .weight = step.weight,
                   .bias = step.bias,
                   .output = first(step.output, tokens)},
                  on);
    layer.backward({.grad_output = first(step.grad_output, tokens),
                    .grad_input = first(step.grad_input, tokens),
                    .grad_weight = step.grad_weight,
                    .grad_bias = step.grad_bias},
                   on);
  }

  GpuStep step;
  Float8Linear layer;
};

}  // namespace

BOOST_AUTO_TEST_CASE(steps_of_owners_take_nothing_from_the_driver) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    BOOST_TEST_CONTEXT(recipe.name) {
      DryGpu gpu;
      CountingAllocator memory;
      memory.expected = gpu.own.handle();
      {
        Stream on(*gpu.backend, gpu.own.handle(), memory);
        GpuOwner owner(recipe.config, *gpu.backend);
        for (std::int64_t tokens = GpuStep::kLongest; tokens > 0; --tokens) owner(tokens, on);
        const DriverCalls before = driver_calls;
        const std::size_t heap = mallinfo2().uordblks;
        for (std::int64_t i = 0; i < 1000; ++i) owner(1 + i * 7 % GpuStep::kLongest, on);
        BOOST_TEST(driver_calls.allocations == before.allocations);
        BOOST_TEST(driver_calls.copies == before.copies);
        // What is held differs by what the last length keeps.
        BOOST_TEST(mallinfo2().uordblks <= heap + 4096 + 2 * owner.step.plan.saved_memory(GpuStep::kLongest).bytes);
      }
      BOOST_TEST(memory.live.empty());
    }
  }
}

// What is captured uses memory of the graph, but the weight's codes, which stay; and without an allocator memory that
// the step before has taken.
BOOST_AUTO_TEST_CASE(a_step_of_an_owner_is_captured) {
  for (const bool with : {true, false}) {
    for (const LinearConfig& config : {tensorwise(), rowwise_folded()}) {
      DryGpu gpu;
      CountingAllocator memory;
      memory.expected = gpu.own.handle();
      {
        Stream allocating(*gpu.backend, gpu.own.handle(), memory);
        Stream& on = with ? allocating : gpu.own;
        GpuOwner owner(config, *gpu.backend);
        owner(64, on);
        const int given = memory.given;
        const std::size_t held = memory.live_bytes;
        BOOST_TEST((held > 0) == with);
        std::unique_ptr<Graph> graph = std::make_unique<Graph>(on, [&] { owner(64, on); });
        BOOST_TEST(driver_calls.copies == 0);
        BOOST_TEST(memory.given == given);
        BOOST_TEST(memory.live_bytes == held);
        graph->replay(on);
        graph.reset();
        owner(64, on);  // in its own memory again
        BOOST_TEST(memory.live_bytes == held);
      }
      BOOST_TEST(memory.live.empty());
    }
  }
}

namespace {

// Runs another layer within the first cast that it sees.
class NestingObserver final : public LayerObserver {
 public:
  explicit NestingObserver(std::function<void()> act) : act_(std::move(act)) {}
  void cast(const CastEvent& event, Stream& /*stream*/) override {
    seen.push_back(event.codes.data);
    if (act_) std::exchange(act_, {})();
  }

  std::vector<const void*> seen;

 private:
  std::function<void()> act_;
};

}  // namespace

// A graph keeps the scratch of a call apart from that of one within it.
BOOST_AUTO_TEST_CASE(nested_calls_are_captured_with_memory_of_their_own) {
  DryGpu gpu;
  CountingAllocator memory;
  memory.expected = gpu.own.handle();
  Stream on(*gpu.backend, gpu.own.handle(), memory);
  const GpuStep step(rowwise(), *gpu.backend);
  const StreamBlock of_weight = on.kept(step.plan.weight_memory().bytes);
  const Float8View codes = cast_weight(step.plan, *gpu.backend,
                                       {.weight = step.weight, .into = {of_weight.data(), of_weight.bytes()}}, {on});
  const auto forward = [&](LayerObserver* observer) {
    linear_forward(step.plan, *gpu.backend,
                   {.input = step.input, .bias = step.bias, .output = step.output, .codes = codes},
                   {.stream = on, .observer = observer});
  };
  forward(nullptr);
  NestingObserver inner({});
  NestingObserver outer([&] { forward(&inner); });
  NestingObserver next({});
  Graph graph(on, [&] {
    forward(&outer);
    forward(&next);
  });
  BOOST_REQUIRE(inner.seen.size() == 1U);
  BOOST_TEST(inner.seen[0] != outer.seen[0]);
  BOOST_TEST(next.seen[0] == outer.seen[0]);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
