// One or two pointwise expressions as a separate kernel, for values that are needed in high precision, such as the
// gradients of an activation function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// output[rows, cols] = expression(x, inputs), computed in f32 and rounded to `in`: the `result` of a cast with the same
// expression, without the cast. With a second expression also second[rows, cols], from the same x and inputs: each
// element that both expressions read is loaded once. With `amax` also amax[1] = the largest |value| of all outputs,
// after rounding, as AmaxSpec finds it in another pass: a tensorwise cast of the outputs can take it
// (CastTensors::known_amax). With a row_sum also sums[rows], in f32: of each row, the sum of a further expression of
// the same x and inputs, whose values are not rounded, always in the same order (elementwise_rows.cuh). With `maxima`
// also row_amax[rows], the largest |value| that is written of each row, and column_amax[cols] or, of two outputs,
// [2 * cols], those of each column of output, then of second. They are those of AmaxSpec, too: a cast of the outputs as
// one matrix with scales of rows and, transposed, of columns can take them (CastTensors::known_transposed_amax).
struct ElementwiseSpec {
  static constexpr std::string_view kWord = "elementwise";
  Dtype in = Dtype::bf16;
  Pointwise pointwise{};   // must be set
  Pointwise second{};      // none: one output
  Pointwise row_sum{};     // none: no sums
  bool amax = false;       // not with a row_sum
  bool maxima = false;     // not with amax
  bool fast_math = false;  // as in CastSpec
  bool operator==(const ElementwiseSpec&) const = default;
};

// What the expressions of a spec read besides x: the inputs of the first one in its order, then those that only the
// second one has, then those that only the row_sum has. An input of one name is the same for all. Refers to the spec.
class INGOT_API ElementwiseInputs {
 public:
  explicit ElementwiseInputs(const ElementwiseSpec& spec);

  // Of a valid spec at most kMaxPointwiseInputs.
  std::span<const PointwiseInput* const> all() const { return std::span(inputs_).first(count_); }
  // Where the input of this name is in all(); the size of all() if it is not there.
  std::size_t index_of(std::string_view input) const;

 private:
  std::array<const PointwiseInput*, 3 * kMaxPointwiseInputs> inputs_{};
  std::size_t count_ = 0;
};

inline bool uses_x(const ElementwiseSpec& spec) {
  const auto reads = [](const Pointwise& expression) { return expression && expression.uses_x(); };
  return spec.pointwise.uses_x() || reads(spec.second) || reads(spec.row_sum);
}

// The cast that computes the same values from the same inputs with the same precision; its `result` is this kernel's
// output. For the second expression's, of_second: its inputs are those of that expression alone.
INGOT_API CastSpec cast_of_values(const ElementwiseSpec& spec, bool of_second = false);
// The same for the values that a row_sum adds.
INGOT_API CastSpec cast_of_summed(const ElementwiseSpec& spec);

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const ElementwiseSpec& spec);
void validate_spec(const ElementwiseSpec& spec);
INGOT_API std::uint64_t hash_spec(const ElementwiseSpec& spec);
void read_spec(const SpecReader& reader, ElementwiseSpec& spec);
INGOT_API void list_valid(std::vector<ElementwiseSpec>& specs);
ExtraPasses extra_passes(const ElementwiseSpec& spec);
TemplateInstance template_instance(const ElementwiseSpec& spec, Pass pass);

}  // namespace ingot
