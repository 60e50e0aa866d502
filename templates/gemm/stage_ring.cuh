// An index into a ring of stages in shared memory. `phase` is the number of completed rounds modulo 2, the parity with
// which a thread waits for a stage's barriers.
#pragma once

#include "platform.cuh"

namespace ingot {

template <u32 Stages>
struct StageRing {
  u32 stage = 0;
  u32 phase = 0;

  INGOT_HOST_DEVICE void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  INGOT_HOST_DEVICE void advance(u32 steps) {
    const u32 to = stage + steps;
    stage = to % Stages;
    phase ^= (to / Stages) & 1;
  }
};

}  // namespace ingot
