// The training loop: batches, schedule, progress, checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "ingot/runtime/dist/comm.h"
#include "model.h"
#include "options.h"
#include "training/graphed_step.h"
#include "training/schedule.h"

namespace train_lm {

// The config of the model of that name: "bf16", or "fp8".
ingot::LinearConfig config_of(const Options& options, const std::string& name);
// The run's learning rates: linear warm-up, then a cosine.
training::Schedule schedule(const Options& options);
training::OptimizerOptions optimizer_options(const Options& options);

class Trainer {
 public:
  // With `comm` this is one of several ranks, and every rank makes the same calls.
  Trainer(ingot::Context& context, const Options& options, const std::vector<std::uint8_t>& text,
          ingot::Comm* comm = nullptr);

  // Trains the models of `names` ("bf16", "fp8") one after the other, and returns one history for each. Goes on from
  // the checkpoint if the options say so. Of several ranks the first has the losses, and the others' are empty.
  std::vector<History> train(const std::vector<std::string>& names);

  // Kernels that the example itself launched; the library counts its own.
  std::int64_t launches() const { return launches_; }

 private:
  // One model with its optimizer and the work of its step.
  struct Run;
  // The clock of the training steps, and the losses that the device has computed.
  struct Meter;

  void train_one(const std::string& name, Progress& progress, bool from_checkpoint);
  training::StepValues step_values(std::int64_t step) const;
  bool reports() const { return comm_ == nullptr || comm_->rank() == 0; }
  Batch training_batch(std::int64_t micro_batch, const training::StepValues* now) const;
  Batch validation_batch(std::int64_t number) const;
  double validate(Model& model);
  float* losses() const { return static_cast<float*>(losses_.view().data); }
  std::filesystem::path checkpoint_file() const { return options_->out / "checkpoint"; }

  ingot::Context* context_;
  ingot::Comm* comm_;
  const Options* options_;
  ingot::Stream stream_;
  std::string fingerprint_;
  ingot::Buffer text_;
  std::int64_t text_bytes_;
  std::int64_t training_bytes_;  // the rest is for validation
  ingot::OwnedTensor losses_;    // f32 [steps + 1], on the device; the last is validation's
  std::int64_t launches_ = 0;
};

}  // namespace train_lm
