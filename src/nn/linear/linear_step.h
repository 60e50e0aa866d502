// What the files of linear_functions.h share: a call, its casts and GEMMs, and what observers are told of them.
#pragma once

#include <cstdint>

#include "ingot/nn/linear/linear_tensors.h"

namespace ingot {

inline bool observes_values(const LinearRun& run) { return run.observer != nullptr && run.observer->wants_values(); }

// Once a forward that keeps something is enqueued.
inline void stamp(LinearSaved* saved, std::uint64_t plan, std::int64_t tokens) {
  if (saved == nullptr) return;
  saved->plan = plan;
  saved->tokens = tokens;
  saved->kept = true;
  saved->sums.clear();  // of another forward
}

// What all parts of one call share.
struct LinearStep {
  const LinearPlan& plan;
  Backend& backend;
  const LinearRun& run;
  bool observes_values = false;

  LinearStep(const LinearPlan& of, Backend& on, const LinearRun& with)
      : plan(of), backend(on), run(with), observes_values(ingot::observes_values(with)) {}
  Device device() const { return backend.device(); }
};

// A cast's names for observers.
struct LinearCastNames {
  const char* tensor = "";         // "input", "weight", "grad_output"
  const char* of_codes = "";       // the GEMM that reads the codes
  const char* of_transposed = "";  // the GEMM that reads the transposed codes
};

// `observed`: where to write an expression's values if only an observer wants them.
void cast(const LinearStep& step, const LinearCastNames& names, const CastSpec& spec, CastTensors& tensors,
          const Tensor& observed, Stream& stream);

// Sets the caller's scale in a cast whose other tensors are set. A fixed scale's amax is written to scratch,
// because calls that run at once may share the scale.
void give_scale(const LinearStep& step, CastTensors& tensors, const LinearCast& of, const LinearScale& scale,
                const Tensor& scratch, Stream& stream);

// Tells the observer of a GEMM; multiply() also enqueues it.
void report(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors, Stream& stream);
void multiply(const LinearStep& step, const char* role, const GemmSpec& spec, const GemmTensors& tensors,
              Stream& stream);

}  // namespace ingot
