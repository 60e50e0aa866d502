// The services by which a backend chooses the kernels of its GEMMs and its matmuls with decoded weights, and records
// them.
#pragma once

namespace ingot {

class CublasLt;
class MatmulChoices;
class Recorder;

// Each may be null.
struct MatmulServices {
  CublasLt* cublaslt = nullptr;      // null: no GEMM runs on cuBLASLt
  MatmulChoices* choices = nullptr;  // what tuning has found
  Recorder* recorder = nullptr;
  bool compiles = true;  // false: kernels cannot be compiled here
};

}  // namespace ingot
