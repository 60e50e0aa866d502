// Compiles, checks and times the candidates of one dequant_matmul on the GPU, as gemm_measurer.h does for a GEMM.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/measure/dequant_operands.h"
#include "ingot/runtime/measure/measured_gpu.h"
#include "ingot/runtime/measure/replay.h"

namespace ingot {

class CudaDequantMeasurer final : public MatmulMeasurer {
 public:
  // Allocates and fills the operands. Throws Error{out_of_memory} if they do not fit.
  CudaDequantMeasurer(MeasuredGpu& gpu, RandomData& random, const DequantMatmulSpec& spec, const MatmulSize& size);

  void prepare(const MatmulSpec& candidate) override;
  std::string check(const MatmulSpec& candidate) override;
  double measure(const MatmulSpec& candidate) override;

 private:
  MeasuredGpu* gpu_;
  DequantOperands operands_;
  std::vector<std::pair<MatmulSpec, std::unique_ptr<Replay>>> replays_;
};

}  // namespace ingot
