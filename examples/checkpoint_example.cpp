// An FP8 weight goes into a file as DeepSeek's checkpoints have it, and comes back as a layer for inference.
#include <ingot/ingot.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

int main() {
  ingot::Context context;  // the GPU, or the CPU reference where there is none
  ingot::Backend& backend = context.backend();
  ingot::DeviceApi& device = context.device_api();
  ingot::Stream stream(backend);

  constexpr int kTokens = 4, kIn = 256, kOut = 384;
  constexpr ingot::Dtype kType = ingot::Dtype::f32;
  const ingot::OwnedTensor weight(backend, kType, kOut, kIn), input(backend, kType, kTokens, kIn);
  const ingot::OwnedTensor output(backend, kType, kTokens, kOut);
  const auto fill = [&](const ingot::OwnedTensor& tensor, float value) {
    const std::vector<float> values(static_cast<std::size_t>(tensor.view().rows * tensor.view().cols), value);
    device.copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(float), stream);
  };
  fill(weight, 0.125F);
  fill(input, 2);

  // Codes and scale_inv of 128 x 128 blocks, as a layer in training has them.
  const ingot::LinearPlan plan = ingot::linear_plan(
      {.name = "wq", .config = ingot::blockwise(), .shape = {kIn, kOut}, .dtypes = {.input = kType}});
  const ingot::Buffer memory(backend, plan.weight_memory().bytes);
  const ingot::Float8View codes = ingot::cast_weight(
      plan, backend, {.weight = weight, .into = {.data = memory.data(), .bytes = memory.bytes()}}, {stream});

  const auto file = std::filesystem::temp_directory_path() / "ingot_checkpoint_example.safetensors";
  ingot::save_float8_weights(file, {{"model.layers.0.wq.", ingot::weight_state(plan, backend, codes, stream)}},
                             ingot::ScaleName::weight_scale_inv);

  const auto checkpoint = ingot::SafetensorsCheckpoint::open(file);
  const ingot::Float8WeightState state = ingot::load_float8_weight(checkpoint, "model.layers.0.wq.");
  ingot::InferenceLinear linear(backend, state, stream, {.name = "layers.0.wq", .dtype = kType});
  linear.forward({.input = input, .output = output}, stream);

  float sum = 0;  // of 256 products of 2 and 0.125
  device.copy_to_host(&sum, output.view().data, sizeof sum, stream);
  device.synchronize(stream);
  std::filesystem::remove(file);
  std::printf("%zu scale_inv; output is %.3f\n", state.scale_inv.size(), static_cast<double>(sum));
  return std::abs(sum - 64) < 0.01F ? 0 : 1;
}
