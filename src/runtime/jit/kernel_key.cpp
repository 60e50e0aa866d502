#include "ingot/runtime/jit/kernel_key.h"

namespace ingot {

KernelKey kernel_key(const Source& source, Target target, std::string_view identity) {
  return digest_fields({kKernelFileMagic, identity, print(target), source.text});
}

}  // namespace ingot
