// The training loop: batches, schedule, progress, checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "model.h"
#include "options.h"

namespace train_lm {

// Linear warm-up, then a cosine decay to a tenth of the peak.
double learning_rate(const Options& options, std::int64_t step);

class Trainer {
 public:
  Trainer(ingot::Context& context, const Options& options, const std::vector<std::uint8_t>& text);

  // Trains the models of `names` ("bf16", "fp8") one after the other, and returns one history for each. Goes on from
  // the checkpoint if the options say so.
  std::vector<History> train(const std::vector<std::string>& names);

  // Kernels that the example itself launched; the library counts its own.
  std::int64_t launches() const { return launches_; }

 private:
  void train_one(const std::string& name, Progress& progress, bool from_checkpoint);
  Batch batch(std::int64_t step, bool validation) const;
  double validate(Model& model);
  std::filesystem::path checkpoint_file() const { return options_->out / "checkpoint"; }

  ingot::Context* context_;
  const Options* options_;
  ingot::Stream stream_;
  std::string fingerprint_;
  ingot::Buffer text_;
  std::int64_t text_bytes_;
  std::int64_t training_bytes_;  // the rest is for validation
  ingot::OwnedTensor losses_;    // f32 [steps], on the device
  std::int64_t launches_ = 0;
};

}  // namespace train_lm
