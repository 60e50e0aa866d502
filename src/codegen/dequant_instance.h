// Which instantiation of the templates computes a dequant_matmul.
#pragma once

#include <string>

#include "ingot/codegen/dequant_spec.h"

namespace ingot {

// Header, kernel with its arguments, words of the comment, functor of the expression: Instance of generate.cpp.
struct DequantInstance {
  std::string header;
  std::string kernel;
  std::string words;
  std::string functor;
};
DequantInstance dequant_instance(const DequantMatmulSpec& spec);

}  // namespace ingot
