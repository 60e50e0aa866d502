#include "support/tuning_records.h"

namespace ingot::test {

TuningMachine machine(const std::string& device) {
  return {.device = device,
          .target = "sm_90a",
          .multiprocessors = 132,
          .driver = "13.0",
          .compiler = "ingot 0.1.0; templates 0123; nvrtc 13.0",
          .cublaslt = "13.1.0"};
}

TuningRecord record(std::int64_t m, const std::string& device) {
  const GemmSpec spec{.b = Dtype::e5m2, .scale_a = kRowwise, .scale_b = kRowwise, .fast_accumulation = true};
  GemmSpec chosen = spec;
  chosen.kernel = GemmKernel::sm90;
  chosen.tiling = GemmTiling{128, 256, 2, 1, 4, false};
  return {.machine = machine(device),
          .spec = spec,
          .size = {.m = m, .n = 4096, .k = 14336},
          .chosen = chosen,
          .us = 712.25,
          .cublaslt_us = 733.1,
          .bf16_us = 1388.0625,
          .date = "2026-11-21"};
}

TuningRecord dequant_record(std::int64_t m) {
  const DequantMatmulSpec spec{.scale = kRowGroups, .bias = true};
  DequantMatmulSpec chosen = spec;
  chosen.kernel = DequantKernel::mma;
  chosen.tiling = DequantTiling{.tokens = 16, .rows = 64, .depth = 128, .stages = 3, .split = 2, .k_warps = 2};
  TuningRecord made = record(m);
  made.spec = spec;
  made.chosen = chosen;
  return made;
}

}  // namespace ingot::test
