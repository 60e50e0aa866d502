// How values of a spec are written as template arguments. The template instantiation that computes one pass of a
// spec; generate() makes it a translation unit.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

struct TemplateInstance {
  std::string header;     // file of templates/ that has the kernel: "cast/cast_tiles.cuh"
  std::string kernel;     // the kernel with its template arguments: "cast_rows<...>"
  std::string words;      // comment on the unit's first line: what the kernel depends on, and nothing else
  std::string functor{};  // definition of a fused expression
};

// The struct that a fused expression is rendered as.
inline constexpr const char* kFunctorName = "Fused";

// "ingot::bf16": a type of templates/formats.cuh.
inline std::string type_text(Dtype dtype) { return fmt::format("ingot::{}", name(dtype)); }

// A field of an aggregate, by its name, so that no value is read as another's.
struct FieldText {
  std::string_view name;
  std::string value;
};
inline FieldText field(std::string_view name, std::string value) { return {name, std::move(value)}; }
FieldText field(std::string_view name, std::same_as<bool> auto value) { return {name, value ? "true" : "false"}; }
template <std::integral Number>
requires(!std::same_as<Number, bool>) FieldText field(std::string_view name, Number value) {
  return {name, std::to_string(value)};
}

// "{.m = 64, .n = 128}". The fields are in the order in which the aggregate declares them, as C++ demands.
inline std::string aggregate_text(std::initializer_list<FieldText> fields) {
  std::string text = "{";
  for (const FieldText& each : fields) {
    if (text.size() > 1) text += ", ";
    text.append(".").append(each.name).append(" = ").append(each.value);
  }
  return text + "}";
}
// "ingot::MmaTiling{.m = 64, .n = 128}"
inline std::string aggregate_text(std::string_view type, std::initializer_list<FieldText> fields) {
  return fmt::format("ingot::{}{}", type, aggregate_text(fields));
}

// A Granularity of templates/granularity.cuh: "{.rows = 1, .cols = 128}".
inline FieldText field(std::string_view name, ScaleGranularity value) {
  return {name, aggregate_text({field("rows", value.rows), field("cols", value.cols)})};
}

}  // namespace ingot
