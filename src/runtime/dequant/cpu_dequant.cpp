// out(m, n) = round(epilogue(scale_inv * sum_k x(m, k) * value(w(n, k)) + bias)), by its definition:
//   sum = 0; for k ascending: sum = sum + x * value     product rounded to f32, then the sum (no fma)
//   out = round(epilogue(sum * scale_inv + bias))
// With scale_inv of groups, each group of K has its own sum, which starts at 0:
//   total = 0; for groups ascending: total = total + sum * scale_inv     each step rounded
//   out = round(epilogue(total + bias))
// Nothing depends on M, on the layout of the weight or on the threads, so that every spec is batch-invariant here. A
// packed weight is read code by code; the faults stored after the codes are not needed, because a NaN code is NaN here.
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>
#include "dequant/dequant_codes.cuh"
#include "dequant/pack_weight.cuh"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/visit_weight.h"
#include "ingot/runtime/gemm/gemm_kernel.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "numerics.cuh"

namespace ingot::cpu {
namespace {

// Blocks of the output, and of k if it has no groups. All are multiples of 32, like the tiles of a packed weight.
constexpr i64 kBlockRows = 768;
constexpr i64 kBlockCols = 512;
constexpr i64 kBlockDepth = 256;
static_assert(kBlockRows % kTileRows == 0 && kBlockCols % kTileCols == 0 && kTileCols == 16);

struct Range {
  i64 begin;
  i64 size;
};

// x as panels[row / kTileRows][k][row % kTileRows]; past the last row, zeros, whose sums are never read.
void pack_x(const Tensor& x, Range rows, Range depth, float* panels, ThreadPool& pool) {
  visit_high_precision(x.dtype, [&]<class X>(Type<X>) {
    pool.parallel_for(ceil_div(rows.size, kTileRows), 8, [&](i64 begin, i64 end) {
      for (i64 p = begin; p < end; ++p) {
        float* const panel = panels + p * kTileRows * depth.size;
        const i64 filled = std::min(kTileRows, rows.size - p * kTileRows);
        std::fill_n(panel, kTileRows * depth.size, 0.0F);
        for (i64 r = 0; r < filled; ++r) {
          const X* const elements = row<const X>(x, rows.begin + p * kTileRows + r) + depth.begin;
          for (i64 k = 0; k < depth.size; ++k) panel[k * kTileRows + r] = to_float(elements[k]);
        }
      }
    });
  });
}

// The weight's rows of one panel, [k][16], which is zeros.
template <class W>
class WeightReader {
 public:
  WeightReader(const Tensor& weight, WeightLayout layout, const MatmulSize& size)
      : data_(static_cast<const u8*>(weight.data)),
        row_bytes_(code_row_bytes<W>(weight.row_stride)),
        layout_(code_layout(layout)),
        size_(size) {
    for (u32 code = 0; code < values_.size(); ++code) values_[code] = decode(W{static_cast<u8>(code)});
  }

  void read(i64 first_row, Range depth, float* panel) const {
    const i64 filled = std::min(kTileCols, size_.n - first_row);
    if (layout_ != CodeLayout::row_major) {
      for (i64 k = 0; k < depth.size; k += kDequantDepth) read_packed(first_row, depth, k, panel);
      return;
    }
    for (i64 r = 0; r < filled; ++r) {
      const u8* const codes = data_ + (first_row + r) * row_bytes_;
      for (i64 k = 0; k < depth.size; ++k) panel[k * kTileCols + r] = values_[code_at<W>(codes, depth.begin + k)];
    }
  }

 private:
  // 16 rows are a warp's; those past the last one are zeros in the weight itself.
  void read_packed(i64 first_row, Range depth, i64 k, float* panel) const {
    const u32 warp = static_cast<u32>(first_row / 16 % 4);
    const u8* const tile =
        data_ + packed_tile_offset<W>(static_cast<u64>(first_row) / kDequantRows,
                                      static_cast<u64>(depth.begin + k) / kDequantDepth, static_cast<u64>(size_.k));
    for (u32 lane = 0; lane < 32; ++lane) {
      u32 words[Fragment<W>::kWords];
      u8 codes[16];
      __builtin_memcpy(words, tile + packed_fragment_offset<W>(warp, lane), sizeof(words));
      unpack_fragment<W>(layout_, words, codes);
      for (u32 i = 0; i < 16; ++i) {
        const FragmentPosition at = fragment_position(0, lane, i);
        if (k + at.k < depth.size) panel[(k + at.k) * kTileCols + at.row] = values_[codes[i]];
      }
    }
  }

