#include "ingot/codegen/gemm/gemm_call.h"

#include <fmt/format.h>

#include <variant>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/error.h"

namespace ingot {

GemmSpec without_kernel(GemmSpec spec) {
  spec.kernel = GemmKernel::automatic;
  spec.tiling.reset();
  spec.algorithm = 0;
  spec.staged_a = false;
  spec.staged_b = false;
  return spec;
}

std::string print(const GemmCall& call) {
  return fmt::format("{} {} {} {}", print(KernelSpec(call.spec)), call.size.m, call.size.n, call.size.k);
}

GemmCall parse_gemm_call(std::string_view line) {
  const MatmulCall call = parse_matmul_call(line);
  const auto* const gemm = std::get_if<GemmSpec>(&call.spec);
  if (gemm == nullptr) throw Error(ErrorCode::invalid_spec, std::string(line), "is no GEMM");
  return {.spec = *gemm, .size = call.size};
}

}  // namespace ingot
