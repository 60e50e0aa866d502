// A GPU to measure on: a stream, its events, and the driver for what the library's interface lacks.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// An Ingot context on CUDA together with its driver.
class MeasuredGpu {
 public:
  // Throws Error{not_found} if the context is not on CUDA.
  explicit MeasuredGpu(Context& context);
  ~MeasuredGpu();
  MeasuredGpu(const MeasuredGpu&) = delete;
  MeasuredGpu& operator=(const MeasuredGpu&) = delete;

  Context& context() const { return *context_; }
  Backend& backend() const { return context_->backend(); }
  Stream& stream() { return stream_; }
  const Driver::Api& api() const { return driver_->api(); }
  void check(CUresult result, const char* call) const { driver_->check(result, call); }

  void synchronize() { backend().synchronize(stream_); }
  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill(void* to, unsigned char byte, std::size_t bytes) const;
  // The time on the GPU of what `work` enqueues on the stream.
  double microseconds(const std::function<void()>& work) const;

 private:
  Context* context_;
  std::unique_ptr<Driver> driver_;
  CurrentContext current_;
  Stream stream_;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
};

}  // namespace ingot
