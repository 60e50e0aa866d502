// Compares a GEMM's outputs with float64 on the GPU itself: every element, fast enough for a hundred thousand GEMMs.
// The kernels below are compiled through the library like a user's source, but include nothing of it: they decode codes
// with tables that the host makes from the formats' definitions (reference_formats.h), and the epilogues are written
// out here. test_gemm_cross_gpu.cpp first compares the kernels with the CPU's float64.
//
// An element is right if the exact value, give or take a bound, is in the interval that rounds to it. The bound covers
// the sum's terms and is carried through the epilogue; if the inputs are small integers it is 0, and a tie must have
// gone to the even neighbour.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/measure/replay.h"
#include "support/gemm_cross.h"
#include "support/reference_formats.h"

namespace ingot::test {

// ---- the kernels' parameters: the same structs, in the same order, as in the text below ----------------------------

// data null: there is no matrix. kind: 0 f32, 1 bf16, 2 f16, 3 an 8-bit format; table: the value of every code, for
// kinds 2 and 3.
struct CheckedMatrix {
  const void* data = nullptr;
  long long pitch = 0;
  const double* table = nullptr;
  long long kind = 0;
  long long largest = 0;      // the code of the largest number
  long long not_number = -1;  // for the fnuz formats: the code that would be -0
};

// The sums of products, and of their absolute values. groups: the number of groups of 128 along K in a row, or 0 if
// scale_inv are not part of the sum; b_rows: how many neighbouring rows of b share them.
struct SumsParams {
  CheckedMatrix a, b;
  long long m = 0, n = 0, k = 0;
  long long groups = 0, b_rows = 1;
  const float* scale_inv_a = nullptr;
  const float* scale_inv_b = nullptr;
  double* sums = nullptr;
  double* magnitudes = nullptr;
};

// The findings for one GEMM. Indices count elements (wrong) and bytes.
struct Verdict {
  static constexpr unsigned long long kNone = ~0ULL;
  struct Errors {
    double error = 0, norm = 0;  // sums of squares
    unsigned long long wrong = 0, first = kNone;
  };
  struct Bytes {
    unsigned long long different = 0, first_different = kNone;  // from those of the first run
    unsigned long long damaged = 0, first_damaged = kNone;      // bytes around the matrix
  };
  Errors out, preactivation;
  Bytes out_bytes, preactivation_bytes;
  double amax = 0, amax_bound = 0;             // as it should be
  double expected = 0, bound = 0, actual = 0;  // for JudgeParams::only
  // The GEMM, which runs twice, writes these.
  std::array<float, 2> amax_found{};
  std::array<float, 2> scale_inv_found{};
};

struct JudgeParams {
  const double* sums = nullptr;
  const double* magnitudes = nullptr;
  long long m = 0, n = 0;
  const float* scale_inv_a = nullptr;  // null: there are none, or they are in the sums
  const float* scale_inv_b = nullptr;
  long long factor_a_stride = 0, factor_b_stride = 0;
  CheckedMatrix bias, c, first, second, out, preactivation;  // first, second: the expression's inputs
  double beta = 0;
  double scale = 1;      // for an FP8 output
  double sum_error = 0;  // relative to the absolute terms
  long long value = 0;   // a CrossValue
  long long exact = 0;
  long long only = -1;  // an index: report only that element's expected value, bound and actual value
  long long only_preactivation = 0;
  Verdict* verdict = nullptr;
};

struct BytesParams {
  const unsigned char* now = nullptr;
  const unsigned char* before = nullptr;
  long long bytes = 0, start = 0, rows = 0, row_bytes = 0, pitch_bytes = 0;
  long long poison = 0;
  Verdict::Bytes* found = nullptr;
};

inline constexpr unsigned kCheckThreads = 256;
inline constexpr std::int64_t kCheckTile = 64;

inline constexpr const char* kCheckStructs = R"(
typedef long long i64;
typedef unsigned long long u64;

struct Matrix {
  const void* data;
  i64 pitch;
  const double* table;
  i64 kind, largest, not_number;
};

struct SumsParams {
  Matrix a, b;
  i64 m, n, k, groups, b_rows;
  const float* scale_inv_a;
  const float* scale_inv_b;
  double* sums;
  double* magnitudes;
};

struct Errors {
  double error, norm;
  u64 wrong, first;
};
struct Bytes {
  u64 different, first_different, damaged, first_damaged;
};
struct Verdict {
  Errors out, preactivation;
  Bytes out_bytes, preactivation_bytes;
  double amax, amax_bound, expected, bound, actual;
  float amax_found[2], scale_inv_found[2];
};

struct JudgeParams {
  const double* sums;
  const double* magnitudes;
  i64 m, n;
  const float* scale_inv_a;
  const float* scale_inv_b;
  i64 factor_a_stride, factor_b_stride;
  Matrix bias, c, first, second, out, preactivation;
  double beta, scale, sum_error;
  i64 value, exact, only, only_preactivation;
  Verdict* verdict;
};

struct BytesParams {
  const unsigned char* now;
  const unsigned char* before;
  i64 bytes, start, rows, row_bytes, pitch_bytes, poison;
  Bytes* found;
};

__device__ unsigned code_at(const Matrix& x, i64 r, i64 c) {
  const i64 at = r * x.pitch + c;
  if (x.kind == 0) return static_cast<const unsigned*>(x.data)[at];
  if (x.kind == 3) return static_cast<const unsigned char*>(x.data)[at];
  return static_cast<const unsigned short*>(x.data)[at];
}
__device__ double decoded(const Matrix& x, unsigned code) {
  if (x.kind == 0) return __uint_as_float(code);
  if (x.kind == 1) return __uint_as_float(code << 16);
  return x.table[code];
}
__device__ double value_at(const Matrix& x, i64 r, i64 c) { return decoded(x, code_at(x, r, c)); }
)";

