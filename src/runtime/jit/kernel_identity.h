// The identity of a compiled kernel, in addition to its source and target: Ingot's version, the templates, and the
// options that are passed to the compiler. The compiler itself is not part of it, so that a machine without NVRTC, or
// with another build of it, finds the kernels that were compiled elsewhere; which compilers' kernels are used is
// decided by Trust.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ingot/codegen/template_files.h"

namespace ingot {

// "ingot 0.1.0; templates <32 hex digits>; options --std=c++20 ..."
std::string kernel_identity(const TemplateFiles& templates);

// Which compilers' kernels may be used. same_build: those of the very NVRTC that is loaded. same_major: those of any
// NVRTC of its major version.
enum class Trust : std::uint8_t { same_build, same_major };

// May a kernel that `made_by` (Compiler::toolchain()) compiled be used together with the compiler `ours`? Any may if
// there is no compiler (empty), as nothing else could run then.
bool trusts(Trust trust, std::string_view made_by, std::string_view ours);

}  // namespace ingot
