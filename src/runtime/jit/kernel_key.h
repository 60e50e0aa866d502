// The key of a compiled kernel on disk and in memory: a hash of everything that decides its machine code.
#pragma once

#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

using KernelKey = Digest;

// XXH3-128 over the length-prefixed fields: format version, compiler identity, target, source text. Nothing else
// counts: no paths, names or environment variables.
KernelKey kernel_key(const Source& source, Target target, const Compiler& compiler);

}  // namespace ingot
