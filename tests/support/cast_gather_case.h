// Casts of gathered rows on one backend, and what plain casts of copied rows give on the CPU, which have to have the
// same bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/guarded_matrix.h"

namespace ingot::test {

struct GatherCase {
  CastSpec spec{};
  std::int64_t of = 0;  // rows of the input
  std::int64_t rows = 0, cols = 0;
  std::int64_t padding = 0;  // elements after each row
  std::int64_t offset = 0;   // elements before the first, in all but f32 vectors
};

std::string describe(const GatherCase& c);

// Values of another magnitude in each row and column, in spec.in.
GuardedMatrix gather_input(const GatherCase& c);

// Rows in no order, some of them several times; all of them if there are enough places.
std::vector<std::int32_t> gather_index(const GatherCase& c);

using GatherOutputs = std::map<std::string, GuardedMatrix>;

// The case's tensors in a backend's memory, each between guard bytes.
class PlacedGather {
 public:
  PlacedGather(const GatherCase& c, const GuardedMatrix& input, const std::vector<std::int32_t>& index,
               Backend& backend, Stream& stream);

  const CastTensors& tensors() const { return tensors_; }

  // Writes poison into the outputs.
  void reset(Stream& stream);
  GatherOutputs outputs(Stream& stream) const;

 private:
  Tensor place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream);

  Backend* backend_;
  GatherOutputs starts_{};  // of the outputs
  std::map<std::string, Buffer> memory_{};
  CastTensors tensors_;
};

// Of plain casts on the CPU, of a matrix that has copies of the rows, and below them the whole input, so that its
// scales are those of all rows.
GatherOutputs cast_of_copies(const GatherCase& c, const GuardedMatrix& input, const std::vector<std::int32_t>& index);

// The first difference, also of a byte between rows or before and after a tensor; empty if there is none.
std::string gather_difference(const GatherOutputs& expected, const GatherOutputs& actual);

// Every granularity, dtypes of all kinds.
std::vector<CastSpec> gathered_specs();

// Each spec with more rows than the input has, fewer, none, and rows of any alignment.
std::vector<GatherCase> gather_cases();

}  // namespace ingot::test
