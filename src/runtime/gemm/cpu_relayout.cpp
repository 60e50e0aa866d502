// relayout on the CPU: codes copied or transposed, one at a time.
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/visit.h"

namespace ingot::cpu {

void relayout(const RelayoutSpec& spec, const RelayoutTensors& tensors, ThreadPool& pool) {
  const Tensor& output = tensors.output;
  pool.parallel_for(output.rows, 64, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      auto* const to = row<u8>(output, r);
      for (i64 c = 0; c < output.cols; ++c) {
        to[c] = spec.transposed ? row<const u8>(tensors.input, c)[r] : row<const u8>(tensors.input, r)[c];
      }
    }
  });
}

}  // namespace ingot::cpu