  const u8* data_;
  i64 row_bytes_;
  CodeLayout layout_;
  MatmulSize size_;
  std::array<float, 256> values_{};
};

void pack_weight_panels(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Range cols, Range depth,
                        float* panels, ThreadPool& pool) {
  visit_weight(spec.weight, [&]<class W>(Type<W>) {
    const WeightReader<W> reader(tensors.weight, spec.layout, dequant_size(tensors));
    pool.parallel_for(ceil_div(cols.size, kTileCols), 4, [&](i64 begin, i64 end) {
      for (i64 p = begin; p < end; ++p) {
        float* const panel = panels + p * kTileCols * depth.size;
        std::fill_n(panel, kTileCols * depth.size, 0.0F);
        reader.read(cols.begin + p * kTileCols, depth, panel);
      }
    });
  });
}

float factor_at(const Tensor& scale_inv, i64 index) {
  return scale_inv.dtype == Dtype::f32 ? row<const float>(scale_inv, 0)[index]
                                       : decode(row<const e8m0fnu>(scale_inv, 0)[index]);
}

// The scale_inv of the weight's rows `cols` in one group of K.
std::vector<float> scale_inv_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Range cols, i64 k) {
  const ScaleInvStrides strides = scale_inv_strides(spec.scale, dequant_size(tensors).k);
  std::vector<float> scale_inv(static_cast<std::size_t>(cols.size));
  for (i64 c = 0; c < cols.size; ++c) {
    const i64 of_row = spec.scale.rows == 0 ? 0 : (cols.begin + c) / spec.scale.rows * strides.row;
    const i64 of_group = spec.scale.cols == 0 ? 0 : k / spec.scale.cols * strides.group;
    scale_inv[static_cast<std::size_t>(c)] = factor_at(tensors.scale_inv, of_row + of_group);
  }
  return scale_inv;
}

// Epilogue of a block: scale_inv, bias, the expression, one rounding.
class Finish {
 public:
  Finish(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors)
      : spec_(spec), tensors_(tensors), program_(spec.pointwise, PointwisePrecision::reproducible32) {}

  // scale_inv: scale_inv; empty if the sums include them.
  void run(const float* sums, i64 stride, Range rows, Range cols, const std::vector<float>& scale_inv,
           ThreadPool& pool) const {
    pool.parallel_for(rows.size, 16, [&](i64 begin, i64 end) {
      Values values;
      std::array<Values, kMaxPointwiseInputs> buffers;
      for (i64 r = begin; r < end; ++r) {
        values.assign(sums + r * stride, sums + r * stride + cols.size);
        for (std::size_t c = 0; c < scale_inv.size(); ++c) values[c] = values[c] * scale_inv[c];
        if (spec_.bias) add_bias(cols, values);
        if (spec_.pointwise) apply(rows.begin + r, cols, values, buffers);
        visit_high_precision(spec_.out, [&]<class Out>(Type<Out>) {
          std::transform(values.begin(), values.end(), row<Out>(tensors_.out, rows.begin + r) + cols.begin,
                         from_float<Out>);
        });
      }
    });
  }

 private:
  using Values = std::vector<float>;

  void add_bias(Range cols, Values& values) const {
    visit_high_precision(spec_.x, [&]<class X>(Type<X>) {
      const X* const bias = row<const X>(tensors_.bias, 0) + cols.begin;
      for (std::size_t c = 0; c < values.size(); ++c) values[c] = values[c] + to_float(bias[c]);
    });
  }

