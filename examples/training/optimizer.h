// AdamW on f32 values with gradient clipping by the global norm: all on the device, without a wait of the host, and in
// the same order each time, so that a run can be repeated to the bit.
//
//   Parameter weight(backend, n, k);                    // give weight.weight() to a layer, weight.grad to its backward
//   AdamW optimizer(backend, {&weight, ...}, {.clip = 1.0});
//   ... the backward pass writes or accumulates the gradients ...
//   optimizer.step(ops, table.now());                   // schedule.h
//
// FP8 primary weights: a Parameter without a working copy has its f32 values alone. An ingot::WeightCasts casts those
// of all layers after each step, and the layers multiply the codes.
#pragma once

#include <cstdint>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "training/op_runner.h"

namespace training {

// What a Parameter has memory for, besides its gradient.
struct ParameterParts {
  bool values = true;  // and both moments
  bool working = true;
  // Without either: the dtype of weight(), which then has only a shape, for a layer that multiplies given codes.
  ingot::Dtype shape_only = ingot::Dtype::bf16;
  // Of the working copy and the gradient, behind the matrix: ranks that do not divide its rows exchange whole shards.
  std::int64_t spare_rows = 0;
};

// A weight or an embedding table.
struct Parameter {
  Parameter(ingot::Backend& backend, std::int64_t rows, std::int64_t cols, const ParameterParts& parts = {});

  // Values from N(0, deviation^2), moments of 0.
  void init(OpRunner& ops, ingot::Stream& stream, double deviation, std::uint64_t seed);
  // Makes the working copy from the values, for example after a checkpoint was read.
  void values_changed(OpRunner& ops) const;
  // The weight for a layer: the working copy or, without one, the values (LinearOptions::weight_dtype is f32 then).
  ingot::Tensor weight() const;
  // For a layer's backward: `grad` without spare rows.
  ingot::Tensor gradient() const;

  ingot::OwnedTensor values, first_moment, second_moment;  // f32
  ingot::OwnedTensor working;                              // bf16: what the layers multiply; or none
  ingot::OwnedTensor grad;                                 // f32: the main gradient, of all micro-batches
  std::int64_t rows, cols, count;
  bool decays;  // a matrix: AdamW's weight decay applies
  ParameterParts parts;
};

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // the most that the norm of all gradients may be; 0: no clipping
};

// The bias corrections of a step (from 0), for StepValues.
void set_corrections(const OptimizerOptions& options, StepValues& values);

class AdamW {
 public:
  // The parameters must outlive it.
  AdamW(ingot::Backend& backend, std::vector<Parameter*> parameters, const OptimizerOptions& options);

  // Updates all values and working copies from the gradients.
  void step(OpRunner& ops, const StepValues* now);
  // The same with gradients times *scale (null: 1), which step() finds by clipping: for a rank that has parts of them.
  void update(OpRunner& ops, const StepValues* now, const float* scale);

  // Of the last step, on the device: the norm of all gradients before clipping, and what they were multiplied by.
  const float* norm() const { return static_cast<const float*>(norm_.data()); }
  const float* scale() const { return static_cast<const float*>(scale_.data()); }

 private:
  void find_scale(OpRunner& ops);

  std::vector<Parameter*> parameters_;
  OptimizerOptions options_;
  std::int64_t partials_ = 0;
  ingot::Buffer partial_, norm_, scale_;
};

}  // namespace training
