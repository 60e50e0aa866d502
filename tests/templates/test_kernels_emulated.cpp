// The kernels themselves, run on the host thread by thread, against the formulas of the numerics contract written out
// element by element. Shapes around every boundary of the tiles; odd pitches; poisoned and guarded outputs.
#define BOOST_TEST_MODULE kernels_emulated
#include "templates/emulator.h"

#include "amax.cuh"
#include "cast.cuh"
#include "column_sum.cuh"
#include "gemm_simt.cuh"

#include <boost/test/included/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace ingot;

constexpr u8 kPoison = 0xa5;

// rows x cols elements at a row stride, between guard bytes, `shift` elements past a 16-byte boundary.
template <class T>
class Matrix {
 public:
  Matrix(i64 rows, i64 cols, i64 stride, i64 shift = 0) : rows_(rows), cols_(cols), stride_(stride), shift_(shift) {
    bytes_.resize(static_cast<std::size_t>(rows * stride + shift) * sizeof(T) / 16 + 5);
    std::memset(bytes_.data(), kPoison, bytes_.size() * 16);
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + 2) + shift_; }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + 2) + shift_; }
  T& at(i64 r, i64 c) { return data()[r * stride_ + c]; }
  const T& at(i64 r, i64 c) const { return data()[r * stride_ + c]; }
  i64 stride() const { return stride_; }

  // Everything but the elements is still poison.
  bool guarded() {
    Matrix copy = *this;
    for (i64 r = 0; r < rows_; ++r) std::memset(&copy.at(r, 0), kPoison, static_cast<std::size_t>(cols_) * sizeof(T));
    const auto* bytes = reinterpret_cast<const u8*>(copy.bytes_.data());
    return std::all_of(bytes, bytes + copy.bytes_.size() * 16, [](u8 b) { return b == kPoison; });
  }

 private:
  struct alignas(16) Bytes {
    u8 bytes[16];
  };
  i64 rows_, cols_, stride_, shift_;
  std::vector<Bytes> bytes_;
};

template <class T>
Matrix<T> random_matrix(i64 rows, i64 cols, i64 stride, i64 shift = 0) {
  Matrix<T> m(rows, cols, stride, shift);
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + cols));
  std::normal_distribution<float> normal;
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < cols; ++c) m.at(r, c) = from_float<T>(normal(random) * static_cast<float>(1 + r % 7));
  }
  return m;
}

template <class T>
float naive_amax(const Matrix<T>& x, i64 row_begin, i64 row_end, i64 cols) {
  float amax = 0.0F;
  for (i64 r = row_begin; r < row_end; ++r) {
    for (i64 c = 0; c < cols; ++c) {
      const float v = std::fabs(to_float(x.at(r, c)));
      if (std::isnan(v)) return float_from_bits(kF32Nan);
      amax = std::max(amax, v);
    }
  }
  return amax;
}

std::string at(i64 r, i64 c) { return " at (" + std::to_string(r) + ", " + std::to_string(c) + ")"; }

struct Shape {
  i64 rows, cols, pad = 0, shift = 0;
};
const std::vector<Shape> kShapes{{1, 1},         {3, 17},          {128, 128},     {256, 128},  {129, 136},
                                 {130, 264, 8},  {128, 256, 0, 1}, {112, 144, 16}, {64, 48},    {131, 257, 3},
                                 {256, 272, 16}, {5, 4112},        {2, 16392, 8},  {5, 4115, 5}};

template <class In>
float emulated_amax(const Matrix<In>& x, i64 rows, i64 cols) {
  const AmaxParams p = flattened({x.data(), rows, cols, x.stride(), nullptr});
  const i64 grid = AmaxPartialsLaunch::grid(p.rows, p.cols, sizeof(In));
  Matrix<float> partials(1, grid, grid);
  AmaxParams first = p;
  first.amax = partials.data();
  emulator::launch(amax_partials<In>, grid, AmaxPartialsLaunch::kThreads, first);
  Matrix<float> amax(1, 1, 1);
  const AmaxParams second{partials.data(), 1, grid, grid, amax.data()};
  emulator::launch(amax_rows<float>, RowsLaunch::grid(1, grid, 4), RowsLaunch::threads(grid, 4), second);
  BOOST_TEST(partials.guarded());
  BOOST_TEST(amax.guarded());
  return amax.at(0, 0);
}

