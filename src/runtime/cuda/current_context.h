// Makes a CUDA context current on this thread while the object lives. Callers may use another device's context, or one
// that they created: it is restored afterwards. A thread that had no context keeps ours, as it would keep that of
// CUDA's runtime, so that its next call costs one query of the driver.
#pragma once

#include <cuda.h>

#include "ingot/runtime/cuda/driver.h"

namespace ingot {

class CurrentContext {
 public:
  // Throws Error{cuda_failed}.
  CurrentContext(const Driver& driver, int device_index);
  // For a context that something else retains.
  CurrentContext(const Driver::Api& api, CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  // The driver's answer to the change of contexts. If it refused, the current context is unchanged.
  CUresult result() const { return result_; }

 private:
  const Driver::Api* api_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace ingot
