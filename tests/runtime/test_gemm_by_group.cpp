// GEMMs on the CPU whose scale_inv of groups form a matrix with one row for each group of K: the same bits as with
// scale_inv stored row by row, and right against float64. Casts write the scale_inv of transposed codes this way, and
// the last test feeds both, as written, to a GEMM that sums over the rows of the cast tensor.
#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_gemm_by_group)

namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
};

// bf16[rows, cols], all positive, so that no error cancels. Each 128 rows of a column have their own magnitude.
struct Source {
  std::int64_t rows, cols;
  std::vector<double> values{};
  std::vector<std::uint16_t> bits{};

  Source(std::int64_t of_rows, std::int64_t of_cols, unsigned seed) : rows(of_rows), cols(of_cols) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto index = static_cast<std::uint64_t>(r * cols + c);
        const auto exponent = static_cast<int>(random_bits(seed, static_cast<std::uint64_t>(r / 128 * cols + c)) % 13);
        const auto significand = static_cast<float>(128 + random_bits(seed + 1, index) % 128);  // 8 bits, as bf16 has
        const float value = std::ldexp(significand, exponent - 13);
        values.push_back(static_cast<double>(value));
        bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U));
      }
    }
  }

  double at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
  Tensor view() { return matrix(bits.data(), Dtype::bf16, rows, cols, {}); }

  // How far each value may be from its e4m3fn code's value: half a unit in the last place, or half of the smallest
  // subnormal, where 128 rows of a column, or a whole 128 x 128 block, share a scale.
  std::vector<double> rounding(bool blocks) const {
    const std::int64_t across = blocks ? 128 : 1;
    std::vector<double> off;
    std::map<std::pair<std::int64_t, std::int64_t>, double> amax;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        double& largest = amax[{r / 128, c / across}];
        largest = std::max(largest, at(r, c));
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        off.push_back(at(r, c) * 0x1p-4 + amax.at({r / 128, c / across}) / 448 * 0x1p-10);
      }
    }
    return off;
  }
};

// Transposed codes and their scale_inv, as a cast writes them without gaps.
struct Operand {
  std::vector<std::uint8_t> codes;
  std::vector<float> scale_inv;
};

