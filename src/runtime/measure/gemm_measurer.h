// Compiles, checks and times the candidates of one GEMM on the GPU: kernels come from the context's cache, and graphs
// over rotating copies of the operands are timed (replay.h).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/measured_gpu.h"
#include "ingot/runtime/measure/random_data.h"
#include "ingot/runtime/measure/replay.h"

namespace ingot {

class CudaGemmMeasurer final : public MatmulMeasurer {
 public:
  // Allocates and fills the operands. Throws Error{out_of_memory} if they do not fit.
  CudaGemmMeasurer(MeasuredGpu& gpu, RandomData& random, const GemmCall& call);

  void prepare(const MatmulSpec& candidate) override;
  std::string check(const MatmulSpec& candidate) override;
  double measure(const MatmulSpec& candidate) override;

 private:
  MeasuredGpu* gpu_;
  GemmOperands operands_;
  std::vector<std::pair<MatmulSpec, std::unique_ptr<Replay>>> replays_;
};

}  // namespace ingot
