// Chooses the kernel that `ingot show` shows if the spec leaves the choice to the library, which decides by the size of
// the matrices and by the GPU.
#pragma once

#include <optional>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot::tools {

struct ShowChoice {
  KernelSpec spec;                   // names its kernel and tiling where a matmul has several
  std::optional<MatmulSize> size{};  // the size that it was chosen for; none: there was nothing to choose
  std::string note{};                // tells the reader about the choice; empty: there was nothing to choose
};

// The choice for a typical size: a training step's for a GEMM, a decoding step's for a dequant_matmul. cuBLASLt is
// passed over, as its kernels have no source.
ShowChoice choose_shown(const KernelSpec& asked, const MatmulDevice& device);

}  // namespace ingot::tools
