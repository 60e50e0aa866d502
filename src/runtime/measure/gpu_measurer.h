// Compiles, checks and times the candidates of one matmul on the GPU: kernels come from the context's cache, and graphs
// over rotating copies of the operands are timed (replay.h).
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/measure/dequant_operands.h"
#include "ingot/runtime/measure/gemm_operands.h"
#include "ingot/runtime/measure/random_data.h"
#include "ingot/runtime/measure/replay.h"

namespace ingot {

class GpuMeasurer final : public MatmulMeasurer {
 public:
  // Allocates and fills the operands. Throws Error{out_of_memory} if they do not fit.
  GpuMeasurer(MeasuredGpu& gpu, RandomData& random, const MatmulSpec& spec, const MatmulSize& size);

  void prepare(const MatmulSpec& candidate) override;
  std::string check(const MatmulSpec& candidate) override;
  double measure(const MatmulSpec& candidate) override;

 private:
  using Operands = std::variant<GemmOperands, DequantOperands>;
  static Operands operands_of(MeasuredGpu& gpu, RandomData& random, const MatmulSpec& spec, const MatmulSize& size);
  int copies() const;
  void enqueue(const MatmulSpec& candidate, int copy);

  MeasuredGpu* gpu_;
  Operands operands_;
  std::vector<std::pair<MatmulSpec, std::unique_ptr<Replay>>> replays_;
};

}  // namespace ingot
