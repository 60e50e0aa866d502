// Casts two small matrices to FP8 and multiplies them on the CPU: output[2, 2] = a[2, 3] @ b[2, 3]^T. The largest value
// of each is 448 = the largest e4m3 value, so the scale is 1, the codes are exact, and so is the product.
#include <ingot/ingot.h>

#include <array>
#include <cstdio>

int main() try {
  constexpr ingot::Dtype kF32 = ingot::Dtype::f32;
  ingot::Context context({.where = ingot::ContextOptions::Where::cpu});
  ingot::Backend& backend = context.backend();
  ingot::Stream stream(backend);
  const ingot::Device device = context.device();

  std::array<float, 6> a{1, 2, 3, 448, 0, -1};
  std::array<float, 6> b{4, 5, 6, 0.5, -448, 2};
  std::array<float, 4> output{};
  ingot::Float8Tensor a8, b8;
  ingot::cast_to(a8, {.in = kF32}, ingot::matrix(a.data(), kF32, 2, 3, device), backend, stream);
  ingot::cast_to(b8, {.in = kF32}, ingot::matrix(b.data(), kF32, 2, 3, device), backend, stream);
  backend.gemm({.out = kF32},
               {.a = a8.codes,
                .b = b8.codes,
                .scale_inv_a = a8.scale_inv,
                .scale_inv_b = b8.scale_inv,
                .out = ingot::matrix(output.data(), kF32, 2, 2, device)},
               stream);
  context.device_api().synchronize(stream);

  std::printf("Ingot %s on %s: [[%g, %g], [%g, %g]]\n", ingot::version().c_str(), context.info().device_name.c_str(),
              output[0], output[1], output[2], output[3]);
  return output == std::array<float, 4>{32, -889.5, 1786, 222} ? 0 : 1;
} catch (const ingot::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
