// The CUDA driver API, opened when first needed. Without a driver the library still builds, loads and runs on the CPU.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "ingot/codegen/types/target.h"

namespace ingot {

class Library;  // runtime/util/library.h

// One function pointer per entry point that we call, with cuda.h's own types. A driver that lacks any of them is
// reported and not used at all.
class Driver {
 public:
  // Null, with the reason in `problem`, if there is no libcuda.so.1, cuInit failed or there is no device.
  static std::unique_ptr<Driver> open(std::string& problem);
  struct Api;
  // Functions in place of libcuda's, for one device whose primary context is `context`: see dry_driver.h.
  static std::unique_ptr<Driver> over(const Api& functions, CUdevice device, std::shared_ptr<CUctx_st> context);
  ~Driver();

  int device_count() const;
  std::string device_name(int index) const;
  Target device_target(int index) const;
  // Those that the context can use: a green context has a part of the device's.
  int multiprocessors(int index) const;
  // Is the context that is used the device's primary one, which can use all of it?
  bool uses_whole_device(int index) const;
  // The most shared memory that one block can have.
  unsigned block_shared_bytes(int index) const;
  // Does programmatic dependent launch work, in streams and in graphs? From sm_90 and CUDA 12.3 on.
  bool overlaps_kernels(int index) const;
  std::string version() const;  // "13.0"
  int cuda_version() const;     // 13000
  const std::string& path() const;

  // From now on, uses the caller's context in place of its device's primary one, and returns that device's index. Call
  // it before anything else uses the device. The context must outlive this object. Throws Error{not_found,
  // cuda_failed}.
  int use_context(CUcontext context);
  // The context that is used on a device: the primary one, retained for the life of this object, or the caller's.
  // CurrentContext makes it current.
  CUcontext context(int index) const;

  // Throws Error{cuda_failed, out_of_memory} "<call>: CUDA_ERROR_...: <description>".
  void check(CUresult result, const char* call) const;

  const Api& api() const { return *api_; }

 private:
  Driver();
  std::unique_ptr<Api> api_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot
