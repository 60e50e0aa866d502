// quantize_mx and float_quantize: the checks of their tensors (see check.h), and the functions that run them on each
// device. Tensors must have passed the check; on a GPU the context must be current.
#pragma once

#include "ingot/codegen/quantize/quantize_spec.h"
#include "ingot/runtime/quantize/quantize_tensors.h"

namespace ingot {

class Launcher;
class Stream;
class ThreadPool;

void check(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Device device);
void check(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Device device);

namespace cpu {
void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, ThreadPool& pool);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream, Launcher& launcher);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream,
                    Launcher& launcher);
}  // namespace cuda

}  // namespace ingot
