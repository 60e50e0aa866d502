// A separate pass over the text, which builds nothing. (The JSON library can call back while it parses, but then looks
// at all elements of an object at the end of each: quadratic.)
#include "ingot/runtime/util/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

using Json = nlohmann::json;

// "line 3, column 5" of the last of `bytes` bytes that were read.
std::string place_in(std::string_view text, std::size_t bytes) {
  const std::string_view before = text.substr(0, std::max<std::size_t>(bytes, 1) - 1);
  const auto line = 1 + std::ranges::count(before, '\n');
  return fmt::format("line {}, column {}", line, before.size() - (before.rfind('\n') + 1) + 1);
}

// The JSON library calls this for each part of a text. Returning false ends the parse.
class Checker final : public nlohmann::json_sax<Json> {
 public:
  Checker(std::string_view text, int deepest) : text_(text), deepest_(deepest) {}

  std::string fault() { return std::move(fault_); }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(Json::number_integer_t /*value*/) override { return true; }
  bool number_unsigned(Json::number_unsigned_t /*value*/) override { return true; }
  bool number_float(Json::number_float_t /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Json::binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*elements*/) override { return enter(); }
  bool end_array() override { return leave(); }

  bool key(std::string& name) override {
    if (names_.back().insert(name).second) return true;
    fault_ = fmt::format("has the name \"{}\" twice", printable(name));
    return false;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/, const Json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    fault_ = error.id == kNumberOverflow ? "has a number that is too large" : "is not JSON";
    fault_ += fmt::format(" ({})", place_in(text_, position));
    return false;
  }

 private:
  bool enter() {
    names_.emplace_back();
    if (names_.size() <= static_cast<std::size_t>(deepest_)) return true;
    fault_ = fmt::format("is nested deeper than {} levels", deepest_);
    return false;
  }
  bool leave() {
    names_.pop_back();
    return true;
  }

  std::string_view text_;
  int deepest_;
  std::vector<std::unordered_set<std::string>> names_{};  // of each object around the current place; arrays have none
  std::string fault_{};
};

}  // namespace

void refuse_json_field(const char* name, const std::string& value, const std::string& expected) {
  throw JsonFault(fmt::format("has \"{}\": {}, which is not {}", name, printable(value), expected));
}

std::string whole_number_from(std::int64_t least, std::int64_t most) {
  return fmt::format("a whole number from {} to {}", least, most);
}

std::string json_fault(std::string_view text, int deepest) {
  Checker checker(text, deepest);
  return Json::sax_parse(text, &checker) ? std::string() : checker.fault();
}

}  // namespace ingot
