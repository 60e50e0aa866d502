// Measures how much longer a GEMM call of the library keeps the host busy than the launch, or the cublasLtMatmul, with
// which it ends. The GEMM is small and in FP8; it runs with each kernel and with the library's own choice.
#pragma once

#include <string>
#include <vector>

#include "gemm_cases.h"
#include "host_cost.h"

namespace ingot::bench {

struct GemmHostCost {
  std::vector<HostCost> calls{};
  double tensor_map_ns = 0;  // cuTensorMapEncodeTiled: each call of gemm_sm90 makes three to five
};

// 256^3, tensorwise and rowwise, with the automatic choice and with each kernel: the cases without their figures.
std::vector<GemmCase> host_cost_cases();

// Checks each result first. The context must have no tuning records, so that `automatic` is the library's own choice.
// Throws Error{invalid_argument} for a wrong result.
GemmHostCost measure_gemm_host_cost(MeasuredGpu& gpu, RandomData& random, const std::string& cuda_root,
                                    const MeasureOptions& options);

std::string to_text(const GemmHostCost& cost);
nlohmann::ordered_json to_json(const GemmHostCost& cost);

}  // namespace ingot::bench
