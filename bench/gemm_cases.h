// The cases of bench_gemm. Each shape, a square or one from a language model, is multiplied in bf16, in FP8 in the four
// modes of one scale_inv for each operand or row (fast or accurate), and in FP8 with scale_inv of 1x128 groups and
// 128x128 blocks ("blocks") and of 1x128 groups for both operands ("groups"): with scale_inv row by row, and "read" in
// the order in which cuBLASLt reads them, as layers have those of groups. GEMMs with an epilogue follow, to compare
// with the same GEMM without one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/codegen/gemm/gemm_estimate.h"

namespace ingot::bench {

struct GemmCase {
  std::string shape;  // "wqkv 16384x8192x1280": M x K x N
  std::string mode;   // "tensor fast", "blocks"
  GemmSpec spec;
  MatmulSize size;
  bool cublaslts_order = false;  // of scale_inv of groups and blocks
};

inline constexpr const char* kBf16 = "bf16";  // the mode that FP8 should beat

std::string name(const GemmCase& gemm_case);  // "wqkv 16384x8192x1280, tensor fast"
double operations(const GemmCase& gemm_case);
// The same GEMM, with the same scale_inv, without bias and epilogue.
GemmSpec without_epilogue(GemmSpec spec);

std::vector<GemmCase> gemm_cases();

}  // namespace ingot::bench
