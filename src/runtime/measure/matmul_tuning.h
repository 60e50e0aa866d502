// Tunes a matmul: measures its candidates and keeps the fastest as a record in the store. The procedure knows no
// device; GpuMatmuls has what it takes on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"

namespace ingot {

class Context;

struct MatmulTuning {
  TuningStore* store = nullptr;
  TuningMachine machine{};
  // The kernels worth measuring, the untuned choice first. If there is a record, its kernel is measured before them.
  std::function<std::vector<MatmulSpec>(const MatmulCall&)> candidates{};
  std::function<std::unique_ptr<MatmulMeasurer>(const MatmulCall&)> measurer{};
  std::function<void(const std::string&)> warn{};  // of a kernel whose result was wrong
};

// A record or a problem; neither if it was stopped.
struct TunedMatmulRecord {
  std::optional<TuningRecord> record{};
  std::string problem{};
};

// bf16_us: of the same matmul in bf16, for the record; 0 if it was not measured.
TunedMatmulRecord tune_matmul(const MatmulTuning& tuning, const MatmulCall& call, double bf16_us,
                              const AutotuneOptions& options);

// The candidates of a context's GPU, and their measurement. Memory is taken when the first matmul is measured.
class GpuMatmuls {
 public:
  // The context must outlive this object. Throws Error{not_found} if it is not on CUDA, and Error{io_failed} if its
  // store cannot keep records; `remedy` ends the sentence about a missing GPU.
  GpuMatmuls(Context& context, const std::string& remedy);
  ~GpuMatmuls();
  GpuMatmuls(const GpuMatmuls&) = delete;
  GpuMatmuls& operator=(const GpuMatmuls&) = delete;

  std::vector<MatmulSpec> candidates(const MatmulCall& call) const;
  std::unique_ptr<MatmulMeasurer> measurer(const MatmulCall& call);
  // A MatmulTuning that calls this object, which must outlive it.
  MatmulTuning tuning();

 private:
  struct Bench;

  Context* context_;
  std::unique_ptr<Bench> bench_;
};

}  // namespace ingot
