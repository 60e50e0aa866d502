// No instruction: a word of which the compiler knows nothing from here on. It cannot keep what it worked out from the
// word earlier, and so keeps the word: bf16 as it was loaded, in half the registers that its f32 values take. Device
// code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE void opaque(u32& word) { asm volatile("" : "+r"(word)); }

}  // namespace ingot::ptx
#endif
