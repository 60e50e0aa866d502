// A program that uses each part of the library as a stranger would, from the installed headers and library alone, on
// the CPU; what needs a GPU runs dry. Each part checks one thing that a wrong library would get wrong.
// (stateless_example.cpp and checkpoint_example.cpp, which are installed, are whole programs for two of them.)
#include <ingot/ingot.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

namespace {

using ingot::Dtype;

int failures = 0;
void expect(bool holds, const char* what) {
  std::printf("%-28s %s\n", what, holds ? "ok" : "WRONG");
  failures += holds ? 0 : 1;
}

constexpr int kTokens = 16, kIn = 128, kOut = 256;

struct Place {
  // f32 or bf16, which is its upper half.
  ingot::OwnedTensor make(Dtype dtype, std::int64_t rows, std::int64_t cols, float value) {
    const auto count = static_cast<std::size_t>(rows * cols);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (dtype == Dtype::f32) return make_of(dtype, rows, cols, std::vector<std::uint32_t>(count, bits));
    return make_of(dtype, rows, cols, std::vector(count, static_cast<std::uint16_t>(bits >> 16)));
  }
  template <class Bits>
  ingot::OwnedTensor make_of(Dtype dtype, std::int64_t rows, std::int64_t cols, const std::vector<Bits>& values) {
    ingot::OwnedTensor tensor(backend, dtype, rows, cols);
    backend.device_api().copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(Bits), stream);
    return tensor;
  }
  // The first value of an f32 tensor.
  float first(const ingot::OwnedTensor& tensor) {
    float value = 0;
    backend.device_api().copy_to_host(&value, tensor.view().data, sizeof value, stream);
    backend.device_api().synchronize(stream);
    return value;
  }

  ingot::Context context{{.where = ingot::ContextOptions::Where::cpu, .store_root = std::filesystem::path()}};
  ingot::Backend& backend = context.backend();
  ingot::Stream stream{backend};
};

// Memory for a plan's step.
struct Memory {
  Memory(ingot::Backend& backend, const ingot::LinearPlan& plan)
      : sizes(plan.memory(kTokens)),
        weight(backend, sizes.weight.bytes),
        saved_memory(backend, sizes.saved.bytes),
        scratch_memory(backend, std::max(sizes.forward.bytes, sizes.backward.bytes)),
        saved{.memory = ingot::region_of(saved_memory)} {}

  ingot::MemoryRegion scratch() const { return ingot::region_of(scratch_memory); }

  ingot::LinearMemory sizes;
  ingot::Buffer weight, saved_memory, scratch_memory;
  ingot::LinearSaved saved;
};

// FP8 primary weights: an f32 master is cast by a list, the functions multiply the codes, gradients are f32.
void primary_weights(Place& at) {
  const auto plan = ingot::linear_plan({.name = "wq",
                                        .config = ingot::rowwise(),
                                        .shape = {kIn, kOut},
                                        .dtypes = {.weight = Dtype::f32, .output = Dtype::f32}});
  Memory memory(at.backend, plan);
  const auto master = at.make(Dtype::f32, kOut, kIn, 0.5F);
  const auto x = at.make(Dtype::bf16, kTokens, kIn, 1), y = at.make(Dtype::f32, kTokens, kOut, 0);
  const auto grad_y = at.make(Dtype::f32, kTokens, kOut, 1), grad_weight = at.make(Dtype::f32, kOut, kIn, 0);
  ingot::WeightCasts casts(at.backend);
  const ingot::Float8View codes =
      casts.add(plan, {.weight = master, .into = ingot::region_of(memory.weight)}, at.stream);
  casts.run(at.stream);
  ingot::linear_forward(plan, at.backend,
                        {.input = x, .output = y, .codes = codes, .saved = &memory.saved, .scratch = memory.scratch()},
                        {at.stream});
  ingot::linear_backward(plan, at.backend,
                         {.saved = &memory.saved,
                          .grad_output = grad_y,
                          .grad_weight = grad_weight,
                          .codes = codes,
                          .scratch = memory.scratch()},
                         {at.stream});
  expect(at.first(y) == 64 && at.first(grad_weight) == 16, "FP8 primary weights");
}

