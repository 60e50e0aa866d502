// Experts' operands and outputs past 2^31 elements and 2^32 bytes: grouped GEMMs, along K too, matmuls with decoded
// weights, and combine. Rows repeat after a prime number of them, so that an offset that lost its upper bits finds
// another value; outputs begin as zeros, which no right one is. The most memory: 11 GB.
#include "support/gpu_test.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

#include "numerics.cuh"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_experts_huge_gpu)

namespace {

constexpr std::int64_t kKinds = 251;  // of rows; the largest value is one more, less than bf16 rounds
constexpr std::int64_t kExperts = 9, kN = 131072, kK = 4096, kM = 17000;
constexpr std::int64_t kTwo31 = std::int64_t{1} << 31, kTwo32 = std::int64_t{1} << 32;
static_assert(kExperts * kN * kK > kTwo32 && kM * kN > kTwo31 && 2 * kM * kN > kTwo32);

std::int64_t kind_of(std::int64_t row) { return row % kKinds; }

// Rows of all kinds, on the host.
template <class T>
std::vector<T> kinds(std::int64_t cols, const std::function<T(std::int64_t kind, std::int64_t col)>& value) {
  std::vector<T> rows(static_cast<std::size_t>(kKinds * cols));
  for (std::int64_t i = 0; i < kKinds * cols; ++i) rows[static_cast<std::size_t>(i)] = value(i / cols, i % cols);
  return rows;
}

struct Fixture {
  Context context{cuda_options()};
  Backend& backend = context.backend();
  DeviceApi& device = backend.device_api();
  Stream stream{backend};

  // Repeats the rows in all of a matrix.
  template <class T>
  void fill(const Tensor& matrix, const std::vector<T>& rows) {
    const std::int64_t row_bytes = matrix.cols * static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t first = 0; first < matrix.rows; first += kKinds) {
      const std::int64_t count = std::min(kKinds, matrix.rows - first);
      device.copy_from_host(static_cast<std::byte*>(matrix.data) + first * row_bytes, rows.data(),
                            static_cast<std::size_t>(count * row_bytes), stream);
    }
  }
  void clear(const Tensor& matrix) {
    device.fill_zero(matrix.data, static_cast<std::size_t>(matrix.rows * matrix.cols * size_of(matrix.dtype)), stream);
  }
  void ones(const Tensor& vector) {
    device.fill(static_cast<float*>(vector.data), 1.0F, static_cast<std::size_t>(vector.cols), stream);
  }
  ExpertEnds ends(const Buffer& memory, const std::vector<std::int32_t>& values) {
    device.copy_from_host(memory.data(), values.data(), values.size() * sizeof(std::int32_t), stream);
    return {.data = static_cast<const std::int32_t*>(memory.data()),
            .experts = static_cast<std::int64_t>(values.size()),
            .device = backend.device()};
  }

  // The first element of some rows that differs: of the first and the last ones, of those about multiples of 2^31
  // elements and bytes, and of each 97th.
  template <class T>
  std::string fault(const Tensor& out, const std::function<float(std::int64_t row, std::int64_t col)>& expected) {
    std::vector<T> row(static_cast<std::size_t>(out.cols));
    const std::int64_t every = kTwo31 / out.cols / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t r = 0; r < out.rows; ++r) {
      const bool edge = r < 2 || r + 2 >= out.rows || (r + 1) % every <= 2;
      if (!edge && r % 97 != 0) continue;
      device.copy_to_host(row.data(), static_cast<const T*>(out.data) + r * out.cols, row.size() * sizeof(T), stream);
      for (std::int64_t c = 0; c < out.cols; ++c) {
        const float found = to_float(row[static_cast<std::size_t>(c)]);
        if (found == expected(r, c)) continue;
        return "element " + std::to_string(r) + ", " + std::to_string(c) + " is " + std::to_string(found) + ", not " +
               std::to_string(expected(r, c));
      }
    }
    return {};
  }
};

// As many ones as the kind says, and one more, from the last column on backwards; so they are at all of a row's places
// that a step along K may have.
e4m3fn weight_of(std::int64_t kind, std::int64_t col) {
  return encode<e4m3fn>((kK - 1 - col) % 16 == 0 && (kK - 1 - col) / 16 <= kind ? 1.0F : 0.0F);
}
float sign_of(std::int64_t row) { return row % 2 == 0 ? 1.0F : -1.0F; }

}  // namespace

BOOST_FIXTURE_TEST_SUITE(huge, Fixture)

