// A loaded kernel, and what is told of launches. Launching allocates nothing, locks nothing and formats nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <type_traits>
#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/jit/compiler.h"

struct CUstream_st;

namespace ingot {

class Driver;
class Stream;

struct LaunchShape {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  unsigned block = 1;    // threads, one-dimensional
  unsigned cluster = 1;  // neighbouring blocks along x that run together
  unsigned shared_bytes = 0;
  // Programmatic dependent launch: the kernel may begin before the one ahead of it in the stream has ended. Its code
  // has to wait itself (templates/memory.cuh, start_in_turn).
  bool overlapping = false;
  // It may not overlap: its code reads memory before it waits, because it expects an earlier pass of the same operation
  // ahead, and here it has none.
  bool waits_for_end = false;
  bool cooperative = false;  // all blocks run at once, because they wait for each other; otherwise the launch fails
};

class INGOT_API Kernel {
 public:
  // Loads the cubin (context-independent, cuLibraryLoadData). Throws Error{cuda_failed}.
  Kernel(const Driver& driver, const CompiledKernel& compiled);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // The kernel takes one parameter, `params`, by value, of the type that its template declares. A grid of zero
  // blocks launches nothing. The context of the stream's device must be current on this thread. Throws
  // Error{cuda_failed}.
  template <class Params>
  requires std::is_trivially_copyable_v<Params>
  void launch(CUstream_st* stream, const LaunchShape& shape, const Params& params) const {
    launch_raw(stream, shape, &params);
  }

  // How many clusters of this shape (block, cluster and shared memory) the current device runs at once. At least 1:
  // none is an error. The driver is asked only when the shape is another than the last time. Throws Error{cuda_failed}.
  unsigned clusters_at_once(const LaunchShape& shape) const;

  const KernelResources& resources() const { return resources_; }

 private:
  void launch_raw(CUstream_st* stream, const LaunchShape& shape, const void* params) const;
  void prepare_shared(unsigned bytes) const;

  const Driver* driver_;
  void* library_ = nullptr;  // CUlibrary
  void* kernel_ = nullptr;   // CUkernel
  std::string name_;
  KernelResources resources_;
  mutable std::atomic<std::uint64_t> clusters_at_once_{0};  // with the shape they are of; 0: not asked yet
  mutable std::atomic<bool> shared_allowed_{false};         // has the device been asked for more than the default?
};

// LaunchHook is called before and after every launch of a device (DeviceApi::set_launch_hook), for traces. Without a
// hook, a launch costs one more comparison.
class INGOT_API LaunchHook {
 public:
  virtual ~LaunchHook() = default;
  LaunchHook(const LaunchHook&) = delete;
  LaunchHook& operator=(const LaunchHook&) = delete;

  // Called before and after a launch is enqueued: a generated kernel, or a call of cuBLASLt (as its spec says). The
  // CPU's backend calls them around each operation. On the calling thread, with the stream's device current. If
  // before() throws, the launch is not made; if the launch throws, after() is not called.
  virtual void before(const Stream& stream) = 0;
  virtual void after(const KernelSpec& spec, Pass pass, const Stream& stream) = 0;

 protected:
  LaunchHook() = default;
};

}  // namespace ingot