  void apply(i64 m, Range cols, Values& values, std::array<Values, kMaxPointwiseInputs>& buffers) const {
    const auto kinds = spec_.pointwise.inputs();
    std::array<PointwiseValues, kMaxPointwiseInputs> inputs;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      inputs[i] = {nullptr, kinds[i].kind == PointwiseInput::Kind::row};
      if (inputs[i].same) {
        buffers[i].assign(1, row<const float>(tensors_.inputs[i], 0)[m]);
      } else {
        buffers[i].resize(values.size());
        visit_high_precision(spec_.x, [&]<class X>(Type<X>) {
          const i64 of_row = kinds[i].kind == PointwiseInput::Kind::column ? 0 : m;
          const X* const elements = row<const X>(tensors_.inputs[i], of_row) + cols.begin;
          for (std::size_t c = 0; c < values.size(); ++c) buffers[i][c] = to_float(elements[c]);
        });
      }
      inputs[i].values = buffers[i].data();
    }
    program_.run(values.size(), values.data(), std::span(inputs).first(kinds.size()), values.data());
  }

  const DequantMatmulSpec& spec_;
  const DequantMatmulTensors& tensors_;
  PointwiseProgram program_;
};

void add_group(const float* sums, const std::vector<float>& scale_inv, float* totals, i64 stride, i64 rows,
               ThreadPool& pool) {
  pool.parallel_for(rows, 64, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      for (std::size_t c = 0; c < scale_inv.size(); ++c) {
        float& total = totals[r * stride + static_cast<i64>(c)];
        total = total + sums[r * stride + static_cast<i64>(c)] * scale_inv[c];
      }
    }
  });
}

i64 round_up(i64 value, i64 multiple) { return ceil_div(value, multiple) * multiple; }

void multiply(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, ThreadPool& pool) {
  const MatmulSize size = dequant_size(tensors);
  const bool grouped = spec.scale.cols != 0;
  const i64 most_rows = std::min(kBlockRows, round_up(size.m, kTileRows));
  const i64 most_cols = std::min(kBlockCols, round_up(size.n, kTileCols));
  const i64 block_depth = grouped ? i64{spec.scale.cols} : kBlockDepth;
  const Finish finish(spec, tensors);
  std::vector<float> sums(static_cast<std::size_t>(most_rows * most_cols));
  std::vector<float> totals(grouped ? sums.size() : 0);
  std::vector<float> x_panels(static_cast<std::size_t>(most_rows * block_depth));
  std::vector<float> w_panels(static_cast<std::size_t>(most_cols * block_depth));

  for (i64 m0 = 0; m0 < size.m; m0 += kBlockRows) {
    for (i64 n0 = 0; n0 < size.n; n0 += kBlockCols) {
      const Range rows{m0, std::min(kBlockRows, size.m - m0)};
      const Range cols{n0, std::min(kBlockCols, size.n - n0)};
      const i64 col_tiles = ceil_div(cols.size, kTileCols);
      std::fill(sums.begin(), sums.end(), 0.0F);
      std::fill(totals.begin(), totals.end(), 0.0F);
      for (i64 k0 = 0; k0 < size.k; k0 += block_depth) {
        const Range depth{k0, std::min(block_depth, size.k - k0)};
        pack_x(tensors.x, rows, depth, x_panels.data(), pool);
        pack_weight_panels(spec, tensors, cols, depth, w_panels.data(), pool);
        pool.parallel_for(ceil_div(rows.size, kTileRows) * col_tiles, 16, [&](i64 begin, i64 end) {
          for (i64 tile = begin; tile < end; ++tile) {
            const i64 i = tile / col_tiles;
            const i64 j = tile % col_tiles;
            multiply_tile(depth.size, x_panels.data() + i * kTileRows * depth.size,
                          w_panels.data() + j * kTileCols * depth.size,
                          sums.data() + i * kTileRows * most_cols + j * kTileCols, most_cols);
          }
        });
        if (!grouped) continue;
        add_group(sums.data(), scale_inv_of(spec, tensors, cols, k0), totals.data(), most_cols, rows.size, pool);
        std::fill(sums.begin(), sums.end(), 0.0F);
      }
      finish.run(grouped ? totals.data() : sums.data(), most_cols, rows, cols,
                 grouped ? std::vector<float>() : scale_inv_of(spec, tensors, cols, 0), pool);
    }
  }
}

// Elements `begin` to `end` of a vector.
Tensor part_of(const Tensor& all, i64 begin, i64 end) {
  if (all.data == nullptr) return all;
  Tensor part = all;
  part.data = static_cast<std::byte*>(all.data) + begin * size_of(all.dtype);
  part.cols = end - begin;
  return part;
}
Tensor rows_of(const Tensor& all, i64 begin, i64 end) {
  Tensor part = all;
  part.data = static_cast<std::byte*>(all.data) + begin * all.row_stride * bits_of(all.dtype) / 8;
  part.rows = end - begin;
  return part;
}

