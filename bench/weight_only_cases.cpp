#include "weight_only_cases.h"

#include <fmt/format.h>

#include <array>

namespace ingot::bench {
namespace {

struct Weight {
  const char* name;
  std::int64_t n, k;
};
constexpr std::array kWeights{Weight{"square", 4096, 4096},
                              Weight{"llama2-7b gate", 11008, 4096},
                              Weight{"llama2-7b down", 4096, 11008},
                              Weight{"llama3-8b qkv", 6144, 4096},
                              Weight{"llama3-8b gate_up", 28672, 4096},
                              Weight{"llama3-8b down", 4096, 14336},
                              Weight{"square", 8192, 8192},
                              Weight{"llama3-70b qkv", 10240, 8192},
                              Weight{"llama3-70b gate", 28672, 8192},
                              Weight{"llama3-70b gate_up", 57344, 8192},
                              Weight{"llama3-70b down", 8192, 28672},
                              Weight{"unlisted", 5120, 17920},
                              Weight{"unlisted", 17920, 5120},
                              Weight{"unlisted", 2560, 6912},
                              Weight{"unlisted", 6912, 2560},
                              Weight{"llama2-13b gate", 13824, 5120},
                              Weight{"llama2-13b down", 5120, 13824},
                              Weight{"qwen2-7b gate", 18944, 3584},
                              Weight{"qwen2-7b down", 3584, 18944}};
constexpr std::array<std::int64_t, 11> kTokens{1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096};

}  // namespace

std::string name(const WeightOnlyCase& c) {
  return fmt::format("{} {}x{}, M {}", c.weight, c.size.n, c.size.k, c.size.m);
}

std::vector<WeightOnlyCase> weight_only_cases() {
  std::vector<WeightOnlyCase> cases;
  for (const Weight& weight : kWeights) {
    for (const std::int64_t m : kTokens) {
      cases.push_back({.weight = weight.name, .size = {.m = m, .n = weight.n, .k = weight.k}});
    }
  }
  return cases;
}

}  // namespace ingot::bench
