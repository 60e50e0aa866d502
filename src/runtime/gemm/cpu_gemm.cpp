// out(m, n) = round(epilogue((sum_k a(m, k) * b(n, k)) * scale_inv_a * scale_inv_b + bias)), the definition that the
// GPU's fallback kernel (templates/gemm/gemm_simt.cuh) shares to the bit:
//   sum = 0; for k ascending: sum = sum + a * b     product rounded to f32, then the sum (no fma)
//   out = round(epilogue(((sum * scale_inv_a) * scale_inv_b) + bias))
// With scale_inv of groups, each 128 of k has its own sum, which starts at 0:
//   total = 0; for groups ascending: total = total + sum * (scale_inv_a * scale_inv_b)     each step rounded
//   out = round(epilogue(total + bias))
// The blocking below moves data and changes no result: a sum stays in f32 between blocks of k, which come in order.
#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/gemm/gemm_kernel.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "numerics.cuh"
#include "scaling.cuh"

namespace ingot::cpu {
namespace {

// Blocks of the output and of k: 512 x 512 floats of B stay in the second-level cache.
constexpr i64 kBlockRows = 1536;
constexpr i64 kBlockCols = 512;
constexpr i64 kBlockDepth = 512;
constexpr i64 kGroupSize = 128;  // of k, and of n
static_assert(kBlockRows % kTileRows == 0 && kBlockCols % kTileCols == 0);

i64 round_up(i64 value, i64 multiple) { return ceil_div(value, multiple) * multiple; }

// Converts elements to f32; FP8 codes through a table of all codes.
template <class T>
class Decoder {
 public:
  float operator()(T element) const { return to_float(element); }
};

template <Fp8Format T>
class Decoder<T> {
 public:
  Decoder() {
    for (u32 code = 0; code < 256; ++code) values_[code] = decode(T{static_cast<u8>(code)});
  }
  float operator()(T element) const { return values_[element.bits]; }

 private:
  std::array<float, 256> values_;
};

// An operand indexed as element (i, k), where i is m for A and n for B.
struct Operand {
  const Tensor* tensor;
  Layout layout;
};

struct Range {
  i64 begin;
  i64 size;
};

// Copies elements (i, k) of the ranges to panels[i / Width][k][i % Width], as f32; past the end of i, zeros, whose sums
// are never read.
template <i64 Width>
void pack(const Operand& operand, Range i_range, Range k_range, float* panels, ThreadPool& pool) {
  visit_dtype(operand.tensor->dtype, [&]<class T>(Type<T>) {
    const Decoder<T> to_f32;
    const bool k_major = operand.layout == Layout::k_major;
    const T* const data = static_cast<const T*>(operand.tensor->data);
    const i64 i_stride = k_major ? operand.tensor->row_stride : 1;
    const i64 k_stride = k_major ? 1 : operand.tensor->row_stride;
    pool.parallel_for(ceil_div(i_range.size, Width), 8, [&](i64 begin, i64 end) {
      for (i64 p = begin; p < end; ++p) {
        float* const panel = panels + p * Width * k_range.size;
        const i64 filled = std::min(Width, i_range.size - p * Width);
        if (filled < Width) std::fill_n(panel, Width * k_range.size, 0.0F);
        const T* const first = data + (i_range.begin + p * Width) * i_stride + k_range.begin * k_stride;
        for (i64 k = 0; k < k_range.size; ++k) {
          for (i64 i = 0; i < filled; ++i) panel[k * Width + i] = to_f32(first[i * i_stride + k * k_stride]);
        }
      }
    });
  });
}

// Adds the sums of one group of k, times its scale_inv, to the totals.
void add_group(const GemmSpec& spec, const GemmTensors& tensors, float* sums, float* totals, i64 stride, Range rows,
               Range cols, i64 first_k, ThreadPool& pool) {
  const i64 k = gemm_size(spec, tensors).k;
  const ScaleInvStrides strides_a = scale_inv_strides(tensors.scale_inv_a, spec.scale_a, k);
  const ScaleInvStrides strides_b = scale_inv_strides(tensors.scale_inv_b, spec.scale_b, k);
  const i64 group = first_k / kGroupSize;
  const auto* const scale_inv_a = row<const float>(tensors.scale_inv_a, 0) + group * strides_a.group;
  const auto* const scale_inv_b = row<const float>(tensors.scale_inv_b, 0) + group * strides_b.group;
  pool.parallel_for(rows.size, 64, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const float factor_a = scale_inv_a[(rows.begin + r) * strides_a.row];
      for (i64 c = 0; c < cols.size; ++c) {
        const i64 n = cols.begin + c;
        const float factor_b = scale_inv_b[n / spec.scale_b.rows * strides_b.row];
        totals[r * stride + c] = totals[r * stride + c] + sums[r * stride + c] * (factor_a * factor_b);
      }
    }
  });
}

