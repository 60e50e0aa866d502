#include "ingot/runtime/cpu/operations.h"
#include "ingot/runtime/cpu/row_amax.h"

namespace ingot::cpu {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, ThreadPool& pool) {
  const Tensor& input = tensors.input;
  float* const result = row<float>(tensors.amax, 0);
  visit_high_precision(spec.in, [&]<class T>(Type<T>) {
    if (spec.scale == kTensorwise) {
      *result = amax_from_bits(tensor_amax_bits<T>(input, pool));
      return;
    }
    pool.parallel_for(input.rows, rows_per_range(input.cols), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        result[r] = amax_from_bits(row_amax_bits(row<const T>(input, r), input.cols));
      }
    });
  });
}

}  // namespace ingot::cpu
