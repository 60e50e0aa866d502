#include "text.h"

#include <array>
#include <cstdio>
#include <string>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/read_file.h"

namespace train_lm {
namespace {

using ingot::Error;
using ingot::ErrorCode;

std::vector<std::uint8_t> read_text(const std::filesystem::path& file) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{8} << 30;
  const std::string text = ingot::read_file(file, kMostBytes, "give --text a file");
  return {text.begin(), text.end()};
}

}  // namespace

std::vector<std::uint8_t> verses_of(const char* command) {
  std::string output;
  int status = -1;
  if (FILE* pipe = popen(command, "r")) {
    std::array<char, 65536> chunk{};
    while (const std::size_t count = fread(chunk.data(), 1, chunk.size(), pipe)) output.append(chunk.data(), count);
    status = pclose(pipe);
  }
  if (status != 0 || output.size() < 1'000'000) {
    throw Error(ErrorCode::not_found, "the text of the King James Bible",
                "the program `bible` did not print it; install Debian's packages bible-kjv and bible-kjv-text, or give "
                "another text with --text FILE");
  }
  std::vector<std::uint8_t> text;
  text.reserve(output.size());
  bool in_reference = true;
  for (const char c : output) {
    if (!in_reference) text.push_back(static_cast<std::uint8_t>(c));
    if (c == '\n') {
      in_reference = true;
    } else if (c == ' ') {
      in_reference = false;
    }
  }
  return text;
}

std::vector<std::uint8_t> load_text(const std::filesystem::path& file) {
  return file.empty() ? verses_of("bible -f gen1:1-rev22:21 2>/dev/null") : read_text(file);
}

}  // namespace train_lm
