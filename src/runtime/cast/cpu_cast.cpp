// cast on the CPU, by the letter of the numerics contract. First it finds the maximum of every extent: dynamic scales
// are made from the maxima, and with given scales they raise the amax. Then it sums the columns, if the spec asks for
// it, and then it writes the codes. Maxima are compared as integers, so that threads may find them in any order.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cast_stack.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/cpu/thread_pool.h"

#include "cast/cast_tile_shared.cuh"

namespace ingot::cpu {
namespace {

// The scales of one output's extents.
struct Scales {
  Extents extents;
  std::vector<float> values;

  // Those of row r, columns c .. c + count - 1.
  void read(i64 r, i64 c, i64 count, float* scales) const {
    for (i64 i = 0; i < count;) {
      const float scale = values[static_cast<std::size_t>(extents.index(r, c + i))];
      const i64 end = std::min(count, i + extents.cols_from(c + i));
      std::fill(scales + i, scales + end, scale);
      i = end;
    }
  }
};

// Writes the scale_inv of scales that go row by row over their extents.
void write_scale_inv(const std::vector<float>& scales, ScaleGranularity granularity, i64 cols,
                     const Tensor& scale_inv) {
  const i64 across = granularity.cols == 0 ? 1 : ceil_div(cols, i64{granularity.cols});
  const ScaleInvStrides strides = scale_inv_strides(scale_inv, granularity, cols);
  auto* const to = static_cast<float*>(scale_inv.data);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const auto index = static_cast<i64>(i);
    to[index / across * strides.row + index % across * strides.group] = factor_from_scale(scales[i]);
  }
}

template <Fp8Format Out>
Scales dynamic_scales(const Extents& extents, const std::vector<u32>& maxima, bool pow2) {
  Scales scales{extents, {}};
  for (const u32 maximum : maxima) scales.values.push_back(scale_from_amax<Out>(amax_from_bits(maximum), pow2));
  return scales;
}

Scales given_scales(const Extents& extents, const std::vector<u32>& maxima, const Tensor& given, const Tensor& amax) {
  Scales scales{extents, {}};
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    scales.values.push_back(row<float>(given, 0)[i]);
    float& recorded = row<float>(amax, 0)[i];
    recorded = float_from_bits(std::max(float_bits(recorded), float_bits(amax_from_bits(maxima[i]))));
  }
  return scales;
}

std::vector<u32> known_maxima(const Extents& extents, const Tensor& known) {
  std::vector<u32> maxima;
  for (i64 i = 0; i < extents.count(); ++i) maxima.push_back(float_bits(row<const float>(known, 0)[i]));
  return maxima;
}

// Writes the codes of rows [begin, end), and the values. In tiles, so that a transposed tile stays in the cache while
// its columns are written.
template <class In, Fp8Format Out>
void quantize_rows(const Values<In>& values, const CastTensors& tensors, const Scales* codes, const Scales* transposed,
                   bool given, i64 begin, i64 end) {
  constexpr i64 kRows = 64;
  constexpr i64 kCols = Values<In>::kMaxCount;
  const auto code = [given](float value, float scale) {
    return given ? quantize_given<Out>(value, scale) : quantize<Out>(value, scale);
  };
  for (i64 r0 = begin; r0 < end; r0 += kRows) {
    for (i64 c0 = 0; c0 < values.cols(); c0 += kCols) {
      for (i64 r = r0; r < std::min(r0 + kRows, end); ++r) {
        const i64 count = std::min(kCols, values.cols() - c0);
        std::array<float, kCols> read, scales;
        values.read(r, c0, count, read.data());
        const auto each = [count](const auto& write) {
          for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) write(i);
        };
        if (codes != nullptr) {
          codes->read(r, c0, count, scales.data());
          auto* const to = row<Out>(tensors.codes, r) + c0;
          each([&](std::size_t i) { to[i] = code(read[i], scales[i]); });
        }
        if (transposed != nullptr) {
          transposed->read(r, c0, count, scales.data());
          each([&](std::size_t i) {
            row<Out>(tensors.transposed, c0 + static_cast<i64>(i))[r] = code(read[i], scales[i]);
          });
        }
        if (tensors.result.data != nullptr) {
          auto* const to = row<In>(tensors.result, r) + c0;
          each([&](std::size_t i) { to[i] = from_float<In>(read[i]); });
        }
      }
    }
  }
}

