// Calls of the driver and of cuBLASLt without any of the library's code: an empty kernel's launch,
// cuTensorMapEncodeTiled, and cublasLtMatmul. The host cost of the library's calls is measured against them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "ingot/codegen/generate.h"
#include "ingot/runtime/context/backend.h"

namespace ingot::bench {

// A kernel that does nothing, with one parameter of this size in bytes.
Source empty_kernel(std::size_t parameter_bytes);

// The empty kernel, loaded and launched with the driver's functions directly.
class BareKernel {
 public:
  BareKernel(MeasuredGpu& gpu, std::size_t parameter_bytes);
  ~BareKernel();
  BareKernel(const BareKernel&) = delete;
  BareKernel& operator=(const BareKernel&) = delete;

  // programmatic: with programmatic stream serialisation, as the library launches its kernels.
  void launch(bool programmatic);

 private:
  MeasuredGpu* gpu_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  CUlaunchAttribute attribute_{};
  std::vector<std::byte> parameter_;
};

// Calls cuTensorMapEncodeTiled for a matrix of codes.
void encode_tensor_map(MeasuredGpu& gpu, const Tensor& codes);

// cublasLtMatmul on FP8 operands. Everything around it is prepared in the constructor: descriptors, layouts, the
// heuristic's first algorithm, the workspace.
class BareMatmul {
 public:
  // Throws Error{not_found, cuda_failed}.
  BareMatmul(MeasuredGpu& gpu, const std::string& cuda_root, const GemmSpec& spec, const GemmTensors& tensors);
  ~BareMatmul();
  BareMatmul(const BareMatmul&) = delete;
  BareMatmul& operator=(const BareMatmul&) = delete;

  void call();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::bench
