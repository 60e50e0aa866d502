// The operations in float64, straight from their definitions, without anything from templates/.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cases.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "support/compare.h"
#include "support/guarded_matrix.h"
#include "support/reference_formats.h"
#include "support/run_case.h"

namespace ingot::test {

void set_f32(GuardedMatrix& vector, std::int64_t i, float value);

// The extent of a granularity to which an element belongs; extents are numbered row by row.
std::int64_t extent_of(ScaleGranularity scale, std::int64_t cols, std::int64_t r, std::int64_t c);

// max |x| of every extent; NaN if it contains one.
GuardedMatrix amax_reference(ScaleGranularity scale, const GuardedMatrix& input);

float scale_reference(const CastSpec& spec, double amax);

// The scales of one output, and what is written with its codes.
struct ScalesReference {
  GuardedMatrix scales;
  GuardedMatrix scale_inv;
  GuardedMatrix amax;  // with given scales: the recorded maxima
};

// `given` is null if scales are dynamic.
ScalesReference scales_reference(const CastSpec& spec, ScaleGranularity granularity, const GuardedMatrix& input,
                                 const GuardedMatrix* given);

// Delayed scaling's update of what the slots held before.
Matrices amax_history_reference(const AmaxHistorySpec& spec, const SharedMatrices& inputs, Matrices slots);

// Every output of a cast that the spec asks for.
Matrices cast_reference(const CastSpec& spec, const SharedMatrices& inputs);

// How far an f32 sum of `terms` products, rounded to `out`, may be from the exact value; `magnitude` is the sum of the
// absolute terms. Beyond the largest value of `out` there is no bound.
double sum_bound(Dtype out, std::int64_t terms, double value, double magnitude);

Expected column_sum_reference(const ColumnSumSpec& spec, const GuardedMatrix& input, bool exact);

// The two operands of a GEMM as a(m, k) and b(n, k), in float64: a[m * K + k], b[k * N + n].
struct GemmOperands {
  std::vector<double> a;
  std::vector<double> b;
};

GemmOperands gemm_operands(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs);

double scale_inv_of(const SharedMatrices& inputs, const char* name, ScaleGranularity scale, std::int64_t i);

// Caches sums of products by operands: many specs differ only in scales, bias or output.
class GemmReference {
 public:
  // `exact`: all intermediate values are exact in f32 (small integers, powers of two), so only one result is right.
  Expected operator()(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs, bool exact);

 private:
  struct Sums {
    SharedMatrices inputs;  // kept alive while their addresses are keys
    std::vector<double> values;
    std::vector<double> magnitudes;
  };
  using Key = std::pair<std::pair<const GuardedMatrix*, Layout>, std::pair<const GuardedMatrix*, Layout>>;

  const Sums& sums_of(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs);

  Sums add_up(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs);

  // Multiplies each element by its group's scale_inv.
  static void apply_scale_inv(const GemmSpec& spec, const Shape& shape, const SharedMatrices& inputs,
                              GemmOperands& operands);

  ThreadPool pool_{0};
  std::map<Key, Sums> seen_;
};

}  // namespace ingot::test