// A block computes 64 x 64 sums, a thread 4 x 4 of them, 16 of K at a time.
inline constexpr const char* kSumsText = R"(
__global__ void sums(SumsParams p) {
  __shared__ double a[16][65];
  __shared__ double b[16][65];
  const int thread = threadIdx.x;
  const i64 row = 64 * (i64)blockIdx.y, col = 64 * (i64)blockIdx.x;
  const int i = thread / 16, j = thread % 16;
  double sum[4][4] = {}, magnitude[4][4] = {};
  for (i64 k = 0; k < p.k; k += 16) {
    for (int part = 0; part < 4; ++part) {
      const int at = thread / 16 + 16 * part;
      const i64 kk = k + thread % 16;
      double x = 0, y = 0;
      if (row + at < p.m && kk < p.k) {
        x = value_at(p.a, row + at, kk);
        if (p.groups != 0) x *= p.scale_inv_a[(row + at) * p.groups + kk / 128];
      }
      if (col + at < p.n && kk < p.k) {
        y = value_at(p.b, col + at, kk);
        if (p.groups != 0) y *= p.scale_inv_b[(col + at) / p.b_rows * p.groups + kk / 128];
      }
      a[thread % 16][at] = x;
      b[thread % 16][at] = y;
    }
    __syncthreads();
    for (int l = 0; l < 16; ++l) {
      for (int r = 0; r < 4; ++r) {
        for (int c = 0; c < 4; ++c) {
          const double product = a[l][i + 16 * r] * b[l][j + 16 * c];
          sum[r][c] += product;
          magnitude[r][c] += fabs(product);
        }
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      const i64 m = row + i + 16 * r, n = col + j + 16 * c;
      if (m >= p.m || n >= p.n) continue;
      p.sums[m * p.n + n] = sum[r][c];
      p.magnitudes[m * p.n + n] = magnitude[r][c];
    }
  }
}
constexpr auto kKernel = &sums;
)";

inline constexpr const char* kJudgeText = R"(
struct Value {
  double value, bound;
};

