// What a GEMM's call costs the host beyond the launch, or beyond cublasLtMatmul, that it ends in: a small FP8 product,
// by each kernel and by the library's own choice.
#pragma once

#include <string>
#include <vector>

#include "gemm_cases.h"
#include "host_cost.h"

namespace ingot::bench {

struct GemmHostCost {
  std::vector<HostCost> calls{};
  double tensor_map_ns = 0;  // cuTensorMapEncodeTiled: each call of gemm_sm90 makes three
};

// 256^3, tensorwise and rowwise, automatic and by each kernel: the cases without their figures.
std::vector<GemmCase> host_cost_cases();

// Each product is checked first. Of a context that has no tuning records: what `automatic` takes is then the library's
// own choice. Throws Error{invalid_argument} for a wrong result.
GemmHostCost measure_gemm_host_cost(Gpu& gpu, RandomData& random, const std::string& cuda_root,
                                    const MeasureOptions& options);

std::string to_text(const GemmHostCost& cost);
nlohmann::ordered_json to_json(const GemmHostCost& cost);

}  // namespace ingot::bench
