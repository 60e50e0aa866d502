// Who is told of every launch of a backend (Backend::set_launch_hook). Without one a launch makes one comparison more.
#pragma once

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

class Stream;

class LaunchHook {
 public:
  virtual ~LaunchHook() = default;
  LaunchHook(const LaunchHook&) = delete;
  LaunchHook& operator=(const LaunchHook&) = delete;

  // Before and after one launch is enqueued: a kernel of ours, or a call of cuBLASLt (whose spec says so); of the CPU's
  // backend before and after an operation. On the calling thread, with the stream's device current. What before()
  // throws keeps the launch from being made; where the launch throws there is no after().
  virtual void before(const Stream& stream) = 0;
  virtual void after(const KernelSpec& spec, Pass pass, const Stream& stream) = 0;

 protected:
  LaunchHook() = default;
};

}  // namespace ingot
