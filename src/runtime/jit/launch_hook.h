// LaunchHook is called before and after every launch of a backend (Backend::set_launch_hook), for traces. Without a
// hook, a launch costs one more comparison.
#pragma once

#include "ingot/api.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

class Stream;

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
