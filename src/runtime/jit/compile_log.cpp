#include "ingot/runtime/jit/compile_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace ingot {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

// The number that ends where `unit` starts: number_before("0 bytes stack frame, 8 bytes spill stores",
// " bytes spill stores") is 8. 0 where `unit` is not in the line.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

constexpr std::string_view kEntry = "Compiling entry function '";
constexpr std::string_view kProperties = "Function properties for ";

struct Diagnostic {
  std::string file;
  int line = 0;
  auto operator<=>(const Diagnostic&) const = default;
};

// A diagnostic such as "cast.cuh(41): error: ...".
std::optional<Diagnostic> diagnostic_of(std::string_view line) {
  const std::size_t close = line.find("): ");
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view message = line.substr(close + 3);
  if (!message.starts_with("error") && !message.starts_with("warning") && !message.starts_with("catastrophic error")) {
    return std::nullopt;
  }
  const std::size_t open = line.rfind('(', close);
  if (open == std::string_view::npos) return std::nullopt;
  Diagnostic found{std::string(line.substr(0, open)), 0};
  const auto [stop, error] = std::from_chars(line.data() + open + 1, line.data() + close, found.line);
  if (error != std::errc{} || stop != line.data() + close) return std::nullopt;
  return found;
}

}  // namespace

KernelResources read_resources(std::string_view log, std::string_view lowered_name) {
  KernelResources resources;
  bool of_kernel = false;
  for (const std::string_view line : lines_of(log)) {
    if (const std::size_t at = line.find(kEntry); at != std::string_view::npos) {
      const std::string_view name = line.substr(at + kEntry.size());
      of_kernel = name.substr(0, name.find('\'')) == lowered_name;
    } else if (const std::size_t properties = line.find(kProperties); properties != std::string_view::npos) {
      of_kernel = line.substr(properties + kProperties.size()) == lowered_name;
    } else if (contains(line, " bytes stack frame")) {
      resources.spill_bytes += number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
      if (of_kernel) resources.stack_bytes = number_before(line, " bytes stack frame");
    } else if (of_kernel && contains(line, "Used ")) {
      resources.registers = number_before(line, " registers");
      resources.static_shared_bytes = number_before(line, " bytes smem");
    }
  }
  return resources;
}

std::string warnings_of(std::string_view log) {
  std::string kept;
  for (const std::string_view line : lines_of(log)) {
    // Numbered advice, such as "ptxas info : (C7510) Potential Performance Loss", is a warning in all but name.
    const bool report = (line.starts_with("ptxas info") && !contains(line, ": (C")) ||
                        line.starts_with("ptxas         .") ||
                        line.starts_with("Remark: The warnings can be suppressed");
    if (report || line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    kept += fmt::format("{}\n", line);
  }
  return kept;
}

std::string first_error(std::string_view log) {
  const std::vector<std::string_view> lines = lines_of(log);
  for (const std::string_view line : lines) {
    for (const std::string_view mark : {"error: ", "error   : ", "fatal   : "}) {
      if (const std::size_t at = line.find(mark); at != std::string_view::npos) {
        return std::string(line.substr(at + mark.size()));
      }
    }
  }
  return lines.empty() ? "no message" : std::string(lines.front());
}

std::string with_numbered_source(std::string_view log, const std::string& unit_name, const std::string& unit_text,
                                 const TemplateFiles& templates) {
  constexpr int kAround = 3;
  std::map<std::string, std::set<int>> marked;  // file -> lines with a diagnostic
  std::vector<std::string> order;               // of the files, as they come in the log
  for (const std::string_view line : lines_of(log)) {
    const std::optional<Diagnostic> found = diagnostic_of(line);
    if (!found) continue;
    if (!marked.contains(found->file)) order.push_back(found->file);
    marked[found->file].insert(found->line);
  }
  std::string text(log);
  if (!text.empty() && text.back() != '\n') text += '\n';
  for (const std::string& file : order) {
    const auto in_templates = templates.find(file);
    if (file != unit_name && in_templates == templates.end()) continue;
    const std::vector<std::string_view> lines = lines_of(file == unit_name ? unit_text : in_templates->second);
    text += fmt::format("\n{}:\n", file);
    int shown = 0;  // the last line that is shown already
    for (const int line : marked[file]) {
      const int count = static_cast<int>(lines.size());
      const int first = std::max(shown + 1, line - kAround);
      const int last = line >= count - kAround ? count : line + kAround;  // a #line may give any number
      if (shown > 0 && first > shown + 1) text += "        ...\n";
      for (int i = first; i <= last; ++i) {
        text += fmt::format("{} {:>5} | {}\n", marked[file].contains(i) ? '>' : ' ', i,
                            lines[static_cast<std::size_t>(i - 1)]);
      }
      shown = std::max(shown, last);
    }
  }
  return text;
}

}  // namespace ingot