template <class In>
Matrix<float> emulated_amax_rows(const Matrix<In>& x, i64 rows, i64 cols) {
  Matrix<float> amax(1, rows, rows);
  const AmaxParams p{x.data(), rows, cols, x.stride(), amax.data()};
  emulator::launch(amax_rows<In>, RowsLaunch::grid(rows, cols, sizeof(In)), RowsLaunch::threads(cols, sizeof(In)), p);
  BOOST_TEST(amax.guarded());
  return amax;
}

template <class In>
void check_amax() {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      BOOST_TEST(emulated_amax(x, s.rows, s.cols) == naive_amax(x, 0, s.rows, s.cols));
      // The last elements of a row are the easiest to miss.
      for (i64 r = 0; r < s.rows; ++r) x.at(r, s.cols - 1) = from_float<In>(-1000.0F - 8 * static_cast<float>(r));
      BOOST_TEST(emulated_amax(x, s.rows, s.cols) == naive_amax(x, s.rows - 1, s.rows, s.cols));
      const Matrix<float> rows = emulated_amax_rows(x, s.rows, s.cols);
      for (i64 r = 0; r < s.rows; ++r) BOOST_TEST(rows.at(0, r) == naive_amax(x, r, r + 1, s.cols));
    }
  }
}

template <class Out, bool Pow2, class In>
void check_codes(const Matrix<In>& x, const Shape& s, bool row_scales, const Matrix<Out>* codes,
                 const Matrix<Out>* transposed, const Matrix<float>& factors) {
  const float tensor_amax = naive_amax(x, 0, s.rows, s.cols);
  for (i64 r = 0; r < s.rows; ++r) {
    const float amax = row_scales ? naive_amax(x, r, r + 1, s.cols) : tensor_amax;
    const float scale = scale_from_amax<Out, Pow2>(amax);
    BOOST_REQUIRE_EQUAL(float_bits(factors.at(0, row_scales ? r : 0)), float_bits(factor_from_scale(scale)));
    for (i64 c = 0; c < s.cols; ++c) {
      const u32 expected = quantize<Out>(to_float(x.at(r, c)), scale).bits;
      if (codes != nullptr && codes->at(r, c).bits != expected) {
        BOOST_FAIL("codes" << at(r, c) << ": " << u32{codes->at(r, c).bits} << ", expected " << expected);
      }
      if (transposed != nullptr && transposed->at(c, r).bits != expected) {
        BOOST_FAIL("transposed" << at(c, r) << ": " << u32{transposed->at(c, r).bits} << ", expected " << expected);
      }
    }
  }
}

template <class In, class Out, bool Pow2>
void check_cast_rows() {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      Matrix<Out> codes(s.rows, s.cols, s.cols + s.pad);
      Matrix<float> factors(1, s.rows, s.rows);
      const CastRowsParams p{x.data(), codes.data(), factors.data(), s.rows, s.cols, x.stride(), codes.stride()};
      emulator::launch(cast_rows<In, Out, Pow2>, CastRowsLaunch::grid(s.rows, s.cols, sizeof(In)),
                       CastRowsLaunch::threads(s.cols, sizeof(In)), p);
      check_codes<Out, Pow2>(x, s, true, &codes, nullptr, factors);
      BOOST_TEST(codes.guarded());
      BOOST_TEST(factors.guarded());
    }
  }
}

template <class In, class Out, class Granularity, bool Codes, bool Transposed, bool Pow2>
void check_cast_tiles() {
  constexpr bool kRowScales = is_same<Granularity, Rowwise>;
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      Matrix<float> amax(1, s.rows, s.rows);  // maxima of rows: also what partial maxima of the tensor may be
      for (i64 r = 0; r < s.rows; ++r) amax.at(0, r) = naive_amax(x, r, r + 1, s.cols);
      Matrix<Out> codes(s.rows, s.cols, s.cols + s.pad);
      Matrix<Out> transposed(s.cols, s.rows, s.rows + s.pad);
      Matrix<float> factors(1, kRowScales ? s.rows : 1, kRowScales ? s.rows : 1);
      const CastTilesParams p{x.data(),
                              amax.data(),
                              s.rows,
                              Codes ? codes.data() : nullptr,
                              Transposed ? transposed.data() : nullptr,
                              factors.data(),
                              s.rows,
                              s.cols,
                              x.stride(),
                              codes.stride(),
                              transposed.stride()};
      emulator::launch(cast_tiles<In, Out, Granularity, Codes, Transposed, Pow2>, CastTilesLaunch::grid(s.rows, s.cols),
                       CastTilesLaunch::kThreads, p);
      check_codes<Out, Pow2>(x, s, kRowScales, Codes ? &codes : nullptr, Transposed ? &transposed : nullptr, factors);
      BOOST_TEST(codes.guarded());
      BOOST_TEST(transposed.guarded());
      BOOST_TEST(factors.guarded());
    }
  }
}

