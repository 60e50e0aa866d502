// Checks that the definitions of src/runtime/util/fmt_definitions.cpp suffice for the installed fmt.
#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <string>

int main(int argc, char**) {
  fmt::print(stderr, "{:.3f} {} {:e} {:>{}} {:x}\n", 1.5 * argc, 0.1F, 1e300, std::string("text"), argc, 255);
  std::string text;
  fmt::format_to(std::back_inserter(text), "{:L} {}", 1000000, static_cast<const void*>(nullptr));
  return text.empty() ? 1 : 0;
}
