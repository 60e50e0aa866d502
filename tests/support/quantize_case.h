// Runs quantize_mx and float_quantize on any backend, with guarded matrices, and computes the expected results in
// float64 (CodeSearch).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/compare.h"
#include "support/guarded_matrix.h"
#include "support/random.h"

namespace ingot::test {

// ---- quantize_mx -------------------------------------------------------------------------------------------------

struct MxOutputs {
  GuardedMatrix codes;   // u8: the bytes of packed rows
  GuardedMatrix scales;  // e8m0fnu
};

// `padding` elements, bytes (for FP6 three times as many) and scales are between rows; `offset` are before the first
// row.
MxOutputs poisoned_mx(Dtype out, std::int64_t rows, std::int64_t cols, Placement at);

Tensor view_codes(const GuardedMatrix& codes, Dtype out, std::int64_t cols, void* base, Device device);

// The tensors of one call in the backend's memory, with poisoned outputs.
class PlacedMx {
 public:
  PlacedMx(Dtype out, const GuardedMatrix& input, Placement at, Backend& backend, Stream& stream);

  MxOutputs outputs(Stream& stream);

  MxQuantizeTensors tensors;

 private:
  Backend* backend_;
  MxOutputs outputs_;
  std::vector<Buffer> memory_;
};

MxOutputs run_mx(const MxQuantizeSpec& spec, const GuardedMatrix& input, Placement at, Backend& backend,
                 Stream& stream);

// Empty if both have the same bits and nothing around them was written.
std::string mx_difference(const MxOutputs& expected, const MxOutputs& found);

// What the group of columns that begins at `first` should hold: the code of its scale, and its codes.
struct MxGroup {
  std::uint32_t scale = 0;
  std::vector<std::uint32_t> codes;
};
MxGroup expected_mx_group(Dtype out, const CodeSearch& search, const GuardedMatrix& input, std::int64_t row,
                          std::int64_t first);

GuardedMatrix mx_input(Dtype in, Shape shape, Input input, Placement at);

struct MxCase {
  Shape shape;
  Input input = Input::normal;
  Placement at{};
};

std::string name(const KernelSpec& spec, const MxCase& c);

// Whole tiles, ends of tiles, rows that cannot be read in vectors or written in words, and cut groups.
std::vector<MxCase> mx_cases();

// ---- float_quantize ----------------------------------------------------------------------------------------------

// x, of dtype `in`, rounded to the format, in float64.
double expected_float(const CodeSearch& search, double x);

// in_place: the output is the input. Otherwise `at` says how it is stored.
GuardedMatrix run_float(const FloatQuantizeSpec& spec, const GuardedMatrix& input, Placement at, bool in_place,
                        Backend& backend, Stream& stream);

}  // namespace ingot::test
