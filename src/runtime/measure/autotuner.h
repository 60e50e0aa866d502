// Finds the fastest of a matmul's candidate kernels: the procedure, which is the same for every device.
//
// All candidates are compiled, on several threads. Each then runs once, and one with a wrong result is excluded,
// however fast. The rest are timed in rounds in which they take turns, so that a drifting clock affects all alike; the
// first round only warms up. A candidate whose best time is clearly above the leader's median runs no further rounds.
// The incumbent, the first candidate that works, is kept unless another beats it by more than the noise: the median of
// the ratios of their times, round by round, must be below 1 by more than those ratios scatter.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"

namespace ingot {

// Compiles, checks and times the candidates for one matmul on one device. An Error excludes only the candidate that
// throws it.
class INGOT_API MatmulMeasurer {
 public:
  virtual ~MatmulMeasurer() = default;
  MatmulMeasurer(const MatmulMeasurer&) = delete;
  MatmulMeasurer& operator=(const MatmulMeasurer&) = delete;

  // Compiles; from several threads at once.
  virtual void prepare(const MatmulSpec& candidate) = 0;
  // Runs it once. Returns why its result is wrong; empty if it is right.
  virtual std::string check(const MatmulSpec& candidate) = 0;
  // One round: microseconds per call. Only for candidates that were checked.
  virtual double measure(const MatmulSpec& candidate) = 0;

 protected:
  MatmulMeasurer() = default;
};

struct AutotuneOptions {
  int threads = 0;  // for compiling; 0: one per core
  int fewest_rounds = 3;
  int most_rounds = 11;
  double noise = 0.005;           // smaller relative differences do not count, however steady they are
  double behind = 0.06;           // excludes a candidate that is slower than the leader by this, relative to its time
  std::function<bool()> stop{};   // asked between candidates, by several threads: once it is true,
                                  // nothing is chosen
  std::function<bool()> hurry{};  // asked between rounds: once it is true, the minimum number of rounds is enough
};

// One candidate, and what became of it.
struct Trial {
  MatmulSpec spec{};
  std::string problem{};  // why it was not timed; empty if it was
  bool wrong = false;     // it ran, and its result was wrong
  std::vector<double> samples_us{};
  double median_us = 0;  // of the samples
};

struct AutotuneResult {
  // The index of the chosen trial; none if no candidate works or `stopped`.
  std::optional<std::size_t> chosen{};
  bool stopped = false;
  std::vector<Trial> trials{};  // in the order of the candidates
};

INGOT_API AutotuneResult autotune(std::span<const MatmulSpec> candidates, MatmulMeasurer& measurer,
                                  const AutotuneOptions& options);

}  // namespace ingot
