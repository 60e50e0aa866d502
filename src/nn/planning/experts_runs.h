// The runs of a mixture of experts, for layer_runs.cpp: as C++ programs and PyTorch's operators run them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ingot/nn/planning/run_tensors.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/nn/weights/weight_only.h"

namespace ingot {

// Gated MLPs of one size.
struct ExpertsSize {
  std::string name{};
  std::int64_t experts = 0;
  std::int64_t chosen = 0;  // by each token
  std::int64_t features = 0;
  std::int64_t hidden = 0;
  bool bias = false;  // then they are gpt-oss's, also as two grouped linear layers
};

struct TrainedExperts {
  ExpertsSize size{};
  LinearConfig config{};  // experts_take()
  Dtype dtype = Dtype::bf16;
  Dtype grad_weight = Dtype::bf16;
  std::int64_t tokens = 0;
};
void train_experts(const TrainedExperts& of, const RunResources& resources);

// With activations in FP8, and with weights in a format by activations of `dtype`.
void decode_experts(const ExpertsSize& size, Dtype dtype, std::span<const std::int64_t> tokens,
                    const RunResources& resources);
void decode_experts(const ExpertsSize& size, const WeightOnlyOptions& format, Dtype dtype,
                    std::span<const std::int64_t> tokens, const RunResources& resources);

}  // namespace ingot
