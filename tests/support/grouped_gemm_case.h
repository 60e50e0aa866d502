// Grouped GEMMs for tests: the rows of experts in every uneven way, operands, float64 results, and the placement in a
// backend's memory with guard bytes around the output and poison in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "support/guarded_matrix.h"
#include "support/placed_matrix.h"

namespace ingot::test {

using Ends = std::vector<std::int32_t>;

// The same number of rows each, but for the last.
Ends balanced_ends(std::int64_t rows, std::int64_t experts);
// Rows by Zipf's law, the experts in an order of its own.
Ends zipf_ends(std::int64_t rows, std::int64_t experts);
// Expert `hot` has all rows but one of each other.
Ends one_hot_ends(std::int64_t rows, std::int64_t experts, std::int64_t hot);
// Of experts with so many rows each.
Ends ends_of(const std::vector<std::int32_t>& rows);

// A matrix's elements, row by row.
std::vector<double> values_of(const GuardedMatrix& matrix);

struct GroupedCase {
  GroupedGemmSpec spec{};
  Ends ends{};                             // with a capacity, how many rows each expert has
  std::int64_t m = 0, n = 0, k = 0;        // m: at least the last end
  bool exact = false;                      // small integers and powers of two: only one result is right
  bool by_group = false;                   // scale_inv of groups as matrices with a row for each group of K
  bool of_each = false;                    // those of b, likewise, of one expert after another
  bool each_a = false;                     // tensorwise, a has a scale_inv for each expert
  std::int64_t in_padding = 0;             // elements after each row of a and b
  std::int64_t out_padding = 0;            // and of out
  std::optional<std::int64_t> capacity{};  // ExpertEnds::capacity; m: as many for each expert
};

std::string describe(const GroupedCase& c);

// The operands of a case, and for each element of the output their sum and the sum of the absolute products. scale_inv
// of groups are part of the products.
struct GroupedOperands {
  GuardedMatrix a, b;
  GuardedMatrix scale_inv_a{}, scale_inv_b{};  // of groups, row by row
  std::vector<double> sums{}, magnitudes{};
};

// Keeps the operands: many specs differ only in scale_inv, tiling or output.
class GroupedMaker {
 public:
  std::shared_ptr<const GroupedOperands> operands(const GroupedCase& c);

 private:
  ThreadPool pool_{0};
  std::map<std::string, std::shared_ptr<const GroupedOperands>> kept_;
};

class GroupedData {
 public:
  GroupedData(const GroupedCase& c, GroupedMaker& maker);

  const GroupedCase& of() const { return case_; }
  const GuardedMatrix& a() const { return operands_->a; }
  const GuardedMatrix& b() const { return operands_->b; }
  const GuardedMatrix& scale_inv_a() const { return scale_inv_a_; }
  const GuardedMatrix& scale_inv_b() const { return scale_inv_b_; }
  const GuardedMatrix& bias() const { return bias_; }

  // Empty, or which element is wrong, which byte around the output was written, or which row that no expert has.
  std::string fault_of(const GuardedMatrix& out) const;

 private:
  std::string fault_of_rows(const GuardedMatrix& out, std::int64_t begin, std::int64_t end, std::int64_t expert) const;

  GroupedCase case_;
  std::shared_ptr<const GroupedOperands> operands_;
  GuardedMatrix scale_inv_a_, scale_inv_b_, bias_;
};

// The data in a backend's memory.
class PlacedGrouped {
 public:
  PlacedGrouped(const GroupedData& data, Backend& backend, Stream& stream);

  void enqueue(Stream& stream) { backend_->grouped_gemm(spec_, tensors_, stream); }
  void poison(Stream& stream) { out_.poison(stream); }
  void set_ends(const Ends& ends, Stream& stream);
  GuardedMatrix out(Stream& stream) { return out_.fetch(stream); }
  GroupedGemmTensors& tensors() { return tensors_; }

 private:
  GroupedGemmSpec spec_;
  Backend* backend_;
  PlacedOut out_;
  std::vector<Buffer> memory_;
  Buffer ends_;
  GroupedGemmTensors tensors_{};
};

}  // namespace ingot::test
