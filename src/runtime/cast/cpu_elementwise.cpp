// elementwise on the CPU: a pointwise expression over a matrix.
#include "ingot/runtime/cast/elementwise_operation.h"
#include "ingot/runtime/cast/maxima.h"
#include "ingot/runtime/cast/values.h"
#include "ingot/runtime/cpu/thread_pool.h"

namespace ingot::cpu {

// The output may be one of the matrices read: each piece is read completely before any of it is written.
void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, ThreadPool& pool) {
  visit_high_precision(spec.in, [&]<class In>(Type<In>) {
    const Values<In> values(cast_of_values(spec), {.input = tensors.input, .factors = {}, .inputs = tensors.inputs});
    pool.parallel_for(values.rows(), rows_per_range(values.cols()), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        for (i64 c = 0; c < values.cols(); c += Values<In>::kMaxCount) {
          std::array<float, Values<In>::kMaxCount> read;
          const i64 count = std::min(Values<In>::kMaxCount, values.cols() - c);
          values.read(r, c, count, read.data());
          std::transform(read.begin(), read.begin() + count, row<In>(tensors.output, r) + c, from_float<In>);
        }
      }
    });
  });
}

}  // namespace ingot::cpu
