// What the specs' lines, and the messages about them, share.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// "bf16, f16"
std::string list(std::span<const Dtype> dtypes);
bool among(std::span<const Dtype> dtypes, Dtype dtype);
// "in is f32, but must be one of bf16, f16"; empty where it is among them.
std::string dtype_fault(const char* field, Dtype dtype, std::span<const Dtype> allowed);

// Sets what a word, "pow2" or "scale=row" with its key and value, gives; returns that field's name, or null where there
// is no such word.
using TakeOption = std::function<const char*(const std::string& word, std::string_view key, std::string_view value)>;
// Of the spec that `words` begin with, those from the first-th on are options. form: what they may be. The fault of the
// first that is none or gives a field again; empty where there is none.
std::string options_fault(std::span<const std::string> words, std::size_t first, const char* form,
                          const TakeOption& take);

}  // namespace ingot
