// Candidates of one dequant_matmul measured on the GPU, as gemm_measurer.h does a GEMM's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/measure/dequant_operands.h"
#include "ingot/runtime/measure/gpu.h"
#include "ingot/runtime/measure/replay.h"

namespace ingot {

class CudaDequantMeasurer final : public ProductMeasurer {
 public:
  // Allocates and fills the operands. Throws Error{out_of_memory} where they do not fit.
  CudaDequantMeasurer(Gpu& gpu, RandomData& random, const DequantMatmulSpec& spec, const GemmSize& size);

  void prepare(const Product& candidate) override;
  std::string check(const Product& candidate) override;
  double measure(const Product& candidate) override;

 private:
  Gpu* gpu_;
  DequantOperands operands_;
  std::vector<std::pair<Product, std::unique_ptr<Replay>>> replays_;
};

}  // namespace ingot
