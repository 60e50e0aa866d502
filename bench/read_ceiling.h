// The yardstick of a kernel that is bound by reading, of the same size: a kernel that reads memory and does nothing
// else.
#pragma once

#include <array>
#include <cstddef>

#include "ingot/codegen/generate.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/measure/gpu.h"

namespace ingot::bench {

// Reads 16 bytes at a time, eight such loads of a thread at once, and keeps nothing.
Source read_source();

class ReadCeiling {
 public:
  struct Shape {
    unsigned blocks_per_multiprocessor, threads;
  };
  // The best of them is the ceiling: none is the best of every size.
  static constexpr std::array kShapes{Shape{1, 1024}, Shape{2, 512}, Shape{2, 1024},
                                      Shape{4, 256},  Shape{4, 512}, Shape{8, 256}};

  // Compiles the kernel. Throws Error{compile_failed, cuda_failed}.
  explicit ReadCeiling(Gpu& gpu);

  // data: device memory at a multiple of 16 bytes; what `bytes` has beyond a multiple of 16 is not read.
  void enqueue(const Shape& shape, const void* data, std::size_t bytes);

 private:
  Gpu* gpu_;
  const Kernel* kernel_;
  unsigned multiprocessors_;
  Buffer nothing_;
};

}  // namespace ingot::bench
