// From a dtype, known at run time, to a type of templates/formats.cuh: visit_dtype(dtype, [&]<class T>(Type<T>) {...}).
#pragma once

#include <span>
#include <utility>

#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/tensor.h"

#include "formats.cuh"

namespace ingot {

template <class T>
struct Type {};

// f32, bf16 and f16; the caller has validated the spec.
template <class Function>
decltype(auto) visit_high_precision(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::f32: return function(Type<f32>{});
    case Dtype::bf16: return function(Type<bf16>{});
    default: return function(Type<f16>{});
  }
}

// The four FP8 formats.
template <class Function>
decltype(auto) visit_fp8(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::e4m3fn: return function(Type<e4m3fn>{});
    case Dtype::e5m2: return function(Type<e5m2>{});
    case Dtype::e4m3fnuz: return function(Type<e4m3fnuz>{});
    default: return function(Type<e5m2fnuz>{});
  }
}

template <class Function>
decltype(auto) visit_dtype(Dtype dtype, Function&& function) {
  return is_fp8(dtype) ? visit_fp8(dtype, std::forward<Function>(function))
                       : visit_high_precision(dtype, std::forward<Function>(function));
}

// What MX's elements may be of; the caller has validated the spec.
template <class Function>
decltype(auto) visit_mx(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::e4m3fn: return function(Type<e4m3fn>{});
    case Dtype::e5m2: return function(Type<e5m2>{});
    case Dtype::e3m2fn: return function(Type<e3m2fn>{});
    case Dtype::e2m3fn: return function(Type<e2m3fn>{});
    default: return function(Type<e2m1fn>{});
  }
}

// The first element of row r of a tensor of T, which is of a byte or more.
template <class T>
T* row(const Tensor& tensor, i64 r) {
  return static_cast<T*>(tensor.data) + r * tensor.row_stride;
}

// The bytes of row r of a tensor of codes.
inline std::span<u8> row_of_codes(const Tensor& tensor, i64 r) {
  return {static_cast<u8*>(tensor.data) + row_bytes(tensor.dtype, r * tensor.row_stride),
          static_cast<std::size_t>(row_bytes(tensor.dtype, tensor.cols))};
}

}  // namespace ingot