// Epilogue of a block: scale_inv, bias, the expression (GemmEpilogue in codegen/kernel_spec.h), one rounding.
class Finish {
 public:
  Finish(const GemmSpec& spec, const GemmTensors& tensors)
      : spec_(spec),
        tensors_(tensors),
        grouped_(has_group_scale_inv(spec)),
        program_(spec.epilogue.pointwise, PointwisePrecision::reproducible32),
        scale_(is_fp8(spec.out) ? *row<const float>(tensors.scale, 0) : 1.0F) {}

  // Finishes the sums of these rows and columns.
  void run(const float* sums, i64 stride, Range rows, Range cols, ThreadPool& pool) {
    pool.parallel_for(rows.size, 64, [&](i64 begin, i64 end) {
      std::vector<float> values(static_cast<std::size_t>(cols.size));
      std::array<std::vector<float>, kMaxPointwiseInputs> inputs;
      u32 largest = 0;
      for (i64 r = begin; r < end; ++r) {
        values.assign(sums + r * stride, sums + r * stride + cols.size);
        const i64 m = rows.begin + r;
        scale(m, cols, values);
        if (spec_.epilogue.c && tensors_.beta != 0) add_c(m, cols, values);
        if (spec_.epilogue.preactivation) keep(m, cols, values);
        if (spec_.epilogue.pointwise) apply(m, cols, values, inputs);
        largest = std::max(largest, write(m, cols, values));
      }
      const std::lock_guard lock(merging_);
      largest_ = std::max(largest_, largest);
    });
  }

  // Call this after all blocks.
  void end() const {
    if (is_fp8(spec_.out)) *row<float>(tensors_.scale_inv, 0) = factor_from_scale(scale_);
    if (!spec_.epilogue.amax) return;
    float& amax = *row<float>(tensors_.amax, 0);
    amax = amax_from_bits(std::max(float_bits(amax), largest_));
  }

 private:
  using Values = std::vector<float>;

  void scale(i64 m, Range cols, Values& values) const {
    const float scale_inv_a = factor(tensors_.scale_inv_a, spec_.scale_a, m);
    for (i64 c = 0; c < cols.size; ++c) {
      float& value = values[static_cast<std::size_t>(c)];
      value = (value * scale_inv_a) * factor(tensors_.scale_inv_b, spec_.scale_b, cols.begin + c);
    }
    if (!spec_.bias) return;
    visit_high_precision(bias_dtype(spec_), [&]<class Bias>(Type<Bias>) {
      const Bias* const bias = row<const Bias>(tensors_.bias, 0) + cols.begin;
      for (std::size_t c = 0; c < values.size(); ++c) values[c] = values[c] + to_float(bias[c]);
    });
  }

  float factor(const Tensor& scale_inv, ScaleGranularity granularity, i64 i) const {
    if (scale_inv.data == nullptr || grouped_) return 1.0F;  // a high-precision operand, or in the totals already
    return row<const float>(scale_inv, 0)[granularity == kTensorwise ? 0 : i];
  }

  void add_c(i64 m, Range cols, Values& values) const {
    visit_high_precision(*spec_.epilogue.c, [&]<class C>(Type<C>) {
      const C* const added = row<const C>(tensors_.c, m) + cols.begin;
      for (std::size_t c = 0; c < values.size(); ++c) values[c] = values[c] + tensors_.beta * to_float(added[c]);
    });
  }

