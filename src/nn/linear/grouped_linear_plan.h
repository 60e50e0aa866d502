// What a linear layer of many experts does, worked out once as a plain value, as LinearPlan is. grouped_linear.h runs
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/nn/linear/linear_plan.h"

namespace ingot {

struct GroupedLinearPlanOptions {
  std::string name = "experts";  // in messages and for observers
  // Of the recipes tensorwise(), delayed(), rowwise() and blockwise(): all three GEMMs in FP8, scales dynamic, of
  // tensors or rows or all of groups and blocks of 128, or all delayed, and OtherCodes::together for the input.
  // OtherCodes::again for the weight: backward casts it once more, and forward makes no codes for it.
  LinearConfig config{};
  std::int64_t experts = 0;  // 1 to kMostExperts
  LinearShape shape{};       // of one expert
  LinearDtypes dtypes{};
  bool grad_weight = true;  // as LinearPlanOptions::grad_weight
  LinearFusion fusion{};    // a prologue, such as `silu(x) * up`; no epilogue
  std::string subject{};    // what messages call it; default: grouped linear "<name>"
};

// Is it a config that grouped_linear_plan() takes? Of the recipes, tensorwise(), delayed(), rowwise() and blockwise()
// are.
INGOT_API bool experts_take(const LinearConfig& config);

// A plain value, as LinearPlan is.
struct INGOT_API GroupedLinearPlan {
  LinearPlan rows{};  // of a layer with all rows: how input and grad_output are cast; its shape is one expert's
  std::int64_t experts = 0;
  LinearCast weight{};        // of all experts' weights, in forward
  LinearCast weight_again{};  // within backward; none if forward's codes serve it
  bool bias = false;          // of plan.bias_dtype(): added within the output GEMM, a row for each expert
  GroupedGemmSpec output_gemm{};
  GroupedGemmSpec grad_input_gemm{};
  GroupedGemmSpec grad_weight_gemm{};  // into the input's dtype, without accumulation
  std::uint64_t identity = 0;          // as LinearPlan::identity

  // Codes [experts * N, K] and transposed codes [experts * K, N], and their scale_inv.
  LinearWeightMemory weight_memory() const { return memory_of(weight); }
  LinearWeightMemory weight_again_memory() const { return memory_of(weight_again); }
  Dtype bias_dtype() const { return ingot::bias_dtype(output_gemm.gemm); }
  // The f32 values of the weights' maxima that forward's cast can leave for backward's, which then reads the weights
  // once less: one for each expert (tensorwise) or for each column of each (rowwise). 0 if it has no use for them.
  std::int64_t weight_amax_count() const;
  std::optional<ScaleGranularity> weight_amax_granularity() const;
  // What shares a scale_inv in the codes that the GEMM of grad_input reads, in terms of the weight.
  ScaleGranularity weight_scale_of_grad_input() const;
  LinearSavedMemory saved_memory(std::int64_t tokens) const;
  // Of backward_scratch() only codes, transposed codes and their scale_inv, of grad_output.
  LinearBackwardScratch grad_output_scratch(std::int64_t tokens, const LinearGradients& wants) const;
  // observed: for runs whose observer wants values.
  LinearForwardScratch input_scratch(std::int64_t tokens, LinearPass pass, bool observed = false) const;
  std::size_t forward_scratch(std::int64_t tokens, LinearPass pass, bool observed = false) const {
    return input_scratch(tokens, pass, observed).bytes;
  }
  std::size_t backward_scratch(std::int64_t tokens, const LinearGradients& wants) const;

  // Do groups of 128 rows share a scale, so that transposed codes are in slots (CastSpec::experts)?
  bool in_slots() const { return has_group_scale_inv(grad_weight_gemm.gemm); }
  // Has each expert delayed scales?
  bool is_delayed() const { return rows.config.output.a->scaling == Scaling::delayed; }
  // How many scale_inv codes of so many rows of all experts have.
  std::int64_t scale_inv_count(ScaleGranularity scale, std::int64_t tokens, std::int64_t cols) const {
    return is_delayed() ? experts : scale_count(scale, tokens, cols);
  }
  // The columns of transposed codes: slots, or placed_tokens().
  std::int64_t placed_columns(std::int64_t tokens) const;
  // The tokens that memory has room for: rows of transposed codes begin at multiples of 16 bytes from 64 tokens on.
  static std::int64_t placed_tokens(std::int64_t tokens) {
    constexpr std::int64_t kLeast = 64;
    return tokens > 0 && tokens < kLeast ? kLeast : tokens;
  }

 private:
  LinearWeightMemory memory_of(const LinearCast& cast) const;
};

// Throws Error{invalid_spec} for an invalid config, and Error{invalid_argument} for one that groups do not take, and
// for numbers of experts and features out of range.
INGOT_API GroupedLinearPlan grouped_linear_plan(const GroupedLinearPlanOptions& options);

}  // namespace ingot