template <class In, class Out>
void check_column_sum(i64 rows, i64 cols, i64 pad) {
  const auto x = random_matrix<In>(rows, cols, cols + pad);
  const i64 chunks = chunk_count(rows);
  Matrix<float> partials(chunks, cols, cols);
  Matrix<Out> sum(1, cols, cols);
  const ColumnSumParams p{x.data(), rows, cols, x.stride(), partials.data(), sum.data()};
  emulator::launch(column_sum_partials<In>, ColumnSumPartialsLaunch::grid(rows, cols, sizeof(In)),
                   ColumnSumPartialsLaunch::kThreads, p);
  emulator::launch(column_sum_finish<Out>, ColumnSumFinishLaunch::grid(cols), ColumnSumFinishLaunch::kThreads, p);
  BOOST_TEST(partials.guarded());
  BOOST_TEST(sum.guarded());
  for (i64 c = 0; c < cols; ++c) {
    float total = 0.0F;
    for (i64 begin = 0; begin < rows; begin += rows_per_chunk(rows)) {
      float part = 0.0F;
      for (i64 r = begin; r < std::min(rows, begin + rows_per_chunk(rows)); ++r) part += to_float(x.at(r, c));
      total += part;
    }
    const float expected = to_float(from_float<Out>(total));
    if (float_bits(to_float(sum.at(0, c))) != float_bits(expected)) {
      BOOST_FAIL("column " << c << ": " << to_float(sum.at(0, c)) << ", expected " << expected);
    }
  }
}

// Layouts: k contiguous or not.
template <class A, class B, class Out>
void check_gemm(i64 m, i64 n, i64 k, bool a_k_major, bool b_k_major, bool factors, bool with_bias) {
  using Bias = typename GemmBias<A, Out>::Type;
  Matrix<A> a = a_k_major ? Matrix<A>(m, k, k + 1) : Matrix<A>(k, m, m + 1);
  Matrix<B> b = b_k_major ? Matrix<B>(n, k, k + 3) : Matrix<B>(k, n, n + 3);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto value = [&]<class T>(T*) {
    if constexpr (Fp8Format<T>) {
      return encode<T>(normal(random));
    } else {
      return from_float<T>(normal(random));
    }
  };
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < k; ++j) (a_k_major ? a.at(i, j) : a.at(j, i)) = value(static_cast<A*>(nullptr));
  }
  for (i64 i = 0; i < n; ++i) {
    for (i64 j = 0; j < k; ++j) (b_k_major ? b.at(i, j) : b.at(j, i)) = value(static_cast<B*>(nullptr));
  }
  Matrix<float> factor_a(1, m, m);
  Matrix<float> factor_b(1, 1, 1);
  for (i64 i = 0; i < m; ++i) factor_a.at(0, i) = normal(random);
  factor_b.at(0, 0) = normal(random);
  Matrix<Bias> bias(1, n, n);
  for (i64 i = 0; i < n; ++i) bias.at(0, i) = from_float<Bias>(normal(random));
  Matrix<Out> out(m, n, n + 5);

  const GemmSimtParams p{.a = a.data(),
                         .b = b.data(),
                         .factor_a = factors ? factor_a.data() : nullptr,
                         .factor_b = factors ? factor_b.data() : nullptr,
                         .bias = with_bias ? bias.data() : nullptr,
                         .out = out.data(),
                         .m = m,
                         .n = n,
                         .k = k,
                         .a_stride_m = a_k_major ? a.stride() : 1,
                         .a_stride_k = a_k_major ? 1 : a.stride(),
                         .b_stride_n = b_k_major ? b.stride() : 1,
                         .b_stride_k = b_k_major ? 1 : b.stride(),
                         .out_stride = out.stride(),
                         .factor_a_stride = 1,
                         .factor_b_stride = 0};
  emulator::launch(gemm_simt<A, B, Out>, GemmSimtLaunch::grid(m, n), GemmSimtLaunch::kThreads, p);
  BOOST_TEST(out.guarded());
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      float sum = 0.0F;
      for (i64 x = 0; x < k; ++x) {
        sum = sum + to_float(a_k_major ? a.at(i, x) : a.at(x, i)) * to_float(b_k_major ? b.at(j, x) : b.at(x, j));
      }
      if (factors) sum = sum * factor_a.at(0, i);
      if (factors) sum = sum * factor_b.at(0, 0);
      if (with_bias) sum = sum + to_float(bias.at(0, j));
      const float expected = to_float(from_float<Out>(sum));
      const float got = to_float(out.at(i, j));
      if (float_bits(got) != float_bits(expected))
        BOOST_FAIL("out" << at(i, j) << ": " << got << ", expected " << expected);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(amax_bf16) { check_amax<bf16>(); }
