// A dequant_matmul with its data and the expected result, computed in float64 from values that
// support/reference_formats.h decodes, without templates/.
#pragma once

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/guarded_matrix.h"
#include "support/random.h"

namespace ingot::test {

struct DequantScale {
  ScaleGranularity scale;
  Dtype scale_inv = Dtype::f32;
};
inline constexpr std::array kDequantScales{DequantScale{kTensorwise},
                                           DequantScale{kRowwise},
                                           DequantScale{kRowGroups},
                                           DequantScale{kRowGroups64},
                                           DequantScale{kRowGroups32},
                                           DequantScale{kBlocks},
                                           DequantScale{kRowGroups32, Dtype::e8m0fnu}};

inline bool is_nan_or_inf(Dtype weight, std::uint32_t code) { return !std::isfinite(decode_reference(weight, code)); }

// Codes of a weight [n, k], one per byte.
struct WeightCodes {
  Dtype dtype;
  std::int64_t n, k;
  std::vector<std::uint8_t> codes;

  std::uint8_t& at(std::int64_t row, std::int64_t col) { return codes[static_cast<std::size_t>(row * k + col)]; }
  std::uint8_t at(std::int64_t row, std::int64_t col) const { return codes[static_cast<std::size_t>(row * k + col)]; }
  double value(std::int64_t row, std::int64_t col) const { return decode_reference(dtype, at(row, col)); }

  // Random codes, including NaN and Inf unless `finite`.
  static WeightCodes random(Dtype dtype, std::int64_t n, std::int64_t k, std::uint64_t seed, bool finite = true);

  // The codes in rows of packed bytes that begin `offset` bytes after an aligned address and are `padding` elements
  // apart; bytes that hold no code are poison.
  GuardedMatrix rows(std::int64_t padding = 0, std::int64_t offset = 0) const;
  std::int64_t row_stride(std::int64_t padding) const;
  // A tensor of codes over those bytes.
  Tensor view(const GuardedMatrix& bytes, void* base, Device device, std::int64_t padding) const;
};

// Where tensors begin, and how much farther apart their rows are than necessary.
struct DequantPlacement {
  std::int64_t x_padding = 0, x_offset = 0;            // elements
  std::int64_t weight_padding = 0, weight_offset = 0;  // elements, bytes
  std::int64_t out_padding = 0, out_offset = 0;        // elements
};

struct DequantCase {
  DequantMatmulSpec spec;
  std::int64_t m, n, k;
  DequantPlacement placement{};
  std::uint64_t seed = 1;
  // Some rows have a NaN, and some an Inf if the format has one.
  bool faulty = false;
};

class DequantData {
 public:
  explicit DequantData(const DequantCase& c);

  const DequantCase& of() const { return case_; }

  bool has_nan(std::int64_t row) const;

  double factor(std::int64_t row, std::int64_t k) const;

  // Every output in float64, and how far from it a result may be; NaN and Inf stay what they are.
  struct Expected {
    double value, bound;
  };
  std::vector<Expected> expected() const;

 private:
  DequantCase case_;

 public:
  GuardedMatrix x;
  WeightCodes weight;
  GuardedMatrix scale_inv;
  GuardedMatrix bias{};
  std::vector<GuardedMatrix> inputs{};

 private:
  // scale_inv that bring the outputs to around 1.
  void fill_scale_inv();

  void add_faults();

  GuardedMatrix vector_of(Dtype dtype, std::int64_t count, std::uint64_t seed) const;
  GuardedMatrix matrix_of(Dtype dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) const;

  void add_input(const PointwiseInput& input);

  Expected finish(std::int64_t m, std::int64_t n, double sum, double bound) const;
};

// Empty, or a message that says which output is wrong. first: the row of `out` that has the data's first outputs.
std::string fault_of_rows(const DequantData& data, const GuardedMatrix& out, std::int64_t first,
                          const std::vector<DequantData::Expected>& expected);
// The same of all of `out`; or which byte around it was written.
std::string fault_of_outputs(const DequantData& data, const GuardedMatrix& out,
                             const std::vector<DequantData::Expected>& expected);

// The data in a backend's memory. The backend itself packs the weight there.
class PlacedDequant {
 public:
  PlacedDequant(const DequantData& data, Backend& backend, Stream& stream);

  void enqueue(Stream& stream) { backend_->dequant_matmul(data_->of().spec, tensors_, stream); }
  void enqueue(const DequantMatmulSpec& spec, Stream& stream) { backend_->dequant_matmul(spec, tensors_, stream); }
  void poison(Stream& stream);
  GuardedMatrix out(Stream& stream);
  DequantMatmulTensors& tensors() { return tensors_; }

 private:
  const DequantData* data_;
  Backend* backend_;
  GuardedMatrix out_;
  std::vector<Buffer> memory_;
  std::size_t out_memory_ = 0;
  DequantMatmulTensors tensors_{};
};

std::string describe(const DequantCase& c);

}  // namespace ingot::test
