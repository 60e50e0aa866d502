// The options that every kernel is compiled with. They are part of a kernel's identity (kernel_identity.h).
#pragma once

#include <string_view>

namespace ingot {

// fmad=false: products and sums are rounded one by one, as on the CPU; a template or an expression that wants a fused
// one says so. The ptxas options print the report that KernelResources is parsed from, and warn of what a kernel must
// not do.
inline constexpr std::string_view kCompileOptions[] = {"--std=c++20", "--fmad=false", "--ptxas-options=-v",
                                                       "--ptxas-options=--warn-on-spills",
                                                       "--ptxas-options=--warn-on-local-memory-usage"};

// Left out where NVRTC is too old to know them. no-cache: the driver's own cache would hide ptxas's report.
// no-source-include: nothing is read from the working directory. modify-stack-limit: the limit is the process's.
// frandom-seed (its value is the hash of the source): the same machine code from the same source, always.
inline constexpr std::string_view kNewerCompileOptions[] = {"--no-cache", "--no-source-include",
                                                            "--modify-stack-limit=false", "--frandom-seed="};

}  // namespace ingot
