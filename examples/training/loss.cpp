#include "training/loss.h"

namespace training {

void CrossEntropyLoss::run(OpRunner& ops, const LossTensors& tensors) {
  auto* row_losses = static_cast<float*>(row_losses_.view().data);
  const auto share = static_cast<float>(1.0 / static_cast<double>(tensors.batch));
  ops.run(CrossEntropy{.logits = static_cast<const bf16*>(tensors.logits.data),
                       .targets = tensors.targets,
                       .grad = static_cast<bf16*>(tensors.grad.data),
                       .loss = row_losses,
                       .count = tensors.logits.rows,
                       .classes = tensors.logits.cols,
                       .share = share});
  ops.run(AddLoss{.values = row_losses,
                  .count = tensors.logits.rows,
                  .share = share,
                  .accumulate = tensors.accumulate,
                  .sums = tensors.sums,
                  .now = tensors.now});
}

}  // namespace training
