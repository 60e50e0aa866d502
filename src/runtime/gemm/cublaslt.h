// Calls cuBLASLt's matmul. The library is opened at run time; a plan (descriptors, layouts, algorithm) is made once for
// each spec and size.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

class Driver;

class CublasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = 32U << 20U;  // NVIDIA's advice for Hopper

  // Null if there is no cuBLASLt, with the reason and the paths searched in `problem`.
  static std::unique_ptr<CublasLt> open(const std::string& cuda_root, const Driver& driver, std::string& problem);
  ~CublasLt();

  // Why cuBLASLt does not support this call (cublaslt_rules.h); null if it does.
  const char* refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) const;

  // The most algorithms that the heuristic gives for a size, best guess first.
  static constexpr int kAlgorithms = kCublasltAlgorithms;

  // Of the memory that matmul() takes: kWorkspaceBytes, and with scale_inv of groups the copies of those that cuBLASLt
  // cannot read where they are (cublaslt_rules.h).
  static std::size_t workspace_bytes(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

  // Enqueues the GEMM with the heuristic's `algorithm`-th result, and before it the copies of scale_inv. `workspace`
  // has workspace_bytes(), aligned to 256 bytes. Returns false if the heuristic has no such result for the size (which
  // is remembered); the caller then uses another kernel. Throws Error{cuda_failed}.
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
