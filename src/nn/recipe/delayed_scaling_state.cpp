#include "ingot/nn/recipe/delayed_scaling_state.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/json_text.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::string_view kBegin = "{\"ingot_delayed_scaling\":";

[[noreturn]] void refuse_state(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "delayed scaling state", message + "; load what save() gave, unchanged");
}

std::uint32_t read_bits(const nlohmann::json& json) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max()) {
    refuse_state("has a value that is not the bits of an f32");
  }
  return json.get<std::uint32_t>();
}

DelayedScalingState::Slot read_slot(const nlohmann::json& json) {
  const std::optional<Dtype> dtype = parse_dtype(json.at("dtype").get<std::string>());
  if (!dtype) refuse_state("has a slot of an unknown dtype");
  DelayedScalingState::Slot slot{.name = json.at("name").get<std::string>(),
                                 .dtype = *dtype,
                                 .pow2 = json.at("pow2").get<bool>(),
                                 .has_scale = json.at("has_scale").get<bool>(),
                                 .scale = read_bits(json.at("scale")),
                                 .amax = read_bits(json.at("amax"))};
  for (const nlohmann::json& amax : json.at("history")) slot.history.push_back(read_bits(amax));
  return slot;
}

// Parses a line whose checksum is right. It may still be invalid: someone else may have written it.
DelayedScalingState read_state(const nlohmann::json& json) {
  constexpr int kLongest = std::numeric_limits<int>::max();
  DelayedScalingState state{.history_length = static_cast<int>(json_integer(json, "history_length", 0, kLongest))};
  std::set<std::string> names;
  for (const nlohmann::json& each : json_array(json, "slots")) {
    DelayedScalingState::Slot slot = read_slot(each);
    if (!names.insert(slot.name).second) refuse_state("has two slots of one name, \"" + slot.name + "\"");
    if (slot.history.size() != static_cast<std::size_t>(state.history_length)) {
      refuse_state("has a history whose length is not history_length");
    }
    state.slots.push_back(std::move(slot));
  }
  return state;
}

}  // namespace

std::string print(const DelayedScalingState& state) {
  OrderedJson slots = OrderedJson::array();
  for (const DelayedScalingState::Slot& slot : state.slots) {
    slots.push_back(OrderedJson{{"name", slot.name},
                                {"dtype", name(slot.dtype)},
                                {"pow2", slot.pow2},
                                {"has_scale", slot.has_scale},
                                {"scale", slot.scale},
                                {"amax", slot.amax},
                                {"history", slot.history}});
  }
  const OrderedJson json{
      {"ingot_delayed_scaling", kFormat}, {"history_length", state.history_length}, {"slots", slots}};
  try {
    return with_checksum(json.dump());
  } catch (const OrderedJson::exception&) {
    throw Error(ErrorCode::invalid_argument, "delayed scaling state",
                "has a slot whose name is not UTF-8; name slots in UTF-8");
  }
}

DelayedScalingState parse_delayed_scaling_state(std::string_view text) {
  if (!text.starts_with(kBegin)) refuse_state("is not a state of delayed scaling");
  if (const std::string fault = checksum_fault(text); !fault.empty()) refuse_state(fault);
  try {
    const auto json = nlohmann::json::parse(text);
    if (json_field(json, "ingot_delayed_scaling") != kFormat) refuse_state("is of another version of the format");
    return read_state(json);
  } catch (const nlohmann::json::exception&) {
    refuse_state("lacks a field, or has one of the wrong kind");
  } catch (const JsonFault& fault) {
    refuse_state(fault.what());
  }
}

}  // namespace ingot