BOOST_AUTO_TEST_CASE(grouped_gemms_and_decoded_weights) {
  const OwnedTensor b(backend, Dtype::e4m3fn, kExperts * kN, kK);
  fill(b.view(), kinds<e4m3fn>(kK, weight_of));
  const OwnedTensor scale_inv(backend, Dtype::f32, 1, kExperts);
  ones(scale_inv.view());
  const Buffer memory(backend, kExperts * sizeof(std::int32_t));
  // Of a row of an expert: the expert's first row of b is not of the first kind.
  const auto value = [](std::int64_t expert, std::int64_t row, std::int64_t col) {
    return sign_of(row) * static_cast<float>(kind_of(expert * kN + col) + 1);
  };
  {
    const OwnedTensor a(backend, Dtype::e4m3fn, kM, kK);
    const std::vector<e4m3fn> rows = kinds<e4m3fn>(kK, [](std::int64_t, std::int64_t) { return encode<e4m3fn>(1.0F); });
    fill(a.view(), rows);
    const std::vector<e4m3fn> minus(static_cast<std::size_t>(kK), encode<e4m3fn>(-1.0F));
    for (std::int64_t row = 1; row < kM; row += 2) {
      device.copy_from_host(static_cast<std::byte*>(a.view().data) + row * kK, minus.data(), minus.size(), stream);
    }
    const OwnedTensor out(backend, Dtype::bf16, kM, kN);
    clear(out.view());
    std::vector<std::int32_t> of_rows(kExperts);
    for (std::int64_t e = 0; e < kExperts; ++e)
      of_rows[static_cast<std::size_t>(e)] = static_cast<std::int32_t>((e + 1) * kM / kExperts);
    const auto spec = std::get<GroupedGemmSpec>(parse("grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast"));
    const OwnedTensor one(backend, Dtype::f32, 1, 1);
    ones(one.view());
    backend.grouped_gemm(
        spec, {.a = a, .b = b, .ends = ends(memory, of_rows), .scale_inv_a = one, .scale_inv_b = scale_inv, .out = out},
        stream);
    const auto expert_of = [&](std::int64_t row) { return std::ranges::upper_bound(of_rows, row) - of_rows.begin(); };
    BOOST_TEST(fault<bf16>(out.view(), [&](std::int64_t r, std::int64_t c) { return value(expert_of(r), r, c); }) ==
               "");
  }
  // Two rows of each expert by weights that are decoded, as they are and packed.
  constexpr std::int64_t kRows = 2 * kExperts;
  const OwnedTensor x(backend, Dtype::bf16, kRows, kK);
  std::vector<bf16> values(static_cast<std::size_t>(kRows * kK));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = from_float<bf16>(sign_of(static_cast<std::int64_t>(i) / kK));
  device.copy_from_host(x.view().data, values.data(), values.size() * sizeof(bf16), stream);
  std::vector<std::int32_t> of_rows(kExperts);
  for (std::size_t e = 0; e < of_rows.size(); ++e) of_rows[e] = static_cast<std::int32_t>(2 * e + 2);
  const std::int64_t packed_bytes = packed_weight_bytes(Dtype::e4m3fn, kN, kK);
  const OwnedTensor packed(backend, Dtype::u8, 1, kExperts * packed_bytes);
  for (std::int64_t e = 0; e < kExperts; ++e) {
    Tensor codes = b.view();
    codes.data = static_cast<std::byte*>(codes.data) + e * kN * kK;
    codes.rows = kN;
    backend.pack_weight({.weight = Dtype::e4m3fn},
                        {.codes = codes,
                         .packed = vector(static_cast<std::byte*>(packed.view().data) + e * packed_bytes, Dtype::u8,
                                          packed_bytes, backend.device())},
                        stream);
  }
  for (const WeightLayout layout : {WeightLayout::row_major, WeightLayout::packed}) {
    const OwnedTensor out(backend, Dtype::bf16, kRows, kN);
    clear(out.view());
    backend.dequant_matmul({.scale = kTensorwise, .layout = layout, .experts = true},
                           {.x = x,
                            .weight = layout == WeightLayout::packed ? packed.view() : b.view(),
                            .scale_inv = scale_inv,
                            .out = out,
                            .ends = ends(memory, of_rows)},
                           stream);
    BOOST_TEST(fault<bf16>(out.view(), [&](std::int64_t r, std::int64_t c) { return value(r / 2, r, c); }) == "",
               name(layout));
  }
}

