// One multiplication that a program does: what, and how large. As text, a line of the manifest that a training run
// records and `ingot tune` reads: the spec, then m, n and k.
//
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor 8192 4096 14336
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ingot/codegen/candidates.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

struct GemmCall {
  GemmSpec spec{};
  GemmSize size{};
  bool operator==(const GemmCall&) const = default;
};

std::size_t hash_value(const GemmCall& call);

// The spec with the choice of its kernel left to the library.
GemmSpec without_kernel(GemmSpec spec);

// The kernel that a spec names, as its line does: "sm90:128x256:2x1:4:cooperative", "cublaslt:3"; else "automatic".
std::string kernel_of(const GemmSpec& spec);

std::string print(const GemmCall& call);
// Throws Error{invalid_spec} that quotes what is wrong.
GemmCall parse_gemm_call(std::string_view line);

}  // namespace ingot
