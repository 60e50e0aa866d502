#include "tune/tune_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "ingot/runtime/measure/matmul_tuning.h"
#include "ingot/runtime/util/error.h"

namespace ingot::tools {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double bf16_time(const std::vector<TunedGemm>& gemms, const PlannedGemm& planned) {
  if (!planned.bf16) return 0;
  const auto found = std::ranges::find(gemms, *planned.bf16, [](const TunedGemm& gemm) { return gemm.planned.call; });
  return found != gemms.end() && found->record ? found->record->us : 0;
}

// This GEMM may take the fraction `share` of the time left until `deadline`. It gets a record or a problem, or neither
// if it was stopped.
void tune_one(const TuneSession& session, TunedGemm& gemm, double bf16_us, double share, Clock::time_point deadline) {
  const MatmulCall& call = gemm.planned.call;
  const Clock::time_point enough =
      Clock::now() + std::chrono::duration_cast<Clock::duration>((deadline - Clock::now()) * share);
  TunedMatmulRecord tuned = tune_matmul({.store = session.store,
                                         .machine = session.machine,
                                         .candidates = session.candidates,
                                         .measurer = session.measurer,
                                         .warn = session.warn},
                                        call, bf16_us,
                                        {.stop = [&] { return session.interrupted() || Clock::now() >= deadline; },
                                         .hurry = [&] { return Clock::now() >= enough; }});
  gemm.record = std::move(tuned.record);
  gemm.problem = std::move(tuned.problem);
}

}  // namespace

double tuning_weight(const MatmulCall& call) {
  const auto& [m, n, k] = call.size;
  return 1 + static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * 1e-12;
}

void find_records(const TuneSession& session, std::vector<TunedGemm>& gemms) {
  for (TunedGemm& gemm : gemms) {
    gemm.record = session.store->find(session.machine, gemm.planned.call.spec, gemm.planned.call.size);
  }
}

bool tune_missing(const TuneSession& session, std::vector<TunedGemm>& gemms) {
  const Clock::time_point deadline = Clock::now() + from_seconds(session.seconds);
  double left = 0;
  for (const TunedGemm& gemm : gemms) {
    if (!gemm.record) left += tuning_weight(gemm.planned.call);
  }
  for (TunedGemm& gemm : gemms) {
    if (gemm.record) continue;
    if (session.interrupted()) return false;
    if (Clock::now() >= deadline) return true;
    const double weight = tuning_weight(gemm.planned.call);
    session.begin(gemm);
    try {
      tune_one(session, gemm, bf16_time(gemms, gemm.planned), weight / left, deadline);
    } catch (const Error& error) {
      gemm.problem = error.what();
    }
    left -= weight;
    if (gemm.record || !gemm.problem.empty()) session.end(gemm, weight);
  }
  return !session.interrupted();
}

}  // namespace ingot::tools