  void apply(i64 m, Range cols, Values& values, std::array<Values, kMaxPointwiseInputs>& buffers) const {
    const auto kinds = spec_.epilogue.pointwise.inputs();
    std::array<PointwiseValues, kMaxPointwiseInputs> inputs;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      inputs[i] = {nullptr, kinds[i].kind == PointwiseInput::Kind::row};
      if (inputs[i].same) {
        buffers[i].assign(1, row<const float>(tensors_.inputs[i], 0)[m]);
      } else {
        buffers[i].resize(values.size());
        visit_high_precision(epilogue_dtype(spec_), [&]<class In>(Type<In>) {
          const i64 of_row = kinds[i].kind == PointwiseInput::Kind::column ? 0 : m;
          const In* const elements = row<const In>(tensors_.inputs[i], of_row) + cols.begin;
          for (std::size_t c = 0; c < values.size(); ++c) buffers[i][c] = to_float(elements[c]);
        });
      }
      inputs[i].values = buffers[i].data();
    }
    program_.run(values.size(), values.data(), std::span(inputs).first(kinds.size()), values.data());
  }

  void keep(i64 m, Range cols, const Values& values) const {
    visit_high_precision(epilogue_dtype(spec_), [&]<class T>(Type<T>) {
      T* const kept = row<T>(tensors_.preactivation, m) + cols.begin;
      for (std::size_t c = 0; c < values.size(); ++c) kept[c] = from_float<T>(values[c]);
    });
  }

  // The largest |value| for the amax.
  u32 write(i64 m, Range cols, Values& values) const {
    visit_dtype(spec_.out, [&]<class Out>(Type<Out>) {
      Out* const out = row<Out>(tensors_.out, m) + cols.begin;
      for (std::size_t c = 0; c < values.size(); ++c) {
        if constexpr (Fp8Format<Out>) {
          out[c] = quantize<Out>(values[c], scale_);
        } else {
          out[c] = from_float<Out>(values[c]);
          values[c] = to_float(out[c]);
        }
      }
    });
    u32 largest = 0;
    for (const float value : values) largest = std::max(largest, amax_bits(value));
    return largest;
  }

  const GemmSpec& spec_;
  const GemmTensors& tensors_;
  bool grouped_;
  PointwiseProgram program_;
  float scale_;
  std::mutex merging_;
  u32 largest_ = 0;
};

}  // namespace

void gemm(const GemmSpec& spec, const GemmTensors& tensors, ThreadPool& pool) {
  const MatmulSize size = gemm_size(spec, tensors);
  const i64 most_rows = std::min(kBlockRows, round_up(size.m, kTileRows));
  const i64 most_cols = std::min(kBlockCols, round_up(size.n, kTileCols));
  const bool grouped = has_group_scale_inv(spec);
  const i64 block_depth = grouped ? kGroupSize : kBlockDepth;
  const i64 most_depth = std::min(block_depth, i64{size.k});
  Finish finish(spec, tensors);
  std::vector<float> sums(static_cast<std::size_t>(most_rows * most_cols));
  std::vector<float> totals(grouped ? sums.size() : 0);
  std::vector<float> a_panels(static_cast<std::size_t>(most_rows * most_depth));
  std::vector<float> b_panels(static_cast<std::size_t>(most_cols * most_depth));

  for (i64 m0 = 0; m0 < size.m; m0 += kBlockRows) {
    for (i64 n0 = 0; n0 < size.n; n0 += kBlockCols) {
      const Range rows{m0, std::min(kBlockRows, size.m - m0)};
      const Range cols{n0, std::min(kBlockCols, size.n - n0)};
      const i64 col_tiles = ceil_div(cols.size, kTileCols);
      std::fill(sums.begin(), sums.end(), 0.0F);
      std::fill(totals.begin(), totals.end(), 0.0F);
      for (i64 k0 = 0; k0 < size.k; k0 += block_depth) {
        const Range depth{k0, std::min(block_depth, size.k - k0)};
        pack<kTileRows>({&tensors.a, spec.layout_a}, rows, depth, a_panels.data(), pool);
        pack<kTileCols>({&tensors.b, spec.layout_b}, cols, depth, b_panels.data(), pool);
        pool.parallel_for(ceil_div(rows.size, kTileRows) * col_tiles, 16, [&](i64 begin, i64 end) {
          for (i64 tile = begin; tile < end; ++tile) {
            const i64 i = tile / col_tiles;
            const i64 j = tile % col_tiles;
            multiply_tile(depth.size, a_panels.data() + i * kTileRows * depth.size,
                          b_panels.data() + j * kTileCols * depth.size,
                          sums.data() + i * kTileRows * most_cols + j * kTileCols, most_cols);
          }
        });
        if (!grouped) continue;
        add_group(spec, tensors, sums.data(), totals.data(), most_cols, rows, cols, k0, pool);
        std::fill(sums.begin(), sums.end(), 0.0F);
      }
      finish.run(grouped ? totals.data() : sums.data(), most_cols, rows, cols, pool);
    }
  }
  finish.end();
}

