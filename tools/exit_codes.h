// What the program ends with, beside 0.
#pragma once

namespace ingot::tools {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kStopped = 130;  // as a shell reports a program that Ctrl-C has ended

}  // namespace ingot::tools
