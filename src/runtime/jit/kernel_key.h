// The name of a compiled kernel on disk and in memory: a hash of all that decides its machine code.
#pragma once

#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/util/digest.h"

namespace ingot {

using KernelKey = Digest;

// XXH3-128 over the length-prefixed fields: format version, compiler identity, target, source text. Depends on nothing
// else: not on paths, names or the environment.
KernelKey kernel_key(const Source& source, Target target, const Compiler& compiler);

}  // namespace ingot
