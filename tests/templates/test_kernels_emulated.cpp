// Runs the kernels of casts, maxima, amax histories, column sums, elementwise expressions, relayouts and gemm_simt on
// the host, thread by thread, and compares them with the formulas of the numerics contract, written out element by
// element. Shapes are around every boundary of the tiles; pitches are odd; outputs are poisoned and guarded. Kernels
// with a fused expression (those of codegen/pointwise_rendered.inc) are compared with the CPU backend. Other kernels
// have their own files, test_*_emulated.cpp.
#include "templates/emulator.h"

#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/stream.h"
#include "templates/cast_outputs.h"

#include "cast/amax.cuh"
#include "cast/amax_history.cuh"
#include "cast/amax_scales.cuh"
#include "cast/cast_list.cuh"
#include "cast/cast_row_groups.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_wide.cuh"
#include "cast/cast_tiles.cuh"
#include "cast/cast_whole.cuh"
#include "cast/column_sum.cuh"
#include "cast/combine.cuh"
#include "cast/elementwise.cuh"
#include "cast/elementwise_amax.cuh"
#include "cast/elementwise_maxima.cuh"
#include "cast/elementwise_pair.cuh"
#include "cast/elementwise_rows.cuh"
#include "gemm/gemm_simt.cuh"
#include "gemm/relayout.cuh"

#include "codegen/pointwise_rendered.inc"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_kernels_emulated)

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
  i64 cols() const { return cols_; }
  i64 stride() const { return stride_; }

  // Is everything but the elements still poison?
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

template <class T>
SourceParams source_of(const Matrix<T>& x, i64 rows, i64 cols) {
  return {.input = x.data(), .rows = rows, .cols = cols, .input_stride = x.stride(), .operands = {}};
}

template <class In>
float emulated_amax(const Matrix<In>& x, i64 rows, i64 cols) {
  const SourceParams source = flattened(source_of(x, rows, cols));
  constexpr u32 kThreads = AmaxPartialsLaunch::kMaxThreads;
  const i64 grid = AmaxPartialsLaunch::grid(source.rows, source.cols, kThreads, sizeof(In));
  Matrix<float> partials(1, grid, grid);
  emulator::launch(amax_partials<ValueSource<In>>, grid, kThreads, AmaxPartialsParams{source, partials.data()});
  Matrix<float> amax(1, 1, 1);
  const AmaxRowsParams second{source_of(partials, 1, grid), amax.data(), RowsLaunch::threads_log2(grid)};
  emulator::launch(amax_rows<ValueSource<float>>, RowsLaunch::grid(1, grid), RowsLaunch::threads(grid), second);
  BOOST_TEST(partials.guarded());
  BOOST_TEST(amax.guarded());
  return amax.at(0, 0);
}

template <class In>
Matrix<float> emulated_amax_rows(const Matrix<In>& x, i64 rows, i64 cols) {
  Matrix<float> amax(1, rows, rows);
  const AmaxRowsParams p{source_of(x, rows, cols), amax.data(), RowsLaunch::threads_log2(cols)};
  emulator::launch(amax_rows<ValueSource<In>>, RowsLaunch::grid(rows, cols), RowsLaunch::threads(cols), p);
  BOOST_TEST(amax.guarded());
  return amax;
}

template <class In>
float naive_column_amax(const Matrix<In>& x, i64 row_begin, i64 row_end, i64 col) {
  u32 bits = 0;
  for (i64 r = row_begin; r < row_end; ++r) bits = std::max(bits, amax_bits(to_float(x.at(r, col))));
  return amax_from_bits(bits);
}

// The maxima of the tensor, the rows and the columns, each raised from what was there.
template <class In, bool Rows, bool Columns>
void check_amax_tiles() {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      // One to three blocks for each strip, which take several steps.
      const i64 resident = (1 + s.rows % 3) * ceil_div(s.cols, AmaxTilesLaunch::kCols);
      Matrix<float> tensor(1, 1, 1);
      Matrix<float> rows(1, s.rows, s.rows);
      Matrix<float> columns(1, s.cols, s.cols);
      tensor.at(0, 0) = 0.0F;
      for (i64 r = 0; r < s.rows; ++r) rows.at(0, r) = 0.0F;
      for (i64 c = 0; c < s.cols; ++c) columns.at(0, c) = c % 5 == 0 ? 1e6F : 0.0F;
      const auto bits = [](Matrix<float>& m) { return reinterpret_cast<u32*>(m.data()); };
      emulator::launch(amax_tiles<ValueSource<In>, AmaxTilesConfig{.tensor = true, .rows = Rows, .columns = Columns}>,
                       AmaxTilesLaunch::grid(s.rows, s.cols, resident), AmaxTilesLaunch::kThreads,
                       AmaxTilesParams{source_of(x, s.rows, s.cols), bits(tensor), bits(rows), bits(columns)});
      BOOST_TEST((tensor.guarded() && rows.guarded() && columns.guarded()));
      BOOST_TEST(tensor.at(0, 0) == naive_amax(x, 0, s.rows, s.cols));
      for (i64 r = 0; r < s.rows; ++r) BOOST_TEST(rows.at(0, r) == (Rows ? naive_amax(x, r, r + 1, s.cols) : 0.0F));
      for (i64 c = 0; c < s.cols; ++c) {
        const float found = Columns ? naive_column_amax(x, 0, s.rows, c) : 0.0F;
        BOOST_TEST(columns.at(0, c) == (c % 5 == 0 ? 1e6F : found));
      }
    }
  }
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

// The extents of a granularity over a matrix: how many there are, and to which an element belongs.
template <CastOutputConfig Scale>
struct Extents {
  i64 rows, cols;
  static constexpr i64 kRows = Scale.scale.rows;
  static constexpr i64 kCols = Scale.scale.cols;
  i64 down() const { return kRows == 0 ? 1 : ceil_div(rows, kRows); }
  i64 across() const { return kCols == 0 ? 1 : ceil_div(cols, kCols); }
  i64 count() const { return down() * across(); }
  i64 index(i64 r, i64 c) const {
    return (kRows == 0 ? 0 : r / max_of(kRows, i64{1})) * across() + (kCols == 0 ? 0 : c / max_of(kCols, i64{1}));
  }
};

template <class In>
void check_result(const Matrix<In>& x, Matrix<In>& result, const Shape& s) {
  BOOST_TEST(result.guarded());
  for (i64 r = 0; r < s.rows; ++r) {
    for (i64 c = 0; c < s.cols; ++c) {
      BOOST_REQUIRE_EQUAL(float_bits(to_float(result.at(r, c))), float_bits(to_float(x.at(r, c))));
    }
  }
}

// Sums in the order that cast_tile_shared.cuh promises.
template <class In>
void check_partial_sums(const Matrix<In>& x, Matrix<float>& sums, const Shape& s) {
  BOOST_TEST(sums.guarded());
  for (i64 tile = 0; tile < ceil_div(s.rows, i64{128}); ++tile) {
    for (i64 c = 0; c < s.cols; ++c) {
      float total = 0.0F;
      for (i64 run = tile * 128; run < std::min(s.rows, tile * 128 + 128); run += kRowsPerRun) {
        float part = 0.0F;
        for (i64 r = run; r < std::min(s.rows, run + i64{kRowsPerRun}); ++r) part += to_float(x.at(r, c));
        total += part;
      }
      BOOST_REQUIRE_EQUAL(std::isnan(sums.at(tile, c)), std::isnan(total));
      if (!std::isnan(total)) BOOST_REQUIRE_EQUAL(sums.at(tile, c), total);
    }
  }
}

// One output of a cast with its scales, scale_inv and maxima, and what is expected of them.
template <class In, class Out, CastOutputConfig Scale, bool Given, bool Transposed>
struct OutputCheck {
  Extents<Scale> extents;
  Matrix<Out> codes;
  Matrix<float> factors, from, amax;
  std::vector<float> expected_amax, expected_scale;
  std::vector<u32> readers = std::vector<u32>(1 + ceil_div(extents.rows, i64{64}) + ceil_div(extents.cols, kGroup));
  i64 groups;     // in a row
  bool by_group;  // scale_inv of 1x128 groups: a row for each group, with padding between the rows

  OutputCheck(const Matrix<In>& x, const Shape& s, bool pow2, bool groups_first = false)
      : extents{s.rows, s.cols},
        codes(Transposed ? s.cols : s.rows, Transposed ? s.rows : s.cols, (Transposed ? s.rows : s.cols) + s.pad,
              s.shift),
        factors(1, extents.count(), extents.count()),
        from(1, extents.count(), extents.count()),
        amax(1, extents.count(), extents.count()),
        groups(ceil_div(s.cols, kGroup)),
        by_group(groups_first && Scale.scale == Granularity{1, 128}) {
    if (by_group) factors = Matrix<float>(groups, s.rows, s.rows + 3);
    std::vector<u32> bits(static_cast<std::size_t>(extents.count()));
    for (i64 r = 0; r < s.rows; ++r) {
      for (i64 c = 0; c < s.cols; ++c) {
        u32& largest = bits[static_cast<std::size_t>(extents.index(r, c))];
        largest = std::max(largest, amax_bits(to_float(x.at(r, c))));
      }
    }
    for (i64 i = 0; i < extents.count(); ++i) {
      const float found = amax_from_bits(bits[static_cast<std::size_t>(i)]);
      from.at(0, i) = Given ? 0.5F + static_cast<float>(i % 7) : found;
      amax.at(0, i) = i % 3 == 0 ? 1e6F : 0.0F;
      expected_amax.push_back(Given ? std::max(found, amax.at(0, i)) : amax.at(0, i));
      expected_scale.push_back(Given ? from.at(0, i) : scale_from_amax<Out>(found, pow2));
    }
  }

  CastOutput output(bool counting = false) {
    return {.codes = codes.data(),
            .stride = codes.stride(),
            .from = from.data(),
            .from_count = is_tensorwise(Scale.scale) ? 1 : 0,
            .factors = factors.data(),
            .amax = reinterpret_cast<u32*>(amax.data()),
            .readers = counting ? readers.data() : nullptr,
            .factor_steps = factor_steps()};
  }
  GroupSteps factor_steps() const { return by_group ? GroupSteps{1, factors.stride()} : GroupSteps{groups, 1}; }
  float& factor(i64 extent) { return by_group ? factors.at(extent % groups, extent / groups) : factors.at(0, extent); }

  void negate_given_scales() {
    for (i64 i = 0; i < extents.count(); ++i) {
      from.at(0, i) = -from.at(0, i);
      expected_scale[static_cast<std::size_t>(i)] = from.at(0, i);
    }
  }

  // Checks the maxima and the count of their readers after the last reader.
  void check_cleared() {
    BOOST_TEST(from.guarded());
    for (i64 i = 0; i < extents.count(); ++i) BOOST_REQUIRE_EQUAL(from.at(0, i), 0.0F);
    for (const u32 count : readers) BOOST_TEST(count == 0U);
  }

  void check(const Matrix<In>& x, const Shape& s, const char* what) {
    BOOST_TEST((codes.guarded() && factors.guarded() && amax.guarded()), what);
    for (i64 i = 0; i < extents.count(); ++i) {
      const auto at_i = static_cast<std::size_t>(i);
      BOOST_REQUIRE_EQUAL(float_bits(factor(i)), float_bits(factor_from_scale(expected_scale[at_i])));
      BOOST_REQUIRE_EQUAL(float_bits(amax.at(0, i)), float_bits(expected_amax[at_i]));
    }
    for (i64 r = 0; r < s.rows; ++r) {
      for (i64 c = 0; c < s.cols; ++c) {
        const float scale = expected_scale[static_cast<std::size_t>(extents.index(r, c))];
        const float value = to_float(x.at(r, c));
        // A given scale makes Inf NaN. It may be negative, which leaves the sign of 0 alone.
        const float scaled = Given ? std::fma(value, 0.0F, value * scale) : value * scale;
        const u32 expected = encode<Out>(Given && std::isinf(value) ? std::nanf("") : scaled).bits;
        const u32 got = Transposed ? codes.at(c, r).bits : codes.at(r, c).bits;
        if (got != expected) BOOST_FAIL(what << at(r, c) << ": " << got << ", expected " << expected);
      }
    }
  }
};

