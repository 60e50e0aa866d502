#include "ingot/runtime/measure/matmul_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/measure/gpu_measurer.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

// A record's kernel comes first: it is the one to beat.
std::vector<MatmulSpec> candidates_of(const MatmulTuning& tuning, const MatmulCall& call) {
  std::vector<MatmulSpec> all = tuning.candidates(call);
  if (const auto record = tuning.store->find(tuning.machine, call.spec, call.size)) {
    std::erase(all, record->chosen);
    all.insert(all.begin(), record->chosen);
  }
  return all;
}

double best_of_cublaslt(const AutotuneResult& result) {
  double best = 0;
  for (const Trial& trial : result.trials) {
    const auto* const gemm = std::get_if<GemmSpec>(&trial.spec);
    if (gemm == nullptr || gemm->kernel != GemmKernel::cublaslt || !trial.problem.empty() || trial.samples_us.empty()) {
      continue;
    }
    if (best == 0 || trial.median_us < best) best = trial.median_us;
  }
  return best;
}

}  // namespace

TunedMatmulRecord tune_matmul(const MatmulTuning& tuning, const MatmulCall& call, double bf16_us,
                              const AutotuneOptions& options) {
  const AutotuneResult result = autotune(candidates_of(tuning, call), *tuning.measurer(call), options);
  for (const Trial& trial : result.trials) {
    if (!trial.wrong || !tuning.warn) continue;
    tuning.warn(
        fmt::format("{} gave a wrong result and is left out: {}", print(kernel_spec(trial.spec)), trial.problem));
  }
  if (result.stopped) return {};
  if (!result.chosen) {
    return {.problem = result.trials.empty() ? "no kernel takes it" : result.trials.front().problem};
  }
  const Trial& chosen = result.trials[*result.chosen];
  TunedMatmulRecord tuned{.record = TuningRecord{.machine = tuning.machine,
                                                 .spec = call.spec,
                                                 .size = call.size,
                                                 .chosen = chosen.spec,
                                                 .us = chosen.median_us,
                                                 .cublaslt_us = best_of_cublaslt(result),
                                                 .bf16_us = bf16_us,
                                                 .date = today()}};
  if (!tuning.store->put(*tuned.record)) tuned.problem = "its record is not kept: " + tuning.store->disabled_reason();
  return tuned;
}

// The GPU and the random inputs for measuring.
struct GpuMatmuls::Bench {
  explicit Bench(Context& context)
      : gpu(context), random(gpu.backend(), gpu.stream(), [this](void* to, const void* from, std::size_t bytes) {
          gpu.copy(to, from, bytes);
        }) {}

  MeasuredGpu gpu;
  RandomData random;
};

GpuMatmuls::GpuMatmuls(Context& context, const std::string& remedy) : context_(&context) {
  if (context.device().type != DeviceType::cuda) {
    throw Error(
        ErrorCode::not_found, "tune",
        fmt::format("kernels are measured on a GPU, and there is none ({}); {}", context.info().reason, remedy));
  }
  if (const std::string problem = context.tuning_store().write_problem(); !problem.empty()) {
    throw Error(ErrorCode::io_failed, "tune", "records cannot be kept: " + problem);
  }
}

GpuMatmuls::~GpuMatmuls() = default;

std::vector<MatmulSpec> GpuMatmuls::candidates(const MatmulCall& call) const {
  const Target target = context_->cache().target();
  const int multiprocessors = context_->tuning_machine().multiprocessors;
  std::vector<MatmulSpec> all;
  if (const auto* const dequant = std::get_if<DequantMatmulSpec>(&call.spec)) {
    const auto& [m, n, k] = call.size;
    for (const DequantMatmulSpec& spec :
         dequant_candidates(*dequant, {m, n, k}, {.target = target, .multiprocessors = multiprocessors})) {
      all.emplace_back(spec);
    }
  } else {
    for (const GemmSpec& spec : gemm_candidates({std::get<GemmSpec>(call.spec), call.size},
                                                {.target = target, .multiprocessors = multiprocessors})) {
      all.emplace_back(spec);
    }
  }
  return all;
}

std::unique_ptr<MatmulMeasurer> GpuMatmuls::measurer(const MatmulCall& call) {
  if (bench_ == nullptr) bench_ = std::make_unique<Bench>(*context_);
  return std::make_unique<GpuMeasurer>(bench_->gpu, bench_->random, call.spec, call.size);
}

MatmulTuning GpuMatmuls::tuning() {
  return {.store = &context_->tuning_store(),
          .machine = context_->tuning_machine(),
          .candidates = [this](const MatmulCall& call) { return candidates(call); },
          .measurer = [this](const MatmulCall& call) { return measurer(call); },
          .warn = {}};
}

}  // namespace ingot
