// visit_dtype() of the formats that a weight may be of, and its layout as templates know it.
#pragma once

#include <utility>

#include "dequant_fragment.cuh"
#include "ingot/codegen/dequant_spec.h"
#include "ingot/runtime/cpu/visit.h"

namespace ingot {

template <class Function>
decltype(auto) visit_weight(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::e3m2fn: return function(Type<e3m2fn>{});
    case Dtype::e2m3fn: return function(Type<e2m3fn>{});
    case Dtype::e2m1fn: return function(Type<e2m1fn>{});
    default: return visit_fp8(dtype, std::forward<Function>(function));
  }
}

constexpr CodeLayout code_layout(WeightLayout layout) {
  switch (layout) {
    case WeightLayout::row_major: return CodeLayout::row_major;
    case WeightLayout::packed_f16: return CodeLayout::packed_f16;
    default: return CodeLayout::packed;
  }
}

}  // namespace ingot
