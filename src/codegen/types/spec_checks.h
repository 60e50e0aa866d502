// Helpers of every family's validate_spec(). A refusal quotes the spec's line and names the field.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/spec_words.h"
#include "ingot/runtime/error.h"

namespace ingot {

template <class Spec>
[[noreturn]] void refuse(const Spec& spec, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (among(allowed, dtype)) return;
  refuse(spec, fmt::format("{} is {}, but must be one of {}", field, name(dtype), list(allowed)));
}

template <class Spec>
void require_source(const Spec& spec, ScaleSource source) {
  if (source == ScaleSource::dynamic || source == ScaleSource::given) return;
  refuse(spec,
         fmt::format("source is {}, which is not valid; it must be dynamic or given", static_cast<unsigned>(source)));
}

}  // namespace ingot
