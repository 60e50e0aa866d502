// Grouped GEMMs along K for tests: operands whose columns are those of experts, float64 results, and the placement in a
// backend's memory with guard bytes around the output and poison in it. Columns that no expert has hold NaN, and so do
// the scale_inv of experts without columns. With scale_inv of groups the columns are in slots: those that are nobody's,
// and their scale_inv, hold NaN, and what a slot holds beyond its expert's columns are zeros.
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
#include "support/grouped_gemm_case.h"
#include "support/guarded_matrix.h"

namespace ingot::test {

struct AlongKCase {
  GroupedGemmSpec spec{};
  Ends ends{};
  std::int64_t m = 0, n = 0, k = 0;  // k: at least the last end; of slots, the rows that they have room for
  bool exact = false;                // small integers and powers of two: only one result is right
  bool one_scale_inv = false;        // scale_inv are those of all experts together, not of each; of slots, in a row
  bool in_place = true;              // c is the output
  float beta = 1.0F;
  std::int64_t in_padding = 0;           // elements after each row of a and b
  std::int64_t out_padding = 0;          // and of out
  std::optional<std::size_t> of_nans{};  // all of this expert's columns hold NaN
};

std::string describe(const AlongKCase& c);

// For each element of an output the sum, and the sum of the absolute products.
struct AlongKSums {
  std::vector<double> sums{}, magnitudes{};
};

// The operands of a case and, but for slots, what they sum up to before scale_inv.
struct AlongKOperands {
  GuardedMatrix a, b;
  AlongKSums sums{};
};

// Keeps the operands: many specs differ only in scale_inv, tiling or output.
class AlongKMaker {
 public:
  std::shared_ptr<const AlongKOperands> operands(const AlongKCase& c);
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_{0};
  std::map<std::string, std::shared_ptr<const AlongKOperands>> kept_;
};

class AlongKData {
 public:
  AlongKData(const AlongKCase& c, AlongKMaker& maker);

  const AlongKCase& of() const { return case_; }
  const GuardedMatrix& a() const { return operands_->a; }
  const GuardedMatrix& b() const { return operands_->b; }
  const GuardedMatrix& scale_inv_a() const { return scale_inv_a_; }
  const GuardedMatrix& scale_inv_b() const { return scale_inv_b_; }
  // What is added, with `out`'s padding; without elements if nothing is.
  const GuardedMatrix& c() const { return c_; }

  // Empty, or which element is wrong, or which byte around the output was written.
  std::string fault_of(const GuardedMatrix& out) const;

 private:
  std::string fault_at(const GuardedMatrix& out, std::int64_t row, std::int64_t n) const;

  AlongKCase case_;
  std::shared_ptr<const AlongKOperands> operands_;
  GuardedMatrix scale_inv_a_, scale_inv_b_, c_;
  AlongKSums of_slots_{};  // with scale_inv
};

// The data in a backend's memory.
class PlacedAlongK {
 public:
  PlacedAlongK(const AlongKData& data, Backend& backend, Stream& stream);

  void enqueue(Stream& stream) { backend_->grouped_gemm(spec_, tensors_, stream); }
  // The output as it is before a call: what is added, if that is in place, else poison.
  void reset(Stream& stream);
  void set_ends(const Ends& ends, Stream& stream);
  GuardedMatrix out(Stream& stream);
  GroupedGemmTensors& tensors() { return tensors_; }

 private:
  GroupedGemmSpec spec_;
  Backend* backend_;
  GuardedMatrix out_;
  std::vector<Buffer> memory_;
  Buffer out_memory_;
  Buffer ends_;
  GroupedGemmTensors tensors_{};
};

}  // namespace ingot::test
