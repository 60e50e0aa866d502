// Two passes over the matrix: the maxima of every extent, where they are asked for, then the codes. By the letter of
// the numerics contract; maxima are integers (maxima.h), so that threads may find them in any order.
#include <optional>
#include <vector>

#include "ingot/runtime/cpu/maxima.h"
#include "ingot/runtime/cpu/operations.h"

namespace ingot::cpu {
namespace {

// One of the outputs: the scale of each of its extents.
struct Scales {
  Extents extents;
  std::vector<float> values;

  float at(i64 r, i64 c) const { return values[static_cast<std::size_t>(extents.index(r, c))]; }
};

template <Fp8Format Out>
Scales dynamic_scales(const Extents& extents, const std::vector<u32>& maxima, bool pow2, const Tensor& factors) {
  Scales scales{extents, {}};
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    scales.values.push_back(scale_from_amax<Out>(amax_from_bits(maxima[i]), pow2));
    row<float>(factors, 0)[i] = factor_from_scale(scales.values.back());
  }
  return scales;
}

Scales given_scales(const Extents& extents, const std::vector<u32>& maxima, const Tensor& given, const Tensor& amax,
                    const Tensor& factors) {
  Scales scales{extents, {}};
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    scales.values.push_back(row<float>(given, 0)[i]);
    row<float>(factors, 0)[i] = factor_from_scale(scales.values.back());
    float& recorded = row<float>(amax, 0)[i];
    recorded = float_from_bits(std::max(float_bits(recorded), float_bits(amax_from_bits(maxima[i]))));
  }
  return scales;
}

// Codes of rows [begin, end). In tiles, so that a transposed tile stays in the cache while its columns are written.
template <class In, Fp8Format Out>
void quantize_rows(const CastTensors& tensors, const Scales* codes, const Scales* transposed, i64 begin, i64 end) {
  constexpr i64 kTile = 64;
  const i64 cols = tensors.input.cols;
  for (i64 r0 = begin; r0 < end; r0 += kTile) {
    for (i64 c0 = 0; c0 < cols; c0 += kTile) {
      for (i64 r = r0; r < std::min(r0 + kTile, end); ++r) {
        const In* const input = row<const In>(tensors.input, r);
        for (i64 c = c0; c < std::min(c0 + kTile, cols); ++c) {
          const float value = to_float(input[c]);
          if (codes != nullptr) row<Out>(tensors.codes, r)[c] = quantize<Out>(value, codes->at(r, c));
          if (transposed != nullptr) row<Out>(tensors.transposed, c)[r] = quantize<Out>(value, transposed->at(r, c));
        }
      }
    }
  }
}

template <class In, Fp8Format Out>
void cast_as(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  const auto scales_of = [&](ScaleGranularity granularity, const Tensor& given, const Tensor& amax,
                             const Tensor& factors) {
    const Extents extents(granularity, input.rows, input.cols);
    const std::vector<u32> maxima = maxima_of<In>(extents, input, pool);
    return spec.source == ScaleSource::given ? given_scales(extents, maxima, given, amax, factors)
                                             : dynamic_scales<Out>(extents, maxima, spec.pow2, factors);
  };
  const Scales scales = scales_of(spec.scale, tensors.scales, tensors.amax, tensors.factors);
  std::optional<Scales> own;
  if (spec.transposed_scale) {
    own = scales_of(*spec.transposed_scale, tensors.transposed_scales, tensors.transposed_amax,
                    tensors.transposed_factors);
  }
  if (input.empty()) return;
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    quantize_rows<In, Out>(tensors, spec.codes ? &scales : nullptr,
                           !spec.transposed ? nullptr
                           : own            ? &*own
                                            : &scales,
                           begin, end);
  });
}

}  // namespace

void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    visit_fp8(spec.out, [&]<class Out>(Type<Out>) { cast_as<In, Out>(spec, tensors, pool); });
  });
}

}  // namespace ingot::cpu
