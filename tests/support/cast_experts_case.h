// Casts of experts' rows on one backend, and what the CPU's plain casts give of a matrix in which each expert's rows
// begin at a multiple of 128, or with given scales of each expert's rows: they have to have the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/grouped_gemm_case.h"
#include "support/guarded_matrix.h"

namespace ingot::test {

struct ExpertsCastCase {
  CastSpec spec{};  // an expression reads `up` and `router[row]`, if any
  Ends ends{};
  std::int64_t rows = 0, cols = 0;
  std::int64_t of = 0;       // rows of the input, if they are gathered
  std::int64_t padding = 0;  // elements after each row
  std::int64_t offset = 0;   // elements before the first, in all but f32 vectors
  bool by_group = false;     // the codes' scale_inv
  bool with_nan = false;     // in the first row
};

std::string describe(const ExpertsCastCase& c);

using CastOutputs = std::map<std::string, GuardedMatrix>;

// What a cast reads.
struct ExpertsCastInputs {
  explicit ExpertsCastInputs(const ExpertsCastCase& c);

  GuardedMatrix input, up, router;
  GuardedMatrix scales;  // given ones
  std::vector<std::int32_t> index{};
};

// The case's tensors in a backend's memory, each between guard bytes.
class PlacedExpertsCast {
 public:
  PlacedExpertsCast(const ExpertsCastCase& c, const ExpertsCastInputs& inputs, Backend& backend, Stream& stream);

  const CastTensors& tensors() const { return tensors_; }
  void set_ends(const Ends& ends, Stream& stream);
  // Writes poison into the outputs.
  void reset(Stream& stream);
  CastOutputs outputs(Stream& stream) const;

 private:
  Tensor place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream);

  Backend* backend_;
  CastOutputs starts_{};  // of the outputs
  std::map<std::string, Buffer> memory_{};
  CastTensors tensors_;
};

// Slots and, with given scales, rows that are nobody's hold what they held before.
CastOutputs expected_of_experts(const ExpertsCastCase& c, const ExpertsCastInputs& inputs);

// The first difference, also of a byte between rows or before and after a tensor; empty if there is none.
std::string experts_difference(const CastOutputs& expected, const CastOutputs& actual);

// Codes and transposed codes, or one of them, of all dtypes, gathered, and of an expression, in slots and with given
// scales.
std::vector<CastSpec> experts_cast_specs();

// Each spec with experts without rows first, last and between, of one row, of whole blocks and one row more or less,
// one hot, rows that no expert has, none at all, and rows of any alignment.
std::vector<ExpertsCastCase> experts_cast_cases();

}  // namespace ingot::test
