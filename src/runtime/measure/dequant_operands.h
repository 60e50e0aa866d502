// Inputs for measuring a dequant_matmul, in a backend's memory, in as many copies as it takes to keep them out of the
// L2; and a check of a kernel's result: some rows of the weight times some tokens, in float64 on the host. Weights are
// marked as constant (DequantMatmulTensors::constant_weight), which lets a kernel read them before the one ahead has
// ended.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/measure/output_error.h"
#include "ingot/runtime/measure/random_data.h"

namespace ingot {

class DequantOperands {
 public:
  // Fills memory of the backend's device.
  using Fill = std::function<void(void* to, unsigned char byte, std::size_t bytes)>;

  // Activations and weights are bell-shaped, codes come from the library's own casts, and sums are about 1.
  DequantOperands(RandomData& random, Fill fill, const DequantMatmulSpec& spec, const MatmulSize& size);

  int copies() const { return static_cast<int>(copies_.size()); }
  const DequantMatmulTensors& tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  // Fills the last copy's output with NaN.
  void poison();
  // Why the last copy's output is wrong; empty if it is right. The error of the elements checked (output_error.h) must
  // be at most 2^-7.
  std::string fault();

 private:
  struct Copy {
    std::vector<Buffer> memory{};
    DequantMatmulTensors tensors{};
  };
  class Maker;
  void compute_expected(const Tensor& codes);
  std::vector<float> fetch(const Tensor& tensor, std::int64_t row) const;
  // The values of a row of the weight.
  std::vector<double> values(const Tensor& codes, std::int64_t row) const;

  Backend* backend_;
  Stream* stream_;
  Fill fill_;
  DequantMatmulSpec spec_;
  MatmulSize size_;
  std::vector<Copy> copies_;
  std::vector<std::int64_t> tokens_;    // that are checked
  std::vector<std::int64_t> features_;  // likewise, of each token
  std::vector<std::vector<RightValue>> expected_;
};

}  // namespace ingot
