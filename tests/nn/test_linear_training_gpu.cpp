// Training steps of every recipe on CUDA: casts and scales have the CPU's bits, replays of a captured graph have the
// bits of plain calls, and eight threads can train layers at once.
#include "support/gpu_test.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/mlp.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/linear_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_linear_training_gpu)

namespace {

using Bytes = std::vector<std::uint8_t>;

// One context for the program, so that a kernel is compiled once.
Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);

  Fixture() { BOOST_REQUIRE_MESSAGE(driver != nullptr, problem); }
};

Bytes bytes_of(const Tensor& tensor, Backend& backend, Stream& stream) {
  const auto row = static_cast<std::size_t>(tensor.cols * size_of(tensor.dtype));
  Bytes bytes(row * static_cast<std::size_t>(tensor.rows));
  for (std::int64_t r = 0; r < tensor.rows && row != 0; ++r) {
    backend.device_api().copy_to_host(
        bytes.data() + static_cast<std::size_t>(r) * row,
        static_cast<const std::byte*>(tensor.data) + r * tensor.row_stride * size_of(tensor.dtype), row, stream);
  }
  backend.device_api().synchronize(stream);
  return bytes;
}

// A layer with its tensors, and each step's data, determined by the step's number.
struct Trained {
  Trained(const CaseShape& of_shape, const LinearConfig& config, Backend& backend, Stream& stream, unsigned first = 0,
          Stream* side = nullptr)
      : shape(of_shape),
        seed(first),
        device(data(0), Dtype::bf16, Dtype::bf16, backend, stream),
        scales(backend),
        linear(backend, {shape.in_features, shape.out_features, true}, config,
               {.name = "layer", .delayed = &scales, .side = side}) {}

  HostInputs data(int step) const {
    HostInputs host = make_inputs(shape, Dtype::bf16, Dtype::bf16, seed + static_cast<unsigned>(step) % 7);
    for (double& value : host.input.values) value *= 1 << (step % 5);  // exact, and the maxima move
    return host;
  }
  void write(int step, Stream& on) {
    const HostInputs host = data(step);
    device.input.write(host.input, on);
    device.weight.write(host.weight, on);
    device.grad_output.write(host.grad_output, on);
    device.poison_results(on);
  }
  void step(Stream& on) {
    linear.weight_changed();
    linear.forward(device.forward(true), on);
    linear.backward(device.backward(true), on);
    scales.sync_amax_history(on);
  }

