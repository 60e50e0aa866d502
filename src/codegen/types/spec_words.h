// Lists of dtypes, as the error messages of specs show them, and whether a dtype is in such a list.
#pragma once

#include <span>
#include <string>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// "bf16, f16"
std::string list(std::span<const Dtype> dtypes);
bool among(std::span<const Dtype> dtypes, Dtype dtype);

}  // namespace ingot
