#include "ingot/codegen/types/dtype.h"

namespace ingot {

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const DtypeFacts& facts : kDtypeTable) {
    if (facts.name == text) return facts.dtype;
  }
  return std::nullopt;
}

}  // namespace ingot
