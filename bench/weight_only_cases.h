// The cases of bench_weight_only: weights of language models, each with one token up to a long prompt's number of
// tokens.
#pragma once

#include <string>
#include <vector>

#include "ingot/codegen/gemm/gemm_estimate.h"

namespace ingot::bench {

struct WeightOnlyCase {
  std::string weight;  // "llama3-8b down"
  MatmulSize size;     // m tokens, weight [n, k]
};

std::string name(const WeightOnlyCase& c);  // "llama3-8b down 4096x14336, M 16"

std::vector<WeightOnlyCase> weight_only_cases();

}  // namespace ingot::bench