// An adapter of rank 16 for a frozen weight, of which only codes and scale_inv exist.
void frozen_weight(Place& at) {
  const auto frozen = ingot::linear_plan({.name = "wq",
                                          .config = ingot::blockwise(),
                                          .shape = {kIn, kOut},
                                          .dtypes = {.input = Dtype::f32},
                                          .grad_weight = false});
  const auto down = ingot::linear_plan({.name = "wq.down", .shape = {kIn, 16}, .dtypes = {.input = Dtype::f32}});
  const auto up = ingot::linear_plan({.name = "wq.up",
                                      .shape = {16, kOut},
                                      .dtypes = {.input = Dtype::f32},
                                      .fusion = {.epilogue = ingot::parse_pointwise("x * 2 + base")}});
  Memory base_memory(at.backend, frozen), down_memory(at.backend, down), up_memory(at.backend, up);
  ingot::Float8WeightState state{.scale = ingot::kBlocks, .out_features = kOut, .in_features = kIn};
  state.codes.assign(kOut * kIn, std::byte{0x38});  // 1
  state.scale_inv.assign(2, 0.25F);
  const ingot::Float8View codes =
      ingot::weight_from_state(frozen, at.backend, state, ingot::region_of(base_memory.weight), at.stream);
  const auto x = at.make(Dtype::f32, kTokens, kIn, 1), base = at.make(Dtype::f32, kTokens, kOut, 0);
  const auto lowered = at.make(Dtype::f32, kTokens, 16, 0), y = at.make(Dtype::f32, kTokens, kOut, 0);
  const auto a = at.make(Dtype::f32, 16, kIn, 1), b = at.make(Dtype::f32, kOut, 16, 1);
  const ingot::LinearRun run{at.stream};
  ingot::linear_forward(
      frozen, at.backend,
      {.input = x, .output = base, .codes = codes, .saved = &base_memory.saved, .scratch = base_memory.scratch()}, run);
  ingot::linear_forward(
      down, at.backend,
      {.input = x, .weight = a, .output = lowered, .saved = &down_memory.saved, .scratch = down_memory.scratch()}, run);
  ingot::linear_forward(up, at.backend,
                        {.input = lowered,
                         .weight = b,
                         .output = y,
                         .epilogue_inputs = {base.view()},
                         .saved = &up_memory.saved,
                         .scratch = up_memory.scratch()},
                        run);
  expect(at.first(y) == 32 + 2 * 16 * 128, "a frozen FP8 weight");
}

void shared_input(Place& at) {
  ingot::LinearPlanOptions options{
      .name = "q", .config = ingot::tensorwise(), .shape = {kIn, kOut}, .dtypes = {.input = Dtype::f32}};
  const auto q = ingot::linear_plan(options);
  options.name = "k";
  options.given_input = true;
  const auto k = ingot::linear_plan(options);
  Memory of_q(at.backend, q), of_k(at.backend, k);
  const auto x = at.make(Dtype::f32, kTokens, kIn, 1), w = at.make(Dtype::f32, kOut, kIn, 1);
  const auto yq = at.make(Dtype::f32, kTokens, kOut, 0), yk = at.make(Dtype::f32, kTokens, kOut, 0);
  const ingot::LinearRun run{at.stream};
  const auto wq = ingot::cast_weight(q, at.backend, {.weight = w, .into = ingot::region_of(of_q.weight)}, run);
  const auto wk = ingot::cast_weight(k, at.backend, {.weight = w, .into = ingot::region_of(of_k.weight)}, run);
  ingot::linear_forward(q, at.backend,
                        {.input = x, .output = yq, .codes = wq, .saved = &of_q.saved, .scratch = of_q.scratch()}, run);
  ingot::linear_forward(
      k, at.backend,
      {.input = x,
       .output = yk,
       .codes = wk,
       .saved = &of_k.saved,
       .scratch = of_k.scratch(),
       .given_input = ingot::linear_input_codes(q, kTokens, of_q.saved.memory, of_q.scratch(), at.context.device())},
      run);
  expect(std::abs(at.first(yq) - 128) < 0.01F && at.first(yk) == at.first(yq), "an input of several layers");
}

void inference(Place& at) {
  ingot::Float8WeightState state{.out_features = kOut, .in_features = kIn};
  state.codes.assign(kOut * kIn, std::byte{0x38});
  state.scale_inv = {0.5F};
  state.input_scale_inv = 0.25F;  // static activations
  const auto file = std::filesystem::temp_directory_path() / "ingot_use_parts.safetensors";
  ingot::save_float8_weights(file, {{"wq.", state}});
  const auto loaded = ingot::load_float8_weight(ingot::SafetensorsCheckpoint::open(file), "wq.");
  std::filesystem::remove(file);
  ingot::InferenceLinear linear(at.backend, loaded, at.stream, {.dtype = Dtype::f32});
  const auto x = at.make(Dtype::f32, kTokens, kIn, 2), y = at.make(Dtype::f32, kTokens, kOut, 0);
  linear.forward({.input = x, .output = y}, at.stream);
  expect(at.first(y) == 128, "W8A8 from a checkpoint");
}

// A host's own memory: all of a step's comes from it and goes back.
class CountedMemory final : public ingot::StreamAllocator {
 public:
  void* allocate(std::size_t bytes, CUstream_st*) override {
    live += bytes;
    given += bytes;
    return ::operator new (bytes, std::align_val_t{256});
  }
  void release(void* data, std::size_t bytes, CUstream_st*) noexcept override {
    live -= bytes;
    ::operator delete (data, std::align_val_t{256});
  }
  std::size_t live = 0, given = 0;
};

