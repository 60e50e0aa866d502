#include "ingot/runtime/cuda/current_context.h"

#include "ingot/runtime/cuda/driver_api.h"

namespace ingot {

CurrentContext::CurrentContext(const Driver& driver, int device_index)
    : CurrentContext(driver.api(), driver.context(device_index)) {
  driver.check(result_, "cuCtxSetCurrent");
}

CurrentContext::CurrentContext(const Driver::Api& api, CUcontext context) : api_(&api) {
  result_ = api.cuCtxGetCurrent(&previous_);
  if (result_ != CUDA_SUCCESS || previous_ == context) return;
  result_ = api.cuCtxSetCurrent(context);
  changed_ = result_ == CUDA_SUCCESS;
}

// A failure cannot be reported from here: a broken context reports it to the next call that can throw.
CurrentContext::~CurrentContext() {
  if (changed_ && previous_ != nullptr) static_cast<void>(api_->cuCtxSetCurrent(previous_));
}

}  // namespace ingot
