#include "ingot/codegen/types/template_text.h"

#include <fmt/format.h>

namespace ingot {

std::string type_text(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

std::string type_text(ScaleGranularity scale) {
  if (scale == kTensorwise) return "ingot::Tensorwise";
  if (scale == kRowwise) return "ingot::Rowwise";
  if (scale == kColumnwise) return "ingot::Columnwise";
  if (scale == kRowGroups) return "ingot::RowGroups";
  if (scale == kColumnGroups) return "ingot::ColumnGroups";
  return "ingot::Blocks";
}

}  // namespace ingot
