// cuBLASLt's matmul, opened at run time, with one plan (descriptors, layouts, algorithm) per size, made once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/gemm/gemm_shape.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class Driver;

class CublasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = 32U << 20U;  // NVIDIA's advice for Hopper

  // Null with the reason and the places looked in in `problem`.
  static std::unique_ptr<CublasLt> open(const std::string& cuda_root, const Driver& driver, std::string& problem);
  ~CublasLt();

  // Why cuBLASLt does not take this call; null where it does. (dtypes, scale granularity, 16-byte rules of reference:
  // cuBLASLt's documentation of cublasLtMatmul, "FP8 data types usage"; a GPU without FP8 tensor cores takes none of
  // the FP8 ones.)
  const char* refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) const;

  // The heuristic's algorithms for a size, best guess first, are at most this many.
  static constexpr int kAlgorithms = kCublasltAlgorithms;

  // Enqueues. `workspace` is kWorkspaceBytes, 256-byte aligned. Returns false where the heuristic has no algorithm of
  // this number for the size (remembered); the caller then takes another kernel. Throws Error{cuda_failed}.
  bool matmul(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* workspace,
              CUstream_st* stream, int algorithm = 0);

  std::string version() const;  // "13.1.0"
  const std::string& path() const;

 private:
  CublasLt();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot
