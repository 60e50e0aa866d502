// A CUDA context current on this thread while this object lives. Whoever calls a backend may work with another device's
// context, or with one of their own making: they find it as they left it. A thread that had none keeps ours, as one
// keeps the context of CUDA's runtime: the next call then costs one query of the driver and no more.
#pragma once

#include <cuda.h>

#include "ingot/runtime/cuda/driver.h"

namespace ingot {

class CurrentContext {
 public:
  // Throws Error{cuda_failed}.
  CurrentContext(const Driver& driver, int device_index);
  // For a context that somebody else keeps.
  CurrentContext(const Driver::Api& api, CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  // What the driver said to the change of contexts; nothing is current that was not before where it refused.
  CUresult result() const { return result_; }

 private:
  const Driver::Api* api_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace ingot