  CaseShape shape;
  unsigned seed;
  LinearCase device;
  DelayedScaling scales;
  Float8Linear linear;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(training, Fixture)

// Compares every code and factor of every cast over twenty steps and, with delayed scales, the whole state.
BOOST_AUTO_TEST_CASE(casts_and_scales_have_the_cpus_bits) {
  for (const LinearConfig& config : every_config()) {
    for (const CaseShape& shape : {CaseShape{96, 160, 64}, CaseShape{37, 50, 29}}) {
      BOOST_TEST_CONTEXT(ingot::print(config) << ", " << test::print(shape)) {
        const auto run = [&](Backend& inner, Stream& on, std::vector<Bytes>& casts, std::vector<std::string>& states) {
          CountingBackend counting(inner, &on);
          Stream counted(counting, on.handle());
          counting.after_cast = [&](const CastSpec&, const CastTensors& t, Stream& at) {
            for (const Tensor& out : {t.codes, t.transposed, t.scale_inv, t.transposed_scale_inv, t.result}) {
              casts.push_back(bytes_of(out, inner, at));
            }
          };
          Trained trained(shape, config, counting, counted);
          for (int step = 0; step < 20; ++step) {
            trained.write(step, counted);
            trained.step(counted);
            states.push_back(trained.scales.save(counted));
          }
        };
        std::vector<Bytes> on_cuda, on_cpu;
        std::vector<std::string> cuda_states, cpu_states;
        const std::unique_ptr<Backend> cpu = make_cpu_backend(1);
        Stream cpu_stream(*cpu);
        run(cuda, stream, on_cuda, cuda_states);
        run(*cpu, cpu_stream, on_cpu, cpu_states);
        BOOST_REQUIRE_EQUAL(on_cuda.size(), on_cpu.size());
        for (std::size_t i = 0; i < on_cuda.size(); ++i) BOOST_REQUIRE_MESSAGE(on_cuda[i] == on_cpu[i], "output " << i);
        BOOST_TEST_CHECK(cuda_states == cpu_states, boost::test_tools::per_element());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_graphs_replays_have_the_bits_of_a_hundred_steps) {
  for (const Recipe& recipe : recipes()) {
    for (const CaseShape& shape : {CaseShape{256, 384, 512}, CaseShape{77, 48, 80}}) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << test::print(shape)) {
        std::vector<Bytes> eager;
        std::string state;
        {
          Trained trained(shape, recipe.config, cuda, stream);
          for (int step = 0; step < 100; ++step) {
            trained.write(step, stream);
            trained.step(stream);
            eager.push_back(trained.device.result_bytes(stream));
          }
          state = trained.scales.save(stream);
        }
        Trained trained(shape, recipe.config, cuda, stream);
        trained.write(0, stream);
        trained.step(stream);
        BOOST_TEST((trained.device.result_bytes(stream) == eager[0]));
        Graph graph(stream, [&] { trained.step(stream); });
        for (int step = 1; step < 100; ++step) {
          trained.write(step, stream);
          graph.replay(stream);
          BOOST_REQUIRE_MESSAGE(trained.device.result_bytes(stream) == eager[static_cast<std::size_t>(step)],
                                "step " << step << " differs from the eager one");
        }
        BOOST_TEST(trained.scales.save(stream) == state);
      }
    }
  }
}

// The side stream changes no bit, call by call and in a graph.
BOOST_AUTO_TEST_CASE(a_side_stream_changes_no_bit) {
  for (const Recipe& recipe : recipes()) {
    for (const CaseShape& shape : {CaseShape{256, 384, 512}, CaseShape{77, 48, 80}, CaseShape{1024, 1024, 1024}}) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << test::print(shape)) {
        Stream side(cuda);
        Trained plain(shape, recipe.config, cuda, stream);
        Trained beside(shape, recipe.config, cuda, stream, 0, &side);
        std::unique_ptr<Graph> graph;
        for (int step = 0; step < 20; ++step) {
          plain.write(step, stream);
          beside.write(step, stream);
          plain.step(stream);
          if (step == 10) graph = std::make_unique<Graph>(stream, [&] { beside.step(stream); });
          if (graph != nullptr) {
            graph->replay(stream);
          } else {
            beside.step(stream);
          }
          BOOST_REQUIRE_MESSAGE(beside.device.result_bytes(stream) == plain.device.result_bytes(stream),
                                "step " << step << " differs");
        }
        BOOST_TEST(beside.scales.save(stream) == plain.scales.save(stream));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(eight_threads_give_the_results_of_one) {
  constexpr CaseShape kShape{192, 256, 320};
  constexpr int kLayers = 8;
  const auto config_of = [](int layer) { return recipes()[static_cast<std::size_t>(layer) % recipes().size()].config; };
  const auto train = [&](int layer, Stream& on, std::vector<Bytes>& results) {
    Trained trained(kShape, config_of(layer), cuda, on, static_cast<unsigned>(100 * layer));
    for (int step = 0; step < 10; ++step) {
      trained.write(step, on);
      trained.step(on);
      results.push_back(trained.device.result_bytes(on));
    }
    results.emplace_back();
    for (const char c : trained.scales.save(on)) results.back().push_back(static_cast<std::uint8_t>(c));
  };
  std::vector<std::vector<Bytes>> alone(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) train(layer, stream, alone[static_cast<std::size_t>(layer)]);
  std::vector<std::vector<Bytes>> together(kLayers);
  std::vector<std::string> faults(kLayers);
  {
    std::vector<std::jthread> threads;
    for (int layer = 0; layer < kLayers; ++layer) {
      threads.emplace_back([&, layer] {
        const auto at = static_cast<std::size_t>(layer);
        try {
          Stream own(cuda);
          train(layer, own, together[at]);
        } catch (const std::exception& error) {
          faults[at] = error.what();
        }
      });
    }
  }
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    BOOST_TEST(faults[layer] == "");
    BOOST_TEST((together[layer] == alone[layer]), "layer " << layer);
  }
}

// Compares with the layer in f32 on the CPU, without any FP8.
BOOST_AUTO_TEST_CASE(fused_layers_are_near_their_formula) {
  constexpr CaseShape kShape{128, 256, 192};
  const std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream cpu_stream(*cpu);
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 3);
  const auto step = [&](NormKind kind, const LinearConfig& config, Dtype dtype, Backend& backend, Stream& on) {
    HostInputs inputs = host;
    const LinearCase device(inputs, dtype, bias_dtype_of(config, dtype), backend, on);
    DelayedScaling scales(backend);
    NormLinear layer(kind, backend, {.linear = {kShape.in_features, kShape.out_features, true}, .affine = false},
                     config, {.fusion = {.epilogue = parse_pointwise("silu(x)")}, .delayed = &scales});
    layer.forward({.input = device.input, .weight = device.weight, .bias = device.bias, .output = device.output}, on);
    layer.backward({.grad_output = device.grad_output,
                    .grad_input = device.grad_input,
                    .grad_weight = device.grad_weight,
                    .grad_bias = device.grad_bias},
                   on);
    return std::vector<Matrix>{device.output.read(on), device.grad_input.read(on), device.grad_weight.read(on),
                               device.grad_bias.read(on)};
  };
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const std::vector<Matrix> exact = step(kind, high_precision(), Dtype::f32, *cpu, cpu_stream);
    for (const Recipe& recipe : recipes()) {
      const std::vector<Matrix> found = step(kind, recipe.config, Dtype::bf16, cuda, stream);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const double db = sqnr(exact[i], found[i]);
        BOOST_TEST(db >= 18.0, recipe.name << ", result " << i << " has " << db << " dB");
      }
    }
  }
}

