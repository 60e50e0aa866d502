// Norms on the CPU, forward and backward, by the letter of codegen/norm/norm_spec.h. Sums have the order that
// templates/norm/norm.cuh, norm_backward.cuh and norm_backward_launch.cuh define.
#include <algorithm>
#include <mutex>
#include <vector>

#include "ingot/runtime/cast/cpu_values.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/norm/norm_operations.h"

#include "norm/norm_backward_launch.cuh"
#include "norm/norm_rows.cuh"

namespace ingot::cpu {
namespace {

using Floats = std::vector<float>;

Floats zeros(i64 count) { return Floats(static_cast<std::size_t>(count), 0.0F); }

template <class T>
void load(const T* elements, Floats& values) {
  for (float& value : values) value = to_float(*elements++);
}

// The sum over lanes of a warp, in place, and then over the warps.
float sum_of_threads(Floats& threads) {
  float total = 0.0F;
  for (std::size_t warp = 0; warp < threads.size(); warp += 32) {
    float* const lanes = threads.data() + warp;
    for (std::size_t step = 16; step != 0; step /= 2) {
      for (std::size_t lane = 0; lane < step; ++lane) lanes[lane] = lanes[lane] + lanes[lane + step];
    }
    total = warp == 0 ? lanes[0] : total + lanes[0];
  }
  return total;
}

// The sum of a row's terms in the order in which `threads` threads add them.
float row_sum(const Floats& terms, u32 threads) {
  Floats sums = zeros(threads);
  for (std::size_t first = 0; first < terms.size(); first += kVec8) {
    float vec8[kVec8] = {};
    std::copy_n(terms.begin() + static_cast<std::ptrdiff_t>(first), std::min<std::size_t>(kVec8, terms.size() - first),
                vec8);
    float& sum = sums[first / kVec8 % threads];
    sum = sum + vec8_sum(vec8);
  }
  return sum_of_threads(sums);
}

// ---- forward -----------------------------------------------------------------------------------------------------

struct Statistics {
  float mean = 0.0F;
  float rstd = 0.0F;
};

Statistics statistics_of(NormKind kind, const Floats& x, float eps) {
  const auto cols = static_cast<i64>(x.size());
  const u32 threads = NormRowsLaunch::threads_per_row(cols);
  Statistics s;
  if (kind == NormKind::layer) s.mean = row_sum(x, threads) * inverse_cols(cols);
  Floats squares(x);
  for (float& square : squares) square = (square - s.mean) * (square - s.mean);
  s.rstd = norm_rstd(row_sum(squares, threads), inverse_cols(cols), eps);
  return s;
}

// x becomes (x - mean) * rstd; x - 0 is x.
void normalise(const Statistics& s, Floats& x) {
  for (float& element : x) element = (element - s.mean) * s.rstd;
}

struct Parameters {
  Floats gamma, beta;  // empty where there are none
};

template <class In>
Parameters parameters_of(const Tensor& gamma, const Tensor& beta, i64 cols) {
  Parameters parameters;
  for (const auto& [from, to] : {std::pair{&gamma, &parameters.gamma}, std::pair{&beta, &parameters.beta}}) {
    if (from->data == nullptr) continue;
    *to = zeros(cols);
    load(row<const In>(*from, 0), *to);
  }
  return parameters;
}

// The values of a row, rounded to In.
template <class In>
void values_of(const Statistics& s, const Parameters& parameters, Floats& x) {
  normalise(s, x);
  const Floats& gamma = parameters.gamma;
  const Floats& beta = parameters.beta;
  for (std::size_t c = 0; c < gamma.size(); ++c) {
    x[c] = beta.empty() ? x[c] * gamma[c] : fused_multiply_add(x[c], gamma[c], beta[c]);
  }
  for (float& value : x) value = to_float(from_float<In>(value));
}

template <class Out>
void write_codes(const NormSpec& spec, const NormTensors& tensors, i64 r, const Floats& values, u32 maximum) {
  float scale = 0.0F;
  const bool given = spec.source == ScaleSource::given;
  if (given) {
    scale = *row<float>(tensors.scale, 0);
  } else {
    scale = scale_from_amax<Out>(amax_from_bits(maximum), spec.pow2);
    row<float>(tensors.scale_inv, 0)[r] = factor_from_scale(scale);
  }
  Out* codes = row<Out>(tensors.codes, r);
  for (const float value : values) {
    *codes++ = given ? quantize_given<Out>(value, scale) : quantize<Out>(value, scale);
  }
}

template <class In>
void norm_as(const NormSpec& spec, const NormTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  const Parameters parameters = parameters_of<In>(tensors.gamma, tensors.beta, input.cols);
  u32 largest = 0;
  std::mutex merging;
  pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
    u32 largest_here = 0;
    Floats x = zeros(input.cols);
    for (i64 r = begin; r < end; ++r) {
      load(row<const In>(input, r), x);
      const Statistics s = statistics_of(spec.kind, x, tensors.eps);
      if (tensors.mean.data != nullptr) row<float>(tensors.mean, 0)[r] = s.mean;
      if (tensors.rstd.data != nullptr) row<float>(tensors.rstd, 0)[r] = s.rstd;
      values_of<In>(s, parameters, x);
      if (spec.result) {
        std::transform(x.begin(), x.end(), row<In>(tensors.result, r),
                       [](float value) { return from_float<In>(value); });
      }
      if (!spec.out) continue;
      u32 maximum = 0;
      for (const float value : x) maximum = std::max(maximum, amax_bits(value));
      largest_here = std::max(largest_here, maximum);
      visit_fp8(*spec.out, [&]<class Out>(Type<Out>) { write_codes<Out>(spec, tensors, r, x, maximum); });
    }
    const std::lock_guard lock(merging);
    largest = std::max(largest, largest_here);
  });
  if (spec.source == ScaleSource::given) {
    *row<float>(tensors.scale_inv, 0) = factor_from_scale(*row<float>(tensors.scale, 0));
    float& recorded = *row<float>(tensors.amax, 0);
    recorded = float_from_bits(std::max(float_bits(recorded), float_bits(amax_from_bits(largest))));
  }
}

