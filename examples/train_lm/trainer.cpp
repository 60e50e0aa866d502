#include "trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"

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

ingot::LinearConfig config_of(const Options& options, const std::string& name) {
  return name == "fp8" ? ingot::recipe(options.recipe) : ingot::high_precision();
}

training::Schedule schedule(const Options& options) {
  return {.peak = options.learning_rate,
          .steps = options.steps,
          .warmup_steps = options.warmup_steps,
          .last = options.final_rate};
}

training::OptimizerOptions optimizer_options(const Options& options) {
  return {.weight_decay = options.weight_decay, .clip = options.clip};
}

Trainer::Trainer(ingot::Context& context, const Options& options, const std::vector<std::uint8_t>& text,
                 ingot::Comm* comm)
    : context_(&context),
      comm_(comm),
      options_(&options),
      stream_(context.backend()),
      fingerprint_(fingerprint(options, XXH3_64bits(text.data(), text.size()),
                               context.device().type == ingot::DeviceType::cuda)),
      text_(context.backend(), text.size()),
      text_bytes_(static_cast<std::int64_t>(text.size())),
      training_bytes_(text_bytes_ - text_bytes_ / 20),
      losses_(context.backend(), ingot::Dtype::f32, 1, options.steps + 1) {
  const std::int64_t needed = 40 * (options.shape.context + 1);
  if (text_bytes_ < needed) {
    throw ingot::Error(
        ingot::ErrorCode::invalid_argument, "the text",
        fmt::format("has {} bytes, but a context of {} needs at least {}", text_bytes_, options.shape.context, needed));
  }
  context.device_api().copy_from_host(text_.data(), text.data(), text.size(), stream_);
}

training::StepValues Trainer::step_values(std::int64_t step) const {
  training::StepValues values{.step = step,
                              .seed = hash_of(options_->seed) + static_cast<std::uint64_t>(step),
                              .learning_rate = static_cast<float>(training::learning_rate(schedule(*options_), step)),
                              .correction1 = 0,
                              .correction2 = 0};
  set_corrections(optimizer_options(*options_), values);
  return values;
}

Batch Trainer::training_batch(std::int64_t micro_batch, const training::StepValues* now) const {
  return {.text = static_cast<const std::uint8_t*>(text_.data()),
          .places = training_bytes_ - options_->shape.context,
          .context = options_->shape.context,
          .size = options_->micro_batch(),
          .first = micro_batch * options_->micro_batch(),
          .total = options_->batch,
          .seed = &now->seed};
}

// The same windows for every seed, so that the losses of runs compare.
Batch Trainer::validation_batch(std::int64_t number) const {
  return {.text = static_cast<const std::uint8_t*>(text_.data()) + training_bytes_,
          .places = text_bytes_ - training_bytes_ - options_->shape.context,
          .context = options_->shape.context,
          .size = options_->micro_batch(),
          .first = number * options_->micro_batch(),
          .total = kValidationBatches * options_->batch,
          .seed = nullptr};
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

struct Trainer::Run {
  Run(Trainer& trainer, const ingot::LinearConfig& config)
      : of(&trainer),
        ops(*trainer.context_, trainer.stream_),
        ranks(trainer.comm_ == nullptr
                  ? nullptr
                  : std::make_unique<DataParallel>(backend(), trainer.stream_, ops, *trainer.comm_, options())),
        model(backend(), trainer.stream_, ops, options().shape, options().micro_batch(), config, options().seed,
              options().weight_codes, ranks.get()),
        optimizer(backend(), ranks == nullptr ? model.parameters() : std::vector<Parameter*>{},
                  optimizer_options(options())),
        table(backend(), options().steps, [&trainer](std::int64_t number) { return trainer.step_values(number); }),
        step(
            trainer.stream_, [this] { work(); }, [this] { return backend().device_api().launches() + ops.launches(); },
            options().graph != "off" && trainer.context_->device().type == ingot::DeviceType::cuda) {
    // All ranks start delayed scales with the same data.
    if (ranks == nullptr || model.delayed_scaling().size() == 0) return;
    table.prepare(0, of->stream_);
    table.advance(ops.training);
    model.forward_backward(of->training_batch(0, table.now()), {.sums = ranks->loss()});
  }

  ingot::Backend& backend() const { return of->context_->backend(); }
  const Options& options() const { return *of->options_; }

  void train_step(std::int64_t number) {
    table.prepare(number, of->stream_);
    step.run();
  }

  void work_of_rank() {
    const std::int64_t parts = options().micro_batches / of->comm_->size();
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t part = i * of->comm_->size() + of->comm_->rank();
      model.forward_backward(of->training_batch(part, table.now()), {.sums = ranks->loss()});
      ranks->add_gradients(i);
    }
    ranks->step(table.now(), of->losses());
    model.step_done();
  }

  void work() {
    table.advance(ops.training);
    if (ranks != nullptr) return work_of_rank();
    for (std::int64_t i = 0; i < options().micro_batches; ++i) {
      model.forward_backward(of->training_batch(i, table.now()),
                             {.sums = of->losses(), .now = table.now(), .accumulate = i > 0});
    }
    optimizer.step(ops.training, table.now());
    model.step_done();
  }

  Trainer* of;
  OpRunners ops;
  std::unique_ptr<DataParallel> ranks;
  Model model;
  training::AdamW optimizer;
  training::StepTable table;
  training::GraphedStep step;
};

