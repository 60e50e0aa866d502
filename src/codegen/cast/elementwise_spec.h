// A pointwise expression as a separate kernel, for values that are needed in high precision, such as the gradient of
// an activation function.
#pragma once

#include <cstdint>
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
// expression, without the cast.
struct ElementwiseSpec {
  static constexpr std::string_view kWord = "elementwise";
  Dtype in = Dtype::bf16;
  Pointwise pointwise{};   // must be set
  bool fast_math = false;  // as in CastSpec
  bool operator==(const ElementwiseSpec&) const = default;
};

// The cast that computes the same values from the same inputs with the same precision; its `result` is this kernel's
// output.
INGOT_API CastSpec cast_of_values(const ElementwiseSpec& spec);

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const ElementwiseSpec& spec);
void validate_spec(const ElementwiseSpec& spec);
INGOT_API std::uint64_t hash_spec(const ElementwiseSpec& spec);
void read_spec(const SpecReader& reader, ElementwiseSpec& spec);
INGOT_API void list_valid(std::vector<ElementwiseSpec>& specs);
ExtraPasses extra_passes(const ElementwiseSpec& spec);
TemplateInstance template_instance(const ElementwiseSpec& spec, Pass pass);

}  // namespace ingot
