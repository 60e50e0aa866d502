// The CUDA driver API, opened when first needed. Without a driver the library still builds, loads and runs on the CPU.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "ingot/codegen/types/target.h"

namespace ingot {

struct DriverApi;  // runtime/cuda/driver_api.h

// One function pointer per entry point that we call, with cuda.h's own types. A driver that lacks any of them is
// reported and not used at all.
class Driver {
 public:
  // Null, with the reason in `problem`, if there is no libcuda.so.1, cuInit failed or there is no device.
  static std::unique_ptr<Driver> open(std::string& problem);
  using Api = DriverApi;
  // Functions in place of libcuda's, for one device whose primary context is `context`: see dry_driver.h.
  static std::unique_ptr<Driver> over(const Api& functions, CUdevice device, std::shared_ptr<CUctx_st> context);
  ~Driver();

  int device_count() const;
  std::string device_name(int index) const;
  Target device_target(int index) const;
  // The multiprocessors that the context can use: a green context has a part of the device's.
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

// Makes a CUDA context current on this thread while the object lives. Callers may use another device's context, or one
// that they created: it is restored afterwards. A thread that had no context keeps ours, as it would keep that of
// CUDA's runtime, so that its next call costs one query of the driver.
//
// The default stream is the current context's. Where that is a green context (a part of the device's multiprocessors)
// whose memory is ours, work on the default stream runs in it: it is the stream that the caller has its own work on.
class CurrentContext {
 public:
  // Throws Error{cuda_failed}.
  CurrentContext(const Driver& driver, int device_index);
  // For work on this stream. Likewise.
  CurrentContext(const Driver& driver, int device_index, CUstream stream);
  // For a context that something else retains.
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