// The rowwise cast, with the values and the maxima.
template <class In, class Out>
void check_cast_rows(bool pow2) {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      OutputCheck<In, Out, kRowScale, false, false> codes(x, s, pow2);
      Matrix<In> result(s.rows, s.cols, s.cols + s.pad);
      Matrix<float> maxima(1, s.rows, s.rows);
      const u32 threads_log2 = CastRowsLaunch::threads_log2(s.cols, sizeof(In));
      const CastRowsParams p{.source = source_of(x, s.rows, s.cols),
                             .codes = codes.codes.data(),
                             .factors = codes.factors.data(),
                             .result = result.data(),
                             .codes_stride = codes.codes.stride(),
                             .result_stride = result.stride(),
                             .maxima = maxima.data(),
                             .threads_log2 = threads_log2,
                             .pow2 = pow2};
      // There are fewer blocks than rows, so each takes several.
      const i64 grid = std::max<i64>(1, CastRowsLaunch::grid(s.rows, threads_log2) / 3);
      emulator::launch(cast_rows<ValueSource<In>, Out, CastRowsConfig{.result = true}>, grid,
                       CastRowsLaunch::threads(threads_log2), p);
      codes.check(x, s, "codes");
      check_result(x, result, s);
      BOOST_TEST(maxima.guarded());
      for (i64 r = 0; r < s.rows; ++r) BOOST_TEST(maxima.at(0, r) == naive_amax(x, r, r + 1, s.cols));
    }
  }
}

// Runs a cast of wide rows on a GPU of one multiprocessor, where a block has `block_shared` bytes of shared memory.
template <class Source, class Out>
void launch_wide(const CastRowsParams& p, u32 block_shared) {
  const CastRowsWideShape shape = CastRowsWideLaunch::shape({.rows = p.source.rows,
                                                             .cols = p.source.cols,
                                                             .value_bytes = sizeof(typename Source::Value),
                                                             .computed = Source::kFused,
                                                             .many_inputs = Source::kMany,
                                                             .block_shared = block_shared,
                                                             .multiprocessors = 1,
                                                             .clusters = true});
  BOOST_REQUIRE(shape.blocks != 0U);
  emulator::launch(cast_rows_wide<Source, Out, CastRowsConfig{.result = true}>,
                   {.grid = p.source.rows * shape.blocks,
                    .threads = shape.threads,
                    .cluster = shape.blocks,
                    .shared_bytes = shape.shared_bytes},
                   p);
}

// Rows around the ends of a thread's and of a block's share, with few columns and with many.
template <class In, class Out>
void check_cast_rows_wide(bool pow2, u32 block_shared, const std::vector<Shape>& shapes) {
  for (const Shape& s : shapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad) {
      auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad);
      // Wherever the largest element is, every block has to know it.
      for (i64 r = 0; r < s.rows; ++r)
        x.at(r, (s.cols - 1) * r / max_of(i64{1}, s.rows - 1)) = from_float<In>(-1000.0F);
      OutputCheck<In, Out, kRowScale, false, false> codes(x, s, pow2);
      Matrix<In> result(s.rows, s.cols, s.cols + s.pad);
      Matrix<float> maxima(1, s.rows, s.rows);
      launch_wide<ValueSource<In>, Out>({.source = source_of(x, s.rows, s.cols),
                                         .codes = codes.codes.data(),
                                         .factors = codes.factors.data(),
                                         .result = result.data(),
                                         .codes_stride = codes.codes.stride(),
                                         .result_stride = result.stride(),
                                         .maxima = maxima.data(),
                                         .threads_log2 = 0,
                                         .pow2 = pow2},
                                        block_shared);
      codes.check(x, s, "codes");
      check_result(x, result, s);
      BOOST_TEST(maxima.guarded());
      for (i64 r = 0; r < s.rows; ++r) BOOST_TEST(maxima.at(0, r) == 1000.0F);
    }
  }
}

template <class In, class Out>
void check_cast_row_groups(bool pow2, bool by_group) {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      OutputCheck<In, Out, kRowGroupScale, false, false> codes(x, s, pow2, by_group);
      Matrix<In> result(s.rows, s.cols, s.cols + s.pad);
      const u32 threads_log2 = CastRowGroupsLaunch::threads_log2(s.cols, sizeof(In));
      const CastRowGroupsParams p{.source = source_of(x, s.rows, s.cols),
                                  .codes = codes.codes.data(),
                                  .factors = codes.factors.data(),
                                  .result = result.data(),
                                  .codes_stride = codes.codes.stride(),
                                  .result_stride = result.stride(),
                                  .threads_log2 = threads_log2,
                                  .pow2 = pow2,
                                  .factor_steps = codes.factor_steps()};
      emulator::launch(cast_row_groups<ValueSource<In>, Out, CastRowsConfig{.result = true}>,
                       CastRowsLaunch::grid(s.rows, threads_log2), CastRowsLaunch::threads(threads_log2), p);
      codes.check(x, s, "codes");
      check_result(x, result, s);
    }
  }
}

// Codes and transposed codes, the values themselves, and the sums of their columns.
template <class In, class Out, CastOutputConfig CodesScale, CastOutputConfig TransposedScale, bool Given,
          bool Unaligned = false>
void check_cast_tiles(bool pow2 = false, const std::vector<Shape>& shapes = kShapes, bool by_group = false,
                      u32 tiles_per_block = 1, std::optional<float> special = {}) {
  constexpr bool kShared = CodesScale == TransposedScale;
  for (const Shape& s : shapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      if (special) x.at(s.rows / 2, s.cols / 3) = from_float<In>(*special);
      OutputCheck<In, Out, CodesScale, Given, false> codes(x, s, pow2, by_group);
      OutputCheck<In, Out, TransposedScale, Given, true> transposed(x, s, pow2, by_group);
      if (special == 0.0F) {
        codes.negate_given_scales();
        transposed.negate_given_scales();
      }
      Matrix<In> result(s.rows, s.cols, s.cols + s.pad);
      const i64 tiles = ceil_div(s.rows, i64{128});
      Matrix<float> sums(tiles, s.cols, s.cols);
      emulator::launch(cast_tiles<ValueSource<In>, Out,
                                  CastConfig{.codes = CodesScale,
                                             .transposed = TransposedScale,
                                             .given_scales = Given,
                                             .result = true,
                                             .sum = true,
                                             .unaligned = Unaligned}>,
                       CastTilesLaunch::grid(s.rows, s.cols, tiles_per_block), CastTilesLaunch::kThreads,
                       CastTilesParams{.source = source_of(x, s.rows, s.cols),
                                       .codes = codes.output(true),
                                       .transposed = transposed.output(true),
                                       .result = result.data(),
                                       .result_stride = result.stride(),
                                       .partial_sums = sums.data(),
                                       .pow2 = pow2,
                                       .tiles_per_block = tiles_per_block});
      codes.check(x, s, "codes");
      if (kShared) {  // the scales of `codes` count
        transposed.factors = codes.factors;
        transposed.amax = codes.amax;
      }
      transposed.check(x, s, "transposed");
      if (!Given && from_pass(CodesScale)) codes.check_cleared();
      if (!Given && from_pass(TransposedScale) && !kShared) transposed.check_cleared();
      check_result(x, result, s);
      check_partial_sums(x, sums, s);
    }
  }
}

// Codes and transposed codes with the same given scales in tiles of 64 rows; and the values themselves (Result), with
// which no thread skips its part.
template <class In, class Out, CastOutputConfig Scale, bool Unaligned, bool Result>
void check_tiles_of_64_rows() {
  constexpr u32 kRowsLog2 = CastTilesLaunch::kFewestRowsLog2;
  static_assert(kRowsLog2 == 6);
  constexpr CastConfig kConfig{
      .codes = Scale, .transposed = Scale, .given_scales = true, .result = Result, .unaligned = Unaligned};
  static_assert(cast_tile_plan<ValueSource<In>, Out, kConfig, false, true>().skips_idle == !Result);
  static_assert(may_take_fewer_rows(kConfig, false));
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      OutputCheck<In, Out, Scale, true, false> codes(x, s, false);
      OutputCheck<In, Out, Scale, true, true> transposed(x, s, false);
      Matrix<In> result(s.rows, s.cols, s.cols + s.pad);
      const i64 grid = CastTilesLaunch::grid(s.rows, s.cols, 1, kRowsLog2);
      BOOST_TEST(grid == ceil_div(s.rows, i64{64}) * ceil_div(s.cols, i64{128}));
      emulator::launch(cast_tiles<ValueSource<In>, Out, kConfig>, grid, CastTilesLaunch::kThreads,
                       CastTilesParams{.rows_log2 = kRowsLog2,
                                       .source = source_of(x, s.rows, s.cols),
                                       .codes = codes.output(true),
                                       .transposed = transposed.output(true),
                                       .result = result.data(),
                                       .result_stride = result.stride(),
                                       .partial_sums = nullptr,
                                       .pow2 = false});
      codes.check(x, s, "codes");
      transposed.factors = codes.factors;
      transposed.amax = codes.amax;
      transposed.check(x, s, "transposed");
      if (Result) check_result(x, result, s);
    }
  }
}

// The same in one launch, from maxima that are zero. The emulator runs one block after the other, so there is one tile,
// which waits for no other. `values`: what the kernel should make of the source.
template <class Source, class Out, CastConfig C, u32 RowsLog2>
void check_whole_tile(const Matrix<typename Source::Value>& values, const SourceParams& source, const Shape& s,
                      bool pow2, bool clustered) {
  using Value = typename Source::Value;
  constexpr bool kShared = C.codes == C.transposed;
  OutputCheck<Value, Out, C.codes, false, false> codes(values, s, pow2);
  OutputCheck<Value, Out, C.transposed, false, true> transposed(values, s, pow2);
  Matrix<Value> result(s.rows, s.cols, s.cols + s.pad);
  Matrix<float> sums(1, s.cols, s.cols);
  std::vector<u32> barrier(2);
  const auto from_nothing = [](auto& output) {
    for (i64 i = 0; i < output.extents.count(); ++i) output.from.at(0, i) = 0.0F;
    CastOutput raised = output.output(true);
    raised.amax = reinterpret_cast<u32*>(raised.from);
    return raised;
  };
  emulator::launch(cast_whole<Source, Out, C>, 1, CastTilesLaunch::kThreads,
                   CastWholeParams{.cast = {.rows_log2 = RowsLog2,
                                            .source = source,
                                            .codes = from_nothing(codes),
                                            .transposed = from_nothing(transposed),
                                            .result = result.data(),
                                            .result_stride = result.stride(),
                                            .partial_sums = sums.data(),
                                            .pow2 = pow2},
                                   .barrier = clustered ? nullptr : barrier.data()});
  codes.check(values, s, "codes");
  if (kShared) {
    transposed.factors = codes.factors;
    transposed.amax = codes.amax;
  }
  transposed.check(values, s, "transposed");
  codes.check_cleared();
  if (!kShared) transposed.check_cleared();
  for (const u32 word : barrier) BOOST_TEST(word == 0U);
  if (C.result) check_result(values, result, s);
  if (C.sum) check_partial_sums(values, sums, s);
}

template <class In, class Out, CastOutputConfig CodesScale, CastOutputConfig TransposedScale,
          u32 RowsLog2 = CastTilesLaunch::kTileLog2>
void check_cast_whole(bool pow2, bool clustered, const std::vector<Shape>& shapes = kShapes) {
  constexpr CastConfig kConfig{.codes = CodesScale,
                               .transposed = TransposedScale,
                               .result = true,
                               .sum = RowsLog2 == CastTilesLaunch::kTileLog2,
                               .unaligned = true};
  static_assert(cast_tile_plan<ValueSource<In>, Out, kConfig, true, true>().stores_words);
  for (const Shape& s : shapes) {
    if (CastTilesLaunch::grid(s.rows, s.cols, 1, RowsLog2) != 1) continue;
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      check_whole_tile<ValueSource<In>, Out, kConfig, RowsLog2>(x, source_of(x, s.rows, s.cols), s, pow2, clustered);
    }
  }
}

template <class In, class Out, CastOutputConfig CodesScale, CastOutputConfig TransposedScale>
void check_one_output() {
  constexpr bool kCodes = CodesScale.written;
  constexpr CastOutputConfig Scale = kCodes ? CodesScale : TransposedScale;
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      const auto x = random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift);
      OutputCheck<In, Out, Scale, false, !kCodes> output(x, s, false);
      const CastOutput none{};
      emulator::launch(cast_tiles<ValueSource<In>, Out, CastConfig{.codes = CodesScale, .transposed = TransposedScale}>,
                       CastTilesLaunch::grid(s.rows, s.cols), CastTilesLaunch::kThreads,
                       CastTilesParams{.source = source_of(x, s.rows, s.cols),
                                       .codes = kCodes ? output.output() : none,
                                       .transposed = kCodes ? none : output.output(),
                                       .result = nullptr,
                                       .result_stride = 0,
                                       .partial_sums = nullptr,
                                       .pow2 = false});
      output.check(x, s, kCodes ? "codes" : "transposed");
    }
  }
}

// All shapes in one list, in two passes: the second takes its scales from the maxima of the first.
// Value: what the elements are rounded to first.
template <class In, class Out, CastOutputConfig CodesScale, CastOutputConfig TransposedScale, bool Unaligned = false,
          class Value = In>
