#include "nn/delayed_scaling_model.h"

namespace ingot::test {

float reference_scale(Dtype dtype, bool pow2, double amax) {
  const double largest = dtype == Dtype::e4m3fn ? 448 : dtype == Dtype::e4m3fnuz ? 240 : 57344;
  if (std::isnan(amax)) return std::numeric_limits<float>::quiet_NaN();
  const auto scale = static_cast<float>(largest / std::max(amax, 1e-12));
  return pow2 && scale > 0 ? std::ldexp(1.0F, std::ilogb(scale)) : scale;
}

void DelayedScalingModel::add(Dtype dtype, bool pow2) {
  slots.push_back({.dtype = dtype, .pow2 = pow2});
  slots.back().history.assign(static_cast<std::size_t>(length), 0.0F);
}

void DelayedScalingModel::start(int slot, float amax) {
  Slot& it = slots[static_cast<std::size_t>(slot)];
  it.amax = amax;
  it.started = true;
  update(it);
}

void DelayedScalingModel::sync() {
  for (Slot& slot : slots) update(slot);
}

void DelayedScalingModel::update(Slot& slot) const {
  slot.history.push_front(slot.amax);
  slot.history.pop_back();
  slot.amax = 0.0F;
  double largest = 0;
  for (const float amax : slot.history) {
    if (std::isnan(amax) || static_cast<double>(amax) > largest) largest = static_cast<double>(amax);
    if (std::isnan(largest) || reduction == AmaxReduction::most_recent) break;
  }
  if (largest != 0) slot.scale = reference_scale(slot.dtype, slot.pow2, largest);
}

void add_model_slots(DelayedScaling& scaling, DelayedScalingModel& model) {
  const bool fill_model = model.slots.empty();
  for (int i = 0; i < 16; ++i) {
    const Dtype dtype = kFp8Dtypes[static_cast<std::size_t>(i) % kFp8Dtypes.size()];
    const bool pow2 = i / 4 % 2 == 1;
    scaling.add("layers." + std::to_string(i) + ".input", dtype, pow2);
    if (fill_model) model.add(dtype, pow2);
  }
}

float model_amax(int step, int slot) {
  std::uint64_t z = static_cast<std::uint64_t>(step * 1000 + slot + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  z ^= z >> 31U;
  if (z % 11 == 0) return 0.0F;
  if (z % 11 == 1) return 3e-13F;
  if (z % 101 == 2) return 3e38F;
  return static_cast<float>(std::ldexp(1.0 + static_cast<double>(z >> 40U) * 0x1p-24, static_cast<int>(z % 25) - 12));
}

void check_same(const DelayedScalingModel& model, const std::string& saved) {
  const DelayedScalingState state = parse_delayed_scaling_state(saved);
  BOOST_REQUIRE(state.slots.size() == model.slots.size());
  for (std::size_t i = 0; i < model.slots.size(); ++i) {
    const DelayedScalingModel::Slot& expected = model.slots[i];
    const DelayedScalingState::Slot& found = state.slots[i];
    BOOST_TEST(found.scale == std::bit_cast<std::uint32_t>(expected.scale), "scale of slot " << i);
    BOOST_TEST(found.amax == std::bit_cast<std::uint32_t>(expected.amax), "amax of slot " << i);
    BOOST_TEST(found.has_scale == expected.started, "has_scale of slot " << i);
    std::vector<std::uint32_t> history;
    for (const float amax : expected.history) history.push_back(std::bit_cast<std::uint32_t>(amax));
    BOOST_TEST((found.history == history), "history of slot " << i);
  }
}

}  // namespace ingot::test
