#include "manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "command_notes.h"

namespace ingot::tools {
namespace {

// Text as roff prints it: a leading dot or quote would be a request, and plain - ' ` ^ ~ become typographic signs.
std::string escape(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    switch (letter) {
      case '\\': escaped += "\\e"; break;
      case '-': escaped += "\\-"; break;
      case '\'': escaped += "\\(aq"; break;
      case '`': escaped += "\\(ga"; break;
      case '^': escaped += "\\(ha"; break;
      case '~': escaped += "\\(ti"; break;
      default: escaped += letter;
    }
  }
  return escaped.starts_with('.') ? "\\&" + escaped : escaped;
}

// Lines of at most 80 characters, for those who read the source. None begins with a dot, which would be a request.
std::string filled(const std::string& roff) {
  constexpr std::size_t kWidth = 80;
  std::istringstream words(roff);
  std::string lines;
  std::size_t width = 0;
  for (std::string word; words >> word;) {
    const bool fits = width + 1 + word.size() <= kWidth;
    if (width > 0) lines += fits ? " " : "\n";
    if (!fits && word.starts_with('.')) word.insert(0, "\\&");
    width = fits && width > 0 ? width + 1 + word.size() : word.size();
    lines += word;
  }
  return lines;
}

// Prose: what stands between backquotes is typed as it is.
std::string prose(std::string_view text) {
  std::string roff;
  for (bool literal = false; !text.empty(); literal = !literal) {
    const std::size_t quote = text.find('`');
    const std::string part = escape(text.substr(0, quote));
    roff += literal ? "\\fB" + part + "\\fR" : part;
    text.remove_prefix(quote == std::string_view::npos ? text.size() : quote + 1);
  }
  return filled(roff);
}

std::string bold(std::string_view text) { return "\\fB" + escape(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + escape(text) + "\\fR"; }

bool is_upper(char letter) { return letter >= 'A' && letter <= 'Z'; }

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; });
  return text;
}

// "Print a page" within a sentence; names ("CUDA") stay.
std::string lower_first(std::string_view text) {
  std::string lower(text);
  if (lower.size() > 1 && !is_upper(lower[1]) && is_upper(lower[0])) lower[0] = static_cast<char>(lower[0] - 'A' + 'a');
  return lower;
}

class Page {
 public:
  void title(const std::string& name, const std::string& version) {
    text_ += fmt::format(".TH {} 1 \"\" \"ingot {}\" \"Ingot\"\n.nh\n.ad l\n", escape(upper(name)), version);
  }
  void section(std::string_view name) { text_ += fmt::format(".SH {}\n", escape(name)); }
  void subsection(std::string_view name) { text_ += fmt::format(".SS {}\n", escape(name)); }
  void line(const std::string& roff) { text_ += roff + "\n"; }
  void paragraph(std::string_view words) {
    if (!after_heading()) text_ += ".PP\n";
    text_ += prose(words) + "\n";
  }
  // `tag` is roff.
  void tagged(const std::string& tag, std::string_view words) {
    text_ += fmt::format(".TP\n{}\n{}\n", tag, words.empty() ? "\\&" : prose(words));
  }
  // Lines that stay as they are.
  void literal(std::span<const std::string> lines) {
    text_ += ".nf\n";
    for (const std::string& each : lines) text_ += escape(each) + "\n";
    text_ += ".fi\n";
  }
  std::string take() { return std::move(text_); }

 private:
  // A paragraph there needs no .PP.
  bool after_heading() const {
    const std::size_t end = text_.rfind('\n', text_.size() - 2);
    return text_.compare(end + 1, 4, ".SH ") == 0;
  }

  std::string text_;
};

// "--set MODEL ...", its value in italics
std::string tag_of(const OptionText& option) {
  std::string tag;
  for (const std::string& name : option.names) {
    if (!tag.empty()) tag += ", ";
    tag += option.positional ? italic(name) : bold(name);
  }
  if (!option.value.empty() && !option.positional) tag += fmt::format(" {}", italic(option.value));
  if (option.list) tag += fmt::format("[,{}...]", italic(option.value));
  return tag;
}

std::string words_of(const OptionText& option) {
  std::string text;
  for (const std::string& word : option.words) text += fmt::format("{}`{}`", text.empty() ? "" : ", ", word);
  return text;
}

void add_options(Page& page, const CommandText& command) {
  for (const OptionText& option : command.options) {
    std::string text = option.description;
    if (!text.ends_with('.')) text += ".";
    const bool told = option.words.empty() || text.find(option.words.front()) != std::string::npos;
    if (!told) text += fmt::format(" {}: {}.", option.value, words_of(option));
    const bool says_so = text.find("repeatable") != std::string::npos;
    if (option.repeatable && !option.positional && !says_so) text += " May be given more than once.";
    page.tagged(tag_of(option), text);
  }
}