void own_memory(Place& at) {
  CountedMemory memory;
  ingot::Stream stream(at.backend, nullptr, memory);
  ingot::Float8Linear layer(at.backend, {.in_features = kIn, .out_features = kOut}, ingot::rowwise());
  const auto x = at.make(Dtype::f32, kTokens, kIn, 1), w = at.make(Dtype::f32, kOut, kIn, 1);
  const auto y = at.make(Dtype::f32, kTokens, kOut, 0), grad_weight = at.make(Dtype::f32, kOut, kIn, 0);
  layer.forward({.input = x, .weight = w, .output = y}, stream);
  layer.backward({.grad_output = y, .grad_weight = grad_weight}, stream);
  layer.release();
  expect(memory.given > 0 && memory.live == 0 && std::abs(at.first(y) - 128) < 0.01F, "memory of an allocator");
}

// Composites, with a monitor that watches them and dumps a tensor.
void modules(Place& at) {
  ingot::Monitor monitor(at.backend, {.every = 1});
  ingot::LayerNormMlp mlp(at.backend, {.features = kIn, .hidden = kOut, .bias = false}, ingot::rowwise(),
                          {.activation = "relu(x)", .norm = ingot::NormOptions{.affine = false}, .observer = &monitor});
  ingot::Mlp gated(at.backend, {.features = kIn, .hidden = kOut}, ingot::tensorwise(), {.activation = "silu(x) * up"});
  const auto x = at.make(Dtype::f32, kTokens, kIn, 1), y = at.make(Dtype::f32, kTokens, kIn, 3);
  const auto up = at.make(Dtype::f32, kOut, kIn, 1), down = at.make(Dtype::f32, kIn, kOut, 1);
  const auto gate_up = at.make(Dtype::f32, 2 * kOut, kIn, 0.25F), grad_x = at.make(Dtype::f32, kTokens, kIn, 5);
  mlp.forward({.input = x, .up_weight = up, .down_weight = down, .output = y, .keep_for_backward = false}, at.stream);
  mlp.recompute({.input = x, .up_weight = up, .down_weight = down, .output = y}, at.stream);
  mlp.backward({.grad_output = y, .grad_input = grad_x}, at.stream);
  monitor.step_done(at.stream);
  expect(at.first(y) == 0 && at.first(grad_x) == 0, "an MLP after a norm");  // rows of equal values
  expect(!monitor.records().empty() && monitor.table().find("mlp.up") != std::string::npos, "a monitor");
  gated.forward({.input = x, .up_weight = gate_up, .down_weight = down, .output = y}, at.stream);
  expect(std::abs(at.first(y) / (256 * 32 * 32) - 1) < 0.1F, "a gated MLP");
}

// What a GPU would run: captured as a graph, and every kernel known before the first step.
void dry_run() {
  ingot::DryRun dry(ingot::gpu_named("h200"));
  ingot::Stream stream(dry.backend());
  ingot::Float8Linear layer(dry.backend(), {.in_features = kIn, .out_features = kOut}, ingot::rowwise());
  const ingot::OwnedTensor x(dry.backend(), Dtype::bf16, kTokens, kIn), w(dry.backend(), Dtype::bf16, kOut, kIn);
  const ingot::OwnedTensor y(dry.backend(), Dtype::bf16, kTokens, kOut);
  const auto step = [&] { layer.forward({.input = x, .weight = w, .output = y}, stream); };
  step();
  ingot::Graph graph(stream, step);
  graph.replay(stream);
  graph.update(stream, step);
  expect(!dry.recording().kernels().empty(), "a graph");
}

void preparing(Place& at) {
  const ingot::TrainingRun run{.layers = {{.name = "wq", .in_features = kIn, .out_features = kOut}},
                               .recipes = {ingot::rowwise()},
                               .tokens = {16}};
  ingot::prepare(at.context, run, {.progress = [](const ingot::PrepareProgress&) {}});
  ingot::DryRun dry(ingot::gpu_named("h200"));
  ingot::run_training(dry.backend(), run);
  const std::vector<ingot::MatmulCall> calls = dry.recording().matmuls();
  expect(!calls.empty() && at.context.matmul_order(calls.front()).size() == 1, "kernels ahead of a step");
}

void converting() {
  const ingot::ModuleDescription model("",
                                       {{"wq", ingot::LinearShape{4096, 4096}}, {"head", ingot::LinearShape{64, 8}}});
  const auto decisions = ingot::convert(
      model, ingot::rowwise(),
      {.filter = ingot::not_named("head"), .tokens = 8192, .gpu = ingot::gain_gpu(ingot::gpu_named("h200"))});
  expect(decisions.size() == 2 && decisions[0].reason.empty() && !decisions[1].reason.empty(), "convert()");
}

}  // namespace

int main() try {
  Place at;
  primary_weights(at);
  frozen_weight(at);
  shared_input(at);
  inference(at);
  own_memory(at);
  modules(at);
  dry_run();
  preparing(at);
  converting();
  return failures;
} catch (const ingot::Error& error) {
  std::fprintf(stderr, "use_parts: %s\n", error.what());
  return 1;
}
