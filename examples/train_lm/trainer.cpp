#include "trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ingot/nn/recipes.h"
#include "ingot/runtime/error.h"

namespace train_lm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kValidationBatches = 8;
// Steps before the clock starts, in which kernels are compiled and loaded and cuBLASLt's algorithms are chosen.
constexpr std::int64_t kUntimedSteps = 10;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Shows a bar on a terminal, and elsewhere a line for each twentieth of the steps.
class ProgressLine {
 public:
  ProgressLine(std::string name, std::int64_t steps) : name_(std::move(name)), steps_(steps) {}

  void show(std::int64_t step, float loss, double tokens_per_second) {
    constexpr std::int64_t kWidth = 30;
    const auto filled = static_cast<std::size_t>(kWidth * step / steps_);
    const std::string line = fmt::format("{:<5} [{:<30}] {}/{}  loss {:.4f}  {:.0f} tokens/s", name_,
                                         std::string(filled, '='), step, steps_, loss, tokens_per_second);
    if (on_terminal_) {
      fmt::print(stderr, "\r{}\x1b[K{}", line, step == steps_ ? "\n" : "");
    } else {
      fmt::print(stderr, "{}\n", line);
    }
    std::fflush(stderr);
  }

 private:
  std::string name_;
  std::int64_t steps_;
  bool on_terminal_ = isatty(STDERR_FILENO) != 0;
};

}  // namespace

double learning_rate(const Options& options, std::int64_t step) {
  if (step < options.warmup_steps) {
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const double part = static_cast<double>(step - options.warmup_steps) /
                      static_cast<double>(std::max<std::int64_t>(1, options.steps - options.warmup_steps));
  return options.learning_rate * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * part)));
}

Trainer::Trainer(ingot::Context& context, const Options& options, const std::vector<std::uint8_t>& text)
    : context_(&context),
      options_(&options),
      stream_(context.backend()),
      fingerprint_(fingerprint(options, XXH3_64bits(text.data(), text.size()),
                               context.device().type == ingot::DeviceType::cuda)),
      text_(context.backend(), text.size()),
      text_bytes_(static_cast<std::int64_t>(text.size())),
      training_bytes_(text_bytes_ - text_bytes_ / 20),
      losses_(context.backend(), ingot::Dtype::f32, 1, options.steps + kValidationBatches) {
  const std::int64_t needed = 40 * (options.shape.context + 1);
  if (text_bytes_ < needed) {
    throw ingot::Error(
        ingot::ErrorCode::invalid_argument, "the text",
        fmt::format("has {} bytes, but a context of {} needs at least {}", text_bytes_, options.shape.context, needed));
  }
  context.backend().copy_from_host(text_.data(), text.data(), text.size(), stream_);
}

Batch Trainer::batch(std::int64_t step, bool validation) const {
  const auto* text = static_cast<const std::uint8_t*>(text_.data());
  const std::int64_t first = validation ? training_bytes_ : 0;
  const std::int64_t bytes = validation ? text_bytes_ - training_bytes_ : training_bytes_;
  const std::uint64_t salt = validation ? 0x76616cU : 0;
  return {.text = text + first,
          .places = bytes - options_->shape.context,
          .context = options_->shape.context,
          .size = options_->batch,
          .seed = hash_of(options_->seed ^ salt) + static_cast<std::uint64_t>(step)};
}

std::vector<History> Trainer::train(const std::vector<std::string>& names) {
  Progress progress{.fingerprint = fingerprint_, .histories = {}};
  std::size_t first = 0;
  if (options_->resume) {
    const auto payload = 3 * sizeof(float) * static_cast<std::uint64_t>(options_->shape.parameters());
    progress = read_progress(checkpoint_file(), fingerprint_,
                             {.models = names.size(), .steps = options_->steps, .payload_bytes = payload});
    first = progress.histories.size() - 1;
  }
  for (std::size_t i = first; i < names.size(); ++i) {
    const bool from_checkpoint = options_->resume && i == first;
    if (!from_checkpoint) progress.histories.emplace_back();
    train_one(names[i], progress, from_checkpoint);
  }
  return progress.histories;
}

void Trainer::train_one(const std::string& name, Progress& progress, bool from_checkpoint) {
  ingot::Backend& backend = context_->backend();
  OpRunner ops(*context_, stream_);
  const ingot::LinearConfig config = name == "fp8" ? ingot::recipe(options_->recipe) : ingot::high_precision();
  Model model(*context_, stream_, ops, options_->shape, options_->batch, config, options_->seed);
  if (from_checkpoint) read_model(checkpoint_file(), model, backend, stream_);

  History& history = progress.histories.back();
  auto read = static_cast<std::int64_t>(history.losses.size());
  const std::int64_t start = read;
  const std::int64_t show_every = std::max<std::int64_t>(1, options_->steps / 20);
  ProgressLine line(name, options_->steps);
  auto* losses = static_cast<float*>(losses_.view().data);

  // The clock runs from clock_step on, not in the first steps.
  const std::int64_t untimed = std::min(kUntimedSteps, options_->steps / 2);
  std::optional<std::int64_t> clock_step;
  Clock::time_point begin;
  // Fetches the losses that the device has computed since the last call, and adds the time they took.
  const auto collect = [&](std::int64_t done) {
    history.losses.resize(static_cast<std::size_t>(done));
    backend.copy_to_host(history.losses.data() + read, losses + read,
                         static_cast<std::size_t>(done - read) * sizeof(float), stream_);
    backend.synchronize(stream_);
    read = done;
    if (!clock_step) return;
    history.seconds += seconds_since(begin);
    history.timed_steps += done - *clock_step;
    clock_step = done;
    begin = Clock::now();
  };

  for (std::int64_t step = start; step < options_->steps; ++step) {
    if (step == start + untimed) {
      backend.synchronize(stream_);
      clock_step = step;
      begin = Clock::now();
    }
    model.forward_backward(batch(step, false), losses + step);
    model.update(
        {.number = step + 1, .learning_rate = learning_rate(*options_, step), .weight_decay = options_->weight_decay});
    const std::int64_t done = step + 1;
    const bool is_last = done == options_->steps;
    const bool show = done % show_every == 0 || is_last;
    const bool save = options_->checkpoint_every > 0 && (done % options_->checkpoint_every == 0 || is_last);
    if (show || save) collect(done);
    if (show) {
      line.show(done, history.losses.back(),
                history.seconds > 0 ? static_cast<double>(history.timed_steps * options_->batch) / history.seconds : 0);
    }
    if (is_last) history.validation_loss = validate(model);
    if (save) write_checkpoint(checkpoint_file(), progress, model, backend, stream_);
    if (is_last || save) begin = Clock::now();
  }
  launches_ += ops.launches();
}

double Trainer::validate(Model& model) {
  auto* losses = static_cast<float*>(losses_.view().data) + options_->steps;
  for (std::int64_t i = 0; i < kValidationBatches; ++i) model.forward(batch(i, true), losses + i);
  std::vector<float> values(kValidationBatches);
  context_->backend().copy_to_host(values.data(), losses, values.size() * sizeof(float), stream_);
  context_->backend().synchronize(stream_);
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(kValidationBatches);
}

}  // namespace train_lm
