// A model of delayed scaling in float64 and std::deque, which shares only types with the library. The CPU and the CUDA
// backend are compared with it.
#pragma once

#include <boost/test/test_tools.hpp>
#include <boost/test/unit_test_log.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/recipe/delayed_scaling_state.h"

namespace ingot::test {

float reference_scale(Dtype dtype, bool pow2, double amax);

struct DelayedScalingModel {
  struct Slot {
    Dtype dtype;
    bool pow2;
    float scale = 1.0F;
    float amax = 0.0F;
    std::deque<float> history{};
    bool started = false;
  };

  DelayedScalingModel(int history_length, AmaxReduction how) : length(history_length), reduction(how) {}

  void add(Dtype dtype, bool pow2);
  void start(int slot, float amax);
  void sync();

  int length;
  AmaxReduction reduction;
  std::vector<Slot> slots{};

 private:
  void update(Slot& slot) const;
};

// Each format, with and without pow2, twice: 16 slots.
void add_model_slots(DelayedScaling& scaling, DelayedScalingModel& model);

// Values over many binades; now and then 0 (the layer did not run), below 1e-12, or near the largest float.
float model_amax(int step, int slot);

void check_same(const DelayedScalingModel& model, const std::string& saved);

}  // namespace ingot::test
