// What the tools call a pass, in tables, in JSON and at the end of file names.
#pragma once

#include "ingot/codegen/types/pass.h"

namespace ingot::tools {

constexpr const char* pass_name(Pass pass) {
  switch (pass) {
    case Pass::first: return "first";
    case Pass::main: return "main";
    case Pass::finish: return "finish";
    case Pass::whole: return "whole";
    case Pass::unaligned: return "unaligned";
    case Pass::wide: return "wide";
    case Pass::pair: return "pair";
    case Pass::keeping: return "keeping";
    case Pass::kept: return "kept";
  }
  return "";
}

}  // namespace ingot::tools