// Does this code stand for a value at most `bound` away?
__device__ bool near(const Matrix& x, unsigned code, Value expected, bool exact) {
  const double v = expected.value;
  if (x.kind == 0) {
    const double actual = decoded(x, code);
    return exact ? actual == (double)(float)v : fabs(actual - v) <= expected.bound + 0x1p-24 * fabs(v);
  }
  const unsigned mask = x.kind == 3 ? 0x7f : 0x7fff;
  const unsigned magnitude = code & mask;
  if ((i64)code == x.not_number || magnitude > x.largest) return false;
  const double at = decoded(x, magnitude);
  const double infinity = __longlong_as_double(0x7ff0000000000000);
  const double up = magnitude == x.largest ? infinity : (at + decoded(x, magnitude + 1)) / 2;
  const double down = magnitude == 0 ? -up : (at + decoded(x, magnitude - 1)) / 2;
  const bool negative = code > mask;
  const double low = negative ? -up : down, high = negative ? -down : up;
  if (exact) return v >= low && v <= high && ((v != low && v != high) || magnitude % 2 == 0);
  return v >= low - expected.bound && v <= high + expected.bound;
}

// Before the expression.
__device__ Value preactivation(const JudgeParams& p, i64 r, i64 c) {
  double factor = 1;
  if (p.scale_inv_a) factor *= (double)p.scale_inv_a[r * p.factor_a_stride] * (double)p.scale_inv_b[c * p.factor_b_stride];
  const double product = p.sums[r * p.n + c] * factor;
  const double bias = p.bias.data ? value_at(p.bias, 0, c) : 0.0;
  const double added = p.c.data ? p.beta * value_at(p.c, r, c) : 0.0;
  const double rounding = 0x1p-22 * (fabs(product) + fabs(bias) + fabs(added));
  return {product + bias + added, p.exact ? 0.0 : p.sum_error * p.magnitudes[r * p.n + c] * factor + rounding};
}

// The GPU's own functions are within 2^-15 of their values, erf within that of 1.
__device__ Value finished(const JudgeParams& p, Value x, i64 r, i64 c) {
  Value v = x;
  if (p.value == 1) {
    v.value = fmax(x.value, 0.0);
  } else if (p.value == 2) {
    v.value = 0.5 * x.value * (1 + erf(x.value * 0.70710678118654752));
    v.bound = 1.13 * x.bound + 0x1p-14 * fabs(x.value);
  } else if (p.value == 3) {
    const double gate = value_at(p.first, r, c);
    v.value = x.value / (1 + exp(-x.value)) * gate;
    v.bound = 1.1 * fabs(gate) * x.bound + 0x1p-14 * fabs(v.value);
  } else if (p.value == 4) {
    const double w = value_at(p.first, 0, c), add = value_at(p.second, 0, r);
    v.value = w / (1 + exp(-x.value)) + add;
    v.bound = fabs(w) * (0.25 * x.bound + 0x1p-14) + 0x1p-22 * fabs(add);
  } else if (p.value == 5) {
    v.value = x.value + value_at(p.first, r, c);
    v.bound = x.bound + (p.exact ? 0.0 : 0x1p-22 * (fabs(x.value) + fabs(v.value)));
  }
  return v;
}

// As it is encoded.
__device__ Value scaled(const JudgeParams& p, Value v) {
  if (p.out.kind != 3) return v;
  const double value = v.value * p.scale;
  return {value, p.exact ? 0.0 : v.bound * p.scale + 0x1p-22 * fabs(value)};
}

__device__ void blame(Errors& errors, i64 index) {
  atomicAdd(&errors.wrong, 1ULL);
  atomicMin(&errors.first, (u64)index);
}

