// A reference for linear layers in float64, with and without FP8, written from the formulas with
// tests/support/reference_formats.h. It shares no code with the library except the rounding of the test's inputs.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "numerics.cuh"
#include "support/reference_formats.h"

namespace ingot::test {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values{};

  double& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * cols + c)]; }
  double at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
};

Matrix zeros(std::int64_t rows, std::int64_t cols);

Matrix transpose(const Matrix& m);

// ---- dtypes --------------------------------------------------------------------------------------------------------

std::uint32_t encode_bits(double value, Dtype dtype);

Matrix rounded(Matrix m, Dtype dtype);

// Half the distance between two subnormal numbers.
inline double smallest_of(Dtype dtype) { return dtype == Dtype::f16 ? 0x1p-25 : 0x1p-127; }

// ---- to and from the device ----------------------------------------------------------------------------------------

// A device matrix with rounded values. With a row stride above cols, the padding between rows is 0xff (NaN).
class DeviceMatrix {
 public:
  DeviceMatrix(const Matrix& m, Dtype dtype, Backend& backend, Stream& stream, std::int64_t row_stride = 0);

  // 0xff throughout: NaN in every dtype.
  static DeviceMatrix poisoned(std::int64_t rows, std::int64_t cols, Dtype dtype, Backend& backend, Stream& stream);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT(google-explicit-constructor)

  void write(const Matrix& m, Stream& stream);

  void poison(Stream& stream);

  std::vector<std::uint8_t> bytes(Stream& stream) const;

  Matrix read(Stream& stream) const;

 private:
  std::size_t element() const { return static_cast<std::size_t>(size_of(view_.dtype)); }
  std::size_t offset(std::int64_t r, std::int64_t c) const;
  std::size_t size_in_bytes() const;

  OwnedTensor owned_;
  Tensor view_;
  Backend* backend_;
};

// ---- FP8 -----------------------------------------------------------------------------------------------------------

double fp8_max_reference(Dtype dtype);

// An operand as a GEMM reads it, with rows along the summed dimension: its codes as numbers, and each element's factor.
struct Quantized {
  Matrix codes;
  Matrix scale_inv;
};

// Delayed scales start from the data, as dynamic scales do.
Quantized quantized(const Matrix& m, const Cast& cast);

// Casts and dequantizes. This is exact: a code has four significant bits, a factor 24.
Matrix fake_quantized(const Matrix& m, const Cast& cast);

// ---- the layer -----------------------------------------------------------------------------------------------------

// A result, and how far a correct result may be from it.
struct ExpectedMatrix {
  Matrix value;
  Matrix bound;
};

// a[M, K] @ b[N, K]^T + bias, summed in f32 in any order, rounded once to `out`.
ExpectedMatrix expected_gemm(const Matrix& a, const Matrix& b, const Matrix* bias, Dtype out);

ExpectedMatrix expected_product(const Matrix& a, const Matrix& b, const std::optional<Cast>& cast_a,
                                const std::optional<Cast>& cast_b, const Matrix* bias, Dtype out, bool a_transposed,
                                bool b_transposed);

ExpectedMatrix expected_output(const LinearConfig& config, const Matrix& input, const Matrix& weight,
                               const Matrix* bias, Dtype out);
// Folding: a is multiplied by b's row scale_inv of forward before its cast, a(m, k) * factor(k), and b's codes get no
// factor.
ExpectedMatrix expected_folded(const Matrix& a, const Matrix& b_of_forward, const Cast& cast_a, const Cast& cast_b,
                               Dtype out, bool a_transposed);

ExpectedMatrix expected_grad_input(const LinearConfig& config, const Matrix& grad_output, const Matrix& weight,
                                   Dtype out);
ExpectedMatrix expected_grad_weight(const LinearConfig& config, const Matrix& grad_output, const Matrix& input,
                                    Dtype out);
ExpectedMatrix expected_grad_bias(const Matrix& grad_output, Dtype out);

// ---- comparing -----------------------------------------------------------------------------------------------------

// Fails at the first element outside its bound; a NaN always fails.
void check_within(const Matrix& actual, const ExpectedMatrix& expected, const std::string& what);

// 20 log10(||reference|| / ||reference - actual||), in dB; NaN if actual has a NaN.
double sqnr(const Matrix& reference, const Matrix& actual);

// ---- inputs --------------------------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  Matrix normal(std::int64_t rows, std::int64_t cols, Dtype dtype, double deviation = 1);
  // The initialisation of torch.nn.Linear: uniform in +-1 / sqrt(in_features).
  Matrix weight(std::int64_t rows, std::int64_t cols, Dtype dtype);

 private:
  template <class Distribution>
  Matrix fill(std::int64_t rows, std::int64_t cols, Dtype dtype, Distribution& distribution) {
    Matrix m = zeros(rows, cols);
    for (double& value : m.values) value = distribution(engine_);
    return rounded(std::move(m), dtype);
  }
  std::mt19937 engine_;
};

}  // namespace ingot::test
