#include "prepare.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <variant>

#include "data_parallel.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/dist/comm.h"
#include "model.h"
#include "op_runner.h"

namespace train_lm {

ingot::Recording recording_of(const Options& options, std::span<const ingot::LinearConfig> configs,
                              const ingot::Gpu& gpu) {
  ingot::DryRun dry(gpu);
  ingot::Stream stream(dry.backend());
  OpRunners ops;
  const ingot::OwnedTensor loss(dry.backend(), ingot::Dtype::f32, 1, 1);
  const Batch batch{.text = nullptr,
                    .places = 1,
                    .context = options.shape.context,
                    .size = options.micro_batch(),
                    .first = 0,
                    .total = options.batch,
                    .seed = nullptr};
  for (const ingot::LinearConfig& config : configs) {
    // A rank by itself asks for the kernels of one of several.
    ingot::Comm alone(dry.backend().device_api());
    std::optional<DataParallel> ranks;
    if (options.ranks > 0) ranks.emplace(dry.backend(), stream, ops, alone, options);
    Model model(dry.backend(), stream, ops, options.shape, options.micro_batch(), config, options.seed,
                options.weight_codes, ranks ? &*ranks : nullptr);
    constexpr int kSteps = 2;  // delayed scales begin in the first
    for (int step = 0; step < kSteps; ++step) {
      const std::int64_t parts = ranks ? 1 : std::min<std::int64_t>(2, options.micro_batches);
      for (std::int64_t i = 0; i < parts; ++i) {
        model.forward_backward(batch, {.sums = static_cast<float*>(loss.view().data), .accumulate = i > 0});
      }
      model.step_done();
    }
    model.forward(batch, {.sums = static_cast<float*>(loss.view().data)});
  }
  return dry.recording();
}

void prepare(ingot::Context& context, const Options& options, std::span<const ingot::LinearConfig> configs) {
  if (context.compiler() == nullptr) return;
  const ingot::Target target = context.cache().target();
  // The kernels that layers ask for depend on the target alone.
  if (const ingot::Gpu* const alike = ingot::gpu_of_target(target)) {
    const ingot::Recording recording = recording_of(options, configs, *alike);
    if (context.device().type == ingot::DeviceType::cuda) {
      context.prepare(recording);
    } else {
      ingot::Recording kernels;
      for (const ingot::KernelSpec& spec : recording.kernels()) {
        if (!std::holds_alternative<ingot::GemmSpec>(spec)) kernels.add(spec);
      }
      context.prepare_for(ingot::matmul_device(*alike), kernels);
    }
  }
  for (const std::string_view op : all_op_names()) context.cache().compiled(source_of(op), target);
  for (const std::string_view op : training::all_op_names()) {
    context.cache().compiled(training::source_of(op), target);
  }
}

}  // namespace train_lm
