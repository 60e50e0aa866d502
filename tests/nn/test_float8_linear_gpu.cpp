// Float8Linear on CUDA: the quality of the CPU tests at GPU sizes, and steps inside a CUDA graph. Several processes can
// share the cases (support/share.h).
#include "support/gpu_test.h"

#include <cstddef>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/inference_linear.h"
#include "ingot/nn/planning/layer_runs.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/function_case.h"
#include "nn/linear_case.h"
#include "support/share.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_float8_linear_gpu)

namespace {

// One context for the program, so that a kernel is compiled once.
Context& context() {
  static Context one(cuda_options());
  return one;
}

// By turns over the whole program, so that the tests of few configs do not all fall to the first shares.
bool mine() {
  static Turns turns;
  return turns.mine();
}

struct Fixture {
  Backend& backend = context().backend();
  Stream stream{backend};
};

// A threshold against float64 over the same codes: far above what a wrong code would give, and below what fast
// accumulation and rounding to bf16 cost.
constexpr double kSameCodes = 40.0;

void check_sqnr(const char* what, const Matrix& reference, const Matrix& actual, double bar) {
  bool all_zero = true;
  for (const double value : reference.values) all_zero = all_zero && value == 0;
  if (all_zero) {  // an empty matrix, or a sum over nothing
    for (const double value : actual.values) BOOST_REQUIRE(value == 0);
    return;
  }
  const double found = sqnr(reference, actual);
  BOOST_TEST(found >= bar, what << " has " << found << " dB, expected at least " << bar);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

BOOST_AUTO_TEST_CASE(sqnr_passes_the_bars_of_torchao) {
  for (const Recipe& recipe : recipes()) {
    for (const Dtype dtype : kHighPrecisionDtypes) {
      if (mine()) check_torchao_bars(recipe, dtype, backend, stream);
    }
  }
}

BOOST_AUTO_TEST_CASE(agrees_with_float64_over_independent_codes) {
  for (const LinearConfig& config : every_config()) {
    if (!mine()) continue;
    for (const Dtype dtype : kHighPrecisionDtypes) {
      for (const CaseShape& shape : kCaseShapes) {
        BOOST_TEST_CONTEXT(ingot::print(config) << ", " << name(dtype) << ", " << test::print(shape)) {
          const Dtype bias_dtype = bias_dtype_of(config, dtype);
          const HostInputs host = make_inputs(shape, dtype, bias_dtype, 1);
          const LinearCase device(host, dtype, bias_dtype, backend, stream);
          DelayedScaling scales(backend);
          Float8Linear linear(backend, {shape.in_features, shape.out_features, true}, config, {.delayed = &scales});
          linear.forward(device.forward(true), stream);
          linear.backward(device.backward(true), stream);
          check_sqnr("output", expected_output(config, host.input, host.weight, &host.bias, dtype).value,
                     device.output.read(stream), kSameCodes);
          check_sqnr("grad_input", expected_grad_input(config, host.grad_output, host.weight, dtype).value,
                     device.grad_input.read(stream), kSameCodes);
          check_sqnr("grad_weight", expected_grad_weight(config, host.grad_output, host.input, dtype).value,
                     device.grad_weight.read(stream), kSameCodes);
          check_within(device.grad_bias.read(stream), expected_grad_bias(host.grad_output, dtype), "grad_bias");
        }
      }
    }
  }
}

// f32 masters, an f32 output and f32 gradients with bf16 inputs; and one element of grad_output that stands for all.
BOOST_AUTO_TEST_CASE(tensors_have_dtypes_of_their_own) {
  constexpr CaseShape kShape{64, 160, 96};
  for (const LinearConfig& config : {tensorwise(), rowwise(), rowwise_folded(), blockwise()}) {
    if (!mine()) continue;
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::f32, 1);
      host.weight = Random(3).weight(kShape.out_features, kShape.in_features, Dtype::f32);
      for (double& value : host.grad_output.values) value = 0.75;
      const LinearCase device(host, Dtype::bf16, Dtype::f32, backend, stream);
      const DeviceMatrix weight(host.weight, Dtype::f32, backend, stream);
      const DeviceMatrix ones(host.grad_output, Dtype::f32, backend, stream);
      const DeviceMatrix one({1, 1, {0.75}}, Dtype::f32, backend, stream);
      const auto result = [&](std::int64_t rows, std::int64_t cols) {
        return DeviceMatrix::poisoned(rows, cols, Dtype::f32, backend, stream);
      };
      const DeviceMatrix output = result(kShape.tokens, kShape.out_features);
      const DeviceMatrix grad_input = result(kShape.tokens, kShape.in_features);
      const DeviceMatrix grad_weight = result(kShape.out_features, kShape.in_features);
      Float8Linear linear(backend, {kShape.in_features, kShape.out_features, true}, config,
                          {.weight_dtype = Dtype::f32, .bias_dtype = Dtype::f32, .output_dtype = Dtype::f32});
      linear.forward({.input = device.input, .weight = weight, .bias = device.bias, .output = output}, stream);
      LinearBackward backward{.grad_output = ones, .grad_input = grad_input, .grad_weight = grad_weight};
      linear.backward(backward, stream);
      const Matrix bias = rounded(host.bias, Dtype::bf16);
      check_sqnr("output", expected_output(config, host.input, host.weight, &bias, Dtype::f32).value,
                 output.read(stream), kSameCodes);
      check_sqnr("grad_input", expected_grad_input(config, host.grad_output, host.weight, Dtype::f32).value,
                 grad_input.read(stream), kSameCodes);
      check_sqnr("grad_weight", expected_grad_weight(config, host.grad_output, host.input, Dtype::f32).value,
                 grad_weight.read(stream), kSameCodes);
      const std::vector<std::uint8_t> of_all = grad_weight.bytes(stream);
      backward.grad_output = one;
      linear.backward(backward, stream);
      BOOST_TEST((grad_weight.bytes(stream) == of_all));
    }
  }
}