// The same of MLPs after a norm with a zero-centred gamma, whose backward comes after a recomputation.
BOOST_AUTO_TEST_CASE(mlps_behind_norms_are_near_their_formula) {
  constexpr std::int64_t kTokens = 128, kFeatures = 256, kHidden = 192;
  const std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  Stream cpu_stream(*cpu);
  const auto step = [&](const NormOptions& norm, const char* activation, const LinearConfig& config, Dtype dtype,
                        Backend& backend, Stream& on) {
    const std::int64_t columns = parse_pointwise(activation).inputs().empty() ? kHidden : 2 * kHidden;
    Random random(5);
    const auto make = [&](const Matrix& m) { return DeviceMatrix(m, dtype, backend, on); };
    const auto empty = [&](std::int64_t rows, std::int64_t cols) {
      return DeviceMatrix::poisoned(rows, cols, dtype, backend, on);
    };
    const DeviceMatrix x = make(random.normal(kTokens, kFeatures, Dtype::bf16));
    const DeviceMatrix up = make(random.weight(columns, kFeatures, Dtype::bf16));
    const DeviceMatrix down = make(random.weight(kFeatures, kHidden, Dtype::bf16));
    const DeviceMatrix gamma = make(random.normal(1, kFeatures, Dtype::bf16));
    const DeviceMatrix beta = make(random.normal(1, kFeatures, Dtype::bf16));
    const DeviceMatrix gy = make(random.normal(kTokens, kFeatures, Dtype::bf16));
    const DeviceMatrix y = empty(kTokens, kFeatures), gx = empty(kTokens, kFeatures), g_up = empty(columns, kFeatures),
                       g_down = empty(kFeatures, kHidden), g_gamma = empty(1, kFeatures), g_beta = empty(1, kFeatures);
    const bool layer = norm.kind == NormKind::layer;
    DelayedScaling scales(backend);
    Mlp mlp(backend, {.features = kFeatures, .hidden = kHidden}, config,
            {.activation = activation, .norm = norm, .delayed = &scales});
    MlpForward forward{.input = x,
                       .gamma = gamma,
                       .beta = layer ? beta.view() : Tensor{},
                       .up_weight = up,
                       .down_weight = down,
                       .output = y,
                       .keep_for_backward = false};
    mlp.forward(forward, on);
    mlp.recompute(forward, on);
    mlp.backward({.grad_output = gy,
                  .grad_input = gx,
                  .grad_gamma = g_gamma,
                  .grad_beta = layer ? g_beta.view() : Tensor{},
                  .grad_up_weight = g_up,
                  .grad_down_weight = g_down},
                 on);
    std::vector<Matrix> results{y.read(on), gx.read(on), g_gamma.read(on), g_up.read(on), g_down.read(on)};
    if (layer) results.push_back(g_beta.read(on));
    return results;
  };
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    const NormOptions norm{.kind = kind, .zero_centred = true};
    for (const char* const activation : {"gelu(x)", "silu(x) * up"}) {
      const std::vector<Matrix> exact = step(norm, activation, high_precision(), Dtype::f32, *cpu, cpu_stream);
      for (const Recipe& recipe : recipes()) {
        const std::vector<Matrix> found = step(norm, activation, recipe.config, Dtype::bf16, cuda, stream);
        for (std::size_t i = 0; i < exact.size(); ++i) {
          const double db = sqnr(exact[i], found[i]);
          BOOST_TEST(db >= 18.0, recipe.name << " " << activation << ", result " << i << " has " << db << " dB");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