void check_cast_list() {
  using Source = typename Select<is_same<In, Value>, ValueSource<In>, RoundedSource<In, Value>>::Type;
  constexpr bool kShared = CodesScale == TransposedScale;
  constexpr bool kCodesFromPass = from_pass(CodesScale);
  constexpr bool kTransposedFromPass = from_pass(TransposedScale) && !kShared;
  std::vector<Matrix<In>> x;
  std::vector<Matrix<Value>> values;
  std::vector<OutputCheck<Value, Out, CodesScale, false, false>> codes;
  std::vector<OutputCheck<Value, Out, TransposedScale, false, true>> transposed;
  for (const Shape& s : kShapes) {
    x.push_back(random_matrix<In>(s.rows, s.cols, s.cols + s.pad, s.shift));
    values.emplace_back(s.rows, s.cols, s.cols + s.pad, s.shift);
    for (i64 r = 0; r < s.rows; ++r) {
      for (i64 c = 0; c < s.cols; ++c) values.back().at(r, c) = from_float<Value>(to_float(x.back().at(r, c)));
    }
    codes.emplace_back(values.back(), s, false);
    transposed.emplace_back(values.back(), s, false);
  }
  std::vector<CastTilesParams> casts;
  std::vector<ListedTile> tiles;
  const auto clear = [](auto& output) {
    for (i64 i = 0; i < output.extents.count(); ++i) output.from.at(0, i) = 0.0F;
  };
  const auto listed = [](auto& output, bool from_pass) {
    CastOutput made = output.output();
    if (from_pass) made.amax = reinterpret_cast<u32*>(output.from.data());
    return made;
  };
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const Shape& s = kShapes[i];
    if (kCodesFromPass) clear(codes[i]);
    if (kTransposedFromPass) clear(transposed[i]);
    casts.push_back({.source = source_of(x[i], s.rows, s.cols),
                     .codes = listed(codes[i], kCodesFromPass),
                     .transposed = listed(transposed[i], kTransposedFromPass),
                     .result = nullptr,
                     .result_stride = 0,
                     .partial_sums = nullptr,
                     .pow2 = false});
    for (u32 tile = 0; tile < CastTilesLaunch::grid(s.rows, s.cols); ++tile) {
      tiles.push_back({static_cast<u32>(i), tile});
    }
  }
  const CastListParams list{.casts = casts.data(), .tiles = tiles.data()};
  const auto grid = static_cast<i64>(tiles.size());
  if constexpr (kCodesFromPass || kTransposedFromPass) {
    constexpr CastOutputConfig kFirst = kCodesFromPass ? CodesScale : kNotWritten;
    constexpr CastOutputConfig kSecond = kTransposedFromPass ? TransposedScale : kNotWritten;
    emulator::launch(cast_list_maxima<Source, CastConfig{.codes = kFirst, .transposed = kSecond}>, grid,
                     CastTilesLaunch::kThreads, list);
  }
  emulator::launch(
      cast_list<Source, Out, CastConfig{.codes = CodesScale, .transposed = TransposedScale, .unaligned = Unaligned}>,
      grid, CastTilesLaunch::kThreads, list);
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const Shape& s = kShapes[i];
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      codes[i].check(values[i], s, "codes");
      if (kShared) transposed[i].factors = codes[i].factors;
      transposed[i].check(values[i], s, "transposed");
    }
  }
}

template <class In, class Out>
void check_column_sum(i64 rows, i64 cols, i64 pad) {
  const auto x = random_matrix<In>(rows, cols, cols + pad);
  const i64 chunks = chunk_count(rows);
  Matrix<float> partials(chunks, cols, cols);
  Matrix<Out> sum(1, cols, cols);
  const ColumnSumParams p{x.data(), rows, cols, x.stride(), partials.data()};
  emulator::launch(column_sum_partials<In>, ColumnSumPartialsLaunch::grid(rows, cols, sizeof(In)),
                   ColumnSumPartialsLaunch::kThreads, p);
  emulator::launch(column_sum_finish<Out>, ColumnSumFinishLaunch::grid(cols), ColumnSumFinishLaunch::kThreads,
                   ColumnSumFinishParams{partials.data(), chunks, cols, sum.data(), cols, nullptr});
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

// Lengths around a warp's chunk. Slot 1 has no newest amax, slot 2 a NaN among the earlier ones, slot 3 no amax at all.
// The newest amax of slot 4 is NaN, that of slot 5 is Inf. with_known: slots 0 and 5 have a scale of earlier steps, and
// the others have 1 or what is no scale.
void check_amax_history(i64 slots, i64 length, i64 pad, bool most_recent, bool finite, bool with_known) {
  auto history = random_matrix<float>(slots, length, length + pad);
  auto amax = random_matrix<float>(1, slots, slots);
  Matrix<float> scale(1, slots, slots);
  Matrix<float> limits(1, slots, slots);
  Matrix<float> pow2(1, slots, slots);
  Matrix<float> known(1, slots, slots);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr std::array kKnown{3.0F, 1.0F, -2.0F, kInf, std::numeric_limits<float>::quiet_NaN(), 0x1p-140F};
  for (i64 i = 0; i < slots; ++i) {
    scale.at(0, i) = 7.0F;
    known.at(0, i) = kKnown[static_cast<std::size_t>(i)];
    limits.at(0, i) = i % 2 == 0 ? 448.0F : 57344.0F;
    pow2.at(0, i) = i % 3 == 0 ? 1.0F : 0.0F;
    if (i == 1 || i == 3) amax.at(0, i) = 0.0F;
    if (i == 4) amax.at(0, i) = std::numeric_limits<float>::quiet_NaN();
    if (i == 5) amax.at(0, i) = std::numeric_limits<float>::infinity();
    if (i == 2) history.at(i, length / 2) = std::numeric_limits<float>::quiet_NaN();
    for (i64 step = 0; i == 3 && step < length; ++step) history.at(i, step) = 0.0F;
  }
  const Matrix<float> history_before = history;
  const Matrix<float> amax_before = amax;
  emulator::launch(amax_history, AmaxHistoryLaunch::grid(slots), AmaxHistoryLaunch::kThreads,
                   AmaxHistoryParams{.amax = amax.data(),
                                     .history = history.data(),
                                     .slots = slots,
                                     .length = length,
                                     .history_stride = history.stride(),
                                     .scale = scale.data(),
                                     .limits = limits.data(),
                                     .pow2 = pow2.data(),
                                     .known = with_known ? known.data() : nullptr,
                                     .most_recent = most_recent,
                                     .finite = finite});
  BOOST_TEST((amax.guarded() && history.guarded() && scale.guarded()));
  for (i64 i = 0; i < slots; ++i) {
    float newest = std::fabs(amax_before.at(0, i));
    if (std::isnan(newest)) newest = float_from_bits(kF32Nan);
    if (finite && !std::isfinite(newest)) newest = 0.0F;
    double largest = static_cast<double>(newest);
    for (i64 step = 0; step < length; ++step) {
      const float expected = step == 0 ? newest : history_before.at(i, step - 1);
      if (float_bits(history.at(i, step)) != float_bits(expected)) {
        BOOST_FAIL("slot " << i << ", step " << step << ": " << history.at(i, step) << ", expected " << expected);
      }
      const double value = std::fabs(static_cast<double>(expected));
      if (!most_recent && (std::isnan(value) || value > largest)) largest = value;  // nothing is above NaN
    }
    auto expected = static_cast<float>(static_cast<double>(limits.at(0, i)) / std::max(largest, 1e-12));
    if (pow2.at(0, i) != 0.0F) expected = std::ldexp(1.0F, std::ilogb(expected));
    if (std::isnan(largest)) expected = float_from_bits(kF32Nan);
    if (largest == 0.0) expected = 7.0F;
    if (with_known && (i == 0 || i == 5)) expected = known.at(0, i);
    BOOST_TEST(float_bits(scale.at(0, i)) == float_bits(expected), "slot " << i);
    BOOST_TEST(float_bits(amax.at(0, i)) == 0U, "slot " << i);
  }
}

// Of one block, and of two, the second of which ends early; in place too.
void check_amax_scales(i64 count, double limit, bool pow2, bool in_place) {
  auto amax = random_matrix<float>(1, count, count);
  amax.at(0, 0) = 0.0F;
  if (count > 2) amax.at(0, 1) = std::numeric_limits<float>::quiet_NaN();
  if (count > 2) amax.at(0, 2) = std::numeric_limits<float>::infinity();
  if (count > 4) amax.at(0, 3) = 0x1p-140F;
  const Matrix<float> before = amax;
  Matrix<float> scale(1, count, count);
  const auto largest = static_cast<float>(limit / 1e-12);
  emulator::launch(amax_scales, AmaxScalesLaunch::grid(count), AmaxScalesLaunch::kThreads,
                   AmaxScalesParams{.amax = amax.data(),
                                    .scale = in_place ? amax.data() : scale.data(),
                                    .count = count,
                                    .fp8_max = static_cast<float>(limit),
                                    .largest_scale = largest,
                                    .pow2 = pow2});
  BOOST_TEST((amax.guarded() && scale.guarded()));
  for (i64 i = 0; i < count; ++i) {
    const double of = std::fabs(static_cast<double>(before.at(0, i)));
    auto expected = static_cast<float>(limit / std::max(of, 1e-12));
    if (pow2 && expected > 0.0F) expected = std::ldexp(1.0F, std::ilogb(expected));
    if (std::isnan(of)) expected = float_from_bits(kF32Nan);
    BOOST_TEST(float_bits(in_place ? amax.at(0, i) : scale.at(0, i)) == float_bits(expected), "scale " << i);
  }
}

template <bool Transposed>
void check_relayout(i64 rows, i64 cols, i64 pad, i64 shift, i64 out_pad, i64 matrices = 1) {
  Matrix<u8> in(matrices * rows, cols, cols + pad, shift);
  for (i64 r = 0; r < matrices * rows; ++r) {
    for (i64 c = 0; c < cols; ++c) in.at(r, c) = static_cast<u8>(r * 31 + c * 7 + r * c);
  }
  const i64 out_rows = Transposed ? cols : rows;
  const i64 out_cols = Transposed ? rows : cols;
  Matrix<u8> out(matrices * out_rows, out_cols, out_cols + out_pad);
  const i64 tiles = CastTilesLaunch::grid(rows, cols);
  emulator::launch(relayout<RelayoutConfig{.transposed = Transposed}>, matrices * tiles, CastTilesLaunch::kThreads,
                   RelayoutParams{.in = in.data(),
                                  .rows = rows,
                                  .cols = cols,
                                  .in_stride = in.stride(),
                                  .out = out.data(),
                                  .out_stride = out.stride(),
                                  .in_step = rows * in.stride(),
                                  .out_step = out_rows * out.stride(),
                                  .tiles = static_cast<u32>(tiles)});
  BOOST_TEST(out.guarded());
  for (i64 m = 0; m < matrices; ++m) {
    for (i64 r = 0; r < rows; ++r) {
      for (i64 c = 0; c < cols; ++c) {
        const u8 found = Transposed ? out.at(m * cols + c, r) : out.at(m * rows + r, c);
        if (found != in.at(m * rows + r, c)) BOOST_FAIL("matrix " << m << ", row " << r << ", column " << c);
      }
    }
  }
}

// In each layout k is contiguous or not.
template <class A, class B, class Out>
void check_gemm(i64 m, i64 n, i64 k, bool a_k_major, bool b_k_major, bool factors, bool with_bias) {
  using Bias = typename GemmBias<A, B, Out>::Type;
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

  const GemmParams p{.a = a.data(),
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
                     .factor_b_stride = 0,
                     .factor_a_group_stride = 0,
                     .factor_b_group_stride = 0,
                     .factor_b_rows = 1,
                     .epilogue = {}};
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

// scale_inv per 128 of K: a's for each row, b's for each `rows_of_b` rows; stored row by row, or with a row for each
// group.
void check_grouped_gemm(i64 m, i64 n, i64 k, i64 rows_of_b, bool a_by_group, bool b_by_group) {
  const i64 groups = ceil_div(k, i64{kGemmGroup});
  Matrix<e4m3fn> a(m, k, k), b(n, k, k);
  const i64 rows_b = ceil_div(n, rows_of_b);
  Matrix<float> factors_a = a_by_group ? Matrix<float>(groups, m, m + 3) : Matrix<float>(m, groups, groups);
  Matrix<float> factors_b =
      b_by_group ? Matrix<float>(groups, rows_b, rows_b + 2) : Matrix<float>(rows_b, groups, groups);
  Matrix<float> out(m, n, n + 5);
  const auto factor_a = [&](i64 row, i64 group) -> float& {
    return a_by_group ? factors_a.at(group, row) : factors_a.at(row, group);
  };
  const auto factor_b = [&](i64 row, i64 group) -> float& {
    return b_by_group ? factors_b.at(group, row) : factors_b.at(row, group);
  };
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto* const codes : {&a, &b}) {
    for (i64 i = 0; i < (codes == &a ? m : n); ++i) {
      for (i64 j = 0; j < k; ++j) codes->at(i, j) = encode<e4m3fn>(normal(random));
    }
  }
  for (i64 g = 0; g < groups; ++g) {
    for (i64 i = 0; i < m; ++i) factor_a(i, g) = normal(random);
    for (i64 i = 0; i < rows_b; ++i) factor_b(i, g) = normal(random);
  }
  const GemmParams p{.a = a.data(),
                     .b = b.data(),
                     .factor_a = factors_a.data(),
                     .factor_b = factors_b.data(),
                     .bias = nullptr,
                     .out = out.data(),
                     .m = m,
                     .n = n,
                     .k = k,
                     .a_stride_m = a.stride(),
                     .a_stride_k = 1,
                     .b_stride_n = b.stride(),
                     .b_stride_k = 1,
                     .out_stride = out.stride(),
                     .factor_a_stride = a_by_group ? 1 : factors_a.stride(),
                     .factor_b_stride = b_by_group ? 1 : factors_b.stride(),
                     .factor_a_group_stride = a_by_group ? factors_a.stride() : 1,
                     .factor_b_group_stride = b_by_group ? factors_b.stride() : 1,
                     .factor_b_rows = rows_of_b,
                     .epilogue = {}};
  emulator::launch(gemm_simt<e4m3fn, e4m3fn, float>, GemmSimtLaunch::grid(m, n), GemmSimtLaunch::kThreads, p);
  BOOST_TEST(out.guarded());
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      float total = 0.0F;
      for (i64 g = 0; g < groups; ++g) {
        float sum = 0.0F;
        for (i64 x = g * 128; x < std::min(k, (g + 1) * 128); ++x)
          sum = sum + to_float(a.at(i, x)) * to_float(b.at(j, x));
        total = total + sum * (factor_a(i, g) * factor_b(j / rows_of_b, g));
      }
      if (float_bits(out.at(i, j)) != float_bits(total)) {
        BOOST_FAIL("out" << at(i, j) << ": " << out.at(i, j) << ", expected " << total);
      }
    }
  }
}

