// Launches kernels and fills for all CUDA operations. Nothing here allocates, locks, formats or copies a spec on the
// way to a launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ingot/codegen/generate.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/cuda_device.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {

class Launcher {
 public:
  Launcher(CudaDevice& device, KernelCache& cache);

  // `params` is the struct that the spec's kernel takes; `grid` is the number of blocks, at least 1.
  template <AnyKernelSpec Spec, class Params>
  void launch(const Spec& spec, Pass pass, std::int64_t grid, unsigned threads, const Params& params,
              const Stream& stream) {
    launch(spec, pass, {.grid_x = checked_grid(grid), .block = threads}, params, stream);
  }

  // The same with a launch shape, whose `overlapping` the launcher sets.
  template <AnyKernelSpec Spec, class Params>
  void launch(const Spec& spec, Pass pass, LaunchShape shape, const Params& params, const Stream& stream) {
    launch(kernel(spec, pass, stream), spec, pass, shape, params, stream);
  }

  // The same with a kernel that kernel() has already found. Only the hook needs `spec`, which is copied only if there
  // is a hook.
  template <AnyKernelSpec Spec, class Params>
  void launch(const Kernel& loaded, const Spec& spec, Pass pass, LaunchShape shape, const Params& params,
              const Stream& stream) {
    shape.overlapping = overlapping_ && !shape.waits_for_end;
    if (hook() != nullptr) hook()->before(stream);
    loaded.launch(stream.handle(), shape, params);
    count();
    if (hook() != nullptr) hook()->after(spec, pass, stream);
  }

  // The number of blocks as a launch shape has it. Throws Error{invalid_argument} above 2^31 - 1.
  static unsigned checked_grid(std::int64_t grid);

  // Throws Error{invalid_argument} if the kernel would have to be loaded while the stream is capturing.
  template <AnyKernelSpec Spec>
  const Kernel& kernel(const Spec& spec, Pass pass, const Stream& stream) const {
    if (const Kernel* const loaded = cache_->find(spec, pass)) return *loaded;
    return load(spec, pass, stream);
  }
  // The same of a pass that another could replace: null if it would have to be loaded while the stream is capturing.
  template <AnyKernelSpec Spec>
  const Kernel* find(const Spec& spec, Pass pass, const Stream& stream) const {
    if (const Kernel* const loaded = cache_->find(spec, pass)) return loaded;
    return capturing(stream) ? nullptr : &load(spec, pass, stream);
  }
  template <AnyKernelSpec Spec>
  bool is_loaded(const Spec& spec, Pass pass) const {
    return cache_->find(spec, pass) != nullptr;
  }
  // Nothing may be loaded while the stream is capturing: a pass that another could replace is launched only where this
  // holds.
  template <AnyKernelSpec Spec>
  bool may_launch(const Spec& spec, Pass pass, const Stream& stream) const {
    return is_loaded(spec, pass) || !capturing(stream);
  }
  // Likewise for scratch memory, which some captures do not let grow.
  bool may_take(const Stream& stream, std::size_t scratch_bytes) const {
    return stream.has_scratch(scratch_bytes) || !capturing(stream);
  }
  // Loads all passes that are launched one after the other, so that none of them fails to load after the first was
  // launched.
  template <AnyKernelSpec Spec>
  void load(const Spec& spec, const Stream& stream) const {
    for (const Pass pass : passes_of(spec)) {
      if (pass.variant == Variant::standard) kernel(spec, pass, stream);
    }
  }

  // Sets `count` words of device memory to this value.
  void fill(void* data, float value, std::int64_t count, const Stream& stream) const {
    driver().fill(data, value, static_cast<std::size_t>(count), stream.handle());
  }
  void fill_zero(void* data, std::size_t bytes, const Stream& stream) const {
    driver().fill_zero(data, bytes, stream.handle());
  }

  bool capturing(const Stream& stream) const { return driver().capturing(stream.handle()); }
  // Counts a launch that does not go through launch().
  void count() { device_->count_launch(); }
  // Null if there is none.
  LaunchHook* hook() const { return device_->launch_hook(); }

  CudaDevice& device() const { return *device_; }
  const Driver& driver() const { return device_->driver(); }
  Target target() const { return target_; }
  int multiprocessors() const { return room_.multiprocessors; }
  // The part of the GPU that a stream's work can use. The streams of a green context have a part of its
  // multiprocessors, where clusters of more than two blocks may have no room.
  struct Room {
    int multiprocessors = 0;
    bool large_clusters = true;
  };
  Room room(const Stream& stream) const { return stream.is_owned() ? room_ : room_of(stream.handle()); }
  bool has_room(unsigned cluster, const Stream& stream) const { return cluster <= 2 || room(stream).large_clusters; }
  unsigned block_shared_bytes() const { return block_shared_bytes_; }  // the most that one block can have
  // True on GPUs with programmatic dependent launch (and so with clusters), if the driver supports both in graphs.
  bool overlapping() const { return overlapping_; }

 private:
  const Kernel& load(const KernelSpec& spec, Pass pass, const Stream& stream) const;
  Room room_of(CUstream_st* stream) const;
  static std::span<const Pass> passes_of(const KernelSpec& spec) { return passes(spec); }
  template <class Spec>
  static std::span<const Pass> passes_of(const Spec& spec) {  // without a copy of the spec
    return passes_with(extra_passes(spec));
  }

  CudaDevice* device_;
  KernelCache* cache_;
  bool overlapping_;  // may a kernel begin before the one ahead of it has ended?
  Target target_;
  Room room_;  // of the context
  unsigned block_shared_bytes_;
};

}  // namespace ingot
