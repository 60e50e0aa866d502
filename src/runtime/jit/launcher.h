// What every CUDA operation needs to enqueue kernels and fills: nothing here allocates, locks or formats on the way to
// a launch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/cuda/current_context.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/launch_hook.h"
#include "ingot/runtime/stream.h"

namespace ingot {

class Launcher {
 public:
  Launcher(const Driver& driver, int device_index, KernelCache& cache)
      : driver_(&driver),
        device_index_(device_index),
        cache_(&cache),
        overlapping_(driver.overlaps_kernels(device_index)),
        target_(driver.device_target(device_index)),
        multiprocessors_(driver.multiprocessors(device_index)) {}

  // `params` is the struct that the spec's kernel takes; `grid` its blocks, none of which may be zero.
  template <class Params>
  void launch(const KernelSpec& spec, Pass pass, std::int64_t grid, unsigned threads, const Params& params,
              const Stream& stream) {
    launch(spec, pass, {.grid_x = checked_grid(grid), .block = threads}, params, stream);
  }

  // The same with a shape; whether it may begin early is the launcher's to say.
  template <class Params>
  void launch(const KernelSpec& spec, Pass pass, LaunchShape shape, const Params& params, const Stream& stream) {
    launch(kernel(spec, pass, stream), spec, pass, shape, params, stream);
  }

  // The same of a kernel that was looked up already, with kernel(). `spec` is for the hook alone: a KernelSpec, or one
  // of its alternatives, which is not copied unless there is a hook.
  template <class Spec, class Params>
  void launch(const Kernel& loaded, const Spec& spec, Pass pass, LaunchShape shape, const Params& params,
              const Stream& stream) {
    shape.overlapping = overlapping_;
    if (hook_ != nullptr) hook_->before(stream);
    loaded.launch(stream.handle(), shape, params);
    count();
    if (hook_ != nullptr) hook_->after(spec, pass, stream);
  }

  // Throws Error{invalid_argument} where the kernel would have to be loaded while the stream is capturing.
  const Kernel& kernel(const KernelSpec& spec, Pass pass, const Stream& stream) const;
  bool is_loaded(const KernelSpec& spec, Pass pass) const { return cache_->find(spec, pass) != nullptr; }
  // The spec's passes loaded that are launched one after the other: none of them fails for that reason once the first
  // has been launched.
  void load(const KernelSpec& spec, const Stream& stream) const;

  // `count` words of device memory get this value.
  void fill(void* data, float value, std::int64_t count, const Stream& stream) const;
  void fill_zero(void* data, std::size_t bytes, const Stream& stream) const;

  bool capturing(const Stream& stream) const;
  // One more of the launches that the backend reports.
  void count() { launches_.fetch_add(1, std::memory_order_relaxed); }
  std::int64_t launches() const { return launches_.load(std::memory_order_relaxed); }

  // Null where nobody is told of launches.
  LaunchHook* hook() const { return hook_; }
  void set_hook(LaunchHook* hook) { hook_ = hook; }

  const Driver& driver() const { return *driver_; }
  Target target() const { return target_; }
  int multiprocessors() const { return multiprocessors_; }
  // Is it a GPU with programmatic dependent launch, and so with clusters, under a driver that has both in graphs?
  bool overlapping() const { return overlapping_; }
  // The device's context current on this thread, which may never have used CUDA before, for the life of the result.
  CurrentContext make_current() const { return {*driver_, device_index_}; }

 private:
  static unsigned checked_grid(std::int64_t grid);

  const Driver* driver_;
  int device_index_;
  KernelCache* cache_;
  bool overlapping_;  // may a kernel begin before the one ahead of it has ended?
  Target target_;
  int multiprocessors_;
  LaunchHook* hook_ = nullptr;
  std::atomic<std::int64_t> launches_{0};
};

}  // namespace ingot
