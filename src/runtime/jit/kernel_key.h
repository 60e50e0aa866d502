// The key of a compiled kernel on disk and in memory: a hash of everything that decides its machine code.
#pragma once

#include <string_view>

#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

using KernelKey = Digest;

// How a kernel's file (kernel_file.h) begins: the version of its format.
inline constexpr std::string_view kKernelFileMagic = "INGOTK02";

// XXH3-128 over the length-prefixed fields: format version, kernel_identity(), target, source text. Nothing else
// counts: no compiler's version, paths, names or environment variables.
INGOT_API KernelKey kernel_key(const Source& source, Target target, std::string_view identity);

}  // namespace ingot