// ---- Fused expressions -------------------------------------------------------------------------------------------

template <class T>
Tensor tensor_of(Matrix<T>& m, Dtype dtype, i64 rows, i64 cols) {
  Tensor tensor = matrix(m.data(), dtype, rows, cols, {});
  tensor.row_stride = m.stride();
  return tensor;
}

template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b, i64 rows, i64 cols) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < cols; ++c) {
      if (std::memcmp(&a.at(r, c), &b.at(r, c), sizeof(T)) != 0) return false;
    }
  }
  return true;
}

// Rows that can be read 8 elements at a time, and rows that cannot.
const std::vector<Shape> kFusedShapes{{131, 264, 8}, {37, 131, 3, 1}, {259, 136, 0}};

// The inputs of RenderedSwigluBias and every output that a cast of it may have: once for the kernels, once for the CPU
// backend.
struct FusedCast {
  Shape s;
  Matrix<bf16> x, gate, bias;
  Matrix<float> mean;
  Matrix<e4m3fn> codes, transposed;
  Matrix<bf16> result;
  Matrix<float> factors, sum;

  explicit FusedCast(const Shape& shape)
      : s(shape),
        x(random_matrix<bf16>(s.rows, s.cols, s.cols + s.pad, s.shift)),
        gate(random_matrix<bf16>(s.rows, s.cols, s.cols + 2 * s.pad, s.shift)),
        bias(random_matrix<bf16>(1, s.cols, s.cols, s.shift)),
        mean(random_matrix<float>(1, s.rows, s.rows)),
        codes(s.rows, s.cols, s.cols + s.pad),
        transposed(s.cols, s.rows, s.rows + s.pad),
        result(s.rows, s.cols, s.cols + s.pad),
        factors(1, s.rows, s.rows),
        sum(1, s.cols, s.cols) {}

  SourceParams source() {
    SourceParams params = source_of(x, s.rows, s.cols);
    params.operands[0] = {gate.data(), gate.stride()};
    params.operands[1] = {bias.data(), bias.stride()};
    params.operands[2] = {mean.data(), mean.stride()};
    return params;
  }

  // For cast_tiles with the scale of the tensor, from `from`: the given one, or maxima. A given one records in `amax`.
  CastTilesParams tensor_scaled(Matrix<float>& from, Matrix<float>& partial_sums, Matrix<float>* amax = nullptr) {
    CastTilesParams params{.source = source(),
                           .codes = {.codes = codes.data(),
                                     .stride = codes.stride(),
                                     .from = from.data(),
                                     .from_count = from.cols(),
                                     .factors = factors.data(),
                                     .amax = amax == nullptr ? nullptr : reinterpret_cast<u32*>(amax->data()),
                                     .readers = nullptr},
                           .transposed = {},
                           .result = nullptr,
                           .result_stride = 0,
                           .partial_sums = partial_sums.data(),
                           .pow2 = false};
    params.transposed.codes = transposed.data();
    params.transposed.stride = transposed.stride();
    return params;
  }

  void run_on_cpu(const char* line) {
    const auto spec = std::get<CastSpec>(parse(line));
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    Stream stream(*backend);
    CastTensors tensors{.input = tensor_of(x, Dtype::bf16, s.rows, s.cols),
                        .codes = tensor_of(codes, Dtype::e4m3fn, s.rows, s.cols),
                        .scale_inv = tensor_of(factors, Dtype::f32, 1, scale_count(spec.scale, s.rows, s.cols))};
    tensors.inputs = {tensor_of(gate, Dtype::bf16, s.rows, s.cols), tensor_of(bias, Dtype::bf16, 1, s.cols),
                      tensor_of(mean, Dtype::f32, 1, s.rows)};
    if (spec.transposed) tensors.transposed = tensor_of(transposed, Dtype::e4m3fn, s.cols, s.rows);
    if (spec.result) tensors.result = tensor_of(result, Dtype::bf16, s.rows, s.cols);
    if (spec.sum) tensors.sum = tensor_of(sum, Dtype::f32, 1, s.cols);
    backend->cast(spec, tensors, stream);
  }
};

