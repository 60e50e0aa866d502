// The linear layers of a mixture of experts as functions of tensors: forward and backward of many layers of one shape,
// each of which has the rows of some tokens. Like linear_functions.h, they keep nothing between calls.
//
//   const GroupedLinearPlan plan = grouped_linear_plan({.config = rowwise(), .experts = E, .shape = {K, N}});
//   const Float8View codes = cast_expert_weights(plan, backend, {.weight = w, .into = weight_region}, {stream});
//   LinearSaved saved{.memory = saved_region};
//   const GroupedLinearForwardTensors forward{.input = x, .ends = ends, .output = y, .codes = codes, .saved = &saved};
//   grouped_linear_forward(plan, backend, forward, {stream});
//   GroupedLinearBackwardTensors backward{.saved = &saved, .ends = ends, .grad_output = gy, .codes = codes};
//   backward.grad_input = gx;
//   backward.grad_weight = gw;
//   grouped_linear_backward(plan, backend, backward, {stream});
//
// Rows of input and output are those of expert 0, then of expert 1, and so on; ends says on the device where each
// expert's end (gemm_tensors.h). Nothing is padded, experts may have no rows, and the host never waits. Rows that no
// expert has are neither multiplied nor written, but a cast reads them: they must be finite.
//
// The rows of input and grad_output may be those of tokens, in the tokens' order, with an index that says which of them
// each expert's rows are: no copy of them is written. Observers see no values of such casts.
//
// Observers are told of all casts, of no GEMM. The weights' are of the whole stack: values and codes [experts * N, K],
// or with a scale of each expert [experts, N * K], rowwise; transposed codes [experts * K, N] come without values.
//
// The scales of input and grad_output are those of a layer that has all rows: along the rows, where the gradients of
// weights sum, experts share a scale for each feature. But those of groups of 128 rows are an expert's own, as its
// first group begins with its first row. The weights' scales are each expert's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_functions.h"

namespace ingot {

struct GroupedLinearPlanOptions {
  std::string name = "experts";  // in messages and for observers
  // Of the recipes tensorwise(), rowwise() and blockwise(): all three GEMMs in FP8, scales dynamic, of tensors or rows
  // or all of groups and blocks of 128, and OtherCodes::together for the input. OtherCodes::again for the weight:
  // backward casts it once more, and forward makes no codes for it.
  LinearConfig config{};
  std::int64_t experts = 0;  // 1 to kMostExperts
  LinearShape shape{};       // of one expert
  LinearDtypes dtypes{};
  bool grad_weight = true;  // as LinearPlanOptions::grad_weight
  LinearFusion fusion{};    // a prologue, such as `silu(x) * up`; no epilogue
  std::string subject{};    // what messages call it; default: grouped linear "<name>"
};

// Is it a config that grouped_linear_plan() takes? Of the recipes, tensorwise(), rowwise() and blockwise() are.
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
  std::size_t forward_scratch(std::int64_t tokens, LinearPass pass, bool observed = false) const;
  std::size_t backward_scratch(std::int64_t tokens, const LinearGradients& wants) const;