struct Trainer::Meter {
  Trainer* of;
  History* history;
  std::int64_t read;            // losses that the host has
  bool runs = false;            // the clock
  std::int64_t clock_step = 0;  // from which on its time is not yet in the history
  Clock::time_point begin{};

  void start_clock(std::int64_t step) {
    of->context_->device_api().synchronize(of->stream_);
    runs = true;
    clock_step = step;
    begin = Clock::now();
  }

  // Fetches the losses that the device has computed since the last call, and adds the time they took.
  void collect(std::int64_t done) {
    ingot::Backend& backend = of->context_->backend();
    history->losses.resize(static_cast<std::size_t>(done));
    backend.device_api().copy_to_host(history->losses.data() + read, of->losses() + read,
                                      static_cast<std::size_t>(done - read) * sizeof(float), of->stream_);
    backend.device_api().synchronize(of->stream_);
    read = done;
    if (!runs) return;
    history->seconds += seconds_since(begin);
    history->timed_steps += done - clock_step;
    clock_step = done;
    begin = Clock::now();
  }

  double tokens_per_second(std::int64_t batch) const {
    return history->seconds > 0 ? static_cast<double>(history->timed_steps * batch) / history->seconds : 0;
  }
};

void Trainer::train_one(const std::string& name, Progress& progress, bool from_checkpoint) {
  ingot::Backend& backend = context_->backend();
  Run run(*this, config_of(*options_, name));
  if (from_checkpoint) read_model(checkpoint_file(), run.model, backend, stream_);

  History& history = progress.histories.back();
  const auto start = static_cast<std::int64_t>(history.losses.size());
  const std::int64_t show_every = std::max<std::int64_t>(1, options_->steps / 20);
  // The clock runs from this step on, not in the first ones.
  const std::int64_t clock_start = start + std::min(kUntimedSteps, options_->steps / 2);
  ProgressLine line(name, options_->steps);
  Meter meter{.of = this, .history = &history, .read = start};

  for (std::int64_t step = start; step < options_->steps; ++step) {
    if (step == clock_start) meter.start_clock(step);
    run.train_step(step);
    const std::int64_t done = step + 1;
    const bool is_last = done == options_->steps;
    const bool show = reports() && (done % show_every == 0 || is_last);
    const bool save = options_->checkpoint_every > 0 && (done % options_->checkpoint_every == 0 || is_last);
    if (show || save) meter.collect(done);
    if (show) line.show(done, history.losses.back(), meter.tokens_per_second(options_->batch));
    if (is_last && reports()) history.validation_loss = validate(run.model);
    if (save) write_checkpoint(checkpoint_file(), progress, run.model, backend, stream_);
    if (is_last || save) meter.begin = Clock::now();
  }
  launches_ += run.ops.launches() + run.step.replayed_launches();
}

double Trainer::validate(Model& model) {
  model.weights_changed();
  float* sum = losses() + options_->steps;
  const std::int64_t batches = kValidationBatches * options_->micro_batches;
  for (std::int64_t i = 0; i < batches; ++i) {
    model.forward(validation_batch(i), {.sums = sum, .accumulate = i > 0});
  }
  float loss = 0;
  context_->device_api().copy_to_host(&loss, sum, sizeof(loss), stream_);
  context_->device_api().synchronize(stream_);
  return loss;
}

}  // namespace train_lm
