#include "ingot/codegen/compile_cost.h"

#include <variant>

namespace ingot {

double compile_cost(const KernelSpec& spec) {
  if (const auto* gemm = std::get_if<GemmSpec>(&spec)) return gemm->kernel == GemmKernel::simt ? 1.5 : 3;
  if (const auto* pair = std::get_if<GemmPairSpec>(&spec)) return pair->first == pair->second ? 3 : 6;
  if (std::holds_alternative<DequantMatmulSpec>(spec)) return 4;
  if (std::holds_alternative<NormSpec>(spec) || std::holds_alternative<CastSpec>(spec)) return 2;
  return 1;
}

}  // namespace ingot
