#include "ingot/runtime/measure/autotuner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "ingot/runtime/measure/timing.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

class Autotuner {
 public:
  Autotuner(std::span<const MatmulSpec> candidates, MatmulMeasurer& measurer, const AutotuneOptions& options)
      : measurer_(&measurer), options_(&options) {
    for (const MatmulSpec& spec : candidates) result_.trials.push_back({.spec = spec});
  }

  AutotuneResult run() {
    prepare_all();
    check_all();
    measure_all();
    if (!result_.stopped) choose();
    return std::move(result_);
  }

 private:
  bool stop() {
    result_.stopped = result_.stopped || (options_->stop && options_->stop());
    return result_.stopped;
  }

  void prepare_all() {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stopped{stop()};
    const auto work = [&] {
      for (std::size_t i = next++; i < result_.trials.size() && !stopped; i = next++) {
        Trial& trial = result_.trials[i];
        try {
          measurer_->prepare(trial.spec);
        } catch (const std::exception& error) {  // including bad_alloc: no exception may leave a thread
          trial.problem = error.what();
        }
        if (options_->stop && options_->stop()) stopped = true;
      }
    };
    {
      const auto wanted = options_->threads > 0 ? static_cast<std::size_t>(options_->threads)
                                                : std::max(1U, std::thread::hardware_concurrency());
      std::vector<std::jthread> others;
      try {
        for (std::size_t i = 1; i < std::min(wanted, result_.trials.size()); ++i) others.emplace_back(work);
      } catch (const std::system_error&) {  // no more threads are available: those that started do the work
      }
      work();
    }
    result_.stopped = stopped;
  }

  void check_all() {
    for (Trial& trial : result_.trials) {
      if (stop()) return;
      if (!trial.problem.empty()) continue;
      try {
        trial.problem = measurer_->check(trial.spec);
        trial.wrong = !trial.problem.empty();
      } catch (const Error& error) {
        trial.problem = error.what();
      }
    }
  }

  void measure_all() {
    for (Trial& trial : result_.trials) {
      if (trial.problem.empty()) running_.push_back(&trial);
    }
    if (!measure_round(0)) return;
    for (Trial* const trial : running_) trial->samples_us.clear();
    for (int round = 1; round <= options_->most_rounds; ++round) {
      if (!measure_round(round)) return;
      if (round >= 2) drop_those_behind();
      const bool enough = running_.size() <= 1 || (options_->hurry && options_->hurry());
      if (enough && round >= options_->fewest_rounds) return;
    }
  }

  // Each round begins with the next candidate, so that none always follows the same one. Returns false if stopped.
  bool measure_round(int round) {
    std::vector<Trial*> failed;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (stop()) return false;
      Trial& trial = *running_[(i + static_cast<std::size_t>(round)) % running_.size()];
      try {
        trial.samples_us.push_back(measurer_->measure(trial.spec));
        trial.median_us = median(trial.samples_us);
      } catch (const Error& error) {
        trial.problem = error.what();
        failed.push_back(&trial);
      }
    }
    std::erase_if(running_, [&](Trial* trial) { return std::ranges::find(failed, trial) != failed.end(); });
    return !running_.empty();
  }

  // Judged by its best time: a disturbance only makes a measurement longer.
  void drop_those_behind() {
    const Trial* const leader = *std::ranges::min_element(running_, {}, &Trial::median_us);
    const double limit = leader->median_us * (1 + options_->behind);
    std::erase_if(running_, [&](const Trial* trial) { return std::ranges::min(trial->samples_us) > limit; });
  }

  void choose() {
    if (running_.empty()) return;
    const Trial* const best = *std::ranges::min_element(running_, {}, &Trial::median_us);
    const Trial& incumbent = *std::ranges::find_if(
        result_.trials, [](const Trial& trial) { return trial.problem.empty() && !trial.samples_us.empty(); });
    const bool dropped = std::ranges::find(running_, &incumbent) == running_.end();
    const Trial* const chosen = dropped || beats(*best, incumbent) ? best : &incumbent;
    result_.chosen = static_cast<std::size_t>(chosen - result_.trials.data());
  }

  bool beats(const Trial& trial, const Trial& incumbent) const {
    const std::size_t rounds = std::min(trial.samples_us.size(), incumbent.samples_us.size());
    std::vector<double> ratios;
    for (std::size_t i = 0; i < rounds; ++i) ratios.push_back(trial.samples_us[i] / incumbent.samples_us[i]);
    const double middle = median(ratios);
    for (double& ratio : ratios) ratio = std::abs(ratio - middle);
    // Two standard errors of the median, from the median deviation, which a few outliers do not move.
    constexpr double kSigmas = 2 * 1.4826 * 1.2533;
    const double scatter = kSigmas * median(ratios) / std::sqrt(static_cast<double>(rounds));
    return middle < 1 - std::max(options_->noise, scatter);
  }

  MatmulMeasurer* measurer_;
  const AutotuneOptions* options_;
  AutotuneResult result_;
  std::vector<Trial*> running_;  // not yet excluded
};

}  // namespace

AutotuneResult autotune(std::span<const MatmulSpec> candidates, MatmulMeasurer& measurer,
                        const AutotuneOptions& options) {
  return Autotuner(candidates, measurer, options).run();
}

}  // namespace ingot
