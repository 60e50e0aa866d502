// Operations without a layer: a cast fused with an expression, and an RMSNorm that writes FP8 codes. On a GPU each is
// one kernel, compiled when it is first called.
#include <ingot/ingot.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  ingot::Context context;
  ingot::Backend& backend = context.backend();
  ingot::DeviceApi& device = context.device_api();
  ingot::Stream stream(backend);

  constexpr int kRows = 4, kCols = 256;
  constexpr ingot::Dtype kType = ingot::Dtype::f32, kCode = ingot::Dtype::e4m3fn;
  ingot::OwnedTensor x(backend, kType, kRows, kCols), bias(backend, kType, 1, kCols),
      values(backend, kType, kRows, kCols);
  ingot::OwnedTensor codes(backend, kCode, kRows, kCols), scale_inv(backend, ingot::Dtype::f32, 1, kRows);
  std::vector<float> host(kRows * kCols), shift(kCols, 0.5F), fused(host.size()), normed(host.size());
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = std::sin(static_cast<float>(i));
  device.copy_from_host(x.view().data, host.data(), host.size() * sizeof(float), stream);
  device.copy_from_host(bias.view().data, shift.data(), shift.size() * sizeof(float), stream);

  // silu(x) + bias[col], as codes with a scale_inv for each row: value = code * scale_inv. `result` gets the values
  // themselves.
  const ingot::CastSpec cast{.in = kType,
                             .out = kCode,
                             .scale = ingot::kRowwise,
                             .pointwise = ingot::parse_pointwise("silu(x) + bias[col]"),
                             .result = true};
  backend.cast(cast, {.input = x, .codes = codes, .scale_inv = scale_inv, .inputs = {bias.view()}, .result = values},
               stream);
  device.copy_to_host(fused.data(), values.view().data, fused.size() * sizeof(float), stream);

  // The rows of x divided by their root mean squares, with codes and scale_inv as above.
  const ingot::NormSpec norm{.kind = ingot::NormKind::rms, .in = kType, .out = kCode, .result = true};
  backend.norm(norm, {.input = x, .codes = codes, .scale_inv = scale_inv, .result = values}, stream);
  device.copy_to_host(normed.data(), values.view().data, normed.size() * sizeof(float), stream);

  double error = 0, squares = 0;
  for (std::size_t i = 0; i < host.size(); ++i) {
    const double value = host[i];
    error = std::max(error, std::abs(fused[i] - (value / (1 + std::exp(-value)) + 0.5)));
    squares += double{normed[i]} * normed[i] / static_cast<double>(host.size());
  }
  std::printf("%s\nlargest error %.0e\n", print(ingot::KernelSpec(cast)).c_str(), error);
  std::printf("%s\nmean square %.4f\n", print(ingot::KernelSpec(norm)).c_str(), squares);
  return error < 1e-5 && std::abs(squares - 1) < 1e-3 ? 0 : 1;
}