namespace {

// The inner loop of the CPU's GEMM, compiled for two vector widths and chosen for the processor at hand. Both give the
// same bits: the vectors run along j, so that each sum is its own chain of scalar operations, and -ffp-contract=off
// keeps products and sums apart.

template <int Lanes>
struct FloatVector;
template <>
struct FloatVector<4> {
  using Type = float __attribute__((vector_size(16)));
};
template <>
struct FloatVector<8> {
  using Type = float __attribute__((vector_size(32)));
};

// multiply_tile() for the first `Rows` rows. The sums of a tile must stay in registers, which requires constant
// indices: hence a parameter pack (I = row * vectors + vector) instead of a loop. Inlined, so that it is compiled for
// the caller's instruction set.
template <int Lanes, int... I>
[[gnu::always_inline]] inline void multiply_rows(std::integer_sequence<int, I...> /*sums of the tile*/, i64 depth,
                                                 const float* a, const float* b, float* sums, i64 stride) {
  constexpr int kVectors = static_cast<int>(kTileCols) / Lanes;
  using V = typename FloatVector<Lanes>::Type;
  V tile[sizeof...(I)];
  (__builtin_memcpy(&tile[I], sums + I / kVectors * stride + I % kVectors * Lanes, sizeof(V)), ...);
  for (i64 k = 0; k < depth; ++k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&right[v], b + k * kTileCols + v * Lanes, sizeof(V));
    ((tile[I] += a[k * kTileRows + I / kVectors] * right[I % kVectors]), ...);
  }
  (__builtin_memcpy(sums + I / kVectors * stride + I % kVectors * Lanes, &tile[I], sizeof(V)), ...);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void multiply_tile_avx2(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
  multiply_rows<8>(std::make_integer_sequence<int, kTileRows * kTileCols / 8>{}, depth, a, b, sums, stride);
}
#endif

}  // namespace

void multiply_tile_portable(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
  // Sixteen registers of four lanes hold half a tile.
  constexpr i64 kRows = kTileRows / 2;
  for (i64 i = 0; i < kTileRows; i += kRows) {
    multiply_rows<4>(std::make_integer_sequence<int, kRows * kTileCols / 4>{}, depth, a + i, b, sums + i * stride,
                     stride);
  }
}

void multiply_tile(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return multiply_tile_avx2(depth, a, b, sums, stride);
#endif
  multiply_tile_portable(depth, a, b, sums, stride);
}

// Codes copied or transposed, one at a time.
void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, ThreadPool& pool) {
  const Tensor& output = tensors.output;
  // Of one matrix.
  const i64 rows = tensors.input.rows / tensors.matrices;
  const i64 cols = tensors.input.cols;
  pool.parallel_for(output.rows, 64, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      auto* const to = row<u8>(output, r);
      for (i64 c = 0; c < output.cols; ++c) {
        to[c] = spec.transposed ? row<const u8>(tensors.input, r / cols * rows + c)[r % cols]
                                : row<const u8>(tensors.input, r)[c];
      }
    }
  });
}

}  // namespace ingot::cpu
