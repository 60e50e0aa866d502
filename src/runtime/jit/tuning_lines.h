// Tuning records as they are stored with kernels: lines that nobody has parsed yet. runtime/tuning/tuning_record.h
// parses them. In a bundle they are a text (kernel_bundle.h); a store has a file for each:
//
//   <root>/tuning/<32 hex digits>.json
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

inline constexpr const char* kTuningFolder = "tuning";
inline constexpr std::string_view kTuningSuffix = ".json";
// The limit on the size of a record's file, which usually has less than 1000 bytes: nothing larger is written, or read
// into memory.
inline constexpr std::int64_t kMaxTuningRecordBytes = std::int64_t{1} << 20;

// "<32 hex digits>.json". A file of any other name is no record.
INGOT_API bool is_tuning_file(std::string_view name);

// The line of a record's file; nothing, with the reason in `problem`, if the file is not complete.
INGOT_API std::string_view line_of_tuning_file(std::string_view content, std::string& problem);

struct TuningLine {
  std::string_view text{};  // without the line's end; gone when the call returns
  std::string place{};      // "line 3", "/opt/store/tuning/<32 hex digits>.json"
  std::string problem{};    // why there is no text: "is truncated"
};

// Is called with one line after the other, until it returns false.
using TakeTuningLine = std::function<bool(const TuningLine&)>;

// Takes the lines of a text; empty ones mean nothing.
INGOT_API void take_tuning_lines(std::string_view text, const TakeTuningLine& take);

}  // namespace ingot