// ---- backward ----------------------------------------------------------------------------------------------------

// A row's grad_output and xhat.
template <class In>
struct BackwardRow {
  Floats grad, xhat;

  BackwardRow(const NormBackwardTensors& tensors, i64 r)
      : grad(zeros(tensors.input.cols)), xhat(zeros(tensors.input.cols)) {
    load(row<const In>(tensors.grad_output, r), grad);
    load(row<const In>(tensors.input, r), xhat);
    const float mean = tensors.mean.data == nullptr ? 0.0F : row<float>(tensors.mean, 0)[r];
    normalise({mean, row<float>(tensors.rstd, 0)[r]}, xhat);
  }
};

template <class In>
void write_grad_input(NormKind kind, const NormBackwardTensors& tensors, const Parameters& parameters, i64 r) {
  const i64 cols = tensors.input.cols;
  const u32 threads = NormBackwardLaunch::threads_per_row(cols);
  const BackwardRow<In> from(tensors, r);
  Floats g = from.grad;
  for (std::size_t c = 0; c < parameters.gamma.size(); ++c) g[c] = g[c] * parameters.gamma[c];
  Floats products(g);
  for (std::size_t c = 0; c < g.size(); ++c) products[c] = g[c] * from.xhat[c];
  const float mean_product = row_sum(products, threads) * inverse_cols(cols);
  const float mean_g = kind == NormKind::layer ? row_sum(g, threads) * inverse_cols(cols) : 0.0F;
  const float rstd = row<float>(tensors.rstd, 0)[r];
  In* out = row<In>(tensors.grad_input, r);
  for (std::size_t c = 0; c < g.size(); ++c) {
    out[c] = from_float<In>(((g[c] - mean_g) - from.xhat[c] * mean_product) * rstd);
  }
}

void add(const Floats& terms, Floats& sums) {
  for (std::size_t c = 0; c < sums.size(); ++c) sums[c] = sums[c] + terms[c];
}

// The sums over one chunk of rows: of grad_output * xhat and of grad_output.
struct ColumnSums {
  Floats gamma, beta;

  explicit ColumnSums(i64 cols) : gamma(zeros(cols)), beta(zeros(cols)) {}
  void take(const ColumnSums& other) {
    add(other.gamma, gamma);
    add(other.beta, beta);
  }
};

template <class In>
ColumnSums sums_of_chunk(const NormBackwardTensors& tensors, i64 first, i64 end) {
  const i64 cols = tensors.input.cols;
  const i64 groups = NormBackwardLaunch::groups(cols);
  ColumnSums chunk(cols);
  for (i64 group = 0; group < groups; ++group) {
    ColumnSums sums(cols);
    for (i64 r = first + group; r < end; r += groups) {
      BackwardRow<In> from(tensors, r);
      add(from.grad, sums.beta);
      for (std::size_t c = 0; c < from.grad.size(); ++c) from.grad[c] = from.grad[c] * from.xhat[c];
      add(from.grad, sums.gamma);
    }
    chunk.take(sums);
  }
  return chunk;
}

template <class Sum>
void write_sums(const Floats& sums, const Tensor& target) {
  if (target.data == nullptr) return;
  std::transform(sums.begin(), sums.end(), row<Sum>(target, 0), [](float sum) { return from_float<Sum>(sum); });
}

template <class In>
void norm_backward_as(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, ThreadPool& pool) {
  const i64 rows = tensors.input.rows;
  const i64 cols = tensors.input.cols;
  Parameters parameters = parameters_of<In>(tensors.gamma, {}, cols);
  if (spec.zero_centred) {
    for (float& gamma : parameters.gamma) gamma = gamma + 1.0F;
  }
  pool.parallel_for(rows, rows_per_range(cols), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) write_grad_input<In>(spec.kind, tensors, parameters, r);
  });
  if (!spec.affine) return;
  const i64 chunk_rows = NormBackwardLaunch::rows_per_chunk(rows, cols);
  std::vector<ColumnSums> chunks(static_cast<std::size_t>(NormBackwardLaunch::chunks(rows, cols)), ColumnSums(cols));
  pool.parallel_for(static_cast<i64>(chunks.size()), 1, [&](i64 begin, i64) {
    chunks[static_cast<std::size_t>(begin)] =
        sums_of_chunk<In>(tensors, begin * chunk_rows, std::min(rows, (begin + 1) * chunk_rows));
  });
  ColumnSums total(cols);
  for (const ColumnSums& chunk : chunks) total.take(chunk);
  visit_high_precision(spec.sums, [&]<class Sum>(Type<Sum>) {
    write_sums<Sum>(total.gamma, tensors.grad_gamma);
    write_sums<Sum>(total.beta, tensors.grad_beta);
  });
}

}  // namespace

void norm(const NormSpec& spec, const NormTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) { norm_as<In>(spec, tensors, pool); });
}

void norm_backward(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) { norm_backward_as<In>(spec, tensors, pool); });
}

}  // namespace ingot::cpu
