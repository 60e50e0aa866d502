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

constexpr std::array kAllPasses{Pass::first, Pass::main, Pass::finish,  Pass::whole, Pass::unaligned,
                                Pass::wide,  Pass::pair, Pass::keeping, Pass::kept};

struct PassList {
  std::array<Pass, kAllPasses.size()> passes{};
  std::size_t count = 0;
  constexpr void add(Pass pass) { passes[count++] = pass; }
};

// A bit for each pass that a spec may have.
constexpr std::size_t index_of(const ExtraPasses& extra) {
  const auto bit = [](bool has, Pass pass) { return has ? std::size_t{1} << static_cast<unsigned>(pass) : 0; };
  return bit(extra.first, Pass::first) | bit(true, Pass::main) | bit(extra.finish, Pass::finish) |
         bit(extra.whole, Pass::whole) | bit(extra.unaligned, Pass::unaligned) | bit(extra.wide, Pass::wide) |
         bit(extra.pair, Pass::pair) | bit(extra.kept, Pass::keeping) | bit(extra.kept, Pass::kept);
}

constexpr auto all_pass_lists() {
  std::array<PassList, std::size_t{1} << kAllPasses.size()> lists{};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (const Pass pass : kAllPasses) {
      if ((i >> static_cast<unsigned>(pass) & 1U) != 0) lists[i].add(pass);
    }
  }
  return lists;
}

const char* asked_for(Pass pass) {
  return pass == Pass::first       ? "no first pass"
         : pass == Pass::finish    ? "no finishing pass"
         : pass == Pass::whole     ? "none in one launch"
         : pass == Pass::unaligned ? "none for any alignment"
         : pass == Pass::wide      ? "none for wide rows"
         : pass == Pass::pair      ? "none for pairs of blocks"
         : pass == Pass::keeping   ? "none that keeps values"
                                   : "none for kept values";
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
  return pass == Pass::first       ? " (first pass)"
         : pass == Pass::finish    ? " (finish)"
         : pass == Pass::whole     ? " (in one launch)"
         : pass == Pass::unaligned ? " (any alignment)"
         : pass == Pass::wide      ? " (wide rows)"
         : pass == Pass::pair      ? " (pairs of blocks)"
         : pass == Pass::keeping   ? " (first pass, keeping values)"
         : pass == Pass::kept      ? " (kept values)"
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
