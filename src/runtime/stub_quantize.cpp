#include <stdexcept>

#include "ingot/codegen/quantize_spec_text.h"
#include "ingot/codegen/dequant_instance.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cpu/operations.h"
#include "ingot/runtime/cuda/operations.h"

namespace ingot {
std::string print_spec(const MxQuantizeSpec&) { return "quantize_mx"; }
void validate_spec(const MxQuantizeSpec&) { throw std::logic_error("stub"); }
MxQuantizeSpec parse_mx_quantize(std::string_view, std::span<const std::string>) { throw std::logic_error("stub"); }
void check(const MxQuantizeSpec&, const MxQuantizeTensors&, Device) { throw std::logic_error("stub"); }
void cpu::quantize_mx(const MxQuantizeSpec&, const MxQuantizeTensors&, ThreadPool&) { throw std::logic_error("stub"); }
void cuda::quantize_mx(const MxQuantizeSpec&, const MxQuantizeTensors&, Stream&, Launcher&) { throw std::logic_error("stub"); }
std::string print_spec(const FloatQuantizeSpec&) { return "float_quantize"; }
void validate_spec(const FloatQuantizeSpec&) { throw std::logic_error("stub"); }
FloatQuantizeSpec parse_float_quantize(std::string_view, std::span<const std::string>) { throw std::logic_error("stub"); }
void check(const FloatQuantizeSpec&, const FloatQuantizeTensors&, Device) { throw std::logic_error("stub"); }
void cpu::float_quantize(const FloatQuantizeSpec&, const FloatQuantizeTensors&, ThreadPool&) { throw std::logic_error("stub"); }
void cuda::float_quantize(const FloatQuantizeSpec&, const FloatQuantizeTensors&, Stream&, Launcher&) { throw std::logic_error("stub"); }
}  // namespace ingot
