#include "ingot/codegen/dequant_instance.h"

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/error.h"

namespace ingot {

DequantInstance dequant_instance(const DequantMatmulSpec& spec) {
  throw Error(ErrorCode::invalid_spec, print(spec), "there is no kernel of this spec");
}

}  // namespace ingot
