// The words that may stand where help says MODEL or RECIPE. An option names one of these with type_name(), and
// completions offer the words.
#pragma once

#include <string>
#include <vector>

#include "command_tree.h"

namespace ingot::tools {

inline constexpr const char* kAnyValue = "TEXT";  // CLI11's name for any text
inline constexpr const char* kFileValue = "FILE";
inline constexpr const char* kFolderValue = "FOLDER";
inline constexpr const char* kModelValue = "MODEL";
inline constexpr const char* kRecipeValue = "RECIPE";
inline constexpr const char* kGpuValue = "GPU";
inline constexpr const char* kTargetValue = "ARCHITECTURE";
inline constexpr const char* kWeightValue = "FORMAT";     // of weights that a matmul decodes
inline constexpr const char* kScaleValue = "SCALE";       // of those weights
inline constexpr const char* kActivationValue = "DTYPE";  // of activations
inline constexpr const char* kGradientValue = "GRADIENT_DTYPE";
inline constexpr const char* kShellValue = "SHELL";
inline constexpr const char* kCommandValue = "COMMAND";  // of the program itself

// Empty where any text may stand.
std::vector<std::string> words_for(const std::string& value);

// Of a value without words: FILE and names that end so ("OUTPUT_FILE") are files, FOLDER or DIR are folders. Where an
// option does not say what it takes, shells complete files, as they do of themselves.
ValueKind kind_of(const std::string& value);

}  // namespace ingot::tools
