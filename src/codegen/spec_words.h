// Words that the messages about every spec share.
#pragma once

#include <span>
#include <string>

#include "ingot/codegen/dtype.h"

namespace ingot {

// "bf16, f16"
std::string list(std::span<const Dtype> dtypes);
bool among(std::span<const Dtype> dtypes, Dtype dtype);
// "in is f32, but must be one of bf16, f16"; empty where it is among them.
std::string dtype_fault(const char* field, Dtype dtype, std::span<const Dtype> allowed);

}  // namespace ingot
