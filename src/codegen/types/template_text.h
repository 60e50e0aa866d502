// How values of a spec are written as template arguments.
#pragma once

#include <string>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

// The struct that a fused expression is rendered as.
inline constexpr const char* kFunctorName = "Fused";

// "ingot::bf16": a type of templates/formats.cuh.
std::string type_text(Dtype dtype);
// "ingot::Rowwise": a type of templates/scaling.cuh.
std::string type_text(ScaleGranularity scale);

}  // namespace ingot
