// The template instantiations that the operations of this folder share; norms use column_sum_finish() too.
#pragma once

#include <string>

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

// How a cast's kernels read the values that they cast: elements of x, or a fused expression of them. The type of
// templates/cast/source.cuh: "ingot::ValueSource<ingot::bf16>".
std::string source_text(Dtype in);
std::string source_text(const CastSpec& spec);
// The expression's functor; empty without an expression.
std::string functor(const CastSpec& spec);
// The words of the spec that its values depend on.
std::string value_words(const CastSpec& spec);
// The maxima of the values of a list, or of stacked matrices, which two outputs of the cast raise: none that is not
// written. scales: their granularities, for the comment.
TemplateInstance cast_list_maxima(const CastSpec& spec, const CastOutputConfig& first, const CastOutputConfig& second,
                                  const std::string& scales);

// The kernels of templates/cast/amax.cuh. Casts use them as their first pass too.
TemplateInstance amax_partials(Dtype in);
TemplateInstance amax_rows(Dtype in);
// values: a type of templates/cast/source.cuh. words: what the values are, for the comment. keeps: the kernel also
// writes them.
TemplateInstance amax_tiles(const std::string& values, const FirstPass& wanted, const std::string& words,
                            bool keeps = false);

// Adds up the partial sums and rounds them to `out`.
TemplateInstance column_sum_finish(Dtype out);

}  // namespace ingot
