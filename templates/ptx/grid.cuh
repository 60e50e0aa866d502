// PTX ISA 9.7.13.14, "griddepcontrol": programmatic dependent launch. Device code only; nothing below sm_90.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// The kernel launched after this one may start: as soon as every block has said so, and there is room.
INGOT_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the kernel launched before this one, if this one was let in early; its writes are then visible.
INGOT_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ingot::ptx
#endif