// Compares everything, so it also shows that what neither has written is still poison in both.
void check_same(FusedCast& kernels, FusedCast& cpu) {
  BOOST_TEST((kernels.codes.guarded() && kernels.transposed.guarded() && kernels.result.guarded()));
  BOOST_TEST((kernels.factors.guarded() && kernels.sum.guarded()));
  const Shape& s = kernels.s;
  BOOST_TEST(same_bits(kernels.codes, cpu.codes, s.rows, s.cols));
  BOOST_TEST(same_bits(kernels.transposed, cpu.transposed, s.cols, s.rows));
  BOOST_TEST(same_bits(kernels.result, cpu.result, s.rows, s.cols));
  BOOST_TEST(same_bits(kernels.factors, cpu.factors, 1, s.rows));
  BOOST_TEST(same_bits(kernels.sum, cpu.sum, 1, s.cols));
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

BOOST_AUTO_TEST_CASE(amax_tiles_bf16) { check_amax_tiles<bf16, true, true>(); }
BOOST_AUTO_TEST_CASE(amax_tiles_f32_columns) { check_amax_tiles<f32, false, true>(); }
BOOST_AUTO_TEST_CASE(amax_tiles_f16_rows) { check_amax_tiles<f16, true, false>(); }

BOOST_AUTO_TEST_CASE(cast_rows_bf16_e4m3fn) { check_cast_rows<bf16, e4m3fn>(false); }
BOOST_AUTO_TEST_CASE(cast_rows_f32_e5m2fnuz_pow2) { check_cast_rows<f32, e5m2fnuz>(true); }
BOOST_AUTO_TEST_CASE(cast_rows_wide_bf16_e4m3fn) {
  // In registers; in the shared memory of one block, also where the last threads have less; of clusters of two to
  // eight.
  check_cast_rows_wide<bf16, e4m3fn>(false, 227 * 1024,
                                     {{3, 3080, 8},
                                      {4, 4096},
                                      {3, 11008},
                                      {2, 16384},
                                      {3, 16392, 8},
                                      {5, 18944},
                                      {2, 24576},
                                      {1, 53248},
                                      {2, 65536, 16},
                                      {1, 131072}});
  check_cast_rows_wide<bf16, e4m3fn>(false, 48 * 1024, {{3, 16392, 8}, {2, 28672}, {1, 65536}});
}
BOOST_AUTO_TEST_CASE(cast_rows_wide_f32_e5m2fnuz_pow2) {
  check_cast_rows_wide<f32, e5m2fnuz>(true, 227 * 1024, {{4, 1544, 8}, {3, 4096}, {2, 8192}, {4, 8200, 8}, {2, 32776}});
  check_cast_rows_wide<f32, e5m2fnuz>(true, 99 * 1024, {{3, 8200, 8}, {1, 65536}});
}
BOOST_AUTO_TEST_CASE(cast_row_groups_bf16_e4m3fn) { check_cast_row_groups<bf16, e4m3fn>(false, false); }
BOOST_AUTO_TEST_CASE(cast_row_groups_f32_e5m2fnuz_pow2) { check_cast_row_groups<f32, e5m2fnuz>(true, false); }
BOOST_AUTO_TEST_CASE(cast_row_groups_factors_by_group) { check_cast_row_groups<bf16, e4m3fn>(false, true); }

BOOST_AUTO_TEST_CASE(cast_tiles_tensor) { check_cast_tiles<bf16, e4m3fn, kTensorScale, kTensorScale, false>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_tensor_given) { check_cast_tiles<bf16, e4m3fn, kTensorScale, kTensorScale, true>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_of_64_rows) {
  check_tiles_of_64_rows<f32, e5m2, kTensorScale, false, true>();
  check_tiles_of_64_rows<bf16, e4m3fnuz, kRowScale, false, true>();
  check_tiles_of_64_rows<f16, e4m3fn, kColumnScale, false, true>();
  check_tiles_of_64_rows<bf16, e4m3fn, kTensorScale, false, false>();
  check_tiles_of_64_rows<f32, e5m2, kRowScale, false, false>();
}
BOOST_AUTO_TEST_CASE(cast_tiles_of_64_rows_unaligned) {
  check_tiles_of_64_rows<bf16, e4m3fn, kTensorScale, true, true>();
  check_tiles_of_64_rows<f16, e4m3fn, kColumnScale, true, true>();
  check_tiles_of_64_rows<f32, e5m2, kRowScale, true, true>();
  check_tiles_of_64_rows<bf16, e4m3fn, kTensorScale, true, false>();
  check_tiles_of_64_rows<f16, e4m3fnuz, kColumnScale, true, false>();
}

BOOST_AUTO_TEST_CASE(cast_whole_tensor) { check_cast_whole<bf16, e4m3fn, kTensorScale, kTensorScale>(false, false); }
BOOST_AUTO_TEST_CASE(cast_whole_of_64_rows) {
  check_cast_whole<bf16, e4m3fn, kTensorScale, kTensorScale, 6>(false, false);
  check_cast_whole<f16, e5m2, kRowScale, kColumnScale, 6>(true, false);
}
// Codes that are stored by words: rows that start at any address and end at any byte of a word.
BOOST_AUTO_TEST_CASE(cast_whole_at_any_pitch) {
  std::vector<Shape> shapes;
  for (i64 odd = 1; odd <= 17; ++odd) {
    shapes.push_back({10, odd, odd % 4, odd});
    shapes.push_back({10, 111 + odd, odd / 4, odd / 2});
  }
  check_cast_whole<bf16, e4m3fn, kTensorScale, kTensorScale>(false, false, shapes);
  check_cast_whole<bf16, e4m3fn, kRowScale, kColumnScale>(false, true, shapes);
}
BOOST_AUTO_TEST_CASE(cast_whole_row) { check_cast_whole<f16, e5m2, kRowScale, kRowScale>(true, false); }
BOOST_AUTO_TEST_CASE(cast_whole_row_col) { check_cast_whole<bf16, e4m3fn, kRowScale, kColumnScale>(false, true); }
BOOST_AUTO_TEST_CASE(cast_whole_col_tensor) {
  check_cast_whole<f32, e4m3fnuz, kColumnScale, kTensorScale>(true, false);
}

// No rows, but columns: a given scale still has its scale_inv, and the sums are those of no elements.
BOOST_AUTO_TEST_CASE(cast_tiles_without_rows) {
  const Matrix<bf16> x(0, 16, 16);
  Matrix<e4m3fn> codes(0, 16, 16), transposed(16, 0, 1);
  Matrix<float> scale(1, 1, 1), factor(1, 1, 1), amax(1, 1, 1), sum(1, 16, 16);
  scale.at(0, 0) = 2.0F;
  amax.at(0, 0) = 3.0F;
  CastTilesParams params{.source = source_of(x, 0, 16),
                         .codes = {.codes = codes.data(),
                                   .stride = 16,
                                   .from = scale.data(),
                                   .from_count = 1,
                                   .factors = factor.data(),
                                   .amax = reinterpret_cast<u32*>(amax.data()),
                                   .readers = nullptr},
                         .transposed = {},
                         .result = nullptr,
                         .result_stride = 0,
                         .partial_sums = nullptr,
                         .pow2 = false};
  params.transposed.codes = transposed.data();
  params.transposed.stride = 1;
  emulator::launch(
      cast_tiles<ValueSource<bf16>, e4m3fn,
                 CastConfig{.codes = kTensorScale, .transposed = kTensorScale, .given_scales = true, .sum = true}>,
      CastTilesLaunch::grid(0, 16), CastTilesLaunch::kThreads, params);
  emulator::launch(column_sum_finish<f32>, ColumnSumFinishLaunch::grid(16), ColumnSumFinishLaunch::kThreads,
                   ColumnSumFinishParams{nullptr, 0, 16, sum.data(), 16, nullptr});
  BOOST_TEST((codes.guarded() && transposed.guarded() && factor.guarded() && amax.guarded() && sum.guarded()));
  BOOST_TEST(factor.at(0, 0) == 0.5F);
  BOOST_TEST(amax.at(0, 0) == 3.0F);
  for (i64 c = 0; c < 16; ++c) BOOST_TEST(float_bits(sum.at(0, c)) == 0U);
}

BOOST_AUTO_TEST_CASE(amax_histories) {
  for (const i64 length : {1, 2, 16, 31, 32, 33, 255, 256, 257, 512, 513, 1024}) {
    for (const bool most_recent : {false, true}) {
      for (const bool finite : {false, true}) {
        BOOST_TEST_CONTEXT(length << (most_recent ? " steps, most recent" : " steps") << (finite ? ", finite" : "")) {
          check_amax_history(6, length, length % 3, most_recent, finite, length % 2 != 0);
        }
      }
    }
  }
  check_amax_history(1, 16, 0, false, false, false);
}

namespace {

// Rows that no index names are not read: they are NaN.
template <class In>
void check_combine(i64 tokens, u32 choices, i64 cols, i64 pad, i64 shift) {
  const i64 rows = tokens + 2;
  auto x = random_matrix<In>(rows, cols, cols + pad, shift);
  for (i64 c = 0; c < cols; ++c) x.at(1, c) = from_float<In>(float_from_bits(kF32Nan));
  std::vector<i32> index(static_cast<std::size_t>(tokens * choices));
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<i32>(i * 7 % static_cast<std::size_t>(rows + 2)) - 1;
    if (index[i] == 1) index[i] = static_cast<i32>(rows);
  }
  Matrix<In> output(tokens, cols, cols + pad, shift);
  const CombineParams p{.input = x.data(),
                        .rows = rows,
                        .cols = cols,
                        .input_stride = x.stride(),
                        .index = index.data(),
                        .choices = choices,
                        .output = output.data(),
                        .output_stride = output.stride(),
                        .segments = static_cast<u32>(CombineLaunch::segments(cols))};
  emulator::launch(combine<In>, CombineLaunch::grid(tokens, cols), CombineLaunch::threads(cols), p);
  BOOST_TEST(output.guarded());
  for (i64 t = 0; t < tokens; ++t) {
    for (i64 c = 0; c < cols; ++c) {
      float sum = 0.0F;
      for (u32 j = 0; j < choices; ++j) {
        const i64 row = index[static_cast<std::size_t>(t * choices + j)];
        if (row >= 0 && row < rows) sum += to_float(x.at(row, c));
      }
      BOOST_TEST(to_float(output.at(t, c)) == to_float(from_float<In>(sum)));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(sums_of_tokens_rows) {
  for (const u32 choices : {0U, 1U, 8U, 11U}) {
    check_combine<bf16>(3, choices, 264, 8, 0);
    check_combine<bf16>(2, choices, 2056, 0, 0);
    check_combine<f16>(3, choices, 77, 3, 1);
    check_combine<f32>(2, choices, 40, 1, 0);
  }
}

BOOST_AUTO_TEST_CASE(scales_of_maxima) {
  for (const i64 count : {1, 256, 300}) {
    for (const bool pow2 : {false, true}) {
      check_amax_scales(count, 448.0, pow2, false);
      check_amax_scales(count, 57344.0, pow2, true);
    }
  }
}

BOOST_AUTO_TEST_CASE(relayouts) {
  for (const auto& [rows, cols] : {std::pair<i64, i64>{1, 1}, {7, 300}, {130, 129}, {128, 256}, {65, 16}}) {
    for (const i64 pad : {0, 3, 16}) {
      const i64 to_16 = (16 - rows % 16) % 16;
      check_relayout<true>(rows, cols, pad, pad % 2, to_16);
      check_relayout<true>(rows, cols, pad, 0, 1);
      check_relayout<false>(rows, cols, pad, pad % 2, (16 - cols % 16) % 16);
      check_relayout<false>(rows, cols, pad, 5, 0);
      check_relayout<true>(rows, cols, pad, 0, to_16, 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(cast_tiles_row_col) { check_cast_tiles<bf16, e4m3fnuz, kRowScale, kColumnScale, false>(true); }
BOOST_AUTO_TEST_CASE(cast_tiles_col_row_given) { check_cast_tiles<f32, e5m2, kColumnScale, kRowScale, true>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_groups) { check_cast_tiles<bf16, e4m3fn, kRowGroupScale, kColumnGroupScale, false>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_groups_given) {
  check_cast_tiles<f16, e5m2fnuz, kColumnGroupScale, kRowGroupScale, true>();
}
BOOST_AUTO_TEST_CASE(cast_tiles_blocks) { check_cast_tiles<f32, e4m3fn, kBlockScale, kBlockScale, false>(true); }
BOOST_AUTO_TEST_CASE(cast_tiles_blocks_given) { check_cast_tiles<bf16, e4m3fn, kBlockScale, kTensorScale, true>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_factors_by_group) {
  check_cast_tiles<bf16, e4m3fn, kRowGroupScale, kColumnGroupScale, false>(false, kShapes, true);
  check_cast_tiles<f32, e5m2, kColumnGroupScale, kRowGroupScale, true>(false, kShapes, true);
}
BOOST_AUTO_TEST_CASE(cast_tiles_groups_alone) { check_one_output<bf16, e4m3fn, kRowGroupScale, kNotWritten>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_codes_only) { check_one_output<f16, e5m2, kTensorScale, kNotWritten>(); }
BOOST_AUTO_TEST_CASE(cast_tiles_transposed_only) { check_one_output<f32, e4m3fn, kNotWritten, kColumnScale>(); }

BOOST_AUTO_TEST_CASE(cast_list_tensor) { check_cast_list<bf16, e4m3fn, kTensorScale, kTensorScale>(); }
BOOST_AUTO_TEST_CASE(cast_list_row_col) { check_cast_list<f32, e5m2, kRowScale, kColumnScale>(); }
BOOST_AUTO_TEST_CASE(cast_list_groups_tensor) { check_cast_list<f16, e4m3fnuz, kRowGroupScale, kTensorScale>(); }
BOOST_AUTO_TEST_CASE(cast_list_unaligned) { check_cast_list<bf16, e4m3fn, kRowScale, kColumnScale, true>(); }
BOOST_AUTO_TEST_CASE(cast_list_rounded) {
  check_cast_list<f32, e4m3fn, kRowScale, kColumnScale, false, bf16>();
  check_cast_list<f32, e5m2, kTensorScale, kBlockScale, true, f16>();
}
BOOST_AUTO_TEST_CASE(cast_list_blocks) { check_cast_list<bf16, e4m3fn, kBlockScale, kBlockScale>(); }

// Transposed rows at every address: full tiles and parts of one, with rows at each of the 16 offsets, and the first one
// at each of them.
BOOST_AUTO_TEST_CASE(cast_tiles_at_any_pitch) {
  std::vector<Shape> shapes;
  for (i64 odd = 0; odd < 16; ++odd) {
    shapes.push_back({129 + odd, 24, 0, odd});
    shapes.push_back({2 + 7 * odd, 17, 3 * odd, 16 - odd});
  }
  // A block of two tiles and one of one tile; one that ends within its second tile.
  shapes.push_back({264, 24});
  shapes.push_back({513, 17, 4, 3});
  // Tiles with all their columns, whose transposed rows begin at multiples of 1, 2, 4, 8 and 16 bytes.
  for (const i64 rows : {257, 390, 260, 264, 272}) shapes.push_back({rows, 131, 0, rows % 16});
  for (const u32 tiles_per_block : {1U, 2U}) {
    check_cast_tiles<bf16, e4m3fn, kTensorScale, kTensorScale, true, true>(false, shapes, false, tiles_per_block);
    check_cast_tiles<f32, e5m2, kRowGroupScale, kColumnGroupScale, false, true>(false, shapes, false, tiles_per_block);
    check_cast_tiles<bf16, e4m3fn, kRowScale, kColumnScale, false, true>(false, shapes, false, tiles_per_block);
  }
}
// Blocks of two tiles, unless they would leave much of their last wave empty.
BOOST_AUTO_TEST_CASE(cast_tiles_choice_of_two) {
  constexpr i64 kFour = 4 * 132;  // blocks at once
  constexpr i64 kThree = 3 * 132;
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3000, 4096, kFour) == 1U);    // 384 blocks of two
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3000, 4096, kThree) == 2U);   // one wave
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3001, 5120, kFour) == 2U);    // 480
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3001, 5120, kThree) == 1U);   // 1.2 waves
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3000, 11008, kFour) == 2U);   // 1.95
  BOOST_TEST(CastTilesLaunch::tiles_per_block(3000, 11008, kThree) == 2U);  // 2.6
  BOOST_TEST(CastTilesLaunch::tiles_per_block(1, 1, kThree) == 1U);
  BOOST_TEST(CastTilesLaunch::tiles_per_block(0, 0, 1) == 2U);
}
// With given scales: Inf of either sign, NaN, and 0 with scales below zero.
BOOST_AUTO_TEST_CASE(cast_tiles_unaligned_special_values) {
  const std::vector<Shape> shapes{{128, 128}, {131, 257, 3}};
  for (const float special : {INFINITY, -INFINITY, NAN, 0.0F}) {
    check_cast_tiles<bf16, e4m3fn, kTensorScale, kTensorScale, true, true>(false, shapes, false, 1, special);
    check_cast_tiles<f32, e5m2, kRowScale, kColumnScale, true, true>(false, shapes, false, 2, special);
    check_cast_tiles<f16, e4m3fn, kBlockScale, kBlockScale, true, true>(false, shapes, false, 1, special);
  }
}
BOOST_AUTO_TEST_CASE(cast_tiles_unaligned) {
  check_cast_tiles<bf16, e4m3fn, kRowScale, kColumnScale, false, true>();
  check_cast_tiles<f16, e4m3fnuz, kBlockScale, kBlockScale, false, true>(true);
  check_cast_tiles<f16, e4m3fn, kRowGroupScale, kRowGroupScale, false, true>();
  check_cast_tiles<f32, e5m2, kTensorScale, kRowScale, true, true>();
}

BOOST_AUTO_TEST_CASE(fused_rows) {
  for (const Shape& s : kFusedShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast kernels(s), cpu(s);
      const u32 threads_log2 = CastRowsLaunch::threads_log2(s.cols, sizeof(bf16));
      emulator::launch(cast_rows<ValueSource<bf16, RenderedSwigluBias>, e4m3fn, CastRowsConfig{.result = true}>,
                       CastRowsLaunch::grid(s.rows, threads_log2), CastRowsLaunch::threads(threads_log2),
                       CastRowsParams{.source = kernels.source(),
                                      .codes = kernels.codes.data(),
                                      .factors = kernels.factors.data(),
                                      .result = kernels.result.data(),
                                      .codes_stride = kernels.codes.stride(),
                                      .result_stride = kernels.result.stride(),
                                      .maxima = nullptr,
                                      .threads_log2 = threads_log2,
                                      .pow2 = false});
      cpu.run_on_cpu("cast bf16->e4m3fn of=silu(x)*gate+bias[col]/mean[row] scale=row out=codes,result");
      check_same(kernels, cpu);
    }
  }
}

