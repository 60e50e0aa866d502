#include "ingot/codegen/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <variant>

#include "ingot/codegen/types/template_text.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::array kAllPasses{Pass::first, Pass::main,       Pass::finish,  Pass::whole, Pass::unaligned,
                                Pass::wide,  Pass::first_wide, Pass::keeping, Pass::kept};

struct PassList {
  std::array<Pass, kAllPasses.size()> passes{};
  std::size_t count = 0;
  constexpr void add(Pass pass) { passes[count++] = pass; }
};

// A bit for each of kAllPasses that a spec may have.
constexpr std::size_t index_of(const ExtraPasses& extra) {
  const std::array<bool, kAllPasses.size()> has{extra.first,     true,       extra.finish,     extra.whole,
                                                extra.unaligned, extra.wide, extra.first_wide, extra.kept,
                                                extra.kept};
  std::size_t bits = 0;
  for (std::size_t i = 0; i < has.size(); ++i) bits |= std::size_t{has[i]} << i;
  return bits;
}

constexpr auto all_pass_lists() {
  std::array<PassList, std::size_t{1} << kAllPasses.size()> lists{};
  for (std::size_t bits = 0; bits < lists.size(); ++bits) {
    for (std::size_t i = 0; i < kAllPasses.size(); ++i) {
      if ((bits >> i & 1U) != 0) lists[bits].add(kAllPasses[i]);
    }
  }
  return lists;
}

const char* asked_for(Pass pass) {
  switch (pass.variant) {
    case Variant::standard: break;
    case Variant::whole: return "none in one launch";
    case Variant::unaligned: return "none for any alignment";
    case Variant::wide: return "none for wide rows";
    case Variant::keeping: return "none that keeps values";
    case Variant::kept: return "none for kept values";
  }
  return pass.stage == Stage::first ? "no first pass" : "no finishing pass";
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
  switch (pass.variant) {
    case Variant::standard: break;
    case Variant::whole: return " (in one launch)";
    case Variant::unaligned: return " (any alignment)";
    case Variant::wide: return " (wide rows)";
    case Variant::keeping: return " (first pass, keeping values)";
    case Variant::kept: return " (kept values)";
  }
  return pass.stage == Stage::first ? " (first pass)" : pass.stage == Stage::finish ? " (finish)" : "";
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
