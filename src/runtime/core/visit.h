// Maps a dtype, known at run time, to a type of templates/formats.cuh: visit_dtype(dtype, [&]<class T>(Type<T>) {...}).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "ingot/codegen/types/template_types.h"
#include "ingot/runtime/core/tensor.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

// One of `Dtypes`, a list of dtype.h; throws Error{invalid_argument} of any other. Callers have validated the spec: to
// throw is for a caller that has not, and for a list that lacks what the spec may be.
template <const auto& Dtypes, std::size_t Index = 0, class Function>
decltype(auto) visit_among(Dtype dtype, Function&& function) {
  if constexpr (Index + 1 < Dtypes.size()) {
    if (dtype != Dtypes[Index]) return visit_among<Dtypes, Index + 1>(dtype, std::forward<Function>(function));
  } else if (dtype != Dtypes[Index]) {
    throw Error(ErrorCode::invalid_argument, std::string(name(dtype)), "there is no code for this dtype here");
  }
  return std::forward<Function>(function)(Type<TypeOf<Dtypes[Index]>>{});
}

constexpr bool is_gemm_operand(Dtype dtype) { return is_high_precision(dtype) || is_fp8(dtype); }
inline constexpr std::array kGemmDtypes = dtypes_that<is_gemm_operand>();

// f32, bf16 and f16.
template <class Function>
decltype(auto) visit_high_precision(Dtype dtype, Function&& function) {
  return visit_among<kHighPrecisionDtypes>(dtype, std::forward<Function>(function));
}
// The formats of FP8.
template <class Function>
decltype(auto) visit_fp8(Dtype dtype, Function&& function) {
  return visit_among<kFp8Dtypes>(dtype, std::forward<Function>(function));
}
// Either.
template <class Function>
decltype(auto) visit_dtype(Dtype dtype, Function&& function) {
  return visit_among<kGemmDtypes>(dtype, std::forward<Function>(function));
}
// Visits the dtypes that MX elements may have.
template <class Function>
decltype(auto) visit_mx(Dtype dtype, Function&& function) {
  return visit_among<kMxDtypes>(dtype, std::forward<Function>(function));
}
// Every format of eight bits or less.
template <class Function>
decltype(auto) visit_codes(Dtype dtype, Function&& function) {
  return visit_among<kCodeDtypes>(dtype, std::forward<Function>(function));
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
