// Grouped GEMMs, of a mixture of experts: the rows of a are those of experts, one expert after the other, and each
// expert has its own b; or, along K, the columns of a and of b are those of experts, and each has its own output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/experts.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

// out[rows of expert e, N] = scale_inv_a * scale_inv_b[e] * sum_k a(m, k) * b[e](n, k) + bias[e][n], as GemmSpec has
// it. Which rows each expert has is read on the device; rows that no expert has are not written.
//
// along_k: out[e][M, N] = scale_inv_a[e] * scale_inv_b[e] * sum over the k of expert e of a(m, k) * b(n, k), the
// gradient of an expert's weight if a is the transpose of grad_output, [out_features, tokens], and b that of the input.
// Which k each expert has is read on the device; the sum of an expert that has none is 0. scale_inv are tensorwise or
// rowwise, or those of 1x128 groups of both, whose codes are in slots (templates/expert_slots.cuh). The epilogue may
// add c to an f32 output, as GemmEpilogue has it: gradients are accumulated if c is the output itself.
//
// gemm: two FP8 operands of e4m3fn or e5m2 with scale_inv of any kind, or two of bf16 or of f16; k_major; an output of
// high precision; along K without a bias; but for c without an epilogue. On a GPU it runs on kernel sm90, whether the
// spec names that kernel or leaves the choice to the library. The CPU reference has the bits of one GEMM for each
// expert.
struct GroupedGemmSpec {
  static constexpr std::string_view kWord = "grouped_gemm";
  GemmSpec gemm{};
  bool along_k = false;
  bool operator==(const GroupedGemmSpec&) const = default;
};

// The tilings that it can have, best for large matmuls first; if the spec has a tiling, only that one.
INGOT_API std::vector<GemmTiling> grouped_tilings(const GroupedGemmSpec& spec);
// The spec on kernel sm90 with its tiling; if it has none, with the one that is expected to be the fastest for experts
// that have about as many rows. size: M of all experts, N of one; along K, K of all experts, M and N of one.
INGOT_API GroupedGemmSpec with_grouped_tiling(const GroupedGemmSpec& spec, const MatmulSize& size, std::int64_t experts,
                                              int multiprocessors);

std::string print_spec(const GroupedGemmSpec& spec);
void validate_spec(const GroupedGemmSpec& spec);
INGOT_API std::uint64_t hash_spec(const GroupedGemmSpec& spec);
void read_spec(const SpecReader& reader, GroupedGemmSpec& spec);
// All that leave the choice of the tiling to the library.
INGOT_API void list_valid(std::vector<GroupedGemmSpec>& specs);
ExtraPasses extra_passes(const GroupedGemmSpec& spec);
TemplateInstance template_instance(const GroupedGemmSpec& spec, Pass pass);

}  // namespace ingot