void add_synopsis(Page& page, const CommandText& command) {
  std::string line = bold(command.path);
  const auto is_option = [](const OptionText& option) { return !option.positional; };
  if (std::ranges::any_of(command.options, is_option)) line += fmt::format(" [{}]", italic("options"));
  for (const OptionText& option : command.options) {
    if (!option.positional) continue;
    const std::string name = italic(option.names.front()) + (option.repeatable ? "..." : "");
    line += option.required ? fmt::format(" {}", name) : fmt::format(" [{}]", name);
  }
  if (!command.commands.empty()) line += fmt::format(" {}", italic("command"));
  const bool passes_on = std::ranges::any_of(command.commands, &CommandText::passes_on);
  if (passes_on || command.passes_on) line += fmt::format(" [{}...]", italic("its options"));
  page.line(line);
}

void add_head(Page& page, const std::string& name, const CommandText& command, const std::string& version) {
  page.title(name, version);
  page.section("NAME");
  std::string_view what = command.description;
  if (what.starts_with("Ingot: ")) what.remove_prefix(7);
  while (what.ends_with('.')) what.remove_suffix(1);
  page.line(filled(escape(name) + " \\- " + prose(lower_first(what))));
  page.section("SYNOPSIS");
  add_synopsis(page, command);
}

void add_commands(Page& page, const CommandText& program, const CommandText& command) {
  if (command.commands.empty()) return;
  page.section("COMMANDS");
  for (const CommandText& each : command.commands) {
    const std::string page_of_it = bold(page_name(program, each)) + "(1)";
    page.tagged(&program == &command ? page_of_it : bold(each.name), each.description + ".");
  }
}

// What a command says itself at the end of its help: headings with indented lines, which stay as they are, and prose.
// `heading` is called with "Specs:", and with each line of prose before it is printed.
template <class Heading>
void add_text(Page& page, const std::string& text, const Heading& heading) {
  std::istringstream lines(text);
  std::vector<std::string> block;
  const auto finish = [&] {
    if (!block.empty()) page.literal(block);
    block.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      block.push_back(line.substr(2));
      continue;
    }
    finish();
    if (line.empty()) continue;
    heading(line);
    if (!line.ends_with(':')) page.paragraph(line);
  }
  finish();
}

void add_footer(Page& page, const std::string& footer) {
  add_text(page, footer, [&](const std::string& line) {
    if (tells_exit_codes(line)) {
      page.section("EXIT STATUS");
    } else {
      page.section(line.ends_with(':') ? upper(line.substr(0, line.size() - 1)) : "NOTES");
    }
  });
}

// Of commands within the command: how each is called, and its options.
void add_nested(Page& page, const CommandText& command) {
  for (const CommandText& each : command.commands) {
    if (each.passes_on) continue;
    page.subsection(each.path);
    add_synopsis(page, each);
    page.paragraph(each.description + ".");
    add_options(page, each);
    if (each.footer != command.footer) {
      add_text(page, each.footer, [&](const std::string& line) {
        if (line.ends_with(':')) page.paragraph(line);
      });
    }
    add_nested(page, each);
  }
}

void add_terms(Page& page, std::string_view title, const std::vector<NotedTerm>& terms) {
  if (terms.empty()) return;
  page.section(title);
  for (const NotedTerm& each : terms) page.tagged(bold(each.term), each.meaning);
}

void add_see_also(Page& page, const CommandText& program, const CommandText& command) {
  page.section("SEE ALSO");
  std::string names;
  const auto add = [&](const CommandText& each) {
    if (&each != &command) names += (names.empty() ? "" : ",\n") + bold(page_name(program, each)) + "(1)";
  };
  add(program);
  for (const CommandText& each : program.commands) add(each);
  page.line(names);
  page.line(".PP");
  page.line("The documents are in share/doc/ingot of an installation.");
}

}  // namespace

std::string manual_page(const CommandText& program, const CommandText& command, const std::string& version) {
  const CommandNotes notes = notes_of(command.name);
  Page page;
  add_head(page, page_name(program, command), command, version);
  page.section("DESCRIPTION");
  for (const std::string_view paragraph : notes.about) page.paragraph(paragraph);
  if (notes.about.empty()) page.paragraph(command.description + ".");
  add_commands(page, program, command);
  if (!command.options.empty()) {
    page.section("OPTIONS");
    add_options(page, command);
  }
  if (&program != &command) add_nested(page, command);
  add_footer(page, command.footer);
  add_terms(page, "EXAMPLES", notes.examples);
  if (!tells_exit_codes(command.footer)) add_terms(page, "EXIT STATUS", notes.exit_codes);
  add_terms(page, "ENVIRONMENT", notes.environment);
  add_terms(page, "FILES", notes.files);
  add_see_also(page, program, command);
  return page.take();
}

}  // namespace ingot::tools
