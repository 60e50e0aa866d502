// PTX ISA 9.7.13.14 "griddepcontrol": programmatic dependent launch. Device code only; does nothing below sm_90.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Lets the next kernel of the stream start as soon as every block of this one has called it and there is room.
INGOT_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the kernel launched before this one, if this one was started early. That kernel's writes are then visible.
INGOT_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ingot::ptx
#endif