  // Do groups of 128 rows share a scale, so that transposed codes are in slots (CastSpec::experts)?
  bool in_slots() const { return has_group_scale_inv(grad_weight_gemm.gemm); }
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

struct ExpertWeightTensors {
  Tensor weight;  // [experts * N, K], one expert's after another's
  MemoryRegion into{};
  Tensor amax{};  // f32[plan.weight_amax_count()], which is written; missing: backward looks for the maxima
};
INGOT_API Float8View cast_expert_weights(const GroupedLinearPlan& plan, Backend& backend,
                                         const ExpertWeightTensors& tensors, const LinearRun& run);

// Where it writes: its codes as views of `region`.
INGOT_API Float8View expert_weight_codes(const GroupedLinearPlan& plan, const MemoryRegion& region, Device device);

// T: the rows of all experts.
struct GroupedLinearForwardTensors {
  Tensor input;  // [T, K], or [S, K] with a row_index
  // If given: row r of the experts is row row_index[r] of the input, T = row_index->rows. Scales of the whole input and
  // of its features are those of all S rows, taken or not. Not with a prologue.
  std::optional<RowIndex> row_index{};
  PointwiseTensors prologue_inputs{};  // as LinearForwardTensors has them
  ExpertEnds ends{};                   // of rows; without a capacity
  Tensor bias{};                       // [experts, N] of plan.bias_dtype(), dense: if plan.bias
  Tensor output;                       // [T, N]; rows that no expert has are not written
  Float8View codes{};
  LinearSaved* saved = nullptr;  // null: keeps nothing
  MemoryRegion scratch{};        // plan.forward_scratch(), unless the stream's allocator gives it
};

struct GroupedLinearBackwardTensors {
  const LinearSaved* saved = nullptr;
  ExpertEnds ends{};                            // forward's
  Tensor grad_output;                           // [T, N], or [S, N] with a grad_output_index
  std::optional<RowIndex> grad_output_index{};  // likewise, of T rows
  Tensor grad_input{};  // [T, K], of a prologue's value; rows that no expert has are not written
  // [experts * N, K], all of which is written: zeros for experts without rows.
  Tensor grad_weight{};
  // [experts, N], dense, in a dtype of its own: the sums of each expert's rows of grad_output, 0 of none, in an order
  // that makes bits repeat (templates/cast/column_sum_experts.cuh).
  Tensor grad_bias{};
  bool accumulate = false;  // adds to grad_weight, which is f32 then, within the GEMM
  Tensor weight{};          // if plan.weight_again.any and grad_input is given
  Tensor weight_amax{};     // then, as cast_expert_weights() wrote it of this weight; the same results without it
  // Otherwise, for grad_input. If plan.weight_again.any they may be given in place of the weight: `codes` [experts * N,
  // K], by rows, with the `scale_inv` of that cast, which the call transposes where it would cast.
  Float8View codes{};
  MemoryRegion scratch{};  // grouped_linear_backward_scratch()
};

// The scratch of this call, up to plan.backward_scratch(): less where the codes of plan.weight_again have room in
// grad_weight, which is written after they are read: it is contiguous and nothing is added to it.
INGOT_API std::size_t grouped_linear_backward_scratch(const GroupedLinearPlan& plan,
                                                      const GroupedLinearBackwardTensors& tensors);

// Errors: Error{invalid_argument} that names the layer and the tensor, before anything is enqueued; then those of the
// backend. Saved memory and scratch that overlap each other, the codes or prologue inputs are not found. On a GPU other
// than Hopper, and for features that are no multiples of 16, the GEMMs' error says so.
INGOT_API void grouped_linear_forward(const GroupedLinearPlan& plan, Backend& backend,
                                      const GroupedLinearForwardTensors& tensors, const LinearRun& run);
INGOT_API void grouped_linear_backward(const GroupedLinearPlan& plan, Backend& backend,
                                       const GroupedLinearBackwardTensors& tensors, const LinearRun& run);

// The steps of the same without checks, for modules that have checked all their layers before they run any.
INGOT_API void enqueue_grouped_forward(const GroupedLinearPlan& plan, Backend& backend,
                                       const GroupedLinearForwardTensors& tensors, const LinearRun& run);

// The gradient of a layer's output, cast for `wants`.
struct GroupedGradOutput {
  Tensor values;                    // [tokens, N], or what `index` takes its rows from
  std::optional<RowIndex> index{};  // as GroupedLinearBackwardTensors::grad_output_index
  LinearGradients wants{};
  ExpertEnds ends{};   // of its rows
  Float8View codes{};  // where they go, in the order in which a cast writes them
  // The largest |value| of each row, f32[tokens], and of each column, f32[N], where they are known already
  // (takes_known_maxima()). The results have the same bits.
  Tensor row_amax{}, column_amax{};
};
// sum: [experts, N], as GroupedLinearBackwardTensors::grad_bias.
INGOT_API void sum_grouped_grad_bias(Backend& backend, const GroupedGradOutput& grad_output, const Tensor& sum,
                                     Stream& stream);
// Does that cast look for the largest |value| of rows and of columns?
INGOT_API bool takes_known_maxima(const GroupedLinearPlan& plan, const LinearGradients& wants);
INGOT_API void cast_grouped_grad_output(const GroupedLinearPlan& plan, Backend& backend,
                                        const GroupedGradOutput& grad_output, const LinearRun& run);

// weight_memory: of plan.weight_again_memory(), where the weights are cast again.
INGOT_API void multiply_grouped_grad_input(const GroupedLinearPlan& plan, Backend& backend,
                                           const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                           const MemoryRegion& weight_memory, const LinearRun& run);
INGOT_API void multiply_grouped_grad_weight(const GroupedLinearPlan& plan, Backend& backend,
                                            const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                            const LinearRun& run);

}  // namespace ingot
