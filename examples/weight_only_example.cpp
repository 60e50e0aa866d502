// A weight in FP8 and activations in bf16: quantized once, saved, loaded, and multiplied.
#include <ingot/ingot.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

int main() {
  ingot::Context context;
  ingot::Backend& backend = context.backend();
  ingot::DeviceApi& device = context.device_api();
  ingot::Stream stream(backend);

  constexpr int kTokens = 4, kIn = 512, kOut = 256;
  std::vector<float> w(kOut * kIn), y(kTokens * kOut);
  std::vector<std::uint16_t> x(kTokens * kIn);  // bf16: the upper half of an f32
  std::mt19937 random(0);
  for (float& value : w) value = std::normal_distribution(0.0F, 0.05F)(random);
  for (std::uint16_t& value : x) {
    value =
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(std::normal_distribution(0.0F, 1.0F)(random)) >> 16);
  }
  ingot::OwnedTensor weight(backend, ingot::Dtype::f32, kOut, kIn), input(backend, ingot::Dtype::bf16, kTokens, kIn);
  ingot::OwnedTensor output(backend, ingot::Dtype::f32, kTokens, kOut);
  device.copy_from_host(weight.view().data, w.data(), w.size() * sizeof(float), stream);
  device.copy_from_host(input.view().data, x.data(), x.size() * sizeof(x[0]), stream);

  // e4m3fn with a scale_inv for each row. {.dtype = ingot::Dtype::e2m1fn, .mx = true} is MXFP4. The f32 weight may go.
  const auto made = ingot::WeightOnlyLinear::quantize(backend, weight, {.dtype = ingot::Dtype::e4m3fn}, stream);
  const auto file = std::filesystem::temp_directory_path() / "ingot_weight_only_example.safetensors";
  ingot::save_weight_only(file, {{"layers.0.wq.", made.state(stream)}});

  const auto stored = ingot::load_weight_only(ingot::SafetensorsFile::open(file), "layers.0.wq.");
  const auto linear = ingot::WeightOnlyLinear::from_state(backend, stored, stream);
  linear.forward(input, output, stream);
  device.copy_to_host(y.data(), output.view().data, y.size() * sizeof(float), stream);
  device.synchronize(stream);
  std::filesystem::remove(file);

  double error = 0, norm = 0;  // against the matmul with the weight as it was
  for (std::size_t i = 0; i < y.size(); ++i) {
    double exact = 0;
    for (std::size_t k = 0; k < kIn; ++k) {
      const std::uint32_t bits = std::uint32_t{x[i / kOut * kIn + k]} << 16;
      exact += double{std::bit_cast<float>(bits)} * w[i % kOut * kIn + k];
    }
    error += (y[i] - exact) * (y[i] - exact);
    norm += exact * exact;
  }
  std::printf("%zu bytes of weight, %zu as f32; relative error %.4f\n", linear.weight_bytes(), w.size() * sizeof(float),
              std::sqrt(error / norm));
  return error < 0.001 * norm ? 0 : 1;
}
