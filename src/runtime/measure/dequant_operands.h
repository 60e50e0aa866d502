// The operands of a dequant_matmul in the memory of a backend, as often as the rotation past the L2 asks for; and
// whether what a kernel made of them is right: some rows of the weight times some tokens, in float64 on the host.
// Weights are constant (DequantMatmulTensors): times are those of such calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/measure/output_error.h"
#include "ingot/runtime/measure/random_data.h"

namespace ingot {

class DequantOperands {
 public:
  // Sets memory of the backend's device.
  using Fill = std::function<void(void* to, unsigned char byte, std::size_t bytes)>;

  // Bell-shaped activations and weights, whose codes the library's own casts make; sums are of about 1.
  DequantOperands(RandomData& random, Fill fill, const DequantMatmulSpec& spec, const MatmulSize& size);

  int copies() const { return static_cast<int>(copies_.size()); }
  const DequantMatmulTensors& tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  // The last copy's output is NaN.
  void poison();
  // Why the last copy's output is wrong; empty if it is not. The error of the elements looked at (output_error.h) is at
  // most 2^-7.
  std::string fault();

 private:
  struct Copy {
    std::vector<Buffer> memory{};
    DequantMatmulTensors tensors{};
  };
  class Maker;
  void compute_expected(const Tensor& codes);
  std::vector<float> fetch(const Tensor& tensor, std::int64_t row) const;
  // Of a row of the weight.
  std::vector<double> values(const Tensor& codes, std::int64_t row) const;

  Backend* backend_;
  Stream* stream_;
  Fill fill_;
  DequantMatmulSpec spec_;
  MatmulSize size_;
  std::vector<Copy> copies_;
  std::vector<std::int64_t> tokens_;    // that are looked at
  std::vector<std::int64_t> features_;  // likewise, of each token
  std::vector<std::vector<RightValue>> expected_;
};

}  // namespace ingot