// Outputs of all experts, 8 columns of each: added to what is there.
BOOST_AUTO_TEST_CASE(grouped_gemms_along_k) {
  constexpr std::int64_t kOf = 17, kSize = 12288, kColumns = 8 * kOf + 8;  // rows at multiples of 16 bytes
  static_assert(kOf * kSize * kSize > kTwo31 && 4 * kOf * kSize * kSize > kTwo32 && kColumns % 16 == 0);
  const OwnedTensor a(backend, Dtype::e4m3fn, kSize, kColumns), b(backend, Dtype::e4m3fn, kSize, kColumns);
  // Of row m of a: 1 to 7, and of n of b: 1 to 15, which of them depends on the expert.
  const auto of_a = [](std::int64_t expert, std::int64_t kind) { return static_cast<float>((kind + expert) % 7 + 1); };
  const auto of_b = [](std::int64_t expert, std::int64_t kind) {
    return static_cast<float>((kind + 3 * expert) % 15 + 1);
  };
  fill(a.view(),
       kinds<e4m3fn>(kColumns, [&](std::int64_t kind, std::int64_t k) { return encode<e4m3fn>(of_a(k / 8, kind)); }));
  fill(b.view(),
       kinds<e4m3fn>(kColumns, [&](std::int64_t kind, std::int64_t k) { return encode<e4m3fn>(of_b(k / 8, kind)); }));
  const OwnedTensor one(backend, Dtype::f32, 1, 1);
  ones(one.view());
  const OwnedTensor out(backend, Dtype::f32, kOf * kSize, kSize);
  clear(out.view());
  std::vector<std::int32_t> of_columns(kOf);
  for (std::size_t e = 0; e < of_columns.size(); ++e) of_columns[e] = static_cast<std::int32_t>(8 * e + 8);
  const Buffer memory(backend, kOf * sizeof(std::int32_t));
  const auto spec =
      std::get<GroupedGemmSpec>(parse("grouped_gemm e4m3fn*e4m3fn->f32 nt scale=tensor,tensor c=f32 fast along=k"));
  for (int times = 1; times <= 2; ++times) {
    backend.grouped_gemm(spec,
                         {.a = a,
                          .b = b,
                          .ends = ends(memory, of_columns),
                          .scale_inv_a = one,
                          .scale_inv_b = one,
                          .out = out,
                          .c = out,
                          .beta = 1.0F},
                         stream);
    BOOST_TEST(fault<f32>(out.view(),
                          [&](std::int64_t r, std::int64_t c) {
                            const std::int64_t expert = r / kSize;
                            return static_cast<float>(times) * 8 * of_a(expert, kind_of(r % kSize)) *
                                   of_b(expert, kind_of(c));
                          }) == "",
               times);
  }
}

// Each token has two rows, one from each end of the input.
BOOST_AUTO_TEST_CASE(combine) {
  constexpr std::int64_t kRows = 600000, kCols = 4096;
  static_assert(kRows * kCols > kTwo31 && 2 * kRows * kCols > kTwo32);
  const OwnedTensor input(backend, Dtype::bf16, kRows, kCols), output(backend, Dtype::bf16, kRows, kCols);
  fill(input.view(), kinds<bf16>(kCols, [](std::int64_t kind, std::int64_t col) {
         return from_float<bf16>(static_cast<float>(kind % 120 + 1) + (col == kCols - 1 ? 0.5F : 0.0F));
       }));
  clear(output.view());
  std::vector<std::int32_t> index(2 * kRows);
  for (std::int64_t t = 0; t < kRows; ++t) {
    index[static_cast<std::size_t>(2 * t)] = static_cast<std::int32_t>(t);
    index[static_cast<std::size_t>(2 * t + 1)] = static_cast<std::int32_t>(kRows - 1 - t);
  }
  const Buffer memory(backend, index.size() * sizeof(std::int32_t));
  device.copy_from_host(memory.data(), index.data(), index.size() * sizeof(std::int32_t), stream);
  backend.combine({.in = Dtype::bf16},
                  {.input = input,
                   .index = {static_cast<const std::int32_t*>(memory.data()), 2 * kRows, backend.device()},
                   .output = output},
                  stream);
  BOOST_TEST(fault<bf16>(output.view(), [](std::int64_t r, std::int64_t c) {
               const auto of = [](std::int64_t row) { return static_cast<float>(kind_of(row) % 120 + 1); };
               return of(r) + of(kRows - 1 - r) + (c == kCols - 1 ? 1.0F : 0.0F);
             }) == "");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
