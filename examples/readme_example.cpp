#include <ingot/ingot.h>

#include <cstdio>
#include <random>
#include <vector>

int main() {
  ingot::Context context;  // the GPU, or the CPU reference where there is none
  ingot::Backend& backend = context.backend();
  ingot::DeviceApi& device = context.device_api();
  ingot::Stream stream(backend);

  constexpr int kTokens = 64, kIn = 32, kOut = 16;
  constexpr ingot::Dtype kType = ingot::Dtype::f32;
  ingot::OwnedTensor input(backend, kType, kTokens, kIn), weight(backend, kType, kOut, kIn);
  ingot::OwnedTensor output(backend, kType, kTokens, kOut), grad_output(backend, kType, kTokens, kOut);
  ingot::OwnedTensor grad_weight(backend, kType, kOut, kIn);
  ingot::Float8Linear linear(backend, {.in_features = kIn, .out_features = kOut}, ingot::tensorwise());

  // Learn to copy: output column n is input column n.
  std::vector<float> x(kTokens * kIn), y(kTokens * kOut), w(kOut * kIn), gradient(kOut * kIn);
  std::mt19937 random(0);
  for (float& value : x) value = std::uniform_real_distribution(-1.0F, 1.0F)(random);
  device.copy_from_host(input.view().data, x.data(), x.size() * sizeof(float), stream);

  for (int step = 0; step <= 100; ++step) {
    device.copy_from_host(weight.view().data, w.data(), w.size() * sizeof(float), stream);
    linear.weight_changed();
    linear.forward({.input = input, .weight = weight, .output = output}, stream);
    device.copy_to_host(y.data(), output.view().data, y.size() * sizeof(float), stream);

    float loss = 0;  // half the mean squared error; y becomes its gradient
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float error = y[i] - x[i / kOut * kIn + i % kOut];
      loss += 0.5F * error * error / kTokens;
      y[i] = error / kTokens;
    }
    if (step % 20 == 0) std::printf("step %3d  loss %.5f\n", step, static_cast<double>(loss));

    device.copy_from_host(grad_output.view().data, y.data(), y.size() * sizeof(float), stream);
    linear.backward({.grad_output = grad_output, .grad_weight = grad_weight}, stream);
    device.copy_to_host(gradient.data(), grad_weight.view().data, gradient.size() * sizeof(float), stream);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= gradient[i];
  }
}
