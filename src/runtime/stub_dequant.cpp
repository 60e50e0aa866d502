#include <stdexcept>

#include "ingot/codegen/dequant_spec_text.h"
#include "ingot/codegen/dequant_instance.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cpu/operations.h"
#include "ingot/runtime/cuda/operations.h"

namespace ingot {
std::string print_spec(const PackWeightSpec&) { return "pack_weight"; }
void validate_spec(const PackWeightSpec&) { throw std::logic_error("stub"); }
PackWeightSpec parse_pack_weight(std::string_view, std::span<const std::string>) { throw std::logic_error("stub"); }
void check(const PackWeightSpec&, const PackWeightTensors&, Device) { throw std::logic_error("stub"); }
void cpu::pack_weight(const PackWeightSpec&, const PackWeightTensors&, ThreadPool&) { throw std::logic_error("stub"); }
void cuda::pack_weight(const PackWeightSpec&, const PackWeightTensors&, Stream&, Launcher&) { throw std::logic_error("stub"); }
std::string print_spec(const DequantMatmulSpec&) { return "dequant_matmul"; }
void validate_spec(const DequantMatmulSpec&) { throw std::logic_error("stub"); }
DequantMatmulSpec parse_dequant_matmul(std::string_view, std::span<const std::string>) { throw std::logic_error("stub"); }
void check(const DequantMatmulSpec&, const DequantMatmulTensors&, Device) { throw std::logic_error("stub"); }
void cpu::dequant_matmul(const DequantMatmulSpec&, const DequantMatmulTensors&, ThreadPool&) { throw std::logic_error("stub"); }
void cuda::dequant_matmul(const DequantMatmulSpec&, const DequantMatmulTensors&, Stream&, Launcher&) { throw std::logic_error("stub"); }
DequantInstance dequant_instance(const DequantMatmulSpec&) { throw std::logic_error("stub"); }
}  // namespace ingot