Operand transposed(const CastSpec& spec, Source& source, Backend& backend, Stream& stream) {
  const auto elements = static_cast<std::size_t>(source.rows * source.cols);
  const ScaleGranularity scale = spec.transposed_scale.value_or(spec.scale);
  Operand made{
      .codes = std::vector<std::uint8_t>(elements, 0x7f),
      .scale_inv = std::vector<float>(static_cast<std::size_t>(scale_count(scale, source.rows, source.cols)), NAN)};
  std::vector<std::uint8_t> codes(elements);
  std::vector<float> scale_inv(static_cast<std::size_t>(scale_count(spec.scale, source.rows, source.cols)));
  const auto vector_of = [](std::vector<float>& data) {
    return vector(data.data(), Dtype::f32, static_cast<std::int64_t>(data.size()), {});
  };
  CastTensors tensors{.input = source.view(),
                      .transposed = matrix(made.codes.data(), spec.out, source.cols, source.rows, {}),
                      .scale_inv = vector_of(spec.transposed_scale ? scale_inv : made.scale_inv)};
  if (spec.codes) tensors.codes = matrix(codes.data(), spec.out, source.rows, source.cols, {});
  if (spec.transposed_scale) tensors.transposed_scale_inv = vector_of(made.scale_inv);
  backend.cast(spec, tensors, stream);
  return made;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(scale_inv_by_group, Fixture)

BOOST_AUTO_TEST_CASE(has_the_bits_of_row_by_row) {
  InputMaker maker;
  GemmReference reference;
  for (const char* const line :
       {"gemm e4m3fn*e5m2->f32 scale=1x128,1x128", "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 bias",
        "gemm e5m2*e4m3fnuz->f32 tn scale=1x128,128x128"}) {
    for (const auto& [m, n] : {std::pair{37, 261}, std::pair{1, 1}, std::pair{129, 7}}) {
      for (const std::int64_t k : {0, 1, 127, 128, 129, 1000}) {
        const Input input = k == 128 ? Input::integers : Input::normal;
        Case c{.spec = parse(line), .shape = {m, n, k}, .input = input};
        const SharedMatrices inputs = maker.inputs(c);
        const Expected expected = reference(std::get<GemmSpec>(c.spec), c.shape, inputs, input == Input::integers);
        const Matrices by_row = run(c, inputs, *backend, stream);
        for (const auto& [a, b] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
          c.a_by_group = a;
          c.b_by_group = b;
          const Matrices outputs = run(c, inputs, *backend, stream);
          std::string fault = damage(outputs);
          if (fault.empty()) fault = value_difference("out", expected, outputs.at("out"));
          if (fault.empty()) fault = bit_difference("row by row", by_row.at("out"), outputs.at("out"));
          BOOST_REQUIRE_MESSAGE(fault.empty(), name(c) << ": " << fault);
        }
      }
    }
  }
}

// grad_weight[N, K] = grad_output[M, N]^T input[M, K]: both tensors were also cast for GEMMs along their rows.
BOOST_AUTO_TEST_CASE(transposed_codes_are_operands_as_they_are) {
  for (const std::int64_t rows : {1, 127, 128, 129, 300}) {
    for (const bool blocks : {false, true}) {
      Source grad_output(rows, 37, 1);
      Source input(rows, 261, 2);
      const CastSpec groups{.scale = kRowGroups, .transposed = true, .transposed_scale = kColumnGroups};
      const CastSpec of_blocks{.scale = kBlocks, .transposed = true};
      Operand a = transposed(groups, grad_output, *backend, stream);
      Operand b = transposed(blocks ? of_blocks : groups, input, *backend, stream);

      const std::int64_t n = grad_output.cols;
      const std::int64_t k = input.cols;
      const std::int64_t of_k = (rows + 127) / 128;
      std::vector<float> out(static_cast<std::size_t>(n * k), NAN);
      backend->gemm({.out = Dtype::f32, .scale_a = kRowGroups, .scale_b = blocks ? kBlocks : kRowGroups},
                    {.a = matrix(a.codes.data(), Dtype::e4m3fn, n, rows, {}),
                     .b = matrix(b.codes.data(), Dtype::e4m3fn, k, rows, {}),
                     .scale_inv_a = matrix(a.scale_inv.data(), Dtype::f32, of_k, n, {}),
                     .scale_inv_b = matrix(b.scale_inv.data(), Dtype::f32, of_k, blocks ? (k + 127) / 128 : k, {}),
                     .out = matrix(out.data(), Dtype::f32, n, k, {})},
                    stream);

      const std::vector<double> off_a = grad_output.rounding(false);
      const std::vector<double> off_b = input.rounding(blocks);
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          double sum = 0;
          double bound = 0;
          for (std::int64_t r = 0; r < rows; ++r) {
            const double x = grad_output.at(r, i);
            const double y = input.at(r, j);
            const double off_x = off_a[static_cast<std::size_t>(r * n + i)];
            const double off_y = off_b[static_cast<std::size_t>(r * k + j)];
            sum += x * y;
            bound += off_x * y + x * off_y + off_x * off_y;
          }
          bound += 1e-4 * sum;  // for the scales, the scale_inv and the f32 sum
          const auto actual = static_cast<double>(out[static_cast<std::size_t>(i * k + j)]);
          BOOST_REQUIRE_MESSAGE(std::fabs(actual - sum) <= bound, rows << " rows, " << (blocks ? "blocks" : "groups")
                                                                       << ", (" << i << ", " << j << "): expected "
                                                                       << sum << ", got " << actual);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
