// Sizes, ages, names and warnings as the commands read and print them.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/types/pass.h"
#include "ingot/codegen/types/target.h"

namespace ingot::tools {

// "500M" is 500 * 2^20; K, M, G and T, with "B" or "iB" after them or nothing. Nothing if it is no size.
std::optional<std::int64_t> parse_size(std::string_view text);
// "45s", "30m", "12h", "30d", "4w".
std::optional<std::chrono::seconds> parse_age(std::string_view text);

// What is wrong with an option's value, and what to give instead; empty if nothing.
std::string size_problem(const std::string& text);
std::string age_problem(const std::string& text);
std::string target_problem(const std::string& text);

// Values that have been checked already.
std::vector<Target> parse_targets(const std::vector<std::string>& names);

// "45 s", "12 min", "3 h", "30 d"; a time in the future is "0 s".
std::string print_age(std::int64_t seconds);
// "0 B", "7.4 KiB", "1.2 GiB"
std::string print_bytes(double bytes);
// What a pass is called in tables, in JSON and at the end of file names.
const char* pass_name(Pass pass);
// One line of a terminal, whatever a program has named its kernel: "?" for each byte that is not printable ASCII.
std::string one_line(std::string text);

std::string dump(const nlohmann::ordered_json& json);
// On stderr.
void warn(const std::string& text);
// " ..." after what is wrong with the store: root's can still be read as a tier; empty if it is not root's.
std::string advice_about(const std::string& store_problem);

}  // namespace ingot::tools
