#include "option_values.h"

#include <string_view>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/gpu.h"
#include "ingot/codegen/types/target.h"
#include "ingot/nn/recipe/linear_gemms.h"
#include "ingot/nn/recipe/recipes.h"

namespace ingot::tools {
namespace {

template <class Named>
std::vector<std::string> names(const Named& all) {
  std::vector<std::string> words;
  words.reserve(all.size());
  for (const auto& one : all) words.emplace_back(one.name);
  return words;
}

template <class Values, class Print>
std::vector<std::string> printed(const Values& values, const Print& print_one) {
  std::vector<std::string> words;
  words.reserve(values.size());
  for (const auto value : values) words.emplace_back(print_one(value));
  return words;
}

std::vector<std::string> scales() {
  std::vector<std::string> words = printed(kDequantGranularities, [](ScaleGranularity scale) { return print(scale); });
  words.emplace_back("mx");
  return words;
}

}  // namespace

std::vector<std::string> words_for(const std::string& value) {
  if (value == kModelValue) return names(known_models());
  if (value == kRecipeValue) return names(recipes());
  if (value == kGpuValue) return names(known_gpus());
  if (value == kTargetValue) return printed(kSupportedTargets, [](Target target) { return print(target); });
  if (value == kWeightValue) return printed(kWeightDtypes, [](Dtype dtype) { return name(dtype); });
  if (value == kScaleValue) return scales();
  if (value == kActivationValue) return {"bf16", "f16"};
  if (value == kGradientValue) return {"bf16", "f16", "f32"};
  if (value == kShellValue) return {"bash", "zsh"};
  return {};
}

ValueKind kind_of(const std::string& value) {
  const std::string_view text = value;
  if (text == kAnyValue) return ValueKind::file;
  if (text.ends_with(kFileValue)) return ValueKind::file;
  if (text.ends_with(kFolderValue) || text.ends_with("DIR")) return ValueKind::folder;
  return ValueKind::any;
}

}  // namespace ingot::tools
