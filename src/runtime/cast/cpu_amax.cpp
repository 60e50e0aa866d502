// amax on the CPU: the largest |x| of every extent, which is the tensor, a row, a group or a block that shares a scale.
#include "ingot/runtime/cast/amax_operation.h"
#include "ingot/runtime/cast/maxima.h"
#include "ingot/runtime/cpu/thread_pool.h"

namespace ingot::cpu {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool) {
  const Extents extents(spec.scale, tensors.input.rows, tensors.input.cols);
  visit_high_precision(spec.in, [&]<class T>(Type<T>) {
    const std::vector<u32> maxima = maxima_of<T>(extents, Values<T>(tensors.input), pool);
    std::transform(maxima.begin(), maxima.end(), row<float>(tensors.amax, 0), amax_from_bits);
  });
}

}  // namespace ingot::cpu
