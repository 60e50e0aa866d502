// The matrix multiplications that kernels are chosen for, each spec and size by itself: GEMMs, and matmuls that decode
// their weights. As text, a call is a line of a recording (codegen/recording.h): the spec, then m (tokens), n (output
// features) and k.
//
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor 8192 4096 14336
//   dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 4096 14336
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// One GEMM that a program runs: its spec and its size.
struct GemmCall {
  GemmSpec spec{};
  MatmulSize size{};
  bool operator==(const GemmCall&) const = default;
};

inline std::size_t hash_value(const GemmCall& call) { return hash_with(hash_value(call.spec), call.size); }

// For tables: does an entry belong to this call?
inline auto matching(const GemmCall& call) {
  return [&call](const auto& entry) { return entry.call == call; };
}

using MatmulSpec = std::variant<GemmSpec, DequantMatmulSpec>;

// m, n and k of a matmul that tensors can have (byte_span() in tensor.h refuses larger ones).
inline constexpr std::int64_t kLargestMatmulSize = std::int64_t{1} << 48;

struct MatmulCall {
  MatmulSpec spec{};
  MatmulSize size{};
  bool operator==(const MatmulCall&) const = default;
};

INGOT_API std::size_t hash_value(const MatmulCall& call);

inline auto matching(const MatmulCall& call) {
  return [&call](const auto& entry) { return entry.call == call; };
}

INGOT_API KernelSpec kernel_spec(const MatmulSpec& matmul);
// Throws Error{invalid_spec} if the line is the spec of another operation.
INGOT_API MatmulSpec parse_matmul_spec(std::string_view line);

// The spec with the choice of its kernel left to the library.
INGOT_API GemmSpec without_kernel(GemmSpec spec);
INGOT_API DequantMatmulSpec without_kernel(DequantMatmulSpec spec);
INGOT_API MatmulSpec without_kernel(const MatmulSpec& matmul);
INGOT_API bool names_kernel(const MatmulSpec& matmul);
// Whether tuning may choose the spec's kernel: a record is then read for it. A choice may change with M, on which a
// batch-invariant result must not depend; and what suits experts depends on how many rows each has.
INGOT_API bool is_tuned(const GemmSpec& spec);
INGOT_API bool is_tuned(const DequantMatmulSpec& spec);
INGOT_API bool is_tuned(const MatmulSpec& matmul);
// The kernel that the spec names, as in its line: "sm90:128x256:2x1:4:cooperative", "cublaslt:3"; else "automatic".
INGOT_API std::string kernel_of(const MatmulSpec& matmul);

INGOT_API std::string print(const MatmulCall& call);
// Throws Error{invalid_spec} that quotes what is wrong.
INGOT_API MatmulCall parse_matmul_call(std::string_view line);

// Likewise of GEMMs alone.
INGOT_API std::string print(const GemmCall& call);
INGOT_API GemmCall parse_gemm_call(std::string_view line);

}  // namespace ingot
