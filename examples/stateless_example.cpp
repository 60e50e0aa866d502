// Two micro-batches through one layer, forward and forward, then backward and backward, in the program's own memory.
#include <ingot/ingot.h>

#include <array>
#include <cstdio>
#include <vector>

int main() {
  ingot::Context context;  // the GPU, or the CPU reference where there is none
  ingot::Backend& backend = context.backend();
  ingot::DeviceApi& device = context.device_api();
  ingot::Stream stream(backend);

  constexpr int kTokens = 64, kIn = 32, kOut = 16;
  constexpr ingot::Dtype kType = ingot::Dtype::f32;
  const ingot::LinearPlan plan =
      ingot::linear_plan({.name = "wq", .config = ingot::rowwise(), .shape = {kIn, kOut}, .dtypes = {.input = kType}});

  // The plan says how much memory a micro-batch takes, before anything runs.
  const ingot::LinearMemory memory = plan.memory(kTokens);
  std::printf("each micro-batch keeps %zu bytes for backward, the weight's codes take %zu\n", memory.saved.bytes,
              memory.weight.bytes);
  const ingot::Buffer weight_memory(backend, memory.weight.bytes);
  const std::array saved_memory{ingot::Buffer(backend, memory.saved.bytes), ingot::Buffer(backend, memory.saved.bytes)};
  const ingot::Buffer forward_memory(backend, memory.forward.bytes), backward_memory(backend, memory.backward.bytes);
  const auto region = [](const ingot::Buffer& buffer) { return ingot::MemoryRegion{buffer.data(), buffer.bytes()}; };

  const ingot::OwnedTensor weight(backend, kType, kOut, kIn), grad_weight(backend, kType, kOut, kIn);
  const ingot::OwnedTensor grad_output(backend, kType, kTokens, kOut), output(backend, kType, kTokens, kOut);
  const std::array input{ingot::OwnedTensor(backend, kType, kTokens, kIn),
                         ingot::OwnedTensor(backend, kType, kTokens, kIn)};
  const auto fill = [&](const ingot::OwnedTensor& tensor, float value) {
    const std::vector<float> values(static_cast<std::size_t>(tensor.view().rows * tensor.view().cols), value);
    device.copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(float), stream);
  };
  fill(weight, 0.5F);
  fill(grad_output, 1);
  fill(input[0], 1);
  fill(input[1], 2);

  const ingot::Float8View codes =
      ingot::cast_weight(plan, backend, {.weight = weight, .into = region(weight_memory)}, {stream});
  std::array<ingot::LinearSaved, 2> saved{{{.memory = region(saved_memory[0])}, {.memory = region(saved_memory[1])}}};
  for (std::size_t i = 0; i < 2; ++i) {
    ingot::linear_forward(
        plan, backend,
        {.input = input[i], .output = output, .codes = codes, .saved = &saved[i], .scratch = region(forward_memory)},
        {stream});
  }
  for (std::size_t i = 0; i < 2; ++i) {
    ingot::linear_backward(plan, backend,
                           {.saved = &saved[i],
                            .grad_output = grad_output,
                            .grad_weight = grad_weight,
                            .accumulate = i > 0,
                            .codes = codes,
                            .scratch = region(backward_memory)},
                           {stream});
  }
  float sum = 0;  // of 64 tokens of 1 and 64 of 2
  device.copy_to_host(&sum, grad_weight.view().data, sizeof sum, stream);
  std::printf("grad_weight is %.1f\n", static_cast<double>(sum));
  return sum == 192 ? 0 : 1;
}
