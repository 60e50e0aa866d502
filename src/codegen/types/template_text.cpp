#include "ingot/codegen/types/template_text.h"

#include <fmt/format.h>

namespace ingot {

std::string type_text(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

FieldText field(std::string_view name, ScaleGranularity value) {
  return {name, aggregate_text({field("rows", value.rows), field("cols", value.cols)})};
}

std::string aggregate_text(std::initializer_list<FieldText> fields) {
  std::string text = "{";
  for (const FieldText& each : fields) {
    if (text.size() > 1) text += ", ";
    text.append(".").append(each.name).append(" = ").append(each.value);
  }
  return text + "}";
}

std::string aggregate_text(std::string_view type, std::initializer_list<FieldText> fields) {
  return fmt::format("ingot::{}{}", type, aggregate_text(fields));
}

}  // namespace ingot
