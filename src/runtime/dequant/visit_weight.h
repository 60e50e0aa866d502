// visit_dtype() of the formats that a weight may be of, and its layout as templates know it.
#pragma once

#include <utility>

#include "dequant/dequant_layout.cuh"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/core/visit.h"

namespace ingot {

template <class Function>
decltype(auto) visit_weight(Dtype dtype, Function&& function) {
  return visit_among<kWeightDtypes>(dtype, std::forward<Function>(function));
}

constexpr CodeLayout code_layout(WeightLayout layout) { return static_cast<CodeLayout>(layout); }
static_assert(code_layout(WeightLayout::row_major) == CodeLayout::row_major);
static_assert(code_layout(WeightLayout::packed) == CodeLayout::packed);
static_assert(code_layout(WeightLayout::packed_f16) == CodeLayout::packed_f16);

}  // namespace ingot
