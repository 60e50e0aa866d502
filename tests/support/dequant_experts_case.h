// A dequant_matmul of experts with its data: a DequantCase for each expert, whose operands are put one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/dequant_case.h"
#include "support/grouped_gemm_case.h"
#include "support/guarded_matrix.h"
#include "support/placed_matrix.h"

namespace ingot::test {

// The default spec with experts. (Not inline: g++ takes parts of many such cases for uninitialised.)
DequantMatmulSpec spec_of_experts();

struct DequantExpertsCase {
  DequantMatmulSpec spec = spec_of_experts();
  Ends ends{};                       // with a capacity, how many rows each expert has
  std::int64_t m = 0, n = 0, k = 0;  // m: at least the last end
  DequantPlacement placement{};
  std::optional<std::int64_t> capacity{};  // ExpertEnds::capacity
  bool faulty = false;                     // some rows of weights have a NaN or an Inf
};

std::string describe(const DequantExpertsCase& c);

class DequantExpertsData {
 public:
  explicit DequantExpertsData(const DequantExpertsCase& c);

  const DequantExpertsCase& of() const { return case_; }
  const std::vector<DequantData>& experts() const { return experts_; }
  const GuardedMatrix& x() const { return x_; }  // NaN in rows that no expert has
  // All experts' values of one kind, one expert's after the other's.
  GuardedMatrix joined(GuardedMatrix DequantData::*part) const;
  WeightCodes codes() const;

  // Empty, or which output is wrong, which byte around the output was written, or which row that no expert has.
  std::string fault_of(const GuardedMatrix& out) const;

 private:
  std::int64_t first_row(std::size_t expert) const;
  std::int64_t rows(std::size_t expert) const;

  DequantExpertsCase case_;
  std::vector<DequantData> experts_;
  std::vector<std::vector<DequantData::Expected>> expected_;
  GuardedMatrix x_;
};

// The data in a backend's memory; the backend itself packs the weights there.
class PlacedDequantExperts {
 public:
  PlacedDequantExperts(const DequantExpertsData& data, Backend& backend, Stream& stream);

  void enqueue(Stream& stream) { backend_->dequant_matmul(spec_, tensors_, stream); }
  void poison(Stream& stream) { out_.poison(stream); }
  void set_ends(const Ends& ends, Stream& stream);
  GuardedMatrix out(Stream& stream) { return out_.fetch(stream); }
  DequantMatmulTensors& tensors() { return tensors_; }

 private:
  void place_weights(const DequantExpertsData& data, Stream& stream);

  DequantMatmulSpec spec_;
  Backend* backend_;
  PlacedOut out_;
  std::vector<Buffer> memory_;
  Buffer ends_;
  DequantMatmulTensors tensors_{};
};

}  // namespace ingot::test
