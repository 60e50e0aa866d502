// visit_dtype() of the formats that a weight may be of, and those of its factors and activations.
#pragma once

#include <utility>

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

}  // namespace ingot
