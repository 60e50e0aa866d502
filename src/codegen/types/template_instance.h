// One instantiation of a template, as a spec's translation unit has it.
#pragma once

#include <string>

namespace ingot {

struct TemplateInstance {
  std::string header;     // "cast/cast_tiles.cuh"
  std::string kernel;     // with its arguments
  std::string words;      // of the comment: what the kernel is made of
  std::string functor{};  // of a fused expression
};

}  // namespace ingot