// Sums in the order of templates/cast/cast_tile_shared.cuh: runs of 8 rows, the 16 runs of a tile, the tiles.
template <class In, class Sum>
void sum_columns(const Values<In>& values, const Tensor& sum, i64 begin, i64 end) {
  constexpr i64 kTileRows = 128;
  constexpr std::size_t kCols = Values<In>::kMaxCount;
  for (i64 c0 = begin; c0 < end; c0 += Values<In>::kMaxCount) {
    const i64 count = std::min(Values<In>::kMaxCount, end - c0);
    const auto add = [count](std::array<float, kCols>& to, const std::array<float, kCols>& from) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) to[i] = to[i] + from[i];
    };
    std::array<float, kCols> total{};
    for (i64 tile = 0; tile < values.rows(); tile += kTileRows) {
      std::array<float, kCols> tile_sum{};
      for (i64 run = tile; run < std::min(tile + kTileRows, values.rows()); run += kRowsPerRun) {
        std::array<float, kCols> run_sum{};
        for (i64 r = run; r < std::min(run + i64{kRowsPerRun}, values.rows()); ++r) {
          std::array<float, kCols> read;
          values.read(r, c0, count, read.data());
          add(run_sum, read);
        }
        add(tile_sum, run_sum);
      }
      add(total, tile_sum);
    }
    for (i64 i = 0; i < count; ++i) row<Sum>(sum, 0)[c0 + i] = from_float<Sum>(total[static_cast<std::size_t>(i)]);
  }
}

template <class In, Fp8Format Out>
void cast_as(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  const Values<In> of_input(spec, tensors);
  const Values<In> values(spec, tensors, spec.gathered ? &tensors.row_index : nullptr);
  const auto scales_of = [&](ScaleGranularity granularity, const Tensor& given, const Tensor& amax,
                             const Tensor& known_amax, const Tensor& scale_inv) {
    // Dynamic extents of all rows are those of the input, taken or not.
    const bool of_all = granularity.rows == 0 && spec.source == ScaleSource::dynamic;
    const Values<In>& whose = of_all ? of_input : values;
    const Extents searched(granularity, whose.rows(), values.cols());
    const Extents extents(granularity, values.rows(), values.cols());
    const bool known = known_amax.data != nullptr && !tensors.input.empty();
    const std::vector<u32> maxima = known ? known_maxima(searched, known_amax) : maxima_of<In>(searched, whose, pool);
    Scales scales = spec.source == ScaleSource::given ? given_scales(extents, maxima, given, amax)
                                                      : dynamic_scales<Out>(extents, maxima, spec.pow2);
    write_scale_inv(scales.values, granularity, values.cols(), scale_inv);
    return scales;
  };
  if (spec.found_amax) {
    const Extents extents(*spec.found_amax, values.rows(), values.cols());
    std::ranges::transform(maxima_of<In>(extents, values, pool), row<float>(tensors.found_amax, 0), amax_from_bits);
  }
  const Scales scales = scales_of(spec.scale, tensors.scales, tensors.amax, tensors.known_amax, tensors.scale_inv);
  std::optional<Scales> own;
  if (spec.transposed_scale) {
    own = scales_of(*spec.transposed_scale, tensors.transposed_scales, tensors.transposed_amax,
                    tensors.known_transposed_amax, tensors.transposed_scale_inv);
  }
  if (spec.sum) {
    visit_high_precision(*spec.sum, [&]<class Sum>(Type<Sum>) {
      pool.parallel_for(values.cols(), Values<In>::kMaxCount,
                        [&](i64 begin, i64 end) { sum_columns<In, Sum>(values, tensors.sum, begin, end); });
    });
  }
  if (values.rows() == 0 || values.cols() == 0) return;
  const Scales* const transposed = own ? &*own : &scales;
  pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
    quantize_rows<In, Out>(values, tensors, spec.codes ? &scales : nullptr, spec.transposed ? transposed : nullptr,
                           spec.source == ScaleSource::given, begin, end);
  });
}

}  // namespace

void cast(const CastSpec& spec, const CastTensors& tensors, ThreadPool& pool) {
  if (spec.experts) return cast_experts(spec, tensors, pool);
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    visit_fp8(spec.out, [&]<class Out>(Type<Out>) {
      if (!spec.stacked) return cast_as<In, Out>(spec, tensors, pool);
      for (i64 i = 0; i < tensors.matrices; ++i) cast_as<In, Out>(spec, stacked_matrix(spec, tensors, i), pool);
    });
  });
}

}  // namespace ingot::cpu