BOOST_AUTO_TEST_CASE(fused_rows_wide) {
  for (const Shape& s : {Shape{3, 3080}, Shape{2, 8192}, Shape{3, 16392}, Shape{2, 18944}, Shape{1, 53248}}) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast kernels(s), cpu(s);
      const u32 block_shared = s.rows == 3 ? 48 * 1024 : 227 * 1024;  // clusters, or one block up to 28672 columns
      launch_wide<ValueSource<bf16, RenderedSwigluBias>, e4m3fn>({.source = kernels.source(),
                                                                  .codes = kernels.codes.data(),
                                                                  .factors = kernels.factors.data(),
                                                                  .result = kernels.result.data(),
                                                                  .codes_stride = kernels.codes.stride(),
                                                                  .result_stride = kernels.result.stride(),
                                                                  .maxima = nullptr,
                                                                  .threads_log2 = 0,
                                                                  .pow2 = false},
                                                                 block_shared);
      cpu.run_on_cpu("cast bf16->e4m3fn of=silu(x)*gate+bias[col]/mean[row] scale=row out=codes,result");
      check_same(kernels, cpu);
    }
  }
}

// Kept: the pass for the maxima writes the values, and the cast reads them.
template <bool Unaligned, bool Kept = false>
void check_fused_tiles() {
  using Source = ValueSource<bf16, RenderedSwigluBias>;
  for (const Shape& s : kFusedShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast kernels(s), cpu(s);
      const u32 threads = AmaxPartialsLaunch::threads(s.cols, sizeof(bf16), true);
      const i64 blocks = AmaxPartialsLaunch::grid(s.rows, s.cols, threads, sizeof(bf16));
      Matrix<float> amax(1, blocks, blocks);
      const i64 kept_stride = ceil_div(s.cols, i64{8}) * 8;
      Matrix<bf16> kept(s.rows, s.cols, kept_stride);
      emulator::launch(amax_partials<Source, Kept>, blocks, threads,
                       AmaxPartialsParams{kernels.source(), amax.data(), {kept.data(), kept_stride}});
      BOOST_TEST(kept.guarded());
      const i64 tiles = ceil_div(s.rows, i64{128});
      Matrix<float> partial_sums(tiles, s.cols, s.cols);
      CastTilesParams params = kernels.tensor_scaled(amax, partial_sums);
      params.result = kernels.result.data();
      params.result_stride = kernels.result.stride();
      if (Kept) {
        params.source = {
            .input = kept.data(), .rows = s.rows, .cols = s.cols, .input_stride = kept_stride, .operands = {}};
      }
      using TileSource = typename Select<Kept, ValueSource<bf16>, Source>::Type;
      emulator::launch(cast_tiles<TileSource, e4m3fn,
                                  CastConfig{.codes = kTensorScale,
                                             .transposed = kTensorScale,
                                             .result = true,
                                             .sum = true,
                                             .unaligned = Unaligned,
                                             .kept = Kept}>,
                       CastTilesLaunch::grid(s.rows, s.cols), CastTilesLaunch::kThreads, params);
      emulator::launch(column_sum_finish<f32>, ColumnSumFinishLaunch::grid(s.cols), ColumnSumFinishLaunch::kThreads,
                       ColumnSumFinishParams{partial_sums.data(), tiles, s.cols, kernels.sum.data(), s.cols, nullptr});
      BOOST_TEST(partial_sums.guarded());
      cpu.run_on_cpu(
          "cast bf16->e4m3fn of=silu(x)*gate+bias[col]/mean[row] scale=tensor out=codes,transposed,result,sum:f32");
      check_same(kernels, cpu);
    }
  }
}
BOOST_AUTO_TEST_CASE(fused_tiles) { check_fused_tiles<false>(); }
BOOST_AUTO_TEST_CASE(fused_tiles_unaligned) { check_fused_tiles<true>(); }
BOOST_AUTO_TEST_CASE(fused_tiles_kept) { check_fused_tiles<true, true>(); }

// The values that amax_tiles keeps are those of the expression, and the maxima are the same.
BOOST_AUTO_TEST_CASE(fused_amax_tiles_keeps) {
  using Source = ValueSource<bf16, RenderedSwigluBias>;
  for (const Shape& s : kFusedShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast cast(s);
      const i64 stride = ceil_div(s.cols, i64{8}) * 8;
      Matrix<bf16> kept(s.rows, s.cols, stride);
      Matrix<float> maxima[2] = {Matrix<float>(1, s.cols, s.cols), Matrix<float>(1, s.cols, s.cols)};
      for (Matrix<float>& columns : maxima) {
        for (i64 c = 0; c < s.cols; ++c) columns.at(0, c) = 0.0F;
      }
      const auto params = [&](Matrix<float>& columns) {
        return AmaxTilesParams{
            cast.source(), nullptr, nullptr, reinterpret_cast<u32*>(columns.data()), {kept.data(), stride}};
      };
      const i64 grid = AmaxTilesLaunch::grid(s.rows, s.cols, 2);
      emulator::launch(amax_tiles<Source, AmaxTilesConfig{.columns = true}>, grid, AmaxTilesLaunch::kThreads,
                       params(maxima[0]));
      emulator::launch(amax_tiles<Source, AmaxTilesConfig{.columns = true, .keeps = true}>, grid,
                       AmaxTilesLaunch::kThreads, params(maxima[1]));
      BOOST_TEST((kept.guarded() && maxima[1].guarded()));
      BOOST_TEST(same_bits(maxima[0], maxima[1], 1, s.cols));
      Matrix<bf16> expected(s.rows, s.cols, stride);
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 c = 0; c < s.cols; ++c) expected.at(r, c) = Source::element(cast.source(), r, c);
      }
      BOOST_TEST(same_bits(kept, expected, s.rows, s.cols));
    }
  }
}

// The gradient of silu, as render() writes it, whose bias gradient is summed: with a given scale, its sums and its
// maximum meet at one barrier.
struct SiluGradient {
  static constexpr u32 kInputs = 1;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix};
  static float apply(float x, float grad) {
    const float sigmoid = math::sigmoid_of_number<math::Reproducible16>(x);
    const float slope = fused_multiply_add(x, fused_multiply_add(-sigmoid, sigmoid, sigmoid), sigmoid);
    return slope * grad;
  }
};

// In tiles of 64 rows there are no sums.
template <bool Unaligned, u32 RowsLog2 = CastTilesLaunch::kTileLog2>
void check_gradient_tiles(const std::vector<Shape>& shapes = {
                              {128, 128}, {387, 264, 8}, {259, 136, 3}, {37, 131, 3, 1}}) {
  using Source = ValueSource<bf16, SiluGradient>;
  constexpr bool kSum = RowsLog2 == CastTilesLaunch::kTileLog2;
  constexpr CastConfig kConfig{
      .codes = kTensorScale, .transposed = kTensorScale, .given_scales = true, .sum = kSum, .unaligned = Unaligned};
  static_assert(works_by_halves<Source, e4m3fn, kConfig>());
  static_assert(cast_tile_plan<Source, e4m3fn, kConfig, false, true>().stores_words);
  for (const Shape& s : shapes) {
    for (const float special : {0.0F, INFINITY}) {
      BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << ", " << special) {
        FusedCast kernels(s), cpu(s);
        for (FusedCast* cast : {&kernels, &cpu}) cast->gate.at(s.rows / 2, s.cols / 2) = from_float<bf16>(special);
        Matrix<float> scale(1, 1, 1), amax(1, 1, 1), cpu_amax(1, 1, 1);
        scale.at(0, 0) = 3.0F;
        amax.at(0, 0) = cpu_amax.at(0, 0) = 0.0F;
        const i64 tiles = ceil_div(s.rows, i64{128});
        Matrix<float> partial_sums(tiles, s.cols, s.cols);
        CastTilesParams params = kernels.tensor_scaled(scale, partial_sums, &amax);
        params.rows_log2 = RowsLog2;
        emulator::launch(cast_tiles<Source, e4m3fn, kConfig>, CastTilesLaunch::grid(s.rows, s.cols, 1, RowsLog2),
                         CastTilesLaunch::kThreads, params);
        if (kSum)
          emulator::launch(
              column_sum_finish<f32>, ColumnSumFinishLaunch::grid(s.cols), ColumnSumFinishLaunch::kThreads,
              ColumnSumFinishParams{partial_sums.data(), tiles, s.cols, kernels.sum.data(), s.cols, nullptr});
        BOOST_TEST(partial_sums.guarded());
        const auto spec = std::get<CastSpec>(
            parse(std::string("cast bf16->e4m3fn of=(sigmoid(x)+x*(sigmoid(x)*(1-sigmoid(x))))*grad scale=tensor ") +
                  (kSum ? "out=codes,transposed,sum:f32 given" : "out=codes,transposed given")));
        CastTensors tensors{.input = tensor_of(cpu.x, Dtype::bf16, s.rows, s.cols),
                            .codes = tensor_of(cpu.codes, Dtype::e4m3fn, s.rows, s.cols),
                            .transposed = tensor_of(cpu.transposed, Dtype::e4m3fn, s.cols, s.rows),
                            .scale_inv = tensor_of(cpu.factors, Dtype::f32, 1, 1)};
        tensors.scales = tensor_of(scale, Dtype::f32, 1, 1);
        tensors.amax = tensor_of(cpu_amax, Dtype::f32, 1, 1);
        tensors.inputs = {tensor_of(cpu.gate, Dtype::bf16, s.rows, s.cols)};
        if (kSum) tensors.sum = tensor_of(cpu.sum, Dtype::f32, 1, s.cols);
        const std::unique_ptr<Backend> backend = make_cpu_backend();
        Stream stream(*backend);
        backend->cast(spec, tensors, stream);
        BOOST_TEST(float_bits(amax.at(0, 0)) == float_bits(cpu_amax.at(0, 0)));
        check_same(kernels, cpu);
      }
    }
  }
}
BOOST_AUTO_TEST_CASE(gradient_tiles_unaligned) { check_gradient_tiles<true>(); }
// Codes that are stored by words: the second tile of a row has 1 to 17 columns, and rows start at any address.
BOOST_AUTO_TEST_CASE(gradient_tiles_at_any_pitch) {
  std::vector<Shape> shapes;
  for (i64 odd = 1; odd <= 17; ++odd) shapes.push_back({11, 128 + odd, odd / 4});
  check_gradient_tiles<true>(shapes);
  check_gradient_tiles<true, 6>({{70, 131, 2}, {70, 259}});
}
BOOST_AUTO_TEST_CASE(gradient_tiles_of_64_rows) {
  check_gradient_tiles<false, 6>();
  check_gradient_tiles<true, 6>();
}

// Two matrices: computed by halves of a thread's rows. Of zeros it is 1, its largest value: rows and columns past the
// edges must not count.
struct OfTwo {
  static constexpr u32 kInputs = 1;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix};
  static float apply(float x, float y) { return 1.0F / (1.0F + x * x + y * y); }
};

BOOST_AUTO_TEST_CASE(cast_list_maxima_of_two_matrices) {
  using Source = ValueSource<bf16, OfTwo>;
  static_assert(computes_by_halves<Source>());
  for (const Shape& s : {Shape{128, 128}, Shape{387, 264, 8}, Shape{262, 136}, Shape{37, 131, 3, 1}}) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast cast(s);
      Matrix<float> rows(1, s.rows, s.rows), columns(1, s.cols, s.cols);
      for (i64 r = 0; r < s.rows; ++r) rows.at(0, r) = 0.0F;
      for (i64 c = 0; c < s.cols; ++c) columns.at(0, c) = 0.0F;
      CastTilesParams params{.source = cast.source(),
                             .codes = {},
                             .transposed = {},
                             .result = nullptr,
                             .result_stride = 0,
                             .partial_sums = nullptr,
                             .pow2 = false};
      params.codes.amax = reinterpret_cast<u32*>(rows.data());
      params.transposed.amax = reinterpret_cast<u32*>(columns.data());
      const auto grid = CastTilesLaunch::grid(s.rows, s.cols);
      std::vector<ListedTile> tiles;
      for (u32 tile = 0; tile < grid; ++tile) tiles.push_back({0, tile});
      emulator::launch(cast_list_maxima<Source, CastConfig{.codes = kRowScale, .transposed = kColumnScale}>, grid,
                       CastTilesLaunch::kThreads, CastListParams{.casts = &params, .tiles = tiles.data()});
      BOOST_TEST((rows.guarded() && columns.guarded()));
      Matrix<float> row_maxima(1, s.rows, s.rows), column_maxima(1, s.cols, s.cols);
      for (i64 r = 0; r < s.rows; ++r) row_maxima.at(0, r) = 0.0F;
      for (i64 c = 0; c < s.cols; ++c) column_maxima.at(0, c) = 0.0F;
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 c = 0; c < s.cols; ++c) {
          const float value = to_float(Source::element(params.source, r, c));
          row_maxima.at(0, r) = std::max(row_maxima.at(0, r), value);
          column_maxima.at(0, c) = std::max(column_maxima.at(0, c), value);
        }
      }
      for (i64 r = 0; r < s.rows; ++r) BOOST_TEST(rows.at(0, r) == row_maxima.at(0, r), "row " << r);
      for (i64 c = 0; c < s.cols; ++c) BOOST_TEST(columns.at(0, c) == column_maxima.at(0, c), "column " << c);
    }
  }
}

