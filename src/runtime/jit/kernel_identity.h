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

// The options that every kernel is compiled with. fmad=false: products and sums are rounded one by one, as on the CPU;
// a template or an expression that wants a fused one says so. The ptxas options print the report that KernelResources
// is parsed from, and warn of what a kernel must not do.
inline constexpr std::string_view kCompileOptions[] = {"--std=c++20", "--fmad=false", "--ptxas-options=-v",
                                                       "--ptxas-options=--warn-on-spills",
                                                       "--ptxas-options=--warn-on-local-memory-usage"};

// Left out where NVRTC is too old to know them. no-cache: the driver's own cache would hide ptxas's report.
// no-source-include: nothing is read from the working directory. modify-stack-limit: the limit is the process's.
// frandom-seed (its value is the hash of the source): the same machine code from the same source, always.
inline constexpr std::string_view kNewerCompileOptions[] = {"--no-cache", "--no-source-include",
                                                            "--modify-stack-limit=false", "--frandom-seed="};

// "ingot 0.1.0; templates <32 hex digits>; options --std=c++20 ..."
std::string kernel_identity(const TemplateFiles& templates);

// Which compilers' kernels may be used. same_build: those of the very NVRTC that is loaded. same_major: those of any
// NVRTC of its major version.
enum class Trust : std::uint8_t { same_build, same_major };

// May a kernel that `made_by` (Compiler::toolchain()) compiled be used together with the compiler `ours`? Any may if
// there is no compiler (empty), as nothing else could run then.
bool trusts(Trust trust, std::string_view made_by, std::string_view ours);

}  // namespace ingot
