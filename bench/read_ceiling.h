// Measures how fast the GPU reads memory, with a kernel that does nothing else: the yardstick for kernels that are
// bound by reading the same number of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/measure/replay.h"

namespace ingot::bench {

// A kernel whose threads read 16 bytes at a time, eight loads in flight each, and discard the data.
Source read_source();

class ReadCeiling {
 public:
  struct Shape {
    unsigned blocks_per_multiprocessor, threads;
  };
  // The fastest of these shapes is the ceiling; none is the fastest at every size.
  static constexpr std::array kShapes{Shape{1, 1024}, Shape{2, 512}, Shape{2, 1024},
                                      Shape{4, 256},  Shape{4, 512}, Shape{8, 256}};

  // Compiles the kernel. Throws Error{compile_failed, cuda_failed}.
  explicit ReadCeiling(MeasuredGpu& gpu);

  // data: device memory aligned to 16 bytes. Reads `bytes` rounded down to a multiple of 16.
  void enqueue(const Shape& shape, const void* data, std::size_t bytes);

  // The median of the fastest shape, in microseconds: of `bytes` from begin_of(copy), in the copies' turns.
  double median_us(int copies, const std::function<const void*(int copy)>& begin_of, std::size_t bytes,
                   const MeasureOptions& options);

 private:
  MeasuredGpu* gpu_;
  const Kernel* kernel_;
  unsigned multiprocessors_;
  Buffer nothing_;
};

}  // namespace ingot::bench
