// Runs the library's CUDA code without a GPU, to find out what it asks for. backend() is the CUDA backend itself, on a
// driver that does nothing and with kernels that are never compiled, so layers and models run on it as they would on
// that GPU, and what they ask for is exactly what they would ask for there. Only cuBLASLt is missing: GEMMs that it
// would have run are noted like all others, and the next kernel of their order is asked for.
//
//   DryRun dry(gpu_named("h200"));
//   Float8Linear linear(dry.backend(), ...);  // forward, backward: nothing is computed, and outputs are never written
//   for (const KernelPass& each : kernels_of(dry.recording(), matmul_device(dry.gpu()))) ...  // compile it ahead
//
// A step takes microseconds, and no memory however large its tensors are. Copies to the host give zeros.
#pragma once

#include <memory>

#include "ingot/api.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/backend.h"

namespace ingot {

class INGOT_API DryRun {
 public:
  explicit DryRun(const Gpu& gpu);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  const Gpu& gpu() const;
  Backend& backend();
  // A recording of what has been asked for so far.
  Recording recording() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ingot
