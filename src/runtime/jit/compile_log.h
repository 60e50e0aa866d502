// Reads what NVRTC and ptxas print: a kernel's registers and spills, warnings, errors. Pure functions over text.
#pragma once

#include <string>
#include <string_view>

#include "ingot/codegen/template_files.h"
#include "ingot/runtime/jit/compiler.h"

namespace ingot {

// Registers, spills, stack and shared memory of the entry function `lowered_name`, from ptxas -v's lines. Spills are
// counted over the whole unit: a called function that spills is as bad as a kernel that does.
KernelResources read_resources(std::string_view log, std::string_view lowered_name);

// The log without ptxas -v's report and NVRTC's advice on how to silence it: empty where there are no warnings.
std::string warnings_of(std::string_view log);

// The log's first error on one line, without its file and line number, for messages of one line.
std::string first_error(std::string_view log);

// The log, then the lines around each diagnostic of the unit or of a template, numbered:
//
//   cast_rows.cuh:
//       40 | ...
//   >   41 | ...
std::string with_numbered_source(std::string_view log, const std::string& unit_name, const std::string& unit_text,
                                 const TemplateFiles& templates);

}  // namespace ingot
