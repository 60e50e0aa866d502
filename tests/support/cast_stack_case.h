// Casts of stacked matrices on one backend, and each of them by itself on the CPU, which have to have the same bits.
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

struct StackCase {
  CastSpec spec{};
  std::int64_t matrices = 1, rows = 0, cols = 0;
  std::int64_t padding = 0;  // elements after each row
  std::int64_t offset = 0;   // elements before the first, in all but f32 vectors
  bool known = false;        // are the maxima that the scales are made from given?
};

std::string describe(const StackCase& c);

// The case's tensors in a backend's memory, each between guard bytes.
class PlacedStack {
 public:
  PlacedStack(const StackCase& c, const GuardedMatrix& input, Backend& backend, Stream& stream);

  const CastTensors& tensors() const { return tensors_; }

  // Writes poison into the outputs, and into amax what is there before the cast.
  void reset(Stream& stream);
  std::map<std::string, GuardedMatrix> outputs(Stream& stream) const;

 private:
  Tensor place(const std::string& name, const GuardedMatrix& start, bool output, Stream& stream);

  Backend* backend_;
  std::map<std::string, GuardedMatrix> starts_{};  // of the outputs
  std::map<std::string, Buffer> memory_{};
  CastTensors tensors_;
};

// Values of another magnitude in each matrix, in spec.in.
GuardedMatrix stack_input(const StackCase& c);

// The outputs of a cast of each matrix by itself on the CPU, of values that have been rounded before. Maxima are those
// of a plain loop.
std::map<std::string, GuardedMatrix> cast_one_by_one(const StackCase& c, const GuardedMatrix& input);

// The first difference, also of a byte between rows or before and after a tensor; empty if there is none.
std::string stack_difference(const std::map<std::string, GuardedMatrix>& expected,
                             const std::map<std::string, GuardedMatrix>& actual);

// With every granularity, formats, scales of each source.
std::vector<CastSpec> stacked_specs();

// Those that take known maxima.
std::vector<CastSpec> stacked_specs_with_known_maxima();

// Each spec with matrices of every kind: none, one, empty ones, rows of any alignment; and with known maxima.
std::vector<StackCase> stack_cases();

}  // namespace ingot::test
