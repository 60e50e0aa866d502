#include "ingot/codegen/kernel_spec.h"

#include <fmt/format.h>

#include <concepts>
#include <optional>
#include <ostream>
#include <variant>

#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

using SpecsWithTestsOfTheirOwn = TypeList<GemmPairSpec, GroupedGemmSpec, CombineSpec, MxQuantizeSpec, FloatQuantizeSpec,
                                          PackWeightSpec, DequantMatmulSpec>;

template <class... Specs>
constexpr bool words_differ(TypeList<Specs...>) {
  const auto count = [](std::string_view word) { return ((word == Specs::kWord ? 1 : 0) + ...); };
  return ((count(Specs::kWord) == 1) && ...);
}
static_assert(words_differ(KernelSpecs{}), "two operations have the same kWord");

template <class... Specs>
constexpr bool compare(TypeList<Specs...>) {
  return (std::equality_comparable<Specs> && ...);
}
static_assert(compare(KernelSpecs{}), "an operation's spec has no operator==");

// "amax, cast or gemm"
std::string operations() {
  std::vector<std::string_view> words;
  for_each_type(KernelSpecs{}, [&]<class Spec>() { words.push_back(Spec::kWord); });
  std::string text(words.front());
  for (std::size_t i = 1; i < words.size(); ++i) {
    text += fmt::format("{}{}", i + 1 == words.size() ? " or " : ", ", words[i]);
  }
  return text;
}

}  // namespace

std::size_t hash_value(const KernelSpec& spec) {
  return std::visit([](const auto& s) { return hash_value(s); }, spec);
}

void validate(const KernelSpec& spec) {
  std::visit([](const auto& s) { validate_spec(s); }, spec);
}

std::string print(const KernelSpec& spec) {
  return std::visit([](const auto& s) { return print_spec(s); }, spec);
}

KernelSpec parse(std::string_view line) {
  const SpecReader reader(line);
  std::optional<KernelSpec> read;
  for_each_type(KernelSpecs{}, [&]<class Spec>() {
    if (reader.word(0) != Spec::kWord) return;
    Spec spec;
    read_spec(reader, spec);
    read = std::move(spec);
  });
  if (!read) reader.fail(fmt::format("\"{}\" is no kernel; expected {}", reader.word(0), operations()));
  validate(*read);
  return *std::move(read);
}

std::ostream& operator<<(std::ostream& stream, const KernelSpec& spec) { return stream << print(spec); }

std::vector<KernelSpec> all_valid_specs() {
  std::vector<KernelSpec> specs;
  for_each_type(KernelSpecs{}, [&]<class Spec>() {
    if (contains<Spec>(SpecsWithTestsOfTheirOwn{})) return;
    for (const Spec& spec : valid_specs<Spec>()) specs.push_back(spec);
  });
  return specs;
}

}  // namespace ingot
