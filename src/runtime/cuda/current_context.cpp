#include "ingot/runtime/cuda/current_context.h"

#include "ingot/runtime/cuda/driver_api.h"

namespace ingot {

CurrentContext::CurrentContext(const Driver& driver, int device_index)
    : CurrentContext(driver.api(), driver.context(device_index)) {
  driver.check(result_, "cuCtxSetCurrent");
}

namespace {

// The driver's default streams: null, or the numbers that stand for them.
bool is_default(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

bool is_in_green_context_of(const Driver::Api& api, CUstream stream, CUcontext primary) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  return api.cuStreamGetCtx_v2(stream, &context, &green) == CUDA_SUCCESS && green != nullptr && context == primary;
}

}  // namespace

CurrentContext::CurrentContext(const Driver& driver, int device_index, CUstream stream) : api_(&driver.api()) {
  const CUcontext ours = driver.context(device_index);
  result_ = api_->cuCtxGetCurrent(&previous_);
  is_callers_ = result_ == CUDA_SUCCESS && previous_ != ours && previous_ != nullptr && is_default(stream) &&
                is_in_green_context_of(*api_, stream, ours);
  if (!is_callers_) change_to(ours);
  driver.check(result_, "cuCtxSetCurrent");
}

CurrentContext::CurrentContext(const Driver::Api& api, CUcontext context) : api_(&api) {
  result_ = api.cuCtxGetCurrent(&previous_);
  change_to(context);
}

void CurrentContext::change_to(CUcontext context) {
  if (result_ != CUDA_SUCCESS || previous_ == context) return;
  result_ = api_->cuCtxSetCurrent(context);
  changed_ = result_ == CUDA_SUCCESS;
}

// A failure cannot be reported from here: a broken context reports it to the next call that can throw.
CurrentContext::~CurrentContext() {
  if (changed_ && previous_ != nullptr) static_cast<void>(api_->cuCtxSetCurrent(previous_));
}

}  // namespace ingot
