// How a cast's kernels read the values that they cast: elements of x, or a fused expression of them.
#pragma once

#include <string>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// The type of templates/cast/source.cuh: "ingot::ValueSource<ingot::bf16>".
std::string source_text(Dtype in);
std::string source_text(const CastSpec& spec);
// The expression's functor; empty without an expression.
std::string functor(const CastSpec& spec);
// The words of the spec that its values depend on.
std::string value_words(const CastSpec& spec);

}  // namespace ingot
