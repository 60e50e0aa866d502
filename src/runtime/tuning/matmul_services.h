// Where a backend's GEMMs and products with decoded weights may run, and who is told of them.
#pragma once

namespace ingot {

class CublasLt;
class MatmulChoices;
class MatmulManifest;

// Each may be null.
struct MatmulServices {
  CublasLt* cublaslt = nullptr;      // without: no GEMM runs on it
  MatmulChoices* choices = nullptr;  // what tuning has found
  MatmulManifest* manifest = nullptr;
  bool compiles = true;  // can kernels of ours be made here?
};

}  // namespace ingot
