// Makes a CUDA context current on this thread while the object lives. Callers may use another device's context, or one
// that they created: it is restored afterwards. A thread that had no context keeps ours, as it would keep that of
// CUDA's runtime, so that its next call costs one query of the driver.
//
// The default stream is the current context's. Where that is a green context (a part of the device's multiprocessors)
// whose memory is ours, work on the default stream runs in it: it is the stream that the caller has its own work on.
#pragma once

#include <cuda.h>

#include "ingot/runtime/cuda/driver.h"

namespace ingot {

class CurrentContext {
 public:
  // Throws Error{cuda_failed}.
  CurrentContext(const Driver& driver, int device_index);
  // Likewise, for work on this stream.
  CurrentContext(const Driver& driver, int device_index, CUstream stream);
  // Uses a context that something else retains.
  CurrentContext(const Driver::Api& api, CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  // The driver's answer to the change of contexts. If it refused, the current context is unchanged.
  CUresult result() const { return result_; }
  // The caller's green context has stayed current.
  bool is_callers() const { return is_callers_; }

 private:
  void change_to(CUcontext context);

  const Driver::Api* api_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  bool is_callers_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace ingot