BOOST_AUTO_TEST_CASE(amax_f32) { check_amax<f32>(); }

BOOST_AUTO_TEST_CASE(amax_keeps_nan) {
  auto x = random_matrix<f16>(40, 100, 100);
  x.at(39, 99).bits = 0xfe01;
  BOOST_TEST(float_bits(emulated_amax(x, 40, 100)) == kF32Nan);
  const Matrix<float> rows = emulated_amax_rows(x, 40, 100);
  BOOST_TEST(float_bits(rows.at(0, 39)) == kF32Nan);
  BOOST_TEST(rows.at(0, 38) == naive_amax(x, 38, 39, 100));
}

BOOST_AUTO_TEST_CASE(cast_rows_bf16_e4m3fn) { check_cast_rows<bf16, e4m3fn, false>(); }
BOOST_AUTO_TEST_CASE(cast_rows_f32_e5m2fnuz_pow2) { check_cast_rows<f32, e5m2fnuz, true>(); }

BOOST_AUTO_TEST_CASE(cast_tiles_tensor_both) { check_cast_tiles<bf16, e4m3fn, Tensorwise, true, true, false>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_tensor_codes) { check_cast_tiles<f16, e5m2, Tensorwise, true, false, false>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_row_both) { check_cast_tiles<bf16, e4m3fnuz, Rowwise, true, true, true>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_row_transposed_f32) { check_cast_tiles<f32, e4m3fn, Rowwise, false, true, false>(); }

BOOST_AUTO_TEST_CASE(column_sum) {
  check_column_sum<bf16, bf16>(1, 1, 0);
  check_column_sum<bf16, f32>(33, 1024, 0);
  check_column_sum<f32, f16>(100, 515, 1);
  check_column_sum<f16, bf16>(5000, 1032, 8);
}

BOOST_AUTO_TEST_CASE(column_sum_nan_is_canonical) {
  auto x = random_matrix<f32>(40, 4, 4);
  x.at(3, 2) = std::numeric_limits<float>::infinity();
  x.at(37, 2) = -std::numeric_limits<float>::infinity();
  Matrix<float> partials(chunk_count(40), 4, 4);
  Matrix<float> sum(1, 4, 4);
  const ColumnSumParams p{x.data(), 40, 4, 4, partials.data(), sum.data()};
  emulator::launch(column_sum_partials<f32>, ColumnSumPartialsLaunch::grid(40, 4, 4), ColumnSumPartialsLaunch::kThreads,
                   p);
  emulator::launch(column_sum_finish<f32>, ColumnSumFinishLaunch::grid(4), ColumnSumFinishLaunch::kThreads, p);
  BOOST_TEST(float_bits(sum.at(0, 2)) == kF32Nan);
}

BOOST_AUTO_TEST_CASE(gemm) {
  check_gemm<e4m3fn, e5m2, bf16>(65, 70, 37, true, true, true, true);
  check_gemm<e4m3fnuz, e4m3fnuz, f32>(3, 129, 16, true, false, true, true);
  check_gemm<bf16, bf16, f16>(64, 64, 33, false, true, false, false);
  check_gemm<f32, f32, f32>(1, 1, 1, false, false, false, true);
  check_gemm<e5m2, e5m2, bf16>(17, 5, 0, true, true, true, true);
}
