// How the examples read their command lines, and checks of options for which CLI11 accepts invalid values.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

namespace examples {

// False if the text is anything but a number that fits.
template <class Number>
bool parse_number(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end;
}

// CLI11's Range takes NaN, which is neither below nor above a limit.
inline CLI::Validator number_in(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            if (parse_number(text, value) && value >= least && value <= most) return std::string();
            return fmt::format("{} is not a number from {:g} to {:g}", text, least, most);
          },
          fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

// CLI11 reads a number that is too large as the largest.
inline CLI::Validator seed() {
  return {[](const std::string& text) {
            std::uint64_t value = 0;
            if (parse_number(text, value)) return std::string();
            return fmt::format("{} is not a whole number from 0 to {}", text,
                               std::numeric_limits<std::uint64_t>::max());
          },
          "UINT"};
}

// The options of a command line, which `add` adds to the app. Without a value the program ends with `status`: 0 after
// --help, 2 if an option is wrong.
template <class Options>
std::optional<Options> parsed_options(const char* description, void (*add)(CLI::App&, Options&), int argc, char** argv,
                                      int& status) {
  CLI::App app(description);
  Options options;
  add(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  return options;
}

}  // namespace examples
