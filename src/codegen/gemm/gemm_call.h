// One GEMM that a program runs: its spec and its size. As text, it is a line of the manifest that a training run
// records and `ingot tune` reads: the spec, then m, n and k.
//
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor 8192 4096 14336
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

struct GemmCall {
  GemmSpec spec{};
  MatmulSize size{};
  bool operator==(const GemmCall&) const = default;
};

inline std::size_t hash_value(const GemmCall& call) { return hash_with(hash_value(call.spec), call.size); }

// A predicate for tables: does an entry belong to this call?
inline auto matching(const GemmCall& call) {
  return [&call](const auto& entry) { return entry.call == call; };
}

// The spec with the choice of its kernel left to the library.
INGOT_API GemmSpec without_kernel(GemmSpec spec);

INGOT_API std::string print(const GemmCall& call);
// Throws Error{invalid_spec} that quotes what is wrong.
INGOT_API GemmCall parse_gemm_call(std::string_view line);

}  // namespace ingot
