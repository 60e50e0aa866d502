// The mean cross-entropy of a batch, and its gradient, over any number of micro-batches.
#pragma once

#include <cstdint>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/tensor.h"
#include "training/op_runner.h"

namespace training {

struct LossTensors {
  ingot::Tensor logits;          // bf16 [rows, classes]
  const std::uint32_t* targets;  // [rows], on the device: classes
  ingot::Tensor grad{};          // as logits: the gradient of the mean over `batch` rows; default: not wanted
  std::int64_t batch = 0;        // rows of all micro-batches
  // The mean loss goes to sums[now->step], or to sums[0] without `now`. With `accumulate` it is added.
  float* sums = nullptr;
  const StepValues* now = nullptr;
  bool accumulate = false;
};

class CrossEntropyLoss {
 public:
  CrossEntropyLoss(ingot::Backend& backend, std::int64_t rows) : row_losses_(backend, ingot::Dtype::f32, 1, rows) {}

  void run(OpRunner& ops, const LossTensors& tensors);

 private:
  ingot::OwnedTensor row_losses_;
};

}  // namespace training
