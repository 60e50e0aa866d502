// Column sums of experts' rows on one backend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/grouped_gemm_case.h"
#include "support/guarded_matrix.h"

namespace ingot::test {

struct ExpertsSumCase {
  ColumnSumSpec spec{.experts = true};
  Ends ends{};
  std::int64_t rows = 0, cols = 0;
  std::int64_t of = 0;       // rows of the input, if row_index names them
  std::int64_t padding = 0;  // elements after each row of the input
  std::int64_t offset = 0;   // elements before the first
};

std::string describe(const ExpertsSumCase& c);

// All of them with an expert without rows first, last and between, with one row, of whole blocks and one row more or
// less, rows that nobody has, and none at all; of columns of any alignment.
std::vector<ExpertsSumCase> experts_sum_cases();

class PlacedExpertsSum {
 public:
  PlacedExpertsSum(const ExpertsSumCase& c, Backend& backend, Stream& stream);

  const ColumnSumTensors& tensors() const { return tensors_; }
  void set_ends(const Ends& ends, Stream& stream);
  GuardedMatrix sum(Stream& stream) const;

  // In the order of templates/cast/column_sum_experts.cuh.
  GuardedMatrix expected() const;
  // The worst error against float64, in units of what summing and rounding may give.
  double worst_error(const GuardedMatrix& sum) const;

 private:
  // Row r of the experts'.
  std::int64_t input_row(std::int64_t r) const { return index_.empty() ? r : index_[static_cast<std::size_t>(r)]; }
  std::int64_t begin_of(std::int64_t expert) const {
    return expert == 0 ? 0 : ends_[static_cast<std::size_t>(expert - 1)];
  }

  Backend* backend_;
  ColumnSumSpec spec_;
  Ends ends_;
  GuardedMatrix input_, sum_;  // sum_: with poison
  std::vector<std::int32_t> index_{};
  Buffer input_memory_, sum_memory_, ends_memory_, index_memory_;
  ColumnSumTensors tensors_;
};

}  // namespace ingot::test
