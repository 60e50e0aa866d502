#include "ingot/codegen/types/dtype.h"

// Compares the dtype table with the C++ types that templates compute with.
#include "ingot/codegen/types/dtype_types.h"

namespace ingot {

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const DtypeFacts& facts : kDtypeTable) {
    if (facts.name == text) return facts.dtype;
  }
  return std::nullopt;
}

}  // namespace ingot