// Codes and scale_inv that a layer's plan cast, taken out and given to the layer for inference.
BOOST_AUTO_TEST_CASE(a_weight_goes_out_and_comes_in_again) {
  constexpr CaseShape kShape{33, 300, 200};
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 2);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, backend, stream);
  for (const LinearConfig& recipe : {tensorwise(), rowwise_folded(), blockwise()}) {
    if (!mine()) continue;
    const LinearPlan plan = linear_plan({.config = recipe, .shape = {kShape.in_features, kShape.out_features}});
    const std::size_t bytes = plan.weight_memory().bytes;
    const Buffer made(backend, bytes);
    const Buffer loaded(backend, bytes);
    const Float8View codes =
        cast_weight(plan, backend, {.weight = device.weight, .into = {made.data(), bytes}}, {.stream = stream});
    Float8WeightState state = weight_state(plan, backend, codes, stream);
    const Float8View again = weight_from_state(plan, backend, state, {loaded.data(), bytes}, stream);
    BOOST_TEST((weight_state(plan, backend, again, stream).codes == state.codes));
    for (const bool is_static : {false, true}) {
      if (is_static && recipe == blockwise()) continue;
      BOOST_TEST_CONTEXT(ingot::print(recipe) << (is_static ? " static" : "")) {
        if (is_static) state.input_scale_inv = 0.011F;
        LinearConfig config = inference_config(state);
        config.output.b->pow2 = recipe.output.b->pow2;  // as the weight was cast
        InferenceLinear linear(backend, state, stream, {.bias = true});
        linear.forward({.input = device.input, .bias = device.bias, .output = device.output}, stream);
        check_sqnr("output", expected_output(config, host.input, host.weight, &host.bias, Dtype::bf16).value,
                   device.output.read(stream), kSameCodes);
      }
    }
  }
}

// The reference for large layers is the same layer in f32 on the GPU, which is itself checked against float64 at
// sampled elements.
BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(large, Fixture)