// Scales of 1x128 groups; then one of the tensor. Values past the edges, which would be 1, must not count.
BOOST_AUTO_TEST_CASE(cast_row_groups_of_two_matrices) {
  using Source = ValueSource<bf16, OfTwo>;
  for (const Shape& s : {Shape{3, 128}, Shape{5, 264, 8}, Shape{2, 1160}, Shape{37, 131, 3, 1}}) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast cast(s);
      const i64 groups = ceil_div(s.cols, i64{128});
      Matrix<float> factors(s.rows, groups, groups);
      const u32 threads_log2 = CastRowGroupsLaunch::threads_log2(s.cols, sizeof(bf16));
      const SourceParams source = cast.source();
      emulator::launch(cast_row_groups<Source, e4m3fn, CastRowsConfig{.result = true}>,
                       CastRowsLaunch::grid(s.rows, threads_log2), CastRowsLaunch::threads(threads_log2),
                       CastRowGroupsParams{.source = source,
                                           .codes = cast.codes.data(),
                                           .factors = factors.data(),
                                           .result = cast.result.data(),
                                           .codes_stride = cast.codes.stride(),
                                           .result_stride = cast.result.stride(),
                                           .threads_log2 = threads_log2,
                                           .pow2 = false,
                                           .factor_steps = {.row = groups, .group = 1}});
      BOOST_TEST((cast.codes.guarded() && cast.result.guarded() && factors.guarded()));
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 group = 0; group < groups; ++group) {
          const i64 end = std::min(s.cols, (group + 1) * 128);
          float largest = 0;
          for (i64 c = group * 128; c < end; ++c) {
            largest = std::max(largest, to_float(Source::element(source, r, c)));
          }
          const float scale = scale_from_amax<e4m3fn>(largest, false);
          BOOST_REQUIRE_EQUAL(float_bits(factors.at(r, group)), float_bits(factor_from_scale(scale)));
          for (i64 c = group * 128; c < end; ++c) {
            const bf16 value = Source::element(source, r, c);
            BOOST_REQUIRE_EQUAL(cast.result.at(r, c).bits, value.bits);
            BOOST_REQUIRE_EQUAL(cast.codes.at(r, c).bits, quantize<e4m3fn>(to_float(value), scale).bits);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(cast_tiles_of_two_matrices) {
  using Source = ValueSource<bf16, OfTwo>;
  constexpr CastConfig kConfig{.codes = kTensorScale, .transposed = kTensorScale, .given_scales = true, .sum = true};
  static_assert(works_by_halves<Source, e4m3fn, kConfig>());
  for (const Shape& s : {Shape{128, 128}, Shape{387, 264, 8}, Shape{262, 136}, Shape{37, 131, 3, 1}}) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast cast(s);
      Matrix<float> scale(1, 1, 1), amax(1, 1, 1);
      scale.at(0, 0) = 300.0F;
      amax.at(0, 0) = 0.0F;
      const i64 tiles = ceil_div(s.rows, i64{128});
      Matrix<float> partial_sums(tiles, s.cols, s.cols);
      const SourceParams source = cast.source();
      emulator::launch(cast_tiles<Source, e4m3fn, kConfig>, CastTilesLaunch::grid(s.rows, s.cols),
                       CastTilesLaunch::kThreads, cast.tensor_scaled(scale, partial_sums, &amax));
      BOOST_TEST((cast.codes.guarded() && cast.transposed.guarded() && partial_sums.guarded()));
      float largest = 0;
      for (i64 c = 0; c < s.cols; ++c) {
        double sum = 0;
        for (i64 r = 0; r < s.rows; ++r) {
          const float value = to_float(Source::element(source, r, c));
          largest = std::max(largest, value);
          sum += static_cast<double>(value);
          const e4m3fn code = quantize<e4m3fn>(value, scale.at(0, 0));
          BOOST_REQUIRE_EQUAL(cast.codes.at(r, c).bits, code.bits);
          BOOST_REQUIRE_EQUAL(cast.transposed.at(c, r).bits, code.bits);
        }
        double found = 0;
        for (i64 tile = 0; tile < tiles; ++tile) found += static_cast<double>(partial_sums.at(tile, c));
        BOOST_TEST(std::fabs(found - sum) <= 1e-5 * sum, "column " << c << ": " << found << ", expected " << sum);
      }
      BOOST_TEST(amax.at(0, 0) == largest);
    }
  }
}

// In a tile of 64 rows, threads skip their part unless the values are written: f(0) would be their maximum.
template <u32 RowsLog2, bool Result, CastOutputConfig CodesScale, CastOutputConfig TransposedScale>
void check_whole_of_two_matrices() {
  using Source = ValueSource<bf16, OfTwo>;
  constexpr CastConfig kConfig{.codes = CodesScale, .transposed = TransposedScale, .result = Result, .unaligned = true};
  static_assert(cast_tile_plan<Source, e4m3fn, kConfig, true, true>().skips_idle == !Result);
  for (const Shape& s : {Shape{64, 128}, Shape{37, 104, 8}, Shape{61, 99, 3, 1}, Shape{7, 128}, Shape{1, 1}}) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      FusedCast cast(s);
      Matrix<bf16> values(s.rows, s.cols, s.cols);
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 c = 0; c < s.cols; ++c) values.at(r, c) = Source::element(cast.source(), r, c);
      }
      check_whole_tile<Source, e4m3fn, kConfig, RowsLog2>(values, cast.source(), s, false, false);
    }
  }
}
BOOST_AUTO_TEST_CASE(cast_whole_of_two_matrices) {
  check_whole_of_two_matrices<7, false, kTensorScale, kTensorScale>();
  check_whole_of_two_matrices<6, false, kTensorScale, kTensorScale>();
  check_whole_of_two_matrices<6, true, kTensorScale, kTensorScale>();
  check_whole_of_two_matrices<6, false, kRowScale, kColumnScale>();
  check_whole_of_two_matrices<6, true, kRowScale, kColumnScale>();
}

// Without x the input's data is null. The values stay f32.
BOOST_AUTO_TEST_CASE(fused_without_x_unrounded) {
  using Source = ValueSource<bf16, RenderedNoX, ValueConfig{.unrounded = true}>;
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  for (const Shape& s : kFusedShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols) {
      auto a = random_matrix<bf16>(s.rows, s.cols, s.cols + s.pad, s.shift);
      auto b = random_matrix<float>(1, s.rows, s.rows);
      Matrix<e5m2> got(s.cols, s.rows, s.rows + s.pad), expected = got;
      Matrix<float> got_factors(1, s.cols, s.cols), expected_factors = got_factors, amax = got_factors;
      for (i64 c = 0; c < s.cols; ++c) amax.at(0, c) = 0.0F;
      SourceParams source{.input = nullptr, .rows = s.rows, .cols = s.cols, .input_stride = s.cols, .operands = {}};
      source.operands[0] = {a.data(), a.stride()};
      source.operands[1] = {b.data(), b.stride()};
      emulator::launch(amax_tiles<Source, AmaxTilesConfig{.columns = true}>, AmaxTilesLaunch::grid(s.rows, s.cols, 2),
                       AmaxTilesLaunch::kThreads,
                       AmaxTilesParams{source, nullptr, nullptr, reinterpret_cast<u32*>(amax.data())});
      CastTilesParams params{.source = source,
                             .codes = {},
                             .transposed = {.codes = got.data(),
                                            .stride = got.stride(),
                                            .from = amax.data(),
                                            .from_count = 0,
                                            .factors = got_factors.data(),
                                            .amax = nullptr,
                                            .readers = nullptr},
                             .result = nullptr,
                             .result_stride = 0,
                             .partial_sums = nullptr,
                             .pow2 = true};
      emulator::launch(cast_tiles<Source, e5m2, CastConfig{.transposed = kColumnScale}>,
                       CastTilesLaunch::grid(s.rows, s.cols), CastTilesLaunch::kThreads, params);
      CastTensors tensors{.input = matrix(nullptr, Dtype::bf16, s.rows, s.cols, {}),
                          .transposed = tensor_of(expected, Dtype::e5m2, s.cols, s.rows),
                          .scale_inv = tensor_of(expected_factors, Dtype::f32, 1, s.cols)};
      tensors.inputs = {tensor_of(a, Dtype::bf16, s.rows, s.cols), tensor_of(b, Dtype::f32, 1, s.rows)};
      backend->cast(std::get<CastSpec>(parse("cast bf16->e5m2 of=max(a,0.1)*-b[row] scale=col out=transposed pow2 "
                                             "unrounded")),
                    tensors, stream);
      BOOST_TEST((got.guarded() && got_factors.guarded()));
      BOOST_TEST(same_bits(got, expected, s.cols, s.rows));
      BOOST_TEST(same_bits(got_factors, expected_factors, 1, s.cols));
    }
  }
}

// In tiles of every width, in place over an input, and with blocks that take two tiles.
BOOST_AUTO_TEST_CASE(elementwise_values) {
  using Source = ValueSource<bf16, RenderedSwigluBias, ValueConfig{.in_place = true}>;
  std::vector<Shape> shapes = kShapes;
  shapes.insert(shapes.end(), kFusedShapes.begin(), kFusedShapes.end());
  for (const Shape& s : shapes) {
    for (const int over : {0, 1, 2}) {
      BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift << ", over " << over) {
        FusedCast kernels(s), cpu(s);
        cpu.run_on_cpu("cast bf16->e4m3fn of=silu(x)*gate+bias[col]/mean[row] scale=row out=codes,result");
        Matrix<bf16>& output = over == 0 ? kernels.result : over == 1 ? kernels.x : kernels.gate;
        auto grid = ElementwiseLaunch::grid(s.rows, s.cols, sizeof(bf16));
        if (over == 1) grid.y = ceil_div(grid.y, i64{2});
        emulator::launch(elementwise<Source>,
                         {.grid = grid.x, .grid_y = grid.y, .threads = ElementwiseLaunch::kThreads},
                         ElementwiseParams{.source = kernels.source(),
                                           .output = output.data(),
                                           .output_stride = output.stride(),
                                           .across_log2 = ElementwiseLaunch::across_log2(s.cols)});
        BOOST_TEST(output.guarded());
        BOOST_TEST(same_bits(output, cpu.result, s.rows, s.cols));
      }
    }
  }
}

// The same with a second output: each output over one of the inputs, both over two, or with their own memory. And with
// the amax of both, with sums of rows, or with maxima of rows and columns, alone or with sums.
enum class BesidePairs : std::uint8_t { nothing, amax, row_sums, maxima, maxima_and_sums };

