// Hides the value of a word, of two words, of a float or of a pointer from the compiler, without an instruction. The
// compiler cannot reuse what it computed from it earlier, so it keeps the word itself: for example bf16 elements as
// loaded, in half the registers that their f32 values would take. hide() does nothing in host code; the others are for
// device code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE void opaque(u32& word) { asm volatile("" : "+r"(word)); }
INGOT_DEVICE void opaque(i64& value) { asm volatile("" : "+l"(value)); }
INGOT_DEVICE void opaque(float& value) { asm volatile("" : "+f"(value)); }
template <class T>
INGOT_DEVICE void opaque(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

}  // namespace ingot::ptx
#endif

namespace ingot {

template <class T>
INGOT_DEVICE void hide([[maybe_unused]] T& value) {
#if INGOT_ON_DEVICE
  ptx::opaque(value);
#endif
}

}  // namespace ingot