BOOST_AUTO_TEST_CASE(a_large_layer_has_over_20_db) {
  if (!mine()) return;
  constexpr CaseShape kShape{2048, 4096, 14336};
  constexpr LinearShape kLinear{kShape.in_features, kShape.out_features, true};
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 11);

  const LinearCase exact(host, Dtype::f32, Dtype::f32, backend, stream);
  Float8Linear plain(backend, kLinear, high_precision());
  plain.forward(exact.forward(true), stream);
  plain.backward(exact.backward(true), stream);
  const Matrix output = exact.output.read(stream);
  const Matrix grad_input = exact.grad_input.read(stream);
  const Matrix grad_weight = exact.grad_weight.read(stream);

  std::mt19937_64 random(1);
  const auto pick = [&](std::int64_t size) { return std::uniform_int_distribution<std::int64_t>(0, size - 1)(random); };
  const auto row = [](const Matrix& m, std::int64_t r) {
    Matrix result = zeros(1, m.cols);
    for (std::int64_t c = 0; c < m.cols; ++c) result.at(0, c) = m.at(r, c);
    return result;
  };
  const auto column = [](const Matrix& m, std::int64_t c) {
    Matrix result = zeros(1, m.rows);
    for (std::int64_t r = 0; r < m.rows; ++r) result.at(0, r) = m.at(r, c);
    return result;
  };
  const auto entry = [](const Matrix& m, std::int64_t r, std::int64_t c) { return Matrix{1, 1, {m.at(r, c)}}; };
  constexpr int kSamples = 500;
  for (int i = 0; i < kSamples; ++i) {
    const std::int64_t m = pick(kShape.tokens);
    const std::int64_t k = pick(kShape.in_features);
    const std::int64_t n = pick(kShape.out_features);
    BOOST_TEST_CONTEXT("m=" << m << " k=" << k << " n=" << n) {
      const Matrix bias = entry(host.bias, 0, n);
      check_within(entry(output, m, n), expected_gemm(row(host.input, m), row(host.weight, n), &bias, Dtype::f32),
                   "f32 output");
      check_within(entry(grad_input, m, k),
                   expected_gemm(row(host.grad_output, m), column(host.weight, k), nullptr, Dtype::f32),
                   "f32 grad_input");
      check_within(entry(grad_weight, n, k),
                   expected_gemm(column(host.grad_output, n), column(host.input, k), nullptr, Dtype::f32),
                   "f32 grad_weight");
    }
  }

  const LinearCase device(host, Dtype::bf16, Dtype::bf16, backend, stream);
  Float8Linear linear(backend, kLinear, tensorwise());
  linear.forward(device.forward(true), stream);
  linear.backward(device.backward(true), stream);
  const Sqnr found{.output = sqnr(output, device.output.read(stream)),
                   .grad_input = sqnr(grad_input, device.grad_input.read(stream)),
                   .grad_weight = sqnr(grad_weight, device.grad_weight.read(stream)),
                   .grad_bias = sqnr(exact.grad_bias.read(stream), device.grad_bias.read(stream))};
  std::cout << "4096 -> 14336, M=2048: output " << found.output << " dB, grad_input " << found.grad_input
            << " dB, grad_weight " << found.grad_weight << " dB, grad_bias " << found.grad_bias << " dB\n";
  BOOST_TEST(found.output > 20.0);
  BOOST_TEST(found.grad_input > 20.0);
  BOOST_TEST(found.grad_weight > 20.0);
  BOOST_TEST(found.grad_bias > 45.0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(small_graphs, Fixture)

BOOST_AUTO_TEST_CASE(a_captured_step_replays_to_the_same_bits) {
  std::string problem;
  const std::unique_ptr<Driver> driver = Driver::open(problem);
  BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
  // cuBLASLt refuses the second shape in FP8.
  for (const CaseShape& shape : {CaseShape{512, 256, 384}, CaseShape{77, 48, 80}}) {
    if (!mine()) continue;
    BOOST_TEST_CONTEXT(test::print(shape)) {
      const HostInputs host = make_inputs(shape, Dtype::bf16, Dtype::bf16, 1);
      const HostInputs next = make_inputs(shape, Dtype::bf16, Dtype::bf16, 2);
      LinearCase device(host, Dtype::bf16, Dtype::bf16, backend, stream);
      Float8Linear linear(backend, {shape.in_features, shape.out_features, true}, tensorwise());
      const auto step = [&] {
        linear.weight_changed();
        linear.forward(device.forward(true), stream);
        linear.backward(device.backward(true), stream);
      };
      step();
      const std::vector<std::uint8_t> eager = device.result_bytes(stream);
      Graph graph(stream, step);
      for (int replay = 0; replay < 3; ++replay) {
        device.poison_results(stream);
        graph.replay(stream);
        BOOST_TEST((device.result_bytes(stream) == eager), "replay " << replay << " differs from the step itself");
      }

      // The graph reads the tensors, not their values at capture; the weight's cast is in it.
      device.input.write(next.input, stream);
      device.weight.write(next.weight, stream);
      device.grad_output.write(next.grad_output, stream);
      device.poison_results(stream);
      graph.replay(stream);
      const std::vector<std::uint8_t> replayed = device.result_bytes(stream);
      device.poison_results(stream);
      step();
      BOOST_TEST((replayed == device.result_bytes(stream)), "a replay on new values differs from the step itself");
      BOOST_TEST((replayed != eager));
    }
  }
}

namespace {

// Gives memory that went back to the stream's later work, as an allocator of a framework does.
class ReusingAllocator final : public StreamAllocator {
 public:
  explicit ReusingAllocator(Backend& backend) : backend_(&backend) {}

  void* allocate(std::size_t bytes, CUstream_st* /*stream*/) override {
    ++given;
    if (auto found = free_.find(bytes); found != free_.end()) {
      void* const data = found->second;
      free_.erase(found);
      return data;
    }
    return all_.emplace_back(*backend_, bytes).data();
  }
  void release(void* data, std::size_t bytes, CUstream_st* /*stream*/) noexcept override {
    ++returned;
    free_.emplace(bytes, data);
  }

  int given = 0, returned = 0;

 private:
  Backend* backend_;
  std::vector<Buffer> all_;
  std::multimap<std::size_t, void*> free_;
};

LinearConfig with_fixed_scales() {
  LinearConfig config = tensorwise();
  for (std::optional<Cast>* cast : {&config.output.a, &config.grad_weight.b}) {
    (*cast)->scaling = Scaling::fixed;
    (*cast)->scale = 96;
  }
  return config;
}

}  // namespace

// The functions with all memory from an allocator: the layer's bits, with a side stream too, and captured whole with
// the constants.
BOOST_AUTO_TEST_CASE(functions_in_an_allocators_memory_give_the_layers_bits) {
  const CaseShape shape{512, 256, 384};
  const LinearShape linear_shape{shape.in_features, shape.out_features, true};
  for (const LinearConfig& config : {with_fixed_scales(), rowwise(), rowwise_folded(), blockwise()}) {
    if (!mine()) continue;
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      LinearCase device(make_inputs(shape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, backend, stream);
      Float8Linear owner(backend, linear_shape, config);
      owner.forward(device.forward(true), stream);
      owner.backward(device.backward(true), stream);
      const std::vector<std::uint8_t> expected = device.result_bytes(stream);

      ReusingAllocator memory(backend);
      {
        Stream side(backend);
        Stream on(backend, stream.handle(), memory);
        const LinearPlan plan = linear_plan({.config = config, .shape = linear_shape});
        const Buffer weight(backend, plan.weight_memory().bytes);
        const Buffer constants(backend, kLinearConstantBytes);
        const auto step = [&](Stream* beside) {
          const LinearScales scales = linear_constants(plan, backend, region_of(constants), on);
          const Float8View codes =
              cast_weight(plan, backend, {.weight = device.weight, .into = region_of(weight)}, {.stream = on});
          AllocatedSaved saved(plan, shape.tokens, on);
          linear_forward(plan, backend,
                         {.input = device.input,
                          .bias = device.bias,
                          .output = device.output,
                          .codes = codes,
                          .scales = scales,
                          .saved = saved.get()},
                         {.stream = on});
          linear_backward(plan, backend,
                          {.saved = saved.get(),
                           .grad_output = device.grad_output,
                           .grad_input = device.grad_input,
                           .grad_weight = device.grad_weight,
                           .grad_bias = device.grad_bias,
                           .codes = codes,
                           .scales = scales},
                          {.stream = on, .side = beside});
        };
        for (Stream* const beside : {static_cast<Stream*>(nullptr), &side}) {
          for (int i = 0; i < 3; ++i) {
            device.poison_results(on);
            step(beside);
            BOOST_TEST((device.result_bytes(on) == expected));
          }
          const int given = memory.given;
          Graph graph(on, [&] { step(beside); });
          BOOST_TEST(memory.given == given);
          for (int i = 0; i < 3; ++i) {
            device.poison_results(on);
            backend.device_api().fill_zero(constants.data(), constants.bytes(), on);
            graph.replay(on);
            BOOST_TEST((device.result_bytes(on) == expected));
          }
        }
      }
      BOOST_TEST(memory.given > 0);
      BOOST_TEST(memory.returned == memory.given);
    }
  }
}

// An owner with all memory of its steps from an allocator: the bits of one without, with a side stream too, in
// steps of changing length and in a graph.
BOOST_AUTO_TEST_CASE(an_owner_in_an_allocators_memory_gives_the_same_bits) {
  const LinearShape linear_shape{256, 384, true};
  for (const LinearConfig& config : {with_fixed_scales(), rowwise(), rowwise_folded(), blockwise()}) {
    if (!mine()) continue;
    BOOST_TEST_CONTEXT(ingot::print(config)) {
      ReusingAllocator memory(backend);
      {
        Stream side(backend);
        Stream on(backend, stream.handle(), memory);
        for (Stream* const beside : {static_cast<Stream*>(nullptr), &side}) {
          const LinearOptions options{.side = beside};
          Float8Linear plain(backend, linear_shape, config, options);
          Float8Linear owner(backend, linear_shape, config, options);
          const auto step = [&](Float8Linear& layer, const LinearCase& device, Stream& stream_of_step) {
            layer.weight_changed();
            layer.forward(device.forward(true), stream_of_step);
            layer.backward(device.backward(true), stream_of_step);
          };
          for (const std::int64_t tokens : {512, 48, 304}) {
            const CaseShape shape{tokens, linear_shape.in_features, linear_shape.out_features};
            LinearCase device(make_inputs(shape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, backend,
                              stream);
            step(plain, device, stream);
            const std::vector<std::uint8_t> expected = device.result_bytes(stream);
            for (int i = 0; i < 3; ++i) {
              device.poison_results(on);
              step(owner, device, on);
              BOOST_TEST((device.result_bytes(on) == expected));
            }
            const int given = memory.given;
            Graph graph(on, [&] { step(owner, device, on); });
            BOOST_TEST(memory.given == given);
            for (int i = 0; i < 3; ++i) {
              device.poison_results(on);
              graph.replay(on);
              BOOST_TEST((device.result_bytes(on) == expected));
            }
            owner.release_saved();
          }
        }
      }
      BOOST_TEST(memory.given > 0);
      BOOST_TEST(memory.returned == memory.given);
    }
  }
}

// After it, a step finds all its kernels loaded: nothing is looked for on disk, and nothing is compiled.
BOOST_AUTO_TEST_CASE(a_prepared_step_waits_for_nothing) {
  if (!mine()) return;  // whole in one share: the configs have many kernels in common, and all are compiled again here
  ContextOptions options = cuda_options();
  options.store_root = std::filesystem::path();
  Context fresh(options);
  TrainingRun run{.layers = {{.name = "wq", .in_features = 256, .out_features = 384, .bias = true}},
                  .recipes = every_config(),
                  .tokens = {48, 128}};
  std::size_t calls = 0;
  prepare(fresh, run,
          {.progress =
               [&](const PrepareProgress& now) {
                 ++calls;
                 BOOST_TEST(now.done == calls);
                 BOOST_TEST(now.total >= calls);
               },
           .run_layers = false});
  BOOST_TEST(calls > 0U);
  const std::int64_t compiled = fresh.cache().stats().compiled;
  BOOST_TEST(compiled > 0);
  BOOST_TEST(fresh.device_api().launches() == 0);
  run_training(fresh.backend(), run);
  BOOST_TEST(fresh.cache().stats().compiled == compiled);
  prepare(fresh, run);
  BOOST_TEST(fresh.cache().stats().compiled == compiled);
}

BOOST_AUTO_TEST_CASE(a_step_that_never_ran_cannot_be_captured) {
  if (!mine()) return;
  std::string problem;
  const std::unique_ptr<Driver> driver = Driver::open(problem);
  BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
  const HostInputs host = make_inputs({64, 32, 48}, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, backend, stream);
  Float8Linear linear(backend, {32, 48, true}, tensorwise());
  BOOST_CHECK_EXCEPTION(
      Graph(stream, [&] { linear.forward(device.forward(true), stream); }), Error, [](const Error& error) {
        return std::string(error.what()).find("run the step once before capturing it") != std::string::npos;
      });
  linear.forward(device.forward(true), stream);
  linear.backward(device.backward(true), stream);
  check_sqnr("output", expected_output(tensorwise(), host.input, host.weight, &host.bias, Dtype::bf16).value,
             device.output.read(stream), kSameCodes);
}

BOOST_AUTO_TEST_CASE(a_steady_step_allocates_nothing) {
  if (!mine()) return;
  CountingBackend counting(backend, &stream);
  Stream on(counting);
  const HostInputs host = make_inputs({96, 64, 128}, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, counting, on);
  Float8Linear linear(counting, {64, 128, true}, tensorwise());
  int before = 0;
  for (int step = 0; step < 3; ++step) {
    before = counting.allocations;
    linear.forward(device.forward(true), on);
    linear.backward(device.backward(true), on);
    linear.weight_changed();
  }
  BOOST_TEST(counting.allocations == before);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
