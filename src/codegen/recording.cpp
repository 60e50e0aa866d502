#include "ingot/codegen/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr const char* kTitle = "# Ingot recording\n";
// No spec is as long. A longer line is not parsed, because its message would be as long.
constexpr std::size_t kLongestLine = 64 * 1024;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the last word off.
std::string_view take_word(std::string_view& line) {
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  const std::size_t begin = line.find_last_of(" \t") + 1;  // 0 if there is none
  const std::string_view word = line.substr(begin);
  line.remove_suffix(word.size());
  return word;
}

// Does the line name a matmul and its sizes? One number among the last three words is enough, as the others may be
// damaged, and no word of a spec is a number.
bool is_matmul_call(std::string_view line) {
  constexpr std::array kMatmuls{GemmSpec::kWord, DequantMatmulSpec::kWord};
  const std::string_view first = line.substr(0, line.find_first_of(" \t"));
  if (std::ranges::find(kMatmuls, first) == kMatmuls.end()) return false;
  for (int i = 0; i < 3; ++i) {
    const std::string_view word = take_word(line);
    if (!word.empty() && std::ranges::all_of(word, is_decimal_digit)) return true;
  }
  return false;
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  return line;
}

// Empty, or why the line could not be read.
std::string add_line(std::string_view line, Recording& recording) {
  if (line.size() > kLongestLine) return fmt::format("{} bytes are too many for a line", line.size());
  if (line.find('\0') != std::string_view::npos) return "has a NUL byte";
  try {
    if (is_matmul_call(line)) {
      recording.add(parse_matmul_call(line));
    } else {
      recording.add(parse(line));
    }
    return {};
  } catch (const Error& error) {  // whose subject is the line
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

bool Recording::add(const KernelSpec& kernel) {
  if (!known_kernels_.insert(kernel).second) return false;
  kernels_.push_back(kernel);
  return true;
}

bool Recording::has(const MatmulCall& matmul) const {
  return known_matmuls_.contains({.spec = without_kernel(matmul.spec), .size = matmul.size});
}

bool Recording::add(const MatmulCall& matmul) {
  const MatmulCall call{.spec = without_kernel(matmul.spec), .size = matmul.size};
  if (!known_matmuls_.insert(call).second) return false;
  matmuls_.push_back(call);
  return true;
}

void Recording::add(const Recording& other) {
  for (const KernelSpec& kernel : other.kernels_) add(kernel);
  for (const MatmulCall& matmul : other.matmuls_) add(matmul);
}

std::string print(const Recording& recording) {
  std::string text = kTitle;
  for (const KernelSpec& kernel : recording.kernels()) text += print(kernel) + '\n';
  for (const MatmulCall& matmul : recording.matmuls()) text += print(matmul) + '\n';
  return text;
}

ParsedRecording parse_recording(std::string_view text) {
  ParsedRecording parsed;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    const std::string problem = add_line(line, parsed.recording);
    if (!problem.empty() && parsed.damaged++ == 0) parsed.first = fmt::format("line {}: {}", number, problem);
  }
  return parsed;
}

}  // namespace ingot
