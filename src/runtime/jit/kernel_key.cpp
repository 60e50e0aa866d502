#include "ingot/runtime/jit/kernel_key.h"

#include "ingot/runtime/jit/kernel_file.h"

namespace ingot {

KernelKey kernel_key(const Source& source, Target target, const Compiler& compiler) {
  return digest_fields({kKernelFileMagic, compiler.identity(), print(target), source.text});
}

}  // namespace ingot
