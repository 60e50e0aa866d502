// Training by several ranks that divide each batch. A rank holds its rows (ingot::shard_of) of every f32 value and of
// Adam's moments, and whole what its layers multiply: FP8 codes or bf16 weights. A step of a rank:
//
//   for each of its parts of the batch: model.forward_backward(); data_parallel.add_gradients(part);
//   data_parallel.step(now, losses);      // clips by the norm of all shards, and updates its own
//   model.step_done();                    // reduces maxima, casts the shards, gathers weights
//
// A weight crosses as codes where one set of them serves forward and backward and no scale is of columns or of blocks
// that ranks cut: tensorwise, delayed, rowwise_folded, blockwise. Otherwise it crosses in bf16 and is cast by every
// rank: two sets of codes (rowwise) are as many bytes, and need the maxima of all columns before.
//
// Gradients are added in pairs of parts, across ranks and within one: ranks 1, 2 and 4 give the same losses to the last
// digit on the CPU, for the same parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/linear_owner.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/dist/comm.h"
#include "op_runner.h"
#include "options.h"
#include "training/optimizer.h"

namespace train_lm {

class DataParallel {
 public:
  DataParallel(ingot::Backend& backend, ingot::Stream& stream, OpRunners& ops, ingot::Comm& comm,
               const Options& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // What a rank keeps of a whole weight of so many rows, or of a layer's. Throws ingot::Error{invalid_argument} for f32
  // weights that cannot cross as codes.
  training::ParameterParts parts(std::int64_t rows) const;
  training::ParameterParts parts(const ingot::OwnedLinear& layer) const;

  // Draws the initial values, and keeps this rank's rows. `layer`: the FP8 layer that multiplies the weight.
  void add(const std::string& name, training::Parameter& weight, double deviation, std::uint64_t seed,
           const std::optional<ingot::OwnedLinear>& layer = {});
  // After all weights: do all ranks have the same? Then gathers them.
  void start();

  // Where the loss of a part goes.
  float* loss() const;
  // Adds the gradients and losses of the rank's `number`-th part to those of the parts before, over all ranks.
  void add_gradients(std::int64_t number);
  // After all parts: writes the batch's loss to losses[now->step], and updates the rank's rows.
  void step(const training::StepValues* now, float* losses);
  // Of the step, before DelayedScaling::sync_amax_history().
  void reduce_maxima(const ingot::DelayedScaling& delayed);
  // Gives every rank the weights' new values.
  void gather();

 private:
  struct Weight;
  // The sum so far, and sums of 1, 2, 4 ... parts that wait for as many more.
  struct Sum;

  bool crosses_as_codes(const ingot::LinearPlan& plan) const;
  void add_codes(Weight& weight, const ingot::OwnedLinear& layer, const ingot::Tensor& whole);
  void list_maxima();
  void add_in_pairs(Sum& sum, std::int64_t number);

  ingot::Backend* backend_;
  ingot::Stream* stream_;
  OpRunners* ops_;
  ingot::Comm* comm_;
  const Options* options_;
  std::int64_t parts_;  // of a batch, for each rank
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<ingot::SharedLayer> shared_;
  std::unique_ptr<Sum> loss_;
  std::optional<training::AdamW> optimizer_;

  std::vector<ingot::GatherTensors> gathered_;  // the weights
  ingot::CastSpec cast_spec_{};
  std::vector<ingot::CastTensors> casts_;
  std::unique_ptr<ingot::CastList> cast_list_;
  // Where these casts have one scale for a whole weight: the largest values of all, f32[1] for each.
  bool needs_maxima_ = false;
  std::unique_ptr<ingot::AmaxList> amax_list_;
  ingot::OwnedTensor maxima_, scales_, raised_;  // `raised`: what the casts find once more

  std::vector<ingot::GatherTensors> gathered_squares_;
  ingot::OwnedTensor squares_, norm_, clip_scale_;  // the squares of each row of all gradients; f32[1]
};

}  // namespace train_lm
