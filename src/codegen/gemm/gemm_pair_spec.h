// Two GEMMs that one launch computes: those of a layer's two gradients, when both are small.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_spec.h"

namespace ingot {

// Each half of the multiprocessors computes one of the two as kernel sm90 would with the same tiling, to the same bits.
//
// Both have kernel sm90 and a tiling without clusters and stream-K, and read their operands as they are stored. Their
// epilogue adds c, if it does anything.
struct GemmPairSpec {
  static constexpr std::string_view kWord = "gemm_pair";
  GemmSpec first{};
  GemmSpec second{};
  bool operator==(const GemmPairSpec&) const = default;
};

// Why no pair has this GEMM, for messages; empty if one can have it.
INGOT_API std::string pair_fault(const GemmSpec& spec);

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const GemmPairSpec& spec);
void validate_spec(const GemmPairSpec& spec);
INGOT_API std::uint64_t hash_spec(const GemmPairSpec& spec);
void read_spec(const SpecReader& reader, GemmPairSpec& spec);
// For each kind of operands and scale_inv, the two of a layer's gradients.
INGOT_API void list_valid(std::vector<GemmPairSpec>& specs);
ExtraPasses extra_passes(const GemmPairSpec& spec);
TemplateInstance template_instance(const GemmPairSpec& spec, Pass pass);

}  // namespace ingot
