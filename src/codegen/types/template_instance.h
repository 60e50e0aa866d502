// The template instantiation that computes one pass of a spec; generate() makes it a translation unit.
#pragma once

#include <string>

namespace ingot {

struct TemplateInstance {
  std::string header;     // file of templates/ that has the kernel: "cast/cast_tiles.cuh"
  std::string kernel;     // the kernel with its template arguments: "cast_rows<...>"
  std::string words;      // comment on the unit's first line: what the kernel depends on, and nothing else
  std::string functor{};  // definition of a fused expression
};

}  // namespace ingot
