#include <vector>

#include "ingot/runtime/cpu/operations.h"
#include "ingot/runtime/cpu/row_amax.h"

namespace ingot::cpu {
namespace {

// Codes of rows [begin, end), row r with scale_of_row(r). In tiles, so that a transposed tile stays in the cache while
// its columns are written.
template <class In, Fp8Format Out, class ScaleOfRow>
void quantize_rows(const CastSpec& spec, const CastTensors& tensors, i64 begin, i64 end, ScaleOfRow scale_of_row) {
  constexpr i64 kTile = 64;
  const i64 cols = tensors.input.cols;
  for (i64 r0 = begin; r0 < end; r0 += kTile) {
    for (i64 c0 = 0; c0 < cols; c0 += kTile) {
      for (i64 r = r0; r < std::min(r0 + kTile, end); ++r) {
        const In* const input = row<const In>(tensors.input, r);
        const float scale = scale_of_row(r);
        for (i64 c = c0; c < std::min(c0 + kTile, cols); ++c) {
          const Out code = quantize<Out>(to_float(input[c]), scale);
          if (spec.codes) row<Out>(tensors.codes, r)[c] = code;
          if (spec.transposed) row<Out>(tensors.transposed, c)[r] = code;
        }
      }
    }
  }
}

template <class In, Fp8Format Out, bool Pow2>
void cast_as(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  float* const factors = row<float>(tensors.factors, 0);
  const i64 grain = rows_per_range(input.cols);

  if (spec.scale == kTensorwise) {
    const float scale = scale_from_amax<Out, Pow2>(amax_from_bits(tensor_amax_bits<In>(input, pool)));
    *factors = factor_from_scale(scale);
    if (input.empty()) return;
    pool.parallel_for(input.rows, grain, [&](i64 begin, i64 end) {
      quantize_rows<In, Out>(spec, tensors, begin, end, [&](i64) { return scale; });
    });
    return;
  }
  pool.parallel_for(input.rows, grain, [&](i64 begin, i64 end) {
    std::vector<float> scales(static_cast<std::size_t>(end - begin));
    for (i64 r = begin; r < end; ++r) {
      const float amax = amax_from_bits(row_amax_bits(row<const In>(input, r), input.cols));
      const float scale = scale_from_amax<Out, Pow2>(amax);
      scales[static_cast<std::size_t>(r - begin)] = scale;
      factors[r] = factor_from_scale(scale);
    }
    quantize_rows<In, Out>(spec, tensors, begin, end,
                           [&](i64 r) { return scales[static_cast<std::size_t>(r - begin)]; });
  });
}

}  // namespace

void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    visit_fp8(spec.out, [&]<class Out>(Type<Out>) {
      spec.pow2 ? cast_as<In, Out, true>(spec, tensors, pool) : cast_as<In, Out, false>(spec, tensors, pool);
    });
  });
}

}  // namespace ingot::cpu
