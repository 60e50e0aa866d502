// The name of a compiled kernel on disk and in memory: a hash of all that decides its machine code.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "ingot/runtime/compiler.h"

namespace ingot {

using KernelKey = std::array<std::uint8_t, 16>;

// XXH3-128 over the length-prefixed fields: format version, compiler identity, target, source text. Depends on nothing
// else: not on paths, names or the environment.
KernelKey kernel_key(const Source& source, Target target, const Compiler& compiler);

// 32 hex digits.
std::string print(const KernelKey& key);

}  // namespace ingot
