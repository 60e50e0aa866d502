// The multiplications that a kernel is chosen for, one by one and size by size: GEMMs, and products with weights that
// are decoded within them. As text, a line of the manifest that a run records and `ingot tune` reads: the spec, then m
// (tokens), n (output features) and k.
//
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor 8192 4096 14336
//   dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 4096 14336
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "ingot/codegen/gemm/gemm_call.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

using MatmulSpec = std::variant<GemmSpec, DequantMatmulSpec>;

struct MatmulCall {
  MatmulSpec spec{};
  MatmulSize size{};
  bool operator==(const MatmulCall&) const = default;
};

std::size_t hash_value(const MatmulCall& call);

inline auto matching(const MatmulCall& call) {
  return [&call](const auto& entry) { return entry.call == call; };
}

KernelSpec kernel_spec(const MatmulSpec& product);
// Throws Error{invalid_spec} where the line is another kernel's.
MatmulSpec parse_matmul_spec(std::string_view line);

// With the choice of its kernel left to the library.
DequantMatmulSpec without_kernel(DequantMatmulSpec spec);
MatmulSpec without_kernel(const MatmulSpec& product);
bool names_kernel(const MatmulSpec& product);
// The kernel that it names, as its line does: "sm90:128x256:2x1:4:cooperative", "cublaslt:3"; else "automatic".
std::string kernel_of(const MatmulSpec& product);

std::string print(const MatmulCall& call);
// Throws Error{invalid_spec} that quotes what is wrong.
MatmulCall parse_matmul_call(std::string_view line);

}  // namespace ingot
