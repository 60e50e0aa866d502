// One GEMM of the cross (gemm_cross.h) on a GPU: its inputs, its outputs with guard bytes around them, its two runs,
// and gemm_checker.h's verdict.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/measure/replay.h"
#include "ingot/runtime/util/error.h"
#include "support/gemm_checker.h"
#include "support/gemm_cross.h"
#include "support/random.h"
#include "support/run_case.h"

namespace ingot::test {

inline constexpr std::int64_t kLongest = kCrossExtents.back() + 32;  // a row with the bytes after it
inline constexpr std::size_t kLargest = static_cast<std::size_t>(kLongest * kLongest);
inline constexpr std::size_t kCrossGuard = 256;
inline constexpr unsigned char kFirstPoison = 0xa5;
inline constexpr unsigned char kSecondPoison = 0x5a;
inline constexpr float kAmaxBefore = 1e-3F;
inline constexpr float kScale = 2;  // for FP8 outputs: some values saturate

enum class Role : std::uint8_t { a, b, bias, c, first, second };

// The inputs of GEMMs: one long run of random elements for each dtype and kind of input, in which every matrix is a
// view at its own offset. Other elements are between its rows and after the last, so reading those changes the result.
class CrossInputs {
 public:
  explicit CrossInputs(MeasuredGpu& gpu) : gpu_(&gpu) {}

  Tensor matrix(Dtype dtype, Input input, Role role, std::int64_t rows, std::int64_t cols, Placement placement);
  Tensor vector(Dtype dtype, Input input, Role role, std::int64_t count);

  // Positive; powers of two with integers.
  Tensor scale_inv(Input input, Role role, std::int64_t count);

  Tensor scale();

 private:
  static constexpr std::int64_t kApart = 16 * 7919;  // not a multiple of a row's length
  static constexpr std::size_t kPeriod = 1048573;    // a prime: rows do not repeat
  static constexpr std::size_t kFactors = 4097 * 33 + 15;

  Buffer upload(const void* data, std::size_t bytes);

  const Buffer& stretch(Dtype dtype, Input input);

  MeasuredGpu* gpu_;
  std::map<std::pair<Dtype, Input>, Buffer> stretches_;
  std::map<Input, Buffer> scale_inv_;
  Buffer scale_;
};

// An output with guard bytes around it, and its bytes after the first run.
class CrossOutput {
 public:
  explicit CrossOutput(MeasuredGpu& gpu) : gpu_(&gpu), now_(gpu.backend(), kBytes), before_(gpu.backend(), kBytes) {}

  Tensor place(Dtype dtype, std::int64_t rows, std::int64_t cols, Placement placement);

  void poison(unsigned char byte) { gpu_->fill(now_.data(), byte, bytes_); }
  void keep() { gpu_->copy(before_.data(), now_.data(), bytes_); }
  BytesParams compared(Verdict::Bytes* found) const;

 private:
  static constexpr std::size_t kBytes = kLargest * sizeof(float) + 4 * kCrossGuard;

  MeasuredGpu* gpu_;
  Buffer now_;
  Buffer before_;
  Tensor tensor_{};
  std::size_t start_ = 0;
  std::size_t bytes_ = 0;
};

// One GEMM of one cell, computed by one kernel.
struct CrossRun {
  const CrossCell* cell = nullptr;
  GemmSpec spec{};  // the cell's, with a kernel
  CrossShape shape{};
  Input input = Input::normal;
};

std::string name(const CrossRun& run);

// The bounds of a whole output's relative error; elements have their own bounds too.
double cross_tolerance(const GemmSpec& spec, Dtype out);

// cuBLASLt rounds some high-precision sums to the output's dtype before it adds the bias.
bool may_round_twice(const GemmSpec& spec);

// How far a sum may be from the exact one, relative to its absolute terms. gemm_mma adds exact products in f32. The FP8
// tensor cores keep few bits; if they sum throughout, they lose some with each 32 of K.
double cross_sum_error(const GemmSpec& spec);

class Cross {
 public:
  explicit Cross(Context& with) : used_(&with), gpu_(with), checker_(gpu_), inputs_(gpu_), out_(gpu_), pre_(gpu_) {}

  MeasuredGpu& gpu() { return gpu_; }
  GemmChecker& checker() { return checker_; }
  std::size_t runs() const { return runs_; }
  const std::map<std::string, std::size_t>& counts() const { return counts_; }

  // All tensors of a call of this run, with the outputs placed; the GEMM's amax and scale_inv go to `verdict`.
  GemmTensors tensors(const CrossRun& run, Verdict* verdict, std::size_t time);

  JudgeParams judged(const CrossRun& run, const GemmTensors& t, Verdict* verdict);

  struct Sums {
    Buffer values;
    Buffer magnitudes;
    std::string of;  // what they are sums of; other operands replace them
  };

  // Sums in float64, either of the operands only or including their groups' scale_inv. The last sums of each kind are
  // kept.
  const Sums& sums(const CrossRun& run, const GemmTensors& t);

  // Enqueues a run. False if cuBLASLt, requested by name, has no algorithm for it. Verdicts come later, many at a time.
  bool enqueue(const CrossRun& run);

  void flush();

  void twice(const CrossRun& run, Verdict* verdict);

  static std::string fault_of(const CrossRun& run, const Verdict& v);

  // Runs once more and describes the first wrong element.
  std::string again(const CrossRun& run, const Verdict& found);

  void clear_verdicts();

  CrossOutput& out() { return out_; }
  Verdict* first_verdict() { return static_cast<Verdict*>(verdicts_.data()); }

 private:
  static constexpr std::size_t kBatch = 128;

  Context* used_;
  MeasuredGpu gpu_;
  GemmChecker checker_;
  CrossInputs inputs_;
  CrossOutput out_;
  CrossOutput pre_;
  Buffer verdicts_{used_->backend(), kBatch * sizeof(Verdict)};
  std::map<std::pair<int, Input>, Sums> sums_;
  std::vector<CrossRun> waiting_;
  std::map<std::string, std::size_t> counts_;
  std::size_t runs_ = 0;
  int faults_ = 0;
};

}  // namespace ingot::test
