#include "ingot/codegen/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <variant>

#include "ingot/codegen/types/template_instance.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

struct PassList {
  std::array<Pass, 4> passes{};
  std::size_t count = 0;
  constexpr void add(Pass pass) { passes[count++] = pass; }
};

constexpr std::size_t index_of(const ExtraPasses& extra) {
  return (extra.first ? 1U : 0U) + (extra.finish ? 2U : 0U) + (extra.whole ? 4U : 0U);
}

constexpr std::array<PassList, 8> all_pass_lists() {
  std::array<PassList, 8> lists{};
  for (const bool first : {false, true}) {
    for (const bool finish : {false, true}) {
      for (const bool whole : {false, true}) {
        PassList& list = lists[index_of({.first = first, .finish = finish, .whole = whole})];
        if (first) list.add(Pass::first);
        list.add(Pass::main);
        if (finish) list.add(Pass::finish);
        if (whole) list.add(Pass::whole);
      }
    }
  }
  return lists;
}

const char* asked_for(Pass pass) {
  return pass == Pass::first ? "no first pass" : pass == Pass::finish ? "no finishing pass" : "none in one launch";
}

}  // namespace

std::span<const Pass> passes_with(const ExtraPasses& extra) {
  static constexpr std::array kLists = all_pass_lists();
  const PassList& list = kLists[index_of(extra)];
  return std::span(list.passes).first(list.count);
}

std::span<const Pass> passes(const KernelSpec& spec) {
  return passes_with(std::visit([](const auto& s) { return extra_passes(s); }, spec));
}

bool has_pass(const KernelSpec& spec, Pass pass) { return std::ranges::find(passes(spec), pass) != passes(spec).end(); }

const char* suffix(Pass pass) {
  return pass == Pass::first    ? " (first pass)"
         : pass == Pass::finish ? " (finish)"
         : pass == Pass::whole  ? " (in one launch)"
                                : "";
}

Source generate(const KernelSpec& spec, Pass pass) {
  validate(spec);
  const std::string line = print(spec);
  if (!has_pass(spec, pass)) {
    throw Error(ErrorCode::invalid_spec, line,
                fmt::format("this kernel has {}: ask for one of passes(spec)", asked_for(pass)));
  }
  const TemplateInstance made = std::visit([pass](const auto& s) { return template_instance(s, pass); }, spec);
  return {.name = line + suffix(pass),
          .text = fmt::format("// {}\n#include \"{}\"\n{}constexpr auto {} = &ingot::{};\n", made.words, made.header,
                              made.functor, kKernelName, made.kernel)};
}

}  // namespace ingot