template <BesidePairs Beside>
void check_elementwise_pairs() {
  constexpr bool kAmax = Beside == BesidePairs::amax;
  constexpr bool kRowSums = Beside == BesidePairs::row_sums || Beside == BesidePairs::maxima_and_sums;
  constexpr bool kMaxima = Beside == BesidePairs::maxima || Beside == BesidePairs::maxima_and_sums;
  using Source = ValueSource<bf16, RenderedSwigluBias, ValueConfig{.in_place = true}>;
  auto spec =
      std::get<ElementwiseSpec>(parse("elementwise bf16 of=silu(x)*gate+bias[col]/mean[row] second=x*mean[row]-gate"));
  spec.amax = kAmax;
  if (kRowSums) spec.row_sum = spec.second;
  spec.maxima = kMaxima;
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream(*backend);
  std::vector<Shape> shapes = kShapes;
  shapes.insert(shapes.end(), kFusedShapes.begin(), kFusedShapes.end());
  for (const Shape& s : shapes) {
    for (const int over : {0, 1, 2, 3}) {
      BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift << ", over " << over) {
        FusedCast kernels(s), cpu(s);
        Matrix<bf16> own(s.rows, s.cols, s.cols + 3 * s.pad), expected = own;
        Matrix<float> amax(1, 1, 1), expected_amax = amax;
        amax.at(0, 0) = 0.0F;
        if (over != 0) {  // the last value of the second expression is the largest
          for (FusedCast* const of : {&kernels, &cpu}) {
            of->x.at(s.rows - 1, s.cols - 1) = from_float<bf16>(-100.0F);
            of->gate.at(s.rows - 1, s.cols - 1) = from_float<bf16>(1e30F);
            if (kMaxima && over == 3) of->x.at(0, s.cols / 2) = from_float<bf16>(std::nanf(""));
          }
        }
        ElementwiseTensors tensors{
            .input = tensor_of(cpu.x, Dtype::bf16, s.rows, s.cols),
            .inputs = {tensor_of(cpu.gate, Dtype::bf16, s.rows, s.cols), tensor_of(cpu.bias, Dtype::bf16, 1, s.cols),
                       tensor_of(cpu.mean, Dtype::f32, 1, s.rows)},
            .output = tensor_of(cpu.result, Dtype::bf16, s.rows, s.cols),
            .second = tensor_of(expected, Dtype::bf16, s.rows, s.cols)};
        Matrix<float> sums(1, s.rows, s.rows), expected_sums = sums;
        if (kAmax) tensors.amax = tensor_of(expected_amax, Dtype::f32, 1, 1);
        if (kRowSums) tensors.sums = tensor_of(expected_sums, Dtype::f32, 1, s.rows);
        Matrix<float> row_amax(1, s.rows, s.rows), expected_row_amax = row_amax;
        Matrix<float> column_amax(1, 2 * s.cols, 2 * s.cols), expected_column_amax = column_amax;
        for (i64 col = 0; col < 2 * s.cols; ++col) column_amax.at(0, col) = 0.0F;
        if (kMaxima) tensors.row_amax = tensor_of(expected_row_amax, Dtype::f32, 1, s.rows);
        if (kMaxima) tensors.column_amax = tensor_of(expected_column_amax, Dtype::f32, 1, 2 * s.cols);
        backend->elementwise(spec, tensors, stream);
        Matrix<bf16>& output = (over & 1) == 0 ? kernels.result : kernels.x;
        Matrix<bf16>& second = (over & 2) == 0 ? own : kernels.gate;
        auto grid = ElementwiseLaunch::grid(s.rows, s.cols, sizeof(bf16));
        if (over == 1) grid.y = ceil_div(grid.y, i64{2});
        const emulator::Shape shape{.grid = grid.x, .grid_y = grid.y, .threads = ElementwiseLaunch::kThreads};
        const ElementwisePairParams params{.first = {.source = kernels.source(),
                                                     .output = output.data(),
                                                     .output_stride = output.stride(),
                                                     .across_log2 = ElementwiseLaunch::across_log2(s.cols)},
                                           .second = second.data(),
                                           .second_stride = second.stride()};
        using Output = ElementwisePairOutput<Source, RenderedBesideSwigluBias>;
        const ElementwiseRowsParams<ElementwisePairParams> with_sums{params, sums.data(),
                                                                     ElementwiseRowsLaunch::threads_log2(s.cols)};
        if constexpr (kMaxima) {
          using Launch = ElementwiseMaximaLaunch;
          using Summed = std::conditional_t<kRowSums, RenderedBesideSwigluBias, NothingSummed>;
          const i64 rows_per_block = Launch::rows_per_block(s.rows, s.cols, 3);
          emulator::launch(elementwise_maxima<Output, Summed>,
                           {.grid = Launch::grid(s.rows, rows_per_block),
                            .threads = Launch::kThreads,
                            .shared_bytes = static_cast<u32>(Launch::shared_bytes(s.cols, sizeof(bf16), 2))},
                           ElementwiseMaximaParams<ElementwisePairParams>{
                               with_sums, row_amax.data(), reinterpret_cast<u32*>(column_amax.data()), rows_per_block});
          BOOST_TEST(same_bits(row_amax, expected_row_amax, 1, s.rows));
          BOOST_TEST(same_bits(column_amax, expected_column_amax, 1, 2 * s.cols));
          if (kRowSums) BOOST_TEST(same_bits(sums, expected_sums, 1, s.rows));
        } else if constexpr (kRowSums) {
          emulator::launch(
              elementwise_rows<Output, RenderedBesideSwigluBias>,
              {.grid = ElementwiseRowsLaunch::grid(s.rows, s.cols), .threads = ElementwiseRowsLaunch::kThreads},
              with_sums);
          BOOST_TEST(same_bits(sums, expected_sums, 1, s.rows));
        } else if constexpr (kAmax) {
          emulator::launch(elementwise_amax<Output>, shape,
                           ElementwiseAmaxParams<ElementwisePairParams>{params, reinterpret_cast<u32*>(amax.data())});
          BOOST_TEST(same_bits(amax, expected_amax, 1, 1));
        } else {
          emulator::launch(elementwise_pair<Source, RenderedBesideSwigluBias>, shape, params);
        }
        BOOST_TEST((output.guarded() && second.guarded() && amax.guarded() && sums.guarded()));
        BOOST_TEST((row_amax.guarded() && column_amax.guarded()));
        BOOST_TEST(same_bits(output, cpu.result, s.rows, s.cols));
        BOOST_TEST(same_bits(second, expected, s.rows, s.cols));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(elementwise_pairs) { check_elementwise_pairs<BesidePairs::nothing>(); }
BOOST_AUTO_TEST_CASE(elementwise_pairs_and_their_amax) { check_elementwise_pairs<BesidePairs::amax>(); }
BOOST_AUTO_TEST_CASE(elementwise_pairs_and_sums_of_rows) { check_elementwise_pairs<BesidePairs::row_sums>(); }
BOOST_AUTO_TEST_CASE(elementwise_pairs_and_their_maxima) { check_elementwise_pairs<BesidePairs::maxima>(); }
BOOST_AUTO_TEST_CASE(elementwise_pairs_their_maxima_and_sums) {
  check_elementwise_pairs<BesidePairs::maxima_and_sums>();
}

// f32 without x: the input's data is null.
BOOST_AUTO_TEST_CASE(elementwise_without_x) {
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      auto a = random_matrix<float>(s.rows, s.cols, s.cols + s.pad, s.shift);
      auto b = random_matrix<float>(1, s.rows, s.rows);
      Matrix<float> output(s.rows, s.cols, s.cols + s.pad);
      SourceParams source{.input = nullptr, .rows = s.rows, .cols = s.cols, .input_stride = s.cols, .operands = {}};
      source.operands[0] = {a.data(), a.stride()};
      source.operands[1] = {b.data(), b.stride()};
      const auto grid = ElementwiseLaunch::grid(s.rows, s.cols, sizeof(f32));
      emulator::launch(elementwise<ValueSource<f32, RenderedNoX, ValueConfig{.in_place = true}>>,
                       {.grid = grid.x, .grid_y = grid.y, .threads = ElementwiseLaunch::kThreads},
                       ElementwiseParams{.source = source,
                                         .output = output.data(),
                                         .output_stride = output.stride(),
                                         .across_log2 = ElementwiseLaunch::across_log2(s.cols)});
      BOOST_TEST(output.guarded());
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 c = 0; c < s.cols; ++c) {
          BOOST_REQUIRE_EQUAL(output.at(r, c), std::max(a.at(r, c), 0.1F) * -b.at(0, r));
        }
      }
    }
  }
}

// A vector of f32 with one of bf16: x * f[col:f32] + b[col], by itself and before casts in rows and in tiles.
BOOST_AUTO_TEST_CASE(columns_of_f32) {
  using Source = ValueSource<bf16, RenderedFactors>;
  const float scale = 3.0F;
  for (const Shape& s : kShapes) {
    BOOST_TEST_CONTEXT(s.rows << " x " << s.cols << " + " << s.pad << ", shift " << s.shift) {
      auto x = random_matrix<bf16>(s.rows, s.cols, s.cols + s.pad, s.shift);
      auto f = random_matrix<float>(1, s.cols, s.cols);
      auto b = random_matrix<bf16>(1, s.cols, s.cols);
      SourceParams source = source_of(x, s.rows, s.cols);
      source.operands[0] = {f.data(), f.stride()};
      source.operands[1] = {b.data(), b.stride()};
      Matrix<bf16> alone(s.rows, s.cols, s.cols + s.pad), in_rows = alone, in_tiles = alone;
      Matrix<e4m3fn> codes(s.rows, s.cols, s.cols + s.pad), tile_codes = codes;
      Matrix<float> factors(1, s.rows, s.rows), given(1, 1, 1), factor = given, amax = given;
      given.at(0, 0) = scale;
      amax.at(0, 0) = 0.0F;
      const auto grid = ElementwiseLaunch::grid(s.rows, s.cols, sizeof(bf16));
      emulator::launch(elementwise<ValueSource<bf16, RenderedFactors, ValueConfig{.in_place = true}>>,
                       {.grid = grid.x, .grid_y = grid.y, .threads = ElementwiseLaunch::kThreads},
                       ElementwiseParams{.source = source,
                                         .output = alone.data(),
                                         .output_stride = alone.stride(),
                                         .across_log2 = ElementwiseLaunch::across_log2(s.cols)});
      const u32 threads_log2 = CastRowsLaunch::threads_log2(s.cols, sizeof(bf16));
      emulator::launch(cast_rows<Source, e4m3fn, CastRowsConfig{.result = true}>,
                       CastRowsLaunch::grid(s.rows, threads_log2), CastRowsLaunch::threads(threads_log2),
                       CastRowsParams{.source = source,
                                      .codes = codes.data(),
                                      .factors = factors.data(),
                                      .result = in_rows.data(),
                                      .codes_stride = codes.stride(),
                                      .result_stride = in_rows.stride(),
                                      .maxima = nullptr,
                                      .threads_log2 = threads_log2,
                                      .pow2 = false});
      emulator::launch(
          cast_tiles<Source, e4m3fn, CastConfig{.codes = kTensorScale, .given_scales = true, .result = true}>,
          CastTilesLaunch::grid(s.rows, s.cols), CastTilesLaunch::kThreads,
          CastTilesParams{.source = source,
                          .codes = {.codes = tile_codes.data(),
                                    .stride = tile_codes.stride(),
                                    .from = given.data(),
                                    .from_count = 1,
                                    .factors = factor.data(),
                                    .amax = reinterpret_cast<u32*>(amax.data()),
                                    .readers = nullptr},
                          .transposed = {},
                          .result = in_tiles.data(),
                          .result_stride = in_tiles.stride(),
                          .partial_sums = nullptr,
                          .pow2 = false});
      BOOST_TEST((alone.guarded() && in_rows.guarded() && in_tiles.guarded() && tile_codes.guarded()));
      for (i64 r = 0; r < s.rows; ++r) {
        for (i64 c = 0; c < s.cols; ++c) {
          const float sum = std::fma(to_float(x.at(r, c)), f.at(0, c), to_float(b.at(0, c)));
          const float expected = to_float(from_float<bf16>(sum));
          BOOST_REQUIRE_EQUAL(to_float(alone.at(r, c)), expected);
          BOOST_REQUIRE_EQUAL(to_float(in_rows.at(r, c)), expected);
          BOOST_REQUIRE_EQUAL(to_float(in_tiles.at(r, c)), expected);
          BOOST_REQUIRE_EQUAL(tile_codes.at(r, c).bits, quantize<e4m3fn>(expected, scale).bits);
        }
      }
    }
  }
}

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
  const ColumnSumParams p{x.data(), 40, 4, 4, partials.data()};
  emulator::launch(column_sum_partials<f32>, ColumnSumPartialsLaunch::grid(40, 4, 4), ColumnSumPartialsLaunch::kThreads,
                   p);
  emulator::launch(column_sum_finish<f32>, ColumnSumFinishLaunch::grid(4), ColumnSumFinishLaunch::kThreads,
                   ColumnSumFinishParams{partials.data(), chunk_count(40), 4, sum.data(), 4, nullptr});
  BOOST_TEST(float_bits(sum.at(0, 2)) == kF32Nan);
}

BOOST_AUTO_TEST_CASE(gemm) {
  check_gemm<e4m3fn, e5m2, bf16>(65, 70, 37, true, true, true, true);
  check_gemm<e4m3fnuz, e4m3fnuz, f32>(3, 129, 16, true, false, true, true);
  check_gemm<bf16, bf16, f16>(64, 64, 33, false, true, false, false);
  check_gemm<f32, f32, f32>(1, 1, 1, false, false, false, true);
  check_gemm<e5m2, e5m2, bf16>(17, 5, 0, true, true, true, true);
  check_grouped_gemm(70, 131, 300, 128, false, false);
  check_grouped_gemm(70, 131, 256, 1, false, false);
  check_grouped_gemm(5, 7, 33, 1, false, false);
  check_grouped_gemm(70, 131, 300, 128, true, false);
  check_grouped_gemm(67, 261, 129, 128, false, true);
  check_grouped_gemm(70, 131, 257, 1, true, true);
}

BOOST_AUTO_TEST_SUITE_END()