// A matmul for each expert that has rows.
void multiply_experts(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, ThreadPool& pool) {
  DequantMatmulSpec of_one = spec;
  of_one.experts = false;
  const MatmulSize size = dequant_size(tensors);
  const i64 scales = scale_count(spec.scale, size.n, size.k);
  const i64 bytes = is_packed(spec.layout) ? packed_weight_bytes(spec.weight, size.n, size.k) : 0;
  i64 begin = 0;
  for (i64 e = 0; e < tensors.ends.experts; ++e) {
    if (tensors.ends.capacity) begin = e * *tensors.ends.capacity;
    const i64 end = tensors.ends.data[e] + (tensors.ends.capacity ? begin : 0);
    if (begin != end) {
      multiply(of_one,
               {.x = rows_of(tensors.x, begin, end),
                .weight = is_packed(spec.layout) ? part_of(tensors.weight, e * bytes, (e + 1) * bytes)
                                                 : rows_of(tensors.weight, e * size.n, (e + 1) * size.n),
                .scale_inv = part_of(tensors.scale_inv, e * scales, (e + 1) * scales),
                .bias = part_of(tensors.bias, e * size.n, (e + 1) * size.n),
                .out = rows_of(tensors.out, begin, end)},
               pool);
    }
    begin = end;
  }
}

}  // namespace

void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, ThreadPool& pool) {
  if (spec.experts) return multiply_experts(spec, tensors, pool);
  multiply(spec, tensors, pool);
}

namespace {

// pack_weight, both ways: tile by tile, as templates/dequant/pack_weight.cuh.
PackWeightParams params_of(const PackWeightTensors& tensors, i64 row_bytes) {
  return {.codes = static_cast<u8*>(tensors.codes.data),
          .n = tensors.codes.rows,
          .k = tensors.codes.cols,
          .row_bytes = row_bytes,
          .packed = static_cast<u8*>(tensors.packed.data)};
}

// 64 rows and their faults.
template <class W>
void pack_rows(CodeLayout layout, const PackWeightParams& p, i64 row_block) {
  const i64 k_blocks = static_cast<i64>(dequant_padded(static_cast<u64>(p.k)) / kDequantDepth);
  bool faults[kDequantRows] = {};
  for (i64 k_block = 0; k_block < k_blocks; ++k_block) {
    u8* const tile =
        p.packed + packed_tile_offset<W>(static_cast<u64>(row_block), static_cast<u64>(k_block), static_cast<u64>(p.k));
    for (u32 i = 0; i < kDequantFragments; ++i) {
      u32 words[Fragment<W>::kWords];
      const u32 seen = gather_fragment<W>(layout, p, row_block, k_block, i / 32, i % 32, words);
      __builtin_memcpy(tile + packed_fragment_offset<W>(i / 32, i % 32), words, sizeof(words));
      const u32 row = 16 * (i / 32) + i % 32 / 4;
      faults[row] |= (seen & 1U) != 0;
      faults[row + 8] |= (seen & 2U) != 0;
    }
  }
  float* const written = packed_faults(p, kCodeBits<W>) + row_block * kDequantRows;
  for (u32 row = 0; row < kDequantRows; ++row) written[row] = fault_of(faults[row]);
}

}  // namespace

void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, ThreadPool& pool) {
  const CodeLayout layout = code_layout(spec.layout);
  visit_weight(spec.weight, [&]<class W>(Type<W>) {
    const PackWeightParams p = params_of(tensors, code_row_bytes<W>(tensors.codes.row_stride));
    if (!spec.unpack) {
      return pool.parallel_for(PackWeightLaunch::grid(p.n), 1, [&](i64 begin, i64 end) {
        for (i64 row_block = begin; row_block < end; ++row_block) pack_rows<W>(layout, p, row_block);
      });
    }
    pool.parallel_for(p.n, 16, [&](i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) {
        for (i64 k = 0; k < p.k; k += UnpackWeightLaunch::kCodes) scatter_codes<W>(layout, p, row, k);
      }
    });
  });
}

}  // namespace ingot::cpu
