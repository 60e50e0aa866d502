// Reads JSON that may come from anywhere. The text is checked before it is parsed, so that no nesting overflows the
// stack; then each field is read by its name, and one that is missing, of another kind or out of range is refused.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

// Empty if `text` is JSON whose objects and arrays are nested at most `deepest` levels, and no object has a name twice;
// otherwise what is wrong: "is not JSON (line 3, column 5)", "is nested deeper than 8 levels", "has the name \"a\"
// twice".
INGOT_API std::string json_fault(std::string_view text, int deepest);

// Says what is wrong with a field: "lacks \"m\"". The reader of a file converts it to an Error with the file as its
// subject.
class INGOT_API JsonFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws JsonFault: has "m": 1e+22, which is not a whole number from 1 to 10
[[noreturn]] INGOT_API void refuse_json_field(const char* name, const std::string& value, const std::string& expected);
// "a whole number from 1 to 10"
INGOT_API std::string whole_number_from(std::int64_t least, std::int64_t most);

// `Json` is a type of the JSON library, which this header does not include. Each throws JsonFault.

// The value for a message. Objects and arrays are only named: printing them could overflow the stack.
template <class Json>
std::string json_brief(const Json& value) {
  return value.is_structured() ? "an " + std::string(value.type_name()) : value.dump();
}

template <class Json>
const Json& json_field(const Json& object, const char* name) {
  if (!object.is_object()) throw JsonFault("is not a JSON object");
  const auto found = object.find(name);
  if (found == object.end()) throw JsonFault("lacks \"" + std::string(name) + "\"");
  return *found;
}

template <class Json>
std::int64_t json_integer(const Json& object, const char* name, std::int64_t least = INT64_MIN,
                          std::int64_t most = INT64_MAX) {
  const Json& value = json_field(object, name);
  // Numbers from 2^63 on are unsigned; those that fit no integer, such as 1e22, are doubles.
  const bool fits =
      value.is_number_unsigned() ? value.template get<std::uint64_t>() <= INT64_MAX : value.is_number_integer();
  const std::int64_t number = fits ? value.template get<std::int64_t>() : 0;
  if (!fits || number < least || number > most)
    refuse_json_field(name, json_brief(value), whole_number_from(least, most));
  return number;
}

template <class Json>
double json_number(const Json& object, const char* name) {
  const Json& value = json_field(object, name);
  if (!value.is_number()) refuse_json_field(name, json_brief(value), "a number");
  return value.template get<double>();
}

template <class Json>
bool json_boolean(const Json& object, const char* name) {
  const Json& value = json_field(object, name);
  if (!value.is_boolean()) refuse_json_field(name, json_brief(value), "true or false");
  return value.template get<bool>();
}

template <class Json>
std::string json_string(const Json& object, const char* name) {
  const Json& value = json_field(object, name);
  if (!value.is_string()) refuse_json_field(name, json_brief(value), "a text");
  return value.template get<std::string>();
}

template <class Json>
const Json& json_array(const Json& object, const char* name) {
  const Json& value = json_field(object, name);
  if (!value.is_array()) refuse_json_field(name, json_brief(value), "an array");
  return value;
}

}  // namespace ingot
