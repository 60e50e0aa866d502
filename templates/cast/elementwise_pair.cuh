// output[r, c] and second[r, c]: the values of two expressions of the same matrices, rows and columns, as two launches
// of elementwise (elementwise.cuh) compute them, to the bit. Each element that both expressions read is loaded once.
//
// The tiles are those of elementwise. Each output may be one of the inputs: a thread writes an element of either output
// only after both of its values have been computed.
#pragma once

#include "cast/elementwise.cuh"
#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

struct ElementwisePairParams {
  ElementwiseParams first;
  void* second;       // In[rows, cols]
  i64 second_stride;  // elements
};

// As ElementwiseOutput. ValuesOf: a source with the first expression. Second: the other expression, of the same inputs.
template <class ValuesOf, class Second>
struct ElementwisePairOutput {
  using Source = ValuesOf;
  using Params = ElementwisePairParams;
  using In = typename Source::In;
  struct Element {
    In first, second;
  };
  static constexpr u32 kOutputs = 2;

  INGOT_HOST_DEVICE static const ElementwiseParams& shared(const Params& p) { return p.first; }
  INGOT_HOST_DEVICE static bool aligned(const Params& p) {
    return vector_aligned<In>(p.first.output, p.first.output_stride) && vector_aligned<In>(p.second, p.second_stride);
  }
  INGOT_DEVICE static ElementwisePairOutput at(const Params& p, i64 row, i64 col) {
    return {static_cast<In*>(p.first.output) + row * p.first.output_stride + col,
            static_cast<In*>(p.second) + row * p.second_stride + col};
  }

  template <class Maximum>
  INGOT_DEVICE void store_vec8(const Params& p, u32 rows, const typename Source::Raw& raw,
                               const typename Source::RawColumns& columns, Maximum& maximum) const {
    const Vec8<In> of_first = Source::values(raw, columns);
    const Vec8<In> of_second = Source::template values_of<Second>(raw, columns);
    ingot::store_vec8<In>(first + rows * p.first.output_stride, maximum.take(of_first));
    ingot::store_vec8<In>(second + rows * p.second_stride, maximum.take(of_second));
  }
  INGOT_DEVICE static Element element(const Params& p, i64 row, i64 col) {
    return {Source::element(p.first.source, row, col), Source::template element_of<Second>(p.first.source, row, col)};
  }
  template <class Maximum>
  INGOT_DEVICE void store(const Element& values, Maximum& maximum) const {
    *first = maximum.take(values.first);
    *second = maximum.take(values.second);
  }

  In* first;
  In* second;
};

template <class Source, class Second>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads, elementwise_residency<Source>())
    elementwise_pair(const __grid_constant__ ElementwisePairParams p) {
  start_in_turn();
  elementwise_tiles<ElementwisePairOutput<Source, Second>>(p);
}

}  // namespace ingot
