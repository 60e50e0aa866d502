// The implementations on each device of quantize_mx and float_quantize. Tensors must have passed check_quantize.h; on a
// GPU the context must be current.
#pragma once

#include "ingot/codegen/quantize/quantize_spec.h"
#include "ingot/runtime/quantize/quantize_tensors.h"

namespace ingot {
class Launcher;
class Stream;
class ThreadPool;
}  // namespace ingot

namespace ingot::cpu {

void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, ThreadPool& pool);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, ThreadPool& pool);

}  // namespace ingot::cpu

namespace ingot::cuda {

void quantize_mx(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Stream& stream, Launcher& launcher);
void float_quantize(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Stream& stream,
                    Launcher& launcher);

}  // namespace ingot::cuda