// Of the numbers that the threads of a block hold, their sum or the largest, in every thread.
__device__ double reduced(double x, bool largest) {
  __shared__ double all[256];
  all[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const double other = all[threadIdx.x + half];
      all[threadIdx.x] = largest ? fmax(all[threadIdx.x], other) : all[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const double result = all[0];
  __syncthreads();
  return result;
}

__device__ void raise(double& at, double x) {  // neither is negative
  atomicMax(reinterpret_cast<u64*>(&at), (u64)__double_as_longlong(x));
}

__global__ void judge(JudgeParams p) {
  Verdict& verdict = *p.verdict;
  if (p.only >= 0) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    const i64 r = p.only / p.n, c = p.only % p.n;
    const Value x = preactivation(p, r, c);
    const Value v = p.only_preactivation ? x : scaled(p, finished(p, x, r, c));
    verdict.expected = v.value;
    verdict.bound = v.bound;
    verdict.actual = value_at(p.only_preactivation ? p.preactivation : p.out, r, c);
    return;
  }
  double error = 0, norm = 0, pre_error = 0, pre_norm = 0, amax = 0, amax_bound = 0;
  const i64 count = p.m * p.n;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
    const i64 r = i / p.n, c = i % p.n;
    const Value x = preactivation(p, r, c);
    if (p.preactivation.data) {
      const unsigned code = code_at(p.preactivation, r, c);
      if (!near(p.preactivation, code, x, p.exact)) blame(verdict.preactivation, i);
      const double off = decoded(p.preactivation, code) - x.value;
      pre_error += off * off;
      pre_norm += x.value * x.value;
    }
    const Value v = finished(p, x, r, c);
    const Value encoded = scaled(p, v);
    const unsigned code = code_at(p.out, r, c);
    const double actual = decoded(p.out, code);
    if (!near(p.out, code, encoded, p.exact)) blame(verdict.out, i);
    error += (actual - encoded.value) * (actual - encoded.value);
    norm += encoded.value * encoded.value;
    // Of an output of high precision the maximum is exactly that of what was written.
    amax = fmax(amax, fabs(p.out.kind == 3 ? v.value : actual));
    if (p.out.kind == 3) amax_bound = fmax(amax_bound, v.bound);
  }
  error = reduced(error, false);
  norm = reduced(norm, false);
  pre_error = reduced(pre_error, false);
  pre_norm = reduced(pre_norm, false);
  amax = reduced(amax, true);
  amax_bound = reduced(amax_bound, true);
  if (threadIdx.x != 0) return;
  atomicAdd(&verdict.out.error, error);
  atomicAdd(&verdict.out.norm, norm);
  atomicAdd(&verdict.preactivation.error, pre_error);
  atomicAdd(&verdict.preactivation.norm, pre_norm);
  raise(verdict.amax, amax);
  raise(verdict.amax_bound, amax_bound);
}
constexpr auto kKernel = &judge;
)";

inline constexpr const char* kBytesText = R"(
__global__ void bytes(BytesParams p) {
  const i64 end = p.rows * p.pitch_bytes;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.bytes; i += (i64)gridDim.x * blockDim.x) {
    const i64 from = i - p.start;
    bool inside = from >= 0 && from < end;
    if (inside && p.pitch_bytes != p.row_bytes) inside = (unsigned)from % (unsigned)p.pitch_bytes < p.row_bytes;
    if (inside) {
      if (p.now[i] == p.before[i]) continue;
      atomicAdd(&p.found->different, 1ULL);
      atomicMin(&p.found->first_different, (u64)i);
    } else if (p.now[i] != p.poison) {
      atomicAdd(&p.found->damaged, 1ULL);
      atomicMin(&p.found->first_damaged, (u64)i);
    }
  }
}
constexpr auto kKernel = &bytes;
)";

// The three programs. Their structs must have the sizes of the host's.
Source check_source(const char* name, const char* text);
std::array<Source, 3> check_sources();

// ---- the host's side ---------------------------------------------------------------------------------------------

class GemmChecker {
 public:
  explicit GemmChecker(MeasuredGpu& gpu);

  // A matrix as the kernels read it; a Tensor without data gives no matrix.
  CheckedMatrix of(const Tensor& tensor);

  void sums(const SumsParams& params);
  void judge(const JudgeParams& params) { launch(1, params.only >= 0 ? 1 : params.m * params.n, params); }
  void bytes(const BytesParams& params) { launch(2, params.bytes, params); }

 private:
  template <class Params>
  void launch(std::size_t kernel, long long elements, const Params& params) {
    constexpr long long kMostBlocks = 1024;
    const long long blocks = std::clamp((elements + kCheckThreads - 1) / kCheckThreads, 1LL, kMostBlocks);
    kernels_[kernel]->launch(gpu_->stream().handle(), {.grid_x = static_cast<unsigned>(blocks), .block = kCheckThreads},
                             params);
  }

  const double* table(Dtype dtype);

  MeasuredGpu* gpu_;
  std::array<const Kernel*, 3> kernels_{};
  std::map<Dtype, Buffer> tables_;
};

}  // namespace ingot::test
